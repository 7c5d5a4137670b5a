"""What answers at the port is no MySQL server: one attempt, a limit of its own, and an error that says so."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from backlog_spark.connectors.mysql_cdc.source import check
from backlog_spark.errors import BacklogError

SECRET = "s3cret-of-the-reader"
# A greeting that ends after the server's flags.
_BODY = b"\x0a8.0.36\0" + bytes(4) + b"saltsalt" + b"\0" + b"\xff\xf7"
CUT = len(_BODY).to_bytes(3, "little") + b"\0" + _BODY


class Service:
    """Takes connections, and does something with each in a thread of its own."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._answer, self.taken, self._open = answer, 0, contextlib.ExitStack()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.taken += 1
                self._open.enter_context(connection)
                self._answer(connection)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)
        self._open.close()


@contextlib.contextmanager
def service(answer: Callable[[socket.socket], None]) -> Iterator[Service]:
    made = Service(answer)
    try:
        yield made
    finally:
        made.close()


def refused(port: int) -> BacklogError:
    given = {"host": "127.0.0.1", "port": str(port), "user": "u", "password": SECRET, "table": "a.b"}
    with pytest.raises(BacklogError) as raised:
        check({**given, "connect.timeout": "300 ms", "connect.max-retries": "50"})
    assert SECRET not in str(raised.value)
    return raised.value


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda connection: None, "sent no greeting of MySQL or MariaDB within 0.3 s"),
        (lambda connection: connection.close(), "sent no greeting"),
        (lambda connection: connection.sendall(b"\x0a"), "sent no greeting"),
        (lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n"), "is no MySQL or MariaDB server"),
        (lambda connection: connection.sendall(b"220 mail ESMTP\r\n"), "is no MySQL or MariaDB server"),
        (lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "is no MySQL or MariaDB server"),
        (lambda connection: connection.sendall(CUT), "is no MySQL or MariaDB server"),
        (lambda connection: connection.sendall(b"\x15\x03\x01\x00\x02\x02\x0a"), "sent no greeting"),
    ],
    ids=["silent", "closes", "stops", "ssh", "smtp", "http that speaks first", "cut greeting", "tls alert"],
)
def test_another_service_is_named_at_the_first_attempt(answer: Callable[[socket.socket], None], problem: str) -> None:
    with service(answer) as other:
        error = refused(other.port)
        assert problem in error.problem
        assert f"127.0.0.1:{other.port}" in error.problem
        assert "host and port" in error.hint
        assert other.taken == 1


def test_a_server_of_http() -> None:
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    try:
        error = refused(web.server_port)
    finally:
        web.shutdown()
        web.server_close()
        thread.join(10)
    assert "sent no greeting" in error.problem
    assert "HTTP" in error.hint
