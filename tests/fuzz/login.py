"""What a server sends from its greeting to the end of the login and the session's first statements."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from typing import Any

from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.server.connection import open_connection
from tests.fuzz.kinds import Kind

__all__ = ["KINDS"]

SECRET = "fuzz-s3cret-0815"


class _Server:
    """Sends these bytes to each connection, and takes whatever comes."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.sent = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with contextlib.suppress(OSError), connection:
                connection.sendall(self.sent)
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(0.5)
                while connection.recv(1 << 16):
                    pass


_server: _Server | None = None


def _packet(number: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number & 255]) + body


_OK = b"\0\0\0\2\0\0\0"


def _valid(chance: random.Random) -> tuple[Any, Any]:
    plugin = chance.choice((b"mysql_native_password", b"caching_sha2_password"))
    version = chance.choice((b"8.0.36", b"11.4.5-MariaDB", b"5.7.44-log"))
    flags = 0xFFFFF7FF & ~0x800 | 0x80000  # all but TLS
    salt = bytes(chance.choice(range(1, 128)) for _ in range(20))
    greeting = b"\x0a" + version + b"\0" + (9).to_bytes(4, "little") + salt[:8] + b"\0"
    greeting += (flags & 0xFFFF).to_bytes(2, "little") + b"\x2d\2\0" + (flags >> 16).to_bytes(2, "little") + b"\x15"
    greeting += bytes(10) + salt[8:] + b"\0" + plugin + b"\0"
    sent, number = _packet(0, greeting), 2
    if plugin == b"mysql_native_password" and chance.random() < 0.3:
        sent += _packet(2, b"\xfemysql_native_password\0" + salt + b"\0")
        number = 4
    elif plugin == b"caching_sha2_password":
        sent += _packet(2, b"\x01\x03")  # the password is cached
        number = 3
    sent += _packet(number, _OK) + _packet(1, _OK) * 12
    return sent, None


def _judge(sent: bytes, told: Any) -> None:
    global _server
    if _server is None:
        _server = _Server()
    _server.sent = sent
    given = {"host": "127.0.0.1", "port": str(_server.port), "user": "u", "password": SECRET, "table": "a.b"}
    options = MySqlOptions.parse(
        {**given, "ssl.mode": "disabled", "connect.timeout": "1 s", "connect.max-retries": "0"}
    )
    open_connection(options)._force_close()


KINDS = [Kind("greeting and login", _valid, _judge)]
