"""Questions to a MySQL server: its settings, the table's columns, positions.

Settings and tables are refused here, before a row is read. An error names the variable, its value and what to set.
"""

from __future__ import annotations

import difflib
import functools
import logging
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pymysql
from pymysql.connections import Connection

from backlog_spark.common.table_names import TableName
from backlog_spark.errors import BacklogError, SettingError

from ..binlog.positions import FIRST_EVENT, BinlogPosition
from ..options import MySqlOptions
from ..output.metadata import check_names
from ..schema.choice import matches
from ..schema.columns import made_by
from ..schema.ddl.renames import made_by_tool
from ..schema.table import Hidden, TableSchema
from ..schema.table_key import with_keys
from ..schema.types import Column, kind_of
from . import mariadb
from .connection import (
    ACCESS_DENIED,
    NO_TABLE,
    connect,
    is_mariadb,
    open_connection,
    query,
    server_identity,
    server_time_ms,
    text,
)
from .gtid import MariaDbGtids
from .unlogged import UPDATES_OF_REPLICA, check_cascades, check_databases, check_ignored, check_replica
from .watermark import NO_GTIDS, PositionWatermark

__all__ = [
    "check_server",
    "check_tables",
    "connect",
    "end_position",
    "find_tables",
    "has_gtids",
    "is_missing",
    "load_schema",
    "low_watermark",
    "open_connection",
    "query",
    "server_identity",
    "server_problems",
]


_log = logging.getLogger(__name__)


def has_gtids(connection: Connection[Any]) -> bool:
    """Whether a MySQL server gives every transaction a GTID."""
    return str(query(connection, "SELECT @@global.gtid_mode")[0][0]).upper() == "ON"


def _may_flush(connection: Connection[Any]) -> bool:
    grants = [text(row[0]).upper().partition(" ON ") for row in query(connection, "SHOW GRANTS")]
    everywhere = [rights for rights, _, of in grants if of.startswith("*.*")]
    return any("RELOAD" in rights or "ALL PRIVILEGES" in rights for rights in everywhere)


def low_watermark(connection: Connection[Any]) -> tuple[str, int]:
    """A low watermark: transactions that any later SELECT is sure to see. And the server's time in ms.

    MySQL's ``gtid_executed`` grows only after a transaction is visible. ``SHOW MASTER STATUS`` runs ahead of that, also
    on MariaDB, and would lose rows.
    """
    if is_mariadb(connection):
        return mariadb.low_watermark(connection)
    if not has_gtids(connection):
        # A new file waits for the commits of the old one, so everything in the old files is visible.
        query(connection, "FLUSH LOCAL BINARY LOGS")
        file = text(_binlog_status(connection)[0][0])
        return str(PositionWatermark(BinlogPosition(file, FIRST_EVENT), MariaDbGtids(""))), server_time_ms(connection)
    gtids, now = query(connection, "SELECT @@global.gtid_executed, UNIX_TIMESTAMP(NOW(3)) * 1000")[0]
    return "".join(str(gtids).split()) or NO_GTIDS, int(now)


def end_position(connection: Connection[Any], options: MySqlOptions) -> BinlogPosition:
    """The end of the last transaction in the binary log. It is at or after everything that a SELECT saw before.

    MySQL gives this position before the log is synced up to it. Until then dumps end earlier.

    Raises
    ------
    BacklogError
        The user has no REPLICATION CLIENT, or the binary log is off.
    """
    try:
        rows = _binlog_status(connection)
    except pymysql.err.OperationalError as error:
        if error.args[0] in ACCESS_DENIED:
            raise BacklogError(
                f"User {options.user!r} may not read the binary log's position ({error.args[1]}).",
                f"GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO {options.user!r}.",
            ) from None
        raise
    if not rows:
        raise SettingError("log_bin", "OFF", "the server writes no binary log.", "Start it with --log-bin.")
    return BinlogPosition(text(rows[0][0]), int(rows[0][1]))


