"""Connections to the server: session settings that values depend on, and errors for refusals."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from typing import Any

import pymysql
from pymysql.connections import Connection

from backlog_spark.errors import BacklogError

from ..options import MySqlOptions
from .login import without_authorities

__all__ = [
    "ACCESS_DENIED",
    "ServerConnection",
    "check_identity",
    "connect",
    "is_mariadb",
    "log_files",
    "open_connection",
    "query",
    "server_identity",
    "server_time_ms",
    "text",
]

ACCESS_DENIED = {1044, 1045, 1142, 1227, 1370}
_SESSION = (
    # TIMESTAMP as UTC text; one consistent view for each statement; no mode that changes the text of values
    "SET SESSION time_zone = '+00:00', sql_mode = 'NO_ENGINE_SUBSTITUTION'",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    # No limits of the server on how much and how long a session may read, or how long it may pause
    "SET SESSION sql_select_limit = 18446744073709551615, sql_big_selects = 1, sql_quote_show_create = 1, "
    "wait_timeout = CAST(GREATEST(@@wait_timeout, 28800) AS UNSIGNED) /*!80000 , max_execution_time = 0 */"
    "/*M! , max_statement_time = 0, idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0 */",
)


class ServerConnection(Connection):  # type: ignore[misc]
    """A PyMySQL connection that reads no certificates unless it has to verify one."""

    def _create_ssl_ctx(self, sslp: ssl.SSLContext | dict[str, Any]) -> ssl.SSLContext:
        # An empty dictionary means ssl.mode=preferred, which has no argument.
        return sslp if isinstance(sslp, ssl.SSLContext) else without_authorities()


@contextlib.contextmanager
def connect(options: MySqlOptions, **more: Any) -> Iterator[Connection[Any]]:
    """A connection with the session settings that values depend on; closed at the end.

    Raises
    ------
    BacklogError
        The server cannot be reached or refuses the user.
    """
    connection = open_connection(options, **more)
    try:
        yield connection
    finally:
        connection.close()


def open_connection(options: MySqlOptions, **more: Any) -> Connection[Any]:
    """As `connect`; the caller closes the connection."""
    try:
        connection = ServerConnection(**{**options.connect_arguments(), **more})
    except pymysql.err.OperationalError as error:
        raise _refused(options, error) from None
    with connection.cursor() as cursor:
        for statement in _SESSION:
            cursor.execute(statement)
    return connection


def _refused(options: MySqlOptions, error: pymysql.err.MySQLError) -> BacklogError:
    code, text = error.args[0], error.args[1] if len(error.args) > 1 else ""
    if code in ACCESS_DENIED:
        return BacklogError(
            f"The server at {options.host}:{options.port} refused user {options.user!r}: {text} ({code}).",
            "Check the options user and password and the user's grants.",
        )
    return BacklogError(
        f"The server at {options.host}:{options.port} cannot be reached: {text} ({code}).",
        "Check the options host and port and that the server runs.",
    )


def query(connection: Connection[Any], statement: str, arguments: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    """All rows of a statement."""
    with connection.cursor() as cursor:
        # None instead of no arguments: then a "%" in a name has no meaning.
        cursor.execute(statement, arguments or None)
        return list(cursor.fetchall())


def is_mariadb(connection: Connection[Any]) -> bool:
    """Whether the server is MariaDB, which has other GTIDs, settings and events."""
    return "mariadb" in text(query(connection, "SELECT VERSION()")[0][0]).lower()


def server_identity(connection: Connection[Any]) -> str:
    """The server to which binary log positions belong: MySQL's ``server_uuid``, or MariaDB's ``server_id``.

    MariaDB has no lasting identity. `mariadb.check_position` detects two servers with the same ``server_id``.
    """
    if is_mariadb(connection):
        return f"mariadb-{text(query(connection, 'SELECT @@global.server_id')[0][0])}"
    return text(query(connection, "SELECT @@global.server_uuid")[0][0])


def check_identity(connection: Connection[Any], wanted: str) -> None:
    """Refuse a connection to another server than the one that the positions belong to.

    Raises
    ------
    BacklogError
        Names both servers.
    """
    found = server_identity(connection)
    if found != wanted:
        raise BacklogError(
            f"A connection led to the server {found} while a batch was read from {wanted}.",
            "If the address moved to a replica, start the query again: it continues there.",
        )


def server_time_ms(connection: Connection[Any]) -> int:
    """The server's clock, milliseconds since 1970."""
    return int(query(connection, "SELECT UNIX_TIMESTAMP(NOW(3)) * 1000")[0][0])


def log_files(connection: Connection[Any]) -> list[tuple[str, int]]:
    """Name and size in bytes of each binary log file, the oldest first."""
    return [(text(row[0]), int(row[1])) for row in query(connection, "SHOW BINARY LOGS")]


def text(value: Any) -> str:
    """A server's value as text. It is bytes on a connection without value decoders."""
    return value.decode() if isinstance(value, bytes) else str(value)
