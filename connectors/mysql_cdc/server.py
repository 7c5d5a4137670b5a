"""What ``mysql_cdc`` asks a MySQL server: its settings, the table's columns, positions.

Every refusal happens here, before a row is read, and names the variable, the value found and what to set.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import pymysql
from pymysql.connections import Connection

from backlog_spark.errors import BacklogError, SettingError

from .gtid import GtidSet
from .offsets import BinlogPosition
from .options import MySqlOptions
from .schema import TableSchema
from .table_key import with_keys
from .types import Column, kind_of

__all__ = ["check_server", "connect", "end_position", "executed_gtids", "load_schema", "query", "server_identity"]

_ACCESS_DENIED = {1044, 1045, 1142, 1227, 1370}
_SESSION = (
    # TIMESTAMP as UTC text; plain reads see one consistent view a statement; no mode that changes how values print
    "SET SESSION time_zone = '+00:00', sql_mode = 'NO_ENGINE_SUBSTITUTION'",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)


@contextlib.contextmanager
def connect(options: MySqlOptions, **more: Any) -> Iterator[Connection[Any]]:
    """A connection with the session settings that values depend on; closed at the end.

    Raises
    ------
    BacklogError
        When the server cannot be reached or refuses the user.
    """
    connection = open_connection(options, **more)
    try:
        yield connection
    finally:
        connection.close()


def open_connection(options: MySqlOptions, **more: Any) -> Connection[Any]:
    """As `connect`, for the caller to close."""
    try:
        connection = pymysql.connect(**{**options.connect_arguments(), **more})
    except pymysql.err.OperationalError as error:
        raise _refused(options, error) from None
    with connection.cursor() as cursor:
        for statement in _SESSION:
            cursor.execute(statement)
    return connection


def _refused(options: MySqlOptions, error: pymysql.err.MySQLError) -> BacklogError:
    code, text = error.args[0], error.args[1] if len(error.args) > 1 else ""
    if code in _ACCESS_DENIED:
        return BacklogError(
            f"MySQL at {options.host}:{options.port} refused user {options.user!r}: {text} ({code}).",
            "Check the options user and password and the user's grants.",
        )
    return BacklogError(
        f"MySQL at {options.host}:{options.port} cannot be reached: {text} ({code}).",
        "Check the options host and port and that the server runs.",
    )


def query(connection: Connection[Any], statement: str, arguments: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    """All rows of a statement."""
    with connection.cursor() as cursor:
        # Without arguments None: a "%" in a name is then nothing special.
        cursor.execute(statement, arguments or None)
        return list(cursor.fetchall())


def server_identity(connection: Connection[Any]) -> str:
    """``server_uuid``: whose binary log positions these are."""
    return str(query(connection, "SELECT @@global.server_uuid")[0][0])


def executed_gtids(connection: Connection[Any]) -> tuple[str, int]:
    """A low watermark: transactions that any later SELECT is sure to see, and the server's time in ms.

    ``gtid_executed`` grows only after a transaction is visible; ``SHOW MASTER STATUS`` runs ahead of that and
    would lose rows.
    """
    gtids, now = query(connection, "SELECT @@global.gtid_executed, UNIX_TIMESTAMP(NOW(3)) * 1000")[0]
    return "".join(str(gtids).split()), int(now)


def end_position(connection: Connection[Any], options: MySqlOptions) -> BinlogPosition:
    """The end of the last transaction in the binary log: at or ahead of all that a SELECT saw before.

    Raises
    ------
    BacklogError
        Without REPLICATION CLIENT, or with the binary log off.
    """
    try:
        rows = _binlog_status(connection)
    except pymysql.err.OperationalError as error:
        if error.args[0] in _ACCESS_DENIED:
            raise BacklogError(
                f"User {options.user!r} may not read the binary log's position ({error.args[1]}).",
                f"GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO {options.user!r}.",
            ) from None
        raise
    if not rows:
        raise SettingError("log_bin", "OFF", "the server writes no binary log.", "Start it with --log-bin.")
    file = rows[0][0]  # bytes on a connection without value decoders
    return BinlogPosition(file.decode() if isinstance(file, bytes) else str(file), int(rows[0][1]))


def _binlog_status(connection: Connection[Any]) -> list[tuple[Any, ...]]:
    try:
        return query(connection, "SHOW MASTER STATUS")
    except pymysql.err.ProgrammingError as error:
        if error.args[0] != 1064:  # MySQL 8.4 has only the new form
            raise
        return query(connection, "SHOW BINARY LOG STATUS")


def check_server(connection: Connection[Any], options: MySqlOptions) -> None:
    """Refuse a server that cannot be captured without losing changes.

    Raises
    ------
    SettingError
        Naming the server variable, its value and what to set.
    """
    names = (
        "log_bin",
        "binlog_format",
        "binlog_row_image",
        "gtid_mode",
        "enforce_gtid_consistency",
        "binlog_order_commits",
        "binlog_row_value_options",
        "binlog_transaction_compression",
    )
    marks = ", ".join(["%s"] * len(names))
    found = {
        str(k).lower(): str(v)
        for k, v in query(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", names)
    }

    def need(name: str, wanted: str, reason: str) -> None:
        if name in found and found[name].upper() != wanted:
            raise SettingError(
                name,
                found[name],
                f"{reason} (server {options.host}:{options.port}).",
                f"Set {name}={wanted} on the server.",
            )

    need("log_bin", "ON", "without a binary log changes cannot be followed")
    need("binlog_format", "ROW", "other formats do not log the rows that changed")
    need("binlog_row_image", "FULL", "row images without all columns cannot be taken back to the low watermark")
    need("gtid_mode", "ON", "the snapshot's low watermark is a GTID set")
    need("binlog_order_commits", "ON", "commits out of order make the low watermark ambiguous")
    need("binlog_transaction_compression", "OFF", "compressed transactions are not read yet")
    if found.get("binlog_row_value_options"):
        raise SettingError(
            "binlog_row_value_options",
            found["binlog_row_value_options"],
            "partial JSON images cannot be read.",
            "Set binlog_row_value_options='' on the server.",
        )
    end_position(connection, options)


_COLUMNS = """
SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, COLLATION_NAME, NUMERIC_PRECISION, NUMERIC_SCALE,
       CHARACTER_OCTET_LENGTH, CHARACTER_SET_NAME, TABLE_SCHEMA, TABLE_NAME
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION
"""
_CASCADES = """
SELECT CONSTRAINT_NAME, REFERENCED_TABLE_NAME, DELETE_RULE, UPDATE_RULE FROM information_schema.REFERENTIAL_CONSTRAINTS
WHERE CONSTRAINT_SCHEMA = %s AND TABLE_NAME = %s
AND (DELETE_RULE IN ('CASCADE', 'SET NULL') OR UPDATE_RULE IN ('CASCADE', 'SET NULL'))
"""


def load_schema(connection: Connection[Any], options: MySqlOptions) -> TableSchema:
    """The table's columns and key, as they are now.

    Raises
    ------
    BacklogError
        No such table, a type that is not read, a key that does not tell rows apart, an engine without
        transactions, or a foreign key whose cascades the binary log would not hold.
    """
    rows = query(connection, _COLUMNS, (options.database, options.table))
    if not rows:
        raise SettingError(
            "table",
            f"{options.database}.{options.table}",
            f"no such table, or user {options.user!r} may not see it.",
            "Check the name and GRANT SELECT on it.",
        )
    # A server with lower_case_table_names finds the table under another spelling; events carry this one.
    database, table = str(rows[0][9]), str(rows[0][10])
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
        )
        for r in rows
    )
    for column in columns:
        kind_of(column)
    _check_table(connection, database, table)
    return with_keys(functools.partial(query, connection), options, TableSchema(database, table, columns))


def _check_table(connection: Connection[Any], database: str, table: str) -> None:
    name = f"{database}.{table}"
    engine = query(
        connection,
        "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (database, table),
    )[0][0]
    if str(engine).lower() != "innodb":
        raise BacklogError(
            f"{name} has the engine {engine}; without transactions a snapshot has no consistent state.",
            f"ALTER TABLE {name} ENGINE=InnoDB.",
        )
    cascades = query(connection, _CASCADES, (database, table))
    if cascades:
        constraint, parent, delete, update = cascades[0]
        raise BacklogError(
            f"Foreign key {constraint} of {name} to {parent} cascades (ON DELETE {delete} ON UPDATE {update}); "
            "MySQL does not write such changes of the child table to the binary log.",
            "Use ON DELETE RESTRICT ON UPDATE RESTRICT and change the rows by statements.",
        )


def missing_transactions(connection: Connection[Any], gtids: str) -> str:
    """Transactions that the server has purged and that a reader after ``gtids`` would still need; "" if none."""
    purged = GtidSet(str(query(connection, "SELECT @@global.gtid_purged")[0][0]))
    return "" if GtidSet(gtids).issuperset(purged) else str(purged)
