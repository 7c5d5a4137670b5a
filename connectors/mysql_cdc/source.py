"""The data source ``mysql_cdc``: a snapshot of some tables, then their binary log, as one stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pymysql
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from backlog_spark.errors import BacklogError
from backlog_spark.spi.options import Option, options_of
from backlog_spark.spi.reduced_reader import for_this_spark
from backlog_spark.spi.signals import Signal
from backlog_spark.spi.source_info import SourceInfo, WatermarkCharacteristic
from backlog_spark.spi.stream_only import StreamOnly

from .binlog import startup
from .offsets import Offset
from .options import MySqlOptions
from .output.rows import output_of
from .schema.declared import DeclaredTables
from .schema.table import SchemaChanged, TableSchema
from .server.connection import server_identity
from .server.login import warn_unverified
from .server.mysql import check_server, check_tables, connect, find_tables, load_schema, query
from .server.replica import check_snapshot_server
from .server.retries import is_transient
from .snapshot.signal_inbox import check_signal as check_on_server
from .snapshot.signal_inbox import signal_table
from .staging.staged_end import check_log as check_staged
from .stream.reader import MySqlCdcStreamReader

__all__ = [
    "MySqlCdcDataSource",
    "check",
    "check_options",
    "check_resume",
    "check_signal",
    "check_start",
    "documented_options",
    "inspect",
]


def check_options(options: Mapping[str, str]) -> None:
    """Check names and values of options, without the server.

    Raises
    ------
    SettingError
        Names the option.
    """
    MySqlOptions.parse(options)


def documented_options() -> tuple[Option, ...]:
    """The options of docs/mysql_cdc.md."""
    return options_of(MySqlOptions, with_docs=True)


def check(options: Mapping[str, str]) -> tuple[TableSchema, ...]:
    """Check options, server, user and tables, without reading rows.

    Returns
    -------
    tuple of TableSchema
        The tables that the options ask for. Without those that do not exist, if there are others: a checkpoint may
        have them.

    Raises
    ------
    BacklogError
        Says the setting, the value found and what to do.
    """
    parsed = MySqlOptions.parse(options)
    warn_unverified(parsed.host, parsed.login.ssl_mode)
    with connect(parsed, at_once=True) as connection:
        check_server(connection, parsed)
        names = find_tables(connection, parsed, every=False) or find_tables(connection, parsed)
        tables = tuple(load_schema(connection, parsed, *name) for name in names)
        check_tables(connection, parsed, tables)
        check_snapshot_server(parsed, connection, tables)
        signals = signal_table(connection, parsed)
        for schema in (*tables, *([signals] if signals else [])):
            try:
                query(connection, f"SELECT * FROM {schema.qualified} LIMIT 0")
            except pymysql.err.MySQLError as error:
                if is_transient(error):
                    raise
                raise BacklogError(
                    f"User {parsed.user!r} cannot read {schema.name}: {error.args[1]}.",
                    "GRANT SELECT on the whole table: rows of the binary log have all its columns.",
                ) from None
    output_of(parsed.format, parsed.metadata).check(tables)
    return tables


def check_start(options: Mapping[str, str]) -> None:
    """Refuse tables that do not exist, patterns that match nothing, and a start that the log does not have.

    Called at the first start on a checkpoint.

    Raises
    ------
    BacklogError
        Names the table, the pattern or the position.
    """
    parsed = MySqlOptions.parse(options)
    with connect(parsed, at_once=True) as connection:
        for name in find_tables(connection, parsed):
            load_schema(connection, parsed, *name)
        startup.check_start(connection, parsed)
    if parsed.columns.names_any and not parsed.adds_tables:  # else they may mean later tables
        parsed.columns.check_used(check(options))


def check_resume(options: Mapping[str, str], offset: Mapping[str, Any]) -> None:
    """Refuse options that make another choice of tables, columns or keys than the checkpoint has.

    Called at a later start.

    Parameters
    ----------
    offset : mapping
        The checkpoint's newest offset.

    Raises
    ------
    SettingError
        Names the option and both choices.
    """
    known = Offset.from_json(dict(offset))
    parsed, tables = MySqlOptions.parse(options), check(options)
    DeclaredTables(parsed, tables).check_some_asked(known)
    columns = parsed.columns
    declared = {(t.database, t.table): t for t in tables}
    for table in known.tables:
        if (table.database, table.table) in declared:
            columns.check_unchanged(table, declared[table.database, table.table], known.salt_check)


def check_log(options: Mapping[str, str], offset: Mapping[str, Any]) -> None:
    """Refuse a server that has purged changes after a checkpoint's offset. Another server than before is not checked.

    Nor is a stream that would read its tables again.

    Raises
    ------
    LogGone
        Says what is missing.
    """
    known, parsed = Offset.from_json(dict(offset)), MySqlOptions.parse(options)
    with connect(parsed, at_once=True) as connection:
        if server_identity(connection) == known.server and not parsed.renews:
            check_staged(connection, parsed, known)


def check_signal(options: Mapping[str, str], signal: Signal) -> None:
    """Refuse a signal that the source cannot carry out. Called before a query keeps it.

    Raises
    ------
    BacklogError
        Says what is wrong with it.
    """
    check_on_server(MySqlOptions.parse(options), check(options), signal)


def inspect(options: Mapping[str, str]) -> SourceInfo:
    """Run `check`, then tell a query what it needs to know: the primary key, and whether a snapshot comes first."""
    tables, parsed = check(options), MySqlOptions.parse(options)
    key = tables[0].key if parsed.format == "row" and all(t.key == tables[0].key for t in tables) else ()
    if key and parsed.several:
        # Two tables may have rows with the same key.
        key = ("_database", "_table", *key) if {"_database", "_table"} <= set(parsed.metadata) else ()
    # If the log can be backlog, backlog also has updates and deletes.
    inserts_only = parsed.has_snapshot and parsed.backlog_lag_ms is None
    # Rows that such a stream never removes are there on purpose.
    archives = "delete" in parsed.skipped or "skip" in map(parsed.event_policy, ("truncate", "drop"))
    return SourceInfo(
        key=key,
        starts_in_backlog=parsed.has_snapshot,
        unique_in_backlog=inserts_only and (bool(key) or (parsed.format != "row" and all(t.key for t in tables))),
        watermark_characteristic=WatermarkCharacteristic.ANY_WATERMARK,
        use_processing_time=parsed.by_clock,
        waits_for_rows=True,
        of_one_table=parsed.format == "row" and not parsed.several,
        takes_signals=parsed.startup_mode != "snapshot",
        reads_again=parsed.signal_table is not None,
        renews=parsed.renews,
        notices_old_rows=parsed.evolves,
        snapshot_of=tuple((t.database, t.table) for t in tables) if parsed.has_snapshot and not archives else (),
        address=f"{parsed.host}:{parsed.port}",
    )


class MySqlCdcDataSource(StreamOnly):
    """``spark.readStream.format("mysql_cdc")``.

    The stream has the table's columns, or ``key`` and ``value`` with ``format=debezium``. Metadata columns follow; by
    default ``_change_type`` (insert, update_preimage, update_postimage, delete, as in Delta's change data feed),
    ``_commit_timestamp`` and ``_commit_seq`` (0 for snapshot rows, then growing along the binary log). Options:
    `MySqlOptions`. Needs MySQL 8.0 with GTIDs, or MariaDB 10.11 or 11.4.
    """

    secrets: ClassVar[str] = "|".join(
        o.name.replace(".", "[.]").replace("*", ".*") for o in options_of(MySqlOptions) if o.secret
    )

    @classmethod
    def name(cls) -> str:
        return "mysql_cdc"

    def schema(self) -> StructType:
        return self._declared(check(dict(self.options)))

    def _declared(self, tables: Sequence[TableSchema]) -> StructType:
        options = MySqlOptions.parse(dict(self.options))
        return output_of(options.format, options.metadata).spark_schema(tables)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        tables = check(dict(self.options))
        if [f.name for f in schema] != [f.name for f in self._declared(tables)]:
            raise SchemaChanged(
                f"{tables[0].name} has other columns than when the stream was declared.", "Load the stream again."
            )
        return for_this_spark(MySqlCdcStreamReader(MySqlOptions.parse(dict(self.options)), tables))