def _binlog_status(connection: Connection[Any]) -> list[tuple[Any, ...]]:
    try:
        return query(connection, "SHOW MASTER STATUS")
    except pymysql.err.ProgrammingError as error:
        if error.args[0] != 1064:  # syntax error: MySQL 8.4 has only the new form
            raise
        return query(connection, "SHOW BINARY LOG STATUS")


def check_server(connection: Connection[Any], options: MySqlOptions) -> None:
    """Refuse a server that cannot be captured without losing changes.

    Raises
    ------
    SettingError
        Names the server variable, its value and what to set.
    """
    for problem in server_problems(connection, options):
        raise problem


def server_problems(connection: Connection[Any], options: MySqlOptions) -> Iterator[BacklogError]:
    """Everything for which `check_server` refuses a server."""
    names = (
        "log_bin",
        "binlog_format",
        "binlog_row_image",
        "gtid_mode",
        "enforce_gtid_consistency",
        "binlog_order_commits",
        *(name for name, _, _ in mariadb.NEEDED),
        *UPDATES_OF_REPLICA,
        "rpl_semi_sync_master_enabled",
        "rpl_semi_sync_master_wait_point",
        "rpl_semi_sync_source_enabled",
        "rpl_semi_sync_source_wait_point",
    )
    marks = ", ".join(["%s"] * len(names))
    found = {
        str(k).lower(): str(v)
        for k, v in query(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", names)
    }

    def need(name: str, wanted: str, reason: str) -> Iterator[BacklogError]:
        if name in found and found[name].upper() != wanted:
            yield SettingError(
                name,
                found[name],
                f"{reason} (server {options.host}:{options.port}).",
                f"Set {name}={wanted} on the server.",
            )

    if found.get("log_bin", "ON").upper() != "ON":
        yield from need("log_bin", "ON", "without a binary log changes cannot be followed")
        return  # its other settings have no meaning
    yield from need("binlog_format", "ROW", "other formats do not log the rows that changed")
    whole = "row images without all columns cannot be taken back to the low watermark"
    yield from need("binlog_row_image", "FULL", whole)
    if found.get("gtid_mode", "ON").upper() != "ON" and not _may_flush(connection):
        yield SettingError(
            "gtid_mode",
            found["gtid_mode"],
            "without GTIDs each batch of the snapshot begins with FLUSH BINARY LOGS, which user "
            f"{options.user!r} may not run (server {options.host}:{options.port}).",
            f"Set gtid_mode=ON on the server, or GRANT RELOAD ON *.* TO {options.user!r}.",
        )
    yield from need("binlog_order_commits", "ON", "commits out of order make the low watermark ambiguous")
    for name, wanted, reason in mariadb.NEEDED:
        yield from need(name, wanted, reason)
    for role in ("master", "source"):  # the second name is of MySQL 8.0.26
        # GTIDs come with the rows. A position comes before them, and a rotation would make a snapshot's wrong.
        if found.get("gtid_mode") != "ON" and found.get(f"rpl_semi_sync_{role}_enabled") == "ON":
            ahead = "a snapshot's position may be ahead of its rows"
            yield from need(f"rpl_semi_sync_{role}_wait_point", "AFTER_COMMIT", ahead)
    try:
        end_position(connection, options)
        for name in UPDATES_OF_REPLICA:
            if found.get(name, "ON").upper() == "OFF":
                check_replica(connection, name)
    except BacklogError as problem:
        yield problem


def check_tables(connection: Connection[Any], options: MySqlOptions, tables: Sequence[TableSchema]) -> None:
    """Refuse tables of databases that the server does not log, or whose statement-format changes would be ignored.

    Raises
    ------
    SettingError
        Names the server's option, or ``binlog.statement.ignore``.
    """
    check_ignored(connection, options.statement_ignore, tables)
    if status := _binlog_status(connection):  # a server without a log has none, which is refused already
        check_databases(status[0], sorted({t.database for t in tables}))


_COLUMNS = """
SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, COLLATION_NAME, NUMERIC_PRECISION, NUMERIC_SCALE,
       CHARACTER_OCTET_LENGTH, CHARACTER_SET_NAME, TABLE_SCHEMA, TABLE_NAME, EXTRA, GENERATION_EXPRESSION
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION
"""
_TABLES = """
SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')
AND TABLE_SCHEMA NOT IN ('mysql', 'sys', 'performance_schema', 'information_schema')
ORDER BY TABLE_SCHEMA, TABLE_NAME
"""


_ALIKE = 0.85  # similarity ratio; 1 for equal names


def find_tables(
    connection: Connection[Any],
    options: MySqlOptions,
    captured: Collection[tuple[str, str]] = (),
    *,
    every: bool = True,
) -> list[tuple[str, str]]:
    """Database and name of each table that the options ask for. Without ``every``: of those that exist.

    ``captured``: those of the stream already.

    Raises
    ------
    SettingError
        No table matches ``tablePattern``, or ``tables.exclude`` leaves none.
    """
    if not options.table_pattern:
        return [n for n in _without_excluded(options, options.tables) if every or not is_missing(connection, *n)]
    known = [(text(database), text(table)) for database, table in query(connection, _TABLES)]
    found = [name for name in known if re.fullmatch(options.table_pattern, ".".join(name))]
    if found:
        matched = {*found, *captured}
        shadows = [name for name in found if name not in captured and made_by_tool(name, matched)]
        if shadows and not captured:
            _log.warning(
                "tablePattern matches tables that gh-ost or pt-online-schema-change make of others that it matches: "
                "%s. They are not captured. To capture one, name it in another stream's option table.",
                ", ".join(map(".".join, shadows)),
            )
        found = _without_excluded(options, [name for name in found if name not in shadows])
    elif not every:
        return []
    else:
        near = [name for name in known if re.fullmatch(options.table_pattern, ".".join(name), re.IGNORECASE)]
        by_case = f" By upper and lower case apart it matches {'.'.join(near[0])}." if near else ""
        raise SettingError(
            "tablePattern", options.table_pattern,
            f"matches none of the {len(known)} tables that user {options.user!r} may see.{by_case}",
            "It must match the whole of database.table. Write a dot as \\.",
        )  # fmt: skip
    return found


def _without_excluded(options: MySqlOptions, names: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    found = [name for name in names if not matches(options.tables_exclude, ".".join(name))]
    if not found:
        raise SettingError(
            "tables.exclude", ",".join(options.tables_exclude), "leaves none of the tables that table or tablePattern "
            "names.", "Exclude fewer.",
        )  # fmt: skip
    return found


def _no_such_table(connection: Connection[Any], options: MySqlOptions, wanted: str) -> SettingError:
    """The error, with a table of a similar name if there is one."""
    every = [str(TableName(text(database), text(table))) for database, table in query(connection, _TABLES)]
    problem = f"no such table, or user {options.user!r} may not see it."
    if same := [name for name in every if name.lower() == wanted.lower()]:
        problem = f"no such table. There is {', '.join(same)}: the server tells names apart by case."
    near = same or difflib.get_close_matches(wanted, every, 1, _ALIKE)
    hint = f"Set it to {near[0]}." if same else f"Is {near[0]} meant? Else check" if near else "Check"
    return SettingError("table", wanted, problem, hint if same else f"{hint} the name and GRANT SELECT on it.")


def is_missing(connection: Connection[Any], database: str, table: str) -> bool:
    """Whether the server certainly has no table of this name. Waits for a statement that makes or drops it.

    A table that the user may not read is not missing: the server answers otherwise.
    """
    try:
        query(connection, f"SELECT 1 FROM {TableSchema(database, table, ()).qualified} LIMIT 0")
    except pymysql.err.MySQLError as error:
        return error.args[0] in NO_TABLE
    return False


def load_schema(connection: Connection[Any], options: MySqlOptions, database: str, table: str) -> TableSchema:
    """A table's columns and key, as they are now.

    Raises
    ------
    BacklogError
        No such table; a type that is not read; a key that does not tell rows apart; an engine without transactions; or
        a foreign key whose cascades are not in the binary log.
    """
    rows = query(connection, _COLUMNS, (database, table))
    if not rows:
        raise _no_such_table(connection, options, str(TableName(database, table)))
    # A server with lower_case_table_names finds the table under another spelling. Events have this one.
    database, table = str(rows[0][9]), str(rows[0][10])
    types = {str(r[0]).lower(): str(r[1]).lower() for r in rows}
    columns = tuple(
        Column(
            name=str(r[0]),
            data_type=str(r[1]).lower(),
            column_type=str(r[2]),
            nullable=str(r[3]).upper() == "YES",
            precision=int(r[5] or 0) if str(r[1]).lower() == "decimal" else 0,
            scale=int(r[6] or 0) if str(r[1]).lower() == "decimal" else 0,
            octet_length=int(r[7] or 0) if str(r[1]).lower() == "binary" else 0,
            charset=str(r[8] or ""),
            collation=str(r[4] or ""),
            made_by=made_by(text(r[11] or ""), text(r[12] or ""), types),
        )
        for r in rows
    )
    schema = options.columns.applied(TableSchema(database, table, columns))
    _check_table(connection, schema)
    schema = replace(schema, hidden=_hidden_columns(connection, schema))
    ask = functools.partial(query, connection)
    found = options.columns.checked(with_keys(ask, options, schema, is_mariadb(connection)))
    if is_mariadb(connection):
        mariadb.check_generated(connection, found)
    for column in found.read:
        kind_of(column)
    if options.format == "row":
        check_names(options.metadata, found.read)
    if not found.key and not is_mariadb(connection) and not has_gtids(connection):
        raise SettingError(
            "gtid_mode", "not ON", f"{schema.name} has no primary key, so it cannot be read exactly without GTIDs.",
            "Set gtid_mode=ON on the server, or add a primary key to the table.",
        )  # fmt: skip
    return found


def _check_table(connection: Connection[Any], schema: TableSchema) -> None:
    name = schema.name
    engine, kind = query(
        connection,
        "SELECT ENGINE, TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (schema.database, schema.table),
    )[0]
    if str(kind).upper() == "SYSTEM VERSIONED":
        raise BacklogError(
            f"{name} is system-versioned: the binary log also has the rows of its history, with the same keys.",
            f"ALTER TABLE {name} DROP SYSTEM VERSIONING, or capture a table without it.",
        )
    if str(kind).upper() != "BASE TABLE":
        raise BacklogError(f"{name} is a {str(kind).lower()}, whose rows are in no binary log.", "Name a table.")
    if str(engine).lower() != "innodb":
        raise BacklogError(
            f"{name} has the engine {engine}; without transactions a snapshot has no consistent state.",
            f"ALTER TABLE {name} ENGINE=InnoDB.",
        )
    check_cascades(connection, schema)


_HASHED = """
SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_TYPE = 'HASH'
"""


def _hidden_columns(connection: Connection[Any], schema: TableSchema) -> tuple[Hidden, ...]:
    if is_mariadb(connection):
        count = len(query(connection, _HASHED, (schema.database, schema.table)))
        return tuple(Hidden(len(schema.columns) + n, is_logged=True) for n in range(count))
    shown = {column.name.lower() for column in schema.columns}
    # Columns of the storage engine itself have no type, and are not logged.
    every = [text(row[0]) for row in query(connection, f"SHOW EXTENDED COLUMNS FROM {schema.qualified}") if row[1]]
    return tuple(Hidden(index) for index, name in enumerate(every) if name.lower() not in shown)
