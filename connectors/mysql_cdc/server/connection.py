"""Connections to the server: session settings that values depend on, and errors for refusals."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CR, ER

from backlog_spark.common.requirements import missing
from backlog_spark.errors import BacklogError

from ..options import MySqlOptions
from .login import Login, without_authorities
from .retries import CANNOT_CONNECT, ConnectionLost, ServerMoved, is_transient, retrying

__all__ = [
    "ACCESS_DENIED",
    "NO_TABLE",
    "ServerConnection",
    "check_identity",
    "connect",
    "is_mariadb",
    "log_files",
    "open_connection",
    "query",
    "reopened",
    "server_identity",
    "server_time_ms",
    "text",
]

ACCESS_DENIED = {1044, 1045, 1142, 1227, 1370}
_GREETING_S = 10.0
# A firewall that forgets idle connections, or drops packets without a word, is found after two minutes.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
_HEADER, _WHOLE = 4, 0xFFFFFF
# 1 GiB is the largest max_allowed_packet of a server. Such a packet comes in pieces of 16 MiB.
_MOST_JOINED = (1 << 30) + _WHOLE
NO_TABLE = {1049, 1146}
"""The server has no such database, or no such table."""
_SESSION = (
    # TIMESTAMP as UTC text; one consistent view for each statement; no mode that changes the text of values
    "SET SESSION time_zone = '+00:00', sql_mode = 'NO_ENGINE_SUBSTITUTION'",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    # No limits of the server on how much and how long a session may read, or how long it may pause
    "SET SESSION sql_select_limit = 18446744073709551615, sql_big_selects = 1, sql_quote_show_create = 1, "
    "wait_timeout = CAST(GREATEST(@@wait_timeout, 28800) AS UNSIGNED) /*!80000 , max_execution_time = 0 */"
    "/*M! , max_statement_time = 0, idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0 */",
)


class _NoGreeting(pymysql.err.OperationalError):  # type: ignore[misc]
    """Something took the connection, and does not speak like a server."""

    def __init__(self, address: str, limit_s: float) -> None:
        super().__init__(
            CR.CR_CONN_HOST_ERROR,
            f"What listens at {address} sent no greeting of MySQL or MariaDB within {limit_s:g} s",
        )


class ServerConnection(Connection):  # type: ignore[misc]
    """A PyMySQL connection that reads no certificates unless it has to verify one, and guards the password.

    ``connect_timeout`` is also the limit for each answer of the server until the user is logged in, and at most 10 s
    of it for the greeting, the first thing that a server sends. A login that is refused is tried again with another
    password if the login can get one: the caller sees a lost connection then.

    Parameters
    ----------
    login : Login
        What the server may get of the password.
    """

    _read_timeout: float | None

    def __init__(self, login: Login, **more: Any) -> None:
        self._login = login
        self._joined = 0  # bytes of a packet so far that comes in several
        super().__init__(**more)

    def connect(self, sock: Any = None) -> None:
        patient, self._read_timeout = self._read_timeout, self.connect_timeout
        try:
            super().connect(sock)
        except pymysql.err.OperationalError as error:
            if error.args[0] != ER.ACCESS_DENIED_ERROR or not self._login.renew():
                raise
            raise pymysql.err.OperationalError(CR.CR_SERVER_LOST, "the password is asked for again") from None
        finally:
            self._read_timeout = patient
        _keep_alive(self._sock)

    def _get_server_information(self) -> None:
        self._read_timeout = limit = min(self.connect_timeout, _GREETING_S)
        try:
            super()._get_server_information()
        except pymysql.err.OperationalError as error:
            if error.args[0] != CR.CR_SERVER_LOST:  # the server says why, such as too many connections
                raise
            raise _NoGreeting(f"{self.host}:{self.port}", limit) from None
        self._read_timeout = self.connect_timeout

    def _process_auth(self, plugin_name: bytes, *more: Any) -> Any:
        is_encrypted = isinstance(self._sock, ssl.SSLSocket)
        self._login.check_plugin(plugin_name.decode("ascii", "replace"), is_encrypted=is_encrypted)
        return super()._process_auth(plugin_name, *more)

    @property
    def server_public_key(self) -> bytes | None:
        """The key with which PyMySQL is about to encrypt the password."""
        return self._public_key

    @server_public_key.setter
    def server_public_key(self, key: bytes | None) -> None:
        if key is not None:
            self._login.check_public_key()
        self._public_key = key

    def _read_bytes(self, num_bytes: int) -> bytes:
        if num_bytes == _WHOLE:
            self._joined += num_bytes
            if self._joined > _MOST_JOINED:
                self._force_close()
                raise BacklogError(
                    f"{self.host}:{self.port} sends a packet of more than {_MOST_JOINED:,} bytes; no server does.",
                    "Check that the options host and port lead to MySQL or MariaDB.",
                )
        elif num_bytes != _HEADER:
            self._joined = 0
        found: bytes = Connection._read_bytes(self, num_bytes)
        return found

    def _create_ssl_ctx(self, sslp: ssl.SSLContext | dict[str, Any]) -> ssl.SSLContext:
        # An empty dictionary means ssl.mode=preferred, which has no argument.
        return sslp if isinstance(sslp, ssl.SSLContext) else without_authorities()


def _keep_alive(sock: socket.socket) -> None:
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# What PyMySQL raises when it takes the bytes of another protocol for those of a server.
_NO_HANDSHAKE = (
    pymysql.err.InternalError, struct.error, AssertionError, LookupError, NameError, TypeError, ValueError,
)  # fmt: skip


@contextlib.contextmanager
def connect(options: MySqlOptions, *, at_once: bool = False, **more: Any) -> Iterator[Connection[Any]]:
    """A connection as of `reopened`; closed at the end.

    Parameters
    ----------
    at_once : bool
        Whether a server that is not there is reported without another attempt.

    Raises
    ------
    BacklogError
        The server cannot be reached or refuses the user.
    """
    connection = reopened(options, at_once=at_once, **more)
    try:
        yield connection
    finally:
        connection.close()


def reopened(options: MySqlOptions, *, at_once: bool = False, **more: Any) -> Connection[Any]:
    """As `open_connection`, to ``options.server`` if that is set, with as many attempts as the options allow."""

    def passes(error: Exception) -> bool:
        return is_transient(error) and not (at_once and isinstance(error, _NotThere))

    connection = retrying(options, lambda: open_connection(options, **more), passes)
    if options.server:
        try:
            check_identity(connection, options.server)
        except BaseException:
            connection._force_close()
            raise
    return connection


def open_connection(options: MySqlOptions, **more: Any) -> Connection[Any]:
    """A connection with the session settings that values depend on. One attempt; the caller closes the connection.

    Raises
    ------
    ConnectionLost
        The server cannot be reached now.
    BacklogError
        The server refuses the user.
    """
    try:
        connection = ServerConnection(**{**options.connect_arguments(), **more})
        try:
            with connection.cursor() as cursor:
                for statement in _SESSION:
                    cursor.execute(statement)
        except BaseException:
            connection._force_close()
            raise
    except (pymysql.err.OperationalError, pymysql.err.InterfaceError) as error:
        raise _refused(options, error) from None
    except (RuntimeError, *_NO_HANDSHAKE) as error:
        if isinstance(error, RuntimeError) and "cryptography" in str(error):
            # PyMySQL needs it for the password only, and says so when the server asks for that.
            raise missing(f"A login of user {options.user!r} without TLS", "cryptography") from None
        # Another RuntimeError: the answer is the request for a file of this machine.
        raise BacklogError(
            f"What answers at {options.host}:{options.port} is no MySQL or MariaDB server.",
            "Check the options host and port.",
        ) from error
    return connection


class _NotThere(ConnectionLost):
    """No server answers at the address."""


def _refused(options: MySqlOptions, error: pymysql.err.MySQLError) -> BacklogError:
    code, text = error.args[0], error.args[1] if len(error.args) > 1 else ""
    if code in ACCESS_DENIED:
        return BacklogError(
            f"The server at {options.host}:{options.port} refused user {options.user!r}: {text} ({code}).",
            "Check the options user and password and the user's grants.",
        )
    if isinstance(error, _NoGreeting):
        return _NotThere(
            f"{text}.",
            "Check the options host and port: servers of other protocols, such as HTTP, wait for the client to speak "
            "first. A proxy without a server behind it does so, too, and a server that looks up names of clients for "
            "long (skip_name_resolve).",
        )
    kind = _NotThere if code in CANNOT_CONNECT else ConnectionLost
    return (kind if is_transient(error) else BacklogError)(
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
    ServerMoved
        Names both servers.
    """
    found = server_identity(connection)
    if found != wanted:
        raise ServerMoved(
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
