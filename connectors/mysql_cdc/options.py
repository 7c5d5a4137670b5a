"""The options of ``mysql_cdc``, parsed and checked (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from backlog_spark.common.durations import format_duration
from backlog_spark.common.intervals import INTERVAL_OPTIONS, resolve_intervals
from backlog_spark.common.table_names import TableName
from backlog_spark.common.table_patterns import check_whole_names
from backlog_spark.errors import SettingError
from backlog_spark.spi.user_options import UserOptions, unknown_option

from .binlog.inflating import MOST_INFLATED
from .catalogue import OPTIONS
from .output.metadata import BY_DEFAULT, by_default, parse_names
from .schema.choice import ColumnChoice, parse_patterns
from .schema.ddl.statements import TRUNCATE
from .server.login import Login

__all__ = ["MySqlOptions"]


_MODES = ("initial", "snapshot", "latest", "earliest", "timestamp", "specific")
_MODE_OF = {
    "startup.timestampMillis": "timestamp",
    "startup.file": "specific",
    "startup.position": "specific",
    "startup.gtidSet": "specific",
}
_FOR_EXAMPLE = 'For example "shop.orders". A database with a dot is "`my.shop`.orders".'
_PLAIN = Login()
_EVERY_COLUMN = ColumnChoice()
# Debezium's letters of operations, with the kinds of changes here.
_OPERATIONS = {"c": "insert", "u": "update", "d": "delete", "t": TRUNCATE}
_SERVER_IDS = range(2**30, 2**32)
_LEAST_IDS = 16
_KNOWN = {name.lower(): name for name in (*(o.name for o in OPTIONS), *INTERVAL_OPTIONS)}
# Spark adds these to the options itself.
_SPARK_OWN = {"path"}


@dataclass(frozen=True)
class MySqlOptions:
    """Parsed options.

    Parameters
    ----------
    host, port, user, password
        The server's address, and the user.
    server_ids : range
        Server ids under which the binary log is read.
    login : Login
        Where to find the password if it is not here, and how to secure the connection.
    connect_timeout_ms, max_retries, backoff_ms : int
        How long to wait for a server, how often to try again, and how long to wait before that at first.
    heartbeat_ms : int
        How often an idle dump of the binary log shows that it lives.
    max_row_bytes : int
        Most bytes of a row.
    metadata : tuple of str
        Metadata columns of the stream.
    tables : tuple of (str, str)
        Database and name of each table to capture; empty with ``table_pattern``.
    table_pattern : str
        Regular expression that must match the whole of ``database.table``; "" with ``tables``.
    tables_exclude : tuple of str
        Regular expressions; tables whose whole ``database.table`` one matches are not captured.
    columns : ColumnChoice
        Which columns are read, and how.
    skipped : frozenset of str
        Kinds of changes in the log that are dropped: ``"insert"``, ``"update"``, ``"delete"``, ``"truncate"``.
    format : str
        ``"row"`` or ``"debezium"``.
    adds_tables : bool
        Whether tables that are found later are captured.
    evolves : bool
        Whether the stream continues after an ALTER TABLE.
    statement_ignore : str
        Regular expression over ``database.table``. Statement-format changes of such tables pass.
    table_swap : str
        What happens where another table takes a captured one's name, unless a known tool made it: ``"snapshot"``,
        ``"follow"`` or ``"tools"``.
    rewriting : str
        What happens after an ALTER TABLE that changed old rows: ``"snapshot"``, ``"stop"`` or ``"ignore"``.
    fills : str
        What gives new columns their one value in old rows: ``"sink"``, ``"nothing"``, ``"again"`` or, if it is left to
        ``rewriting``, "".
    table_events : str
        What a TRUNCATE or DROP of a captured table does: ``"emit"``, ``"skip"`` or ``"fail"``.
    zero_date_fails : bool
        Whether a date that Spark cannot hold ends the query. Otherwise it becomes NULL.
    chunk_size : int
        Rows of one task's SELECT.
    chunk_key_column : str
        Column by which the snapshot is cut; "" for the primary key.
    distribution_factor_lower, distribution_factor_upper : float
        Between these bounds of keys per row, chunks are cut by arithmetic.
    max_rows : int
        Most rows of a batch.
    max_rows_given : bool
        Whether the user set ``max_rows``. Then it also bounds snapshot batches that are sized by time.
    interval_ms, during_backlog_ms : int or None
        Milliseconds; None when unset.
    backlog_lag_ms : int or None
        The binary log is backlog from this lag on; None for never.
    target : str
        ``"latest"``, ``"backlogEnd"`` or ``"none"``.
    by_clock : bool
        Whether event time follows the system time during the binary log phase.
    query_token, poll_wait_ms : str, int
        For `backlog_spark.spi.pacing`; a query sets them.
    signal_table : (str, str) or None
        Database and name of the table whose new rows are signals.
    signals_token : str
        For `backlog_spark.spi.signals`; a query sets it.
    most_inflated : int
        Most bytes that a compressed transaction or event may inflate to.
    renews : bool
        Whether the tables are read again if the log after the stream's position no longer exists.
    startup_mode : str
        ``"initial"``, ``"snapshot"``, ``"latest"``, ``"earliest"``, ``"timestamp"`` or ``"specific"``.
    server : str
        The server that connections must reach, as an offset names it; "" for any. Not an option: the planner sets it
        for the tasks.
    startup_timestamp_ms, startup_file, startup_position, startup_gtid_set
        Where ``"timestamp"`` and ``"specific"`` start.

    Raises
    ------
    SettingError
        From `parse`: an option is unknown, missing, malformed or out of bounds.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    tables: tuple[tuple[str, str], ...]
    table_pattern: str = ""
    tables_exclude: tuple[str, ...] = ()
    columns: ColumnChoice = _EVERY_COLUMN
    skipped: frozenset[str] = frozenset()
    format: str = "row"
    adds_tables: bool = False
    evolves: bool = True
    table_swap: str = "snapshot"
    rewriting: str = "snapshot"
    fills: str = ""
    table_events: str = "fail"
    zero_date_fails: bool = False
    statement_ignore: str = ""
    chunk_size: int = 100_000
    chunk_key_column: str = ""
    distribution_factor_lower: float = 0.05
    distribution_factor_upper: float = 1000.0
    max_rows: int = 200_000
    max_rows_given: bool = False
    interval_ms: int | None = None
    during_backlog_ms: int | None = None
    backlog_lag_ms: int | None = None
    target: str = "latest"
    by_clock: bool = False
    query_token: str = field(default="", repr=False)
    poll_wait_ms: int = 0
    signal_table: tuple[str, str] | None = None
    signals_token: str = field(default="", repr=False)
    most_inflated: int = MOST_INFLATED
    renews: bool = False
    startup_mode: str = "initial"
    startup_timestamp_ms: int = 0
    startup_file: str = ""
    startup_position: int = 4
    startup_gtid_set: str = ""
    server_ids: range = _SERVER_IDS
    login: Login = _PLAIN
    connect_timeout_ms: int = 10_000
    max_retries: int = 5
    backoff_ms: int = 500
    heartbeat_ms: int = 30_000
    max_row_bytes: int = 256 << 20
    metadata: tuple[str, ...] = BY_DEFAULT
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
    def has_snapshot(self) -> bool:
        """Whether the stream begins with a snapshot, which is backlog."""
        return self.startup_mode in ("initial", "snapshot")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> MySqlOptions:
        """Parse the options of ``readStream``; names in any case."""
        given = UserOptions(options)
        for name in options:
            if name.lower() not in _KNOWN and name.lower() not in _SPARK_OWN:
                raise unknown_option(name, _KNOWN.values(), "mysql_cdc has no such option.")
        for name in ("host", "user"):
            given.required(name, f'Set .option("{name}", …).', "mysql_cdc needs this option.")
        tables, pattern = _tables(given)
        signal_table = _signal_table(given, tables)
        form = given.choice("format", ("row", "debezium"))
        several = form != "row" or bool(pattern) or len(tables) > 1
        mode = _startup_mode(given)
        metadata = parse_names(given["metadatacolumns"]) if "metadatacolumns" in given else by_default(several)
        # A query checks the two intervals itself; plain readStream has only this check.
        intervals = resolve_intervals({}, {}, [("mysql_cdc", dict(options))])
        return cls(
            host=given["host"],
            port=given.integer("port", 3306, 1, 65535),
            user=given["user"],
            password=given.get("password", ""),
            tables=tables,
            table_pattern=pattern,
            # A pattern may match the signal table too.
            tables_exclude=(
                *parse_patterns(given, "tables.exclude"),
                *([re.escape(".".join(signal_table))] if signal_table and pattern else []),
            ),
            columns=ColumnChoice.parse(given),
            skipped=_skipped(given),
            format=form,
            adds_tables=_adds_tables(given, mode),
            evolves=given.choice("schemaChange", ("evolve", "fail")) == "evolve",
            table_swap=given.choice("tableSwap", ("snapshot", "follow", "tools")),
            rewriting=_rewriting(given, mode),
            fills=given.choice("fillsColumns", ("sink", "nothing", "again")) if "fillscolumns" in given else "",
            table_events=_table_events(given, metadata, several, form),
            zero_date_fails=given.choice("zeroDate", ("null", "error")) == "error",
            statement_ignore=_pattern(given, "binlog.statement.ignore"),
            chunk_size=given.integer("chunkSize", cls.chunk_size, 1),
            chunk_key_column=given.get("chunkkeycolumn", ""),
            distribution_factor_lower=given.number("distributionFactorLower", cls.distribution_factor_lower, 0, 1),
            distribution_factor_upper=given.number("distributionFactorUpper", cls.distribution_factor_upper, 1),
            max_rows=given.integer("maxRowsPerBatch", cls.max_rows, 1),
            max_rows_given="maxrowsperbatch" in given,
            interval_ms=None if intervals.interval_origin == "default" else intervals.interval_ms,
            during_backlog_ms=intervals.during_backlog_ms,
            backlog_lag_ms=_lag(given),
            target=given.choice("availableNowTarget", ("latest", "backlogEnd", "none")),
            by_clock=given.flag("useProcessingTimeDuringBinlog", False),
            query_token=given.get("querytoken", ""),
            poll_wait_ms=given.integer("pollWait", 0, 0),
            signal_table=signal_table,
            signals_token=given.get("signalstoken", ""),
            most_inflated=given.integer("maxInflatedBytes", MOST_INFLATED, 1),
            renews=_renews(given, metadata, several, form),
            startup_mode=mode,
            startup_timestamp_ms=given.integer("startup.timestampMillis", 0, 0),
            startup_file=given.get("startup.file", ""),
            startup_position=given.integer("startup.position", 4, 4),
            server_ids=_server_ids(given["serverid"]) if "serverid" in given else _SERVER_IDS,
            login=Login.parse(given),
            connect_timeout_ms=_duration(given, "connect.timeout", cls.connect_timeout_ms, 250, 3_600_000),
            max_retries=given.integer("connect.max-retries", cls.max_retries, 0, 1000),
            backoff_ms=_duration(given, "connect.backoff", cls.backoff_ms, 0, 30_000),
            heartbeat_ms=_duration(given, "heartbeat.interval", cls.heartbeat_ms, 1_000, 3_600_000),
            max_row_bytes=given.integer("maxRowBytes", cls.max_row_bytes, 1 << 24, 1 << 30),
            metadata=metadata,
            startup_gtid_set="".join(given.get("startup.gtidset", "").split()),
        )

    def connect_arguments(self) -> dict[str, Any]:
        """Arguments for ``pymysql.connect``."""
        return {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": (self.login.password() or self.password).encode(),  # PyMySQL takes a str for latin1
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


def _skipped(given: UserOptions) -> frozenset[str]:
    text = given.get("skipped.operations", "none")
    letters = {part.strip().lower() for part in text.split(",") if part.strip()} - {"none"}
    if letters - set(_OPERATIONS):
        raise SettingError("skipped.operations", text, "is no list of c, u, d and t, and not none.")
    return frozenset(_OPERATIONS[letter] for letter in letters)


def _adds_tables(given: UserOptions, mode: str) -> bool:
    found = given.flag("scanNewlyAddedTables", False)
    if found and mode != "initial":
        raise SettingError(
            "scanNewlyAddedTables", "true", f"has no meaning with startup.mode={mode}.", "Set startup.mode=initial."
        )
    return found


def _rewriting(given: UserOptions, mode: str) -> str:
    """The option; by default stop if the stream has never read the whole tables."""
    found = given.choice("rewritingAlter", ("snapshot", "stop", "ignore"))
    return found if "rewritingalter" in given or mode in ("initial", "snapshot") else "stop"


def _table_events(given: UserOptions, metadata: tuple[str, ...], several: bool, form: str) -> str:
    """The option; by default emit, or fail if a row could not tell its statement and table."""
    found = given.choice("tableEvents", ("emit", "skip", "fail"))
    missing = _missing(metadata, several, form)
    if found != "emit" or not missing:
        return found
    if "tableevents" not in given:
        return "fail"
    raise SettingError(
        "tableEvents", given["tableevents"], f"its rows need {', '.join(missing)} in metadataColumns.",
        "Add it there, or set tableEvents=skip or tableEvents=fail.",
    )  # fmt: skip


def _missing(metadata: tuple[str, ...], several: bool, form: str) -> list[str]:
    """The metadata columns without which a row cannot tell that its table was emptied."""
    needed = {"_change_type"} if form == "row" else set()
    needed |= {"_database", "_table"} if form == "row" and several else set()
    return sorted(needed - set(metadata))


def _renews(given: UserOptions, metadata: tuple[str, ...], several: bool, form: str) -> bool:
    found = given.choice("snapshot.mode", ("initial", "when_needed"))
    if found == "when_needed" and (missing := _missing(metadata, several, form)):
        raise SettingError(
            "snapshot.mode", found, f"rows that empty a table need {', '.join(missing)} in metadataColumns.",
            "Add it there, or leave out snapshot.mode.",
        )  # fmt: skip
    return found == "when_needed"


def _tables(given: UserOptions) -> tuple[tuple[tuple[str, str], ...], str]:
    """The options ``table`` and ``tablePattern``; exactly one must be given."""
    text, pattern = given.get("table", ""), given.get("tablepattern", "")
    if bool(text) == bool(pattern):
        raise SettingError(
            "table", text or None, "mysql_cdc needs this option or tablePattern, and not both.",
            'Set .option("table", "database.table").',
        )  # fmt: skip
    _pattern(given, "tablePattern")
    tables: list[tuple[str, str]] = []
    try:
        named = TableName.parse_all(text) if text else []
    except ValueError as error:
        raise SettingError("table", text, f"{str(error)!r} is not database.table.", _FOR_EXAMPLE) from None
    for name in named:
        if name in tables:
            raise SettingError("table", text, f"names {name} twice.", "Name each table once.")
        tables.append((name.database, name.table))
    return tuple(tables), pattern


def _pattern(given: UserOptions, name: str) -> str:
    found = given.text(name)
    check_whole_names(name, found)
    return found


def _signal_table(given: UserOptions, tables: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    text = given.get("signal.table", "").strip()
    if not text:
        return None
    try:
        name = TableName.parse(text)
    except ValueError:
        raise SettingError("signal.table", text, "is not database.table.", 'For example "shop.signals".') from None
    if name in tables:
        raise SettingError("signal.table", text, "is captured.", "Leave it out of the option table.")
    if given.get("startup.mode", "") == "snapshot":
        raise SettingError(
            "signal.table", text, "has no meaning with startup.mode=snapshot, which ends.", "Leave it out."
        )
    return name.database, name.table


def _startup_mode(given: UserOptions) -> str:
    """The mode. Options that belong to it must be given, those of other modes must not."""
    mode = given.choice("startup.mode", _MODES)
    for name, of in _MODE_OF.items():
        if name.lower() in given and mode != of:
            raise SettingError(
                name, given[name.lower()], f"has no meaning with startup.mode={mode}.", f"Set startup.mode={of}."
            )
    if mode == "timestamp" and not given.get("startup.timestampmillis"):
        raise SettingError("startup.timestampMillis", None, "startup.mode=timestamp needs it.")
    if mode == "specific" and bool(given.get("startup.file")) == bool(given.get("startup.gtidset")):
        raise SettingError(
            "startup.mode", mode, "needs either startup.file, with startup.position, or startup.gtidSet.", "Give one."
        )
    return mode


def _lag(given: UserOptions) -> int | None:
    found = given.duration("backlogLagThreshold")
    if found == 0:
        raise SettingError(
            "backlogLagThreshold", given.text("backlogLagThreshold"), "must be above 0.", 'For example "5 min".'
        )
    return found


def _server_ids(text: str) -> range:
    first, _, last = (part.strip() for part in text.partition("-"))
    found = range(int(first), int(last) + 1) if first.isdigit() and last.isdigit() else range(0)
    if not (len(found) >= _LEAST_IDS and found[0] >= 1 and found[-1] < 2**32):
        raise SettingError(
            "serverId", text, f"is no range of at least {_LEAST_IDS} ids from 1 to {2**32 - 1}.",
            "For example 5400-5499, if no replica and no other reader uses these.",
        )  # fmt: skip
    return found


def _duration(given: UserOptions, name: str, default: int, low: int, high: int) -> int:
    """Milliseconds."""
    found = given.duration(name)
    if found is None:
        return default
    if not low <= found <= high:
        raise SettingError(
            name, given.text(name), f"is not between {format_duration(low)} and {format_duration(high)}."
        )
    return found
