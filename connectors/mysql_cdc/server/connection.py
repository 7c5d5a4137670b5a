"""Connections to the server: the session settings that values depend on, and what a refusal means."""

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
    # TIMESTAMP as UTC text; plain reads see one consistent view a statement; no mode that changes how values print
    "SET SESSION time_zone = '+00:00', sql_mode = 'NO_ENGINE_SUBSTITUTION'",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    # The server's own limits of what a session may read, how long, and how long it may pause meanwhile
    "SET SESSION sql_select_limit = 18446744073709551615, sql_big_selects = 1, sql_quote_show_create = 1, "
    "wait_timeout = CAST(GREATEST(@@wait_timeout, 28800) AS UNSIGNED) /*!80000 , max_execution_time = 0 */"
    "/*M! , max_statement_time = 0, idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0 */",
)


class ServerConnection(Connection):  # type: ignore[misc]
    """A connection of PyMySQL's; where none is asked to be looked at, it reads no certificate."""

    def _create_ssl_ctx(self, sslp: ssl.SSLContext | dict[str, Any]) -> ssl.SSLContext:
        # Of ssl.mode=preferred, for which there is no argument, it is an empty dictionary.
        return sslp if isinstance(sslp, ssl.SSLContext) else without_authorities()


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
        # Without arguments None: a "%" in a name is then nothing special.
        cursor.execute(statement, arguments or None)
        return list(cursor.fetchall())


def is_mariadb(connection: Connection[Any]) -> bool:
    """Whether the server is a MariaDB, which has other GTIDs, other settings and events of its own."""
    return "mariadb" in text(query(connection, "SELECT VERSION()")[0][0]).lower()


def server_identity(connection: Connection[Any]) -> str:
    """Whose binary log positions these are: MySQL's ``server_uuid``, or what stands for it in MariaDB.

    MariaDB has no lasting one. That two servers have the same ``server_id`` is found by `mariadb.check_position`.
    """
    if is_mariadb(connection):
        return f"mariadb-{text(query(connection, 'SELECT @@global.server_id')[0][0])}"
    return text(query(connection, "SELECT @@global.server_uuid")[0][0])


def check_identity(connection: Connection[Any], wanted: str) -> None:
    """Refuse a connection that leads to another server than the positions at hand are about.

    Raises
    ------
    BacklogError
        Naming both.
    """
    found = server_identity(connection)
    if found != wanted:
        raise BacklogError(
            f"A connection led to the server {found} while a batch was read from {wanted}.",
            "If the address moved to a replica, the query goes on there when it is started again.",
        )


def server_time_ms(connection: Connection[Any]) -> int:
    """The server's clock, milliseconds since 1970."""
    return int(query(connection, "SELECT UNIX_TIMESTAMP(NOW(3)) * 1000")[0][0])


def log_files(connection: Connection[Any]) -> list[tuple[str, int]]:
    """Name and bytes of each binary log file that the server has, the oldest first."""
    return [(text(row[0]), int(row[1])) for row in query(connection, "SHOW BINARY LOGS")]


def text(value: Any) -> str:
    """A value that the server told of itself: bytes on a connection without value decoders."""
    return value.decode() if isinstance(value, bytes) else str(value)
