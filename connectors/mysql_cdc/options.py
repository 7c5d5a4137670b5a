"""The options of ``mysql_cdc``, each declared once, with its meaning and its names in Flink CDC and Debezium (pure).

The links in the texts are relative to docs/mysql_cdc.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from backlog_spark.common.intervals import INTERVAL_OPTIONS, resolve_intervals
from backlog_spark.errors import SettingError
from backlog_spark.spi.options import (
    Option,
    choice,
    duration,
    flag,
    integer,
    number,
    option,
    options_of,
    parsed,
    switch,
    text,
    values,
)  # fmt: skip
from backlog_spark.spi.user_options import UserOptions, check_names

from .binlog.inflating import MOST_INFLATED
from .option_parsers import (
    LEAST_IDS,
    SERVER_IDS,
    needed,
    parse_operations,
    parse_pattern,
    parse_server_ids,
    parse_signal_table,
    parse_tables,
)  # fmt: skip
from .output.metadata import BY_DEFAULT, METADATA, by_default, parse_names
from .schema.choice import ColumnChoice, patterns
from .server.login import Login

__all__ = ["MySqlOptions"]

_STORAGE = "fs."
_FLINK_TABLES = "database-name, table-name"
_MODE_OF = {
    "startup.timestampMillis": "timestamp",
    "startup.file": "specific",
    "startup.position": "specific",
    "startup.gtidSet": "specific",
}


@dataclass(frozen=True, kw_only=True)
class MySqlOptions:
    """Parsed options.

    Raises
    ------
    SettingError
        From `parse`: an option is unknown, missing, malformed or out of bounds.
    """

    host: str = option("host", needed, shown="required", flink="hostname", debezium="database.hostname")
    """Server to read from."""
    port: int = integer("port", 3306, 1, 65535, flink="port", debezium="database.port")
    """Its port."""
    user: str = option("user", needed, shown="required", flink="username", debezium="database.user")
    """Needs SELECT on the table, REPLICATION SLAVE and REPLICATION CLIENT (MariaDB: BINLOG MONITOR). MySQL without
    GTIDs: also RELOAD."""
    password: str = text("password", secret=True, flink="password", debezium="database.password")
    """Never written to logs, offsets or errors."""
    login: Login = parsed(Login.parse, Login, default=Login())
    connect_timeout_ms: int = duration(
        "connect.timeout", 10_000, 250, 3_600_000, flink="connect.timeout", debezium="connect.timeout.ms"
    )
    """How long to wait for a server, and for each of its answers until the user is logged in."""
    max_retries: int = integer(
        "connect.max-retries", 5, 0, 1000, flink="connect.max-retries", debezium="errors.max.retries"
    )
    """How often to try again after an error that may pass: a lost connection, a server that restarts or has too many
    connections, a lock timeout, a failover. Each success sets the count to 0."""
    backoff_ms: int = duration("connect.backoff", 500, 0, 30_000, debezium="errors.retry.delay.initial.ms")
    """Wait before the first retry. The wait doubles with each retry, up to 30 s."""
    heartbeat_ms: int = duration("heartbeat.interval", 30_000, 1_000, 3_600_000, flink="heartbeat.interval")
    """How often the server sends a heartbeat on an idle connection of the binary log. After three intervals without one
    the connection is opened again."""
    server_ids: range = option(
        "serverId",
        parse_server_ids,
        SERVER_IDS,
        type="range",
        shown=f"{SERVER_IDS[0]}-{SERVER_IDS[-1]}",
        bounds=f"1..{2**32 - 1}, at least {LEAST_IDS} ids",
        flink="server-id",
        debezium="database.server.id",
    )
    """Ids `first-last` for readers of the binary log. The server ends a reader if another one has its id. So each
    reader takes a random id of the range. The planner and each task need one. No replica may have one of them."""
    tables: tuple[tuple[str, str], ...] = option(
        "table",
        parse_tables,
        type="names",
        shown="this or tablePattern",
        flink=_FLINK_TABLES,
        debezium="table.include.list",
    )
    """`database.table`, or several separated by commas."""
    table_pattern: str = option(
        "tablePattern", parse_pattern, "", type="regular expression", shown="this or table", flink=_FLINK_TABLES
    )
    """Captures each table if the expression matches its whole `database.table`, in Python's syntax. The checkpoint
    fixes the tables, except with `scanNewlyAddedTables`."""
    adds_tables: bool = flag(
        "scanNewlyAddedTables", bounds="true, false; with startup.mode=initial", flink="scan.newly-added-table.enabled"
    )
    """Also captures tables that are added later, to the options or to the server. The source looks for them every 10
    seconds. It reads their snapshots while it follows the other tables ([Many tables](#many-tables))."""
    tables_exclude: tuple[str, ...] = patterns(
        "tables.exclude", "database.table", flink=_FLINK_TABLES, debezium="table.exclude.list"
    )
    """Separated by commas. A table is not captured if one of them matches its whole `database.table`."""
    columns: ColumnChoice = parsed(ColumnChoice.parse, ColumnChoice, default=ColumnChoice())
    skipped: frozenset[str] = option(
        "skipped.operations",
        parse_operations,
        frozenset(),
        type="letters",
        shown="none",
        bounds="c, u, d, t, none",
        debezium="skipped.operations",
    )
    """Kinds of changes of the log to drop, separated by commas: c (inserts), u (updates), d (deletes), t (truncates, as
    with tableEvents=skip)."""
    format: str = choice("format", ("row", "debezium"))
    """row: the table's columns. Several tables must have the same columns. debezium: a `key` and a `value` with
    Debezium's envelope, as JSON, for tables with any columns ([Many tables](#many-tables))."""
    evolves: bool = switch("schemaChange", ("evolve", "fail"), "evolve")
    """evolve: the stream continues after an ALTER TABLE if its columns allow it. Otherwise it stops after everything
    before the statement, and continues after a restart ([Schema changes](mysql_cdc_schema.md#schema-changes)). fail: it
    stops at the first ALTER TABLE that may change columns."""
    table_swap: str = choice("tableSwap", ("snapshot", "follow", "tools"))
    """What happens if a RENAME gives a captured table's name to another table. A table of gh-ost or
    pt-online-schema-change has the same rows: the stream continues with it. For any other table, snapshot: the old
    table counts as dropped, and the new one is read from its beginning; follow: the stream continues with the new
    table's changes; tools: the stream stops ([Online schema change](mysql_cdc_schema.md#online-schema-change)). With
    schemaChange=fail the stream stops at every such RENAME."""
    statement_ignore: str = option("binlog.statement.ignore", parse_pattern, "", type="regular expression")
    """Statement-format changes of a table do not stop the query if the expression matches its whole `database.table`
    ([Statement-format changes](mysql_cdc_server.md#statement-format-changes)). It must not match a captured table."""
    table_events: str = choice("tableEvents", ("emit", "skip", "fail"))
    """What TRUNCATE and DROP of a captured table do ([Truncated and dropped
    tables](mysql_cdc_schema.md#truncated-and-dropped-tables)). emit: the stream has a row for the statement, and
    `DeltaUpsert` removes the table's rows. skip: the stream has no such row, and the target keeps the rows. fail: the
    query stops. After a restart with another value it continues from there. fail is the default if `metadataColumns`
    leaves out `_change_type` or, with several tables, `_database` or `_table`."""
    rewriting: str = choice("rewritingAlter", ("snapshot", "stop", "ignore"))
    """What happens after an ALTER TABLE that changes values of rows that are there, or adds a column with a default.
    The binary log does not have these values ([Statements that change old
    rows](mysql_cdc_schema.md#statements-that-change-old-rows)). snapshot: the table is read again while the stream
    continues. stop: the stream stops before the statement's rows. ignore: the target keeps the old values. stop is the
    default without a snapshot (`startup.mode`). A query sets stop for keyed operators and for functions such as
    filters, and ignore for sinks that append all rows, unless you set the option."""
    signal_table: tuple[str, str] | None = option(
        "signal.table", parse_signal_table, None, type="name", debezium="signal.data.collection"
    )
    """`database.table` whose new rows are [signals](mysql_cdc_signals.md), such as `execute-snapshot`. Its first three
    columns are id, type and data. It is not captured."""
    zero_date_fails: bool = switch("zeroDate", ("null", "error"), "error")
    """What happens to zero, partial and impossible dates (`0000-00-00`, `2024-00-10`, `2024-02-31`), which Spark does
    not have. null: they become NULL. error: the query stops and names table, column and date. In a key both stop the
    query."""
    chunk_size: int = integer(
        "chunkSize",
        100_000,
        1,
        flink="scan.incremental.snapshot.chunk.size",
        debezium="incremental.snapshot.chunk.size",
    )
    """Rows of one SELECT of the snapshot. Approximate if chunks are cut by arithmetic."""
    chunk_key_column: str = text(
        "chunkKeyColumn",
        shown="the primary key",
        bounds="a column of the table",
        flink="scan.incremental.snapshot.chunk.key-column",
    )
    """Column that cuts the snapshot into chunks. An index must begin with it. If it is not in the primary key, the
    whole snapshot is one batch ([Keys](#keys))."""
    distribution_factor_lower: float = number(
        "distributionFactorLower", 0.05, 0, 1, flink="chunk-key.even-distribution.factor.lower-bound"
    )
    """Chunks are cut by arithmetic, instead of stepping along the index, only if (greatest key - least key + 1) / rows
    is at least this. Applies where a batch has no limit on rows: with `intervalDuringBacklog` and without
    `maxRowsPerBatch`."""
    distribution_factor_upper: float = number(
        "distributionFactorUpper", 1000.0, 1, flink="chunk-key.even-distribution.factor.upper-bound"
    )
    """The upper bound of the same factor."""
    max_rows: int = integer("maxRowsPerBatch", 200_000, 1, debezium="max.batch.size")
    """Most rows per batch. A batch never splits a transaction or rows of one chunk key, so a larger transaction is one
    batch. Snapshot: with `intervalDuringBacklog` time sizes the batches, and only a value that you set is a limit too.
    With 0 there is no limit, and none for a snapshot that cannot be cut. Binary log: if a batch leaves rows behind, the
    next one may have twice as many, up to 16 times the default. So the lag stays near the time of one commit."""
    max_row_bytes: int = integer("maxRowBytes", 256 << 20, 1 << 24, 1 << 30)
    """Most bytes of one row. A larger row stops the query with an error, because a worker could run out of memory: a
    row takes a few times its own size."""
    most_inflated: int = integer("maxInflatedBytes", MOST_INFLATED, 1)
    """Most bytes that a compressed transaction of MySQL, or a compressed event of MariaDB, may have when it is
    inflated. A larger one stops the query. Transactions are inflated piece by piece, so this does not limit memory."""
    metadata: tuple[str, ...] = option(
        "metadataColumns",
        parse_names,
        BY_DEFAULT,
        type="names",
        shown=f"{','.join(BY_DEFAULT)}; with several tables or format=debezium also _database, _table",
        bounds=", ".join(METADATA),
    )
    """More columns, after the table's, that show where a row comes from ([Metadata columns](#metadata-columns)).
    `DeltaUpsert` needs the default ones."""
    interval_ms: int | None = parsed(None, Option("interval", type="duration"), default=None)
    """In the binary log phase there is at most one batch per interval. `BacklogQuery` sets it.
    `execution.checkpointing.interval` works too."""
    during_backlog_ms: int | None = parsed(
        None, Option("intervalDuringBacklog", type="duration", bounds="0 or >= interval"), default=None
    )
    """A snapshot batch is sized to take about this long (FLIP-309). 0: one batch.
    `execution.checkpointing.interval-during-backlog` works too."""
    backlog_lag_ms: int | None = duration("backlogLagThreshold", None, 1)
    """The binary log phase is backlog too after a batch whose end lags more than this behind the log's end, by the
    server's clock. Unset: only the snapshot is backlog."""
    by_clock: bool = flag("useProcessingTimeDuringBinlog")
    """From the binary log phase on, event time follows the system time (FLIP-326), for timers of later operators.
    Cannot be used with `with_watermark`. It only has an effect in queries of `backlog_spark`, not in a plain
    `readStream`."""
    query_token: str = text("queryToken", shown="set by a query's runner", secret=True)
    """With it the source asks the query whether other sources are in backlog, and what its rules say of this one."""
    fills: str = choice("fillsColumns", ("sink", "nothing", "again"), "", shown="set by a query's runner")
    """What gives new columns their default in old rows. sink: the query's sink. nothing: no row needs it. again: the
    table is read again, also with rewritingAlter=stop. Unset: as rewritingAlter says."""
    signals_token: str = text("signalsToken", shown="set by a query's runner", secret=True)
    """Lets the source ask the query for the signals of `query.signal`."""
    poll_wait_ms: int = integer("pollWait", 0, 0, shown="set by a query's runner")
    """Milliseconds that the source may wait for rows if it is the query's only source."""
    target: str = choice("availableNowTarget", ("latest", "backlogEnd", "none"))
    """Where `trigger(availableNow=True)` ends. latest: at the log's end at the start of the run. backlogEnd: with the
    snapshot. none: at once, without new rows."""
    startup_mode: str = choice(
        "startup.mode",
        ("initial", "snapshot", "latest", "earliest", "timestamp", "specific"),
        flink="scan.startup.mode",
        debezium="snapshot.mode",
    )
    """Where the stream starts ([Where it starts](#where-it-starts)). initial: a snapshot, then the binary log.
    snapshot: only the snapshot, with the log that its last batch needs; then the source has finished. latest: the log
    from now on. earliest: the whole log that the server has. timestamp, specific: the log from the position in the
    options below."""
    renews: bool = switch("snapshot.mode", ("initial", "when_needed"), "when_needed", debezium="snapshot.mode")
    """What happens if the server no longer has the binary log after the checkpoint's position. initial: the query
    stops. when_needed: it reads the tables again on the same checkpoint, and the target is emptied first ([Purged
    logs](mysql_cdc_server.md#purged-logs))."""
    snapshot_host: str = text("snapshot.host", shown="host")
    """A replica of `host` from which the rows of the snapshot are read, with the same user. The log is still read from
    `host` ([Reading from a replica](mysql_cdc_server.md#reading-from-a-replica))."""
    snapshot_port: int | None = integer("snapshot.port", None, 1, 65535, shown="port")
    """Its port."""
    metadata_location: str = option(
        "metadataLocation", lambda given, name: given.text(name).strip(), "", type="path",
        shown="unset; in a query a directory of the checkpoint",
    )  # fmt: skip
    """Directory for the [staged log](mysql_cdc_server.md#staged-log): a local path that the driver and the executors
    have, or a URL. With it a snapshot may take longer than the server keeps its binary log."""
    staging_most_bytes: int = integer("stagingMaxBytes", 20 << 30, 0)
    """Most bytes of the staged log, compressed. If there would be more, staging ends with a warning. 0: nothing is
    staged."""
    storage: tuple[tuple[str, str], ...] = parsed(
        lambda given: tuple((n[len(_STORAGE) :], value) for n, value in given.items() if n.startswith(_STORAGE)),
        Option("fs.*", secret=True),
        default=(),
    )
    """Arguments of the file system of `metadataLocation`, such as `fs.key` and `fs.secret`. Never written to logs,
    offsets or errors."""
    startup_timestamp_ms: int = integer(
        "startup.timestampMillis", 0, 0, shown="with timestamp: required", flink="scan.startup.timestamp-millis"
    )
    """Milliseconds since 1970 (UTC). The stream starts with the first transaction of that second or later, by the
    server's clock."""
    startup_file: str = text(
        "startup.file", shown="with specific: this or the GTID set", flink="scan.startup.specific-offset.file"
    )
    """The binary log file to start in."""
    startup_position: int = integer("startup.position", 4, 4, flink="scan.startup.specific-offset.pos")
    """Byte position in that file, between two transactions."""
    startup_gtid_set: str = option(
        "startup.gtidSet",
        lambda given, name: "".join(given.text(name).split()),
        "",
        shown="with specific: this or the file",
        flink="scan.startup.specific-offset.gtid-set",
    )
    """MySQL: the stream has all transactions that are not in this set."""
    # Whether the user set `max_rows`. Then it also bounds snapshot batches that are sized by time.
    max_rows_given: bool = parsed(lambda given: given.has("maxRowsPerBatch"), default=False)
    # The server that connections must reach, as an offset names it; "" for any. The planner sets it for the tasks.
    server: str = ""

    @property
    def several(self) -> bool:
        """Whether the stream may have rows of more than one table."""
        return bool(self.table_pattern) or len(self.tables) > 1

    def event_policy(self, kind: str) -> str:
        """What a TRUNCATE or DROP does, ``"truncate"`` or ``"drop"``: ``"emit"``, ``"skip"`` or ``"fail"``."""
        return "skip" if kind in self.skipped else self.table_events

    @property
    def reads_swaps_again(self) -> bool:
        """Whether a table that takes a captured one's name is read from its beginning, unless a known tool made it."""
        return self.table_swap == "snapshot" and self.evolves and self.table_events != "fail"

    @property
    def of_snapshot(self) -> MySqlOptions:
        """The options with which rows of the snapshot are read."""
        if not self.snapshot_host:
            return self
        port = self.snapshot_port or self.port
        return replace(self, host=self.snapshot_host, port=port, server="", snapshot_host="", snapshot_port=None)

    @property
    def has_snapshot(self) -> bool:
        """Whether the stream begins with a snapshot, which is backlog."""
        return self.startup_mode in ("initial", "snapshot")

    @property
    def stages(self) -> bool:
        """Whether the log is staged while a snapshot is read."""
        return bool(self.metadata_location) and self.may_stage

    @property
    def may_stage(self) -> bool:
        """Whether it is staged in a query with a checkpoint.

        Not if columns are left out or masked: a row of the log has them all.
        """
        hides = self.columns.include or self.columns.exclude or self.columns.mask
        return bool(self.staging_most_bytes and self.has_snapshot and not hides)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> MySqlOptions:
        """Parse the options of ``readStream``; names in any case."""
        given = UserOptions(options)
        known = [*(o.name for o in options_of(cls)), *INTERVAL_OPTIONS]
        # Spark adds the path itself.
        own = (name for name in options if name.lower() != "path" and not name.lower().startswith(_STORAGE))
        check_names(own, known, "mysql_cdc has no such option.")
        # A query checks the two intervals itself; plain readStream has only this check.
        intervals = resolve_intervals({}, {}, [("mysql_cdc", dict(options))])
        made = cls(
            **values(cls, given),
            interval_ms=None if intervals.interval_origin == "default" else intervals.interval_ms,
            during_backlog_ms=intervals.during_backlog_ms,
        )
        made._check_together(given)
        if not given.has("metadataColumns"):
            made = replace(made, metadata=by_default(made.several or made.format != "row"))
        if not given.has("rewritingAlter") and not made.has_snapshot:
            made = replace(made, rewriting="stop")
        if made.signal_table and made.table_pattern:  # the pattern may match it too
            made = replace(made, tables_exclude=(*made.tables_exclude, re.escape(".".join(made.signal_table))))
        return made._with_table_events(given)

    def _check_together(self, given: UserOptions) -> None:
        """Refuse options that need others, or exclude them."""
        mode = self.startup_mode
        if self.signal_table in self.tables:
            raise SettingError(
                "signal.table", given.text("signal.table").strip(), "is captured.", "Leave it out of the option table."
            )
        if self.signal_table and mode == "snapshot":
            raise SettingError(
                "signal.table", given.text("signal.table").strip(),
                "has no meaning with startup.mode=snapshot, which ends.", "Leave it out.",
            )  # fmt: skip
        for name, of in _MODE_OF.items():
            if given.has(name) and mode != of:
                raise SettingError(
                    name, given.text(name), f"has no meaning with startup.mode={mode}.", f"Set startup.mode={of}."
                )
        if mode == "timestamp" and not given.text("startup.timestampMillis"):
            raise SettingError(
                "startup.timestampMillis",
                None,
                "startup.mode=timestamp needs it.",
                "Set it to milliseconds since 1970, in UTC.",
            )
        if mode == "specific" and bool(given.text("startup.file")) == bool(given.text("startup.gtidSet")):
            raise SettingError(
                "startup.mode", mode, "needs either startup.file, with startup.position, or startup.gtidSet.",
                "Give one.",
            )  # fmt: skip
        if self.snapshot_port is not None and not self.snapshot_host:
            raise SettingError(
                "snapshot.port", self.snapshot_port, "has no meaning without snapshot.host.", "Set that, too."
            )
        if self.snapshot_host and not self.has_snapshot:
            raise SettingError(
                "snapshot.host", self.snapshot_host, f"has no meaning with startup.mode={mode}.", "Leave it out."
            )
        if self.adds_tables and mode != "initial":
            raise SettingError(
                "scanNewlyAddedTables", "true", f"has no meaning with startup.mode={mode}.", "Set startup.mode=initial."
            )

    def _with_table_events(self, given: UserOptions) -> MySqlOptions:
        """With the default of ``tableEvents``: fail if a row could not tell its statement and table."""
        needed = {"_change_type", *(("_database", "_table") if self.several else ())} if self.format == "row" else set()
        missing = ", ".join(sorted(needed - set(self.metadata)))
        if missing and self.renews:
            raise SettingError(
                "snapshot.mode", "when_needed", f"rows that empty a table need {missing} in metadataColumns.",
                "Add it there, or leave out snapshot.mode.",
            )  # fmt: skip
        if not missing or self.table_events != "emit":
            return self
        if given.has("tableEvents"):
            raise SettingError(
                "tableEvents", given.text("tableEvents"), f"its rows need {missing} in metadataColumns.",
                "Add it there, or set tableEvents=skip or tableEvents=fail.",
            )  # fmt: skip
        return replace(self, table_events="fail")

    def connect_arguments(self) -> dict[str, Any]:
        """Arguments for ``pymysql.connect``."""
        return {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": (
                self.login.password(self.host, self.port, self.user) or self.password
            ).encode(),  # PyMySQL takes a str for latin1
            "charset": "utf8mb4",
            "connect_timeout": self.connect_timeout_ms / 1000,
            "read_timeout": 300,
            "autocommit": True,
            "login": self.login,
            **self.login.tls(),
        }

    def __str__(self) -> str:
        shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
        return f"MySqlOptions({shown})"
