"""Serves report pages that follow running queries: on 127.0.0.1, by server-sent events.

The server reads the checkpoints' event logs, as the report does. It needs neither Spark nor the queries' processes.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

from backlog_spark.errors import SettingError
from backlog_spark.tools import report
from backlog_spark.tools.history import read_history
from backlog_spark.tools.stored_checkpoint import StoredCheckpoint

__all__ = ["LiveServer"]

_HOST: Final = "127.0.0.1"
# The event log is written at most every five seconds, at a switch at once.
_LOOK_S = 1.0
# A page takes at most a fifth of a processor.
_REST = 4
# A client that has gone is noticed when something is written to it.
_SILENT_S = 15.0
_HTML, _JS = "text/html; charset=utf-8", "text/javascript; charset=utf-8"


class LiveServer(ThreadingHTTPServer):
    """Serves the pages of some checkpoints until `shutdown`.

    Parameters
    ----------
    locations : sequence of str
        The queries' checkpoints. One that is not there yet is waited for.
    port : int
        0 for a free one. ``url`` has it.

    Raises
    ------
    SettingError
        If a location cannot be opened, or is something else than a checkpoint, or the port is taken.
    """

    daemon_threads = True

    def __init__(self, locations: Sequence[str], port: int) -> None:
        self.watched = [_Watched(location) for location in locations]
        self.stopping = threading.Event()
        try:
            super().__init__((_HOST, port), _Handler)
        except OSError as error:
            raise SettingError(
                "--port", port, f"cannot be used: {error.strerror or error}.", "Give another one, or 0 for a free one."
            ) from None

    @property
    def url(self) -> str:
        """Where the pages are."""
        return f"http://{_HOST}:{self.server_port}/"

    @property
    def pages(self) -> list[dict[str, str]]:
        """Each checkpoint with the address of its page."""
        return [{"checkpoint": each.location, "url": f"{self.url}{i}/"} for i, each in enumerate(self.watched)]

    def shutdown(self) -> None:
        """End the open streams of events too."""
        self.stopping.set()
        super().shutdown()


class _Watched:
    """A checkpoint that is read again when its log has grown. A file of the log never changes, so it is read once."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._texts: dict[str, str] = {}
        self.read()

    def read(self) -> StoredCheckpoint:
        return StoredCheckpoint(self.location, self._texts, waits=True)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version = "backlog-spark"
    protocol_version = "HTTP/1.0"  # the end of the connection ends an answer

    def do_GET(self) -> None:
        # A page of another site could reach this server under a name of its own (DNS rebinding).
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{_HOST}:{port}", f"localhost:{port}"):
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "Use the address that backlog-spark ui printed.")
            return
        parts = urlsplit(self.path).path.strip("/").split("/")
        try:
            self._route(parts)
        except (BrokenPipeError, ConnectionResetError):
            pass
        except Exception as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", str(error))

    def _route(self, parts: list[str]) -> None:
        watched = self.server.watched
        match parts:
            case [""] if len(watched) == 1:
                self.send_response(HTTPStatus.FOUND)
                self.send_header("Location", "/0/")
                self.end_headers()
            case [""]:
                self._answer(HTTPStatus.OK, _HTML, _index([each.read() for each in watched]))
            case ["live.js"]:
                self._answer(HTTPStatus.OK, _JS, report.templates().get_template("live.js").render())
            case [number] if number.isdecimal() and int(number) < len(watched):
                self._answer(HTTPStatus.OK, _HTML, report.page(watched[int(number)].read(), live=True))
            case [number, "events"] if number.isdecimal() and int(number) < len(watched):
                self._stream(watched[int(number)])
            case _:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", "There is no such page.")

    def _stream(self, watched: _Watched) -> None:
        """The report's changes, as long as the client listens."""
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        seen: object = None
        switches, silent = None, 0.0
        while not self.server.stopping.is_set():
            began = time.monotonic()
            checkpoint = watched.read()
            found_now = checkpoint.event_files, checkpoint.driver_runs
            if found_now != seen:
                seen, silent = found_now, 0.0
                history = read_history(checkpoint.events, runs=checkpoint.driver_runs)
                found = history.of_kind("switch")
                said = ""
                if switches is not None and len(found) > switches:
                    said = f"{found[-1].mode} mode, because {found[-1].text}"
                switches = len(found)
                told = json.dumps({"html": report.body(checkpoint, history), "said": said})
                self.wfile.write(f"event: report\ndata: {told}\n\n".encode())
                self.wfile.flush()
            elif silent >= _SILENT_S:
                self.wfile.write(b": still here\n\n")
                self.wfile.flush()
                silent = 0.0
            # A log of 100,000 batches takes seconds to read, and has new lines every five seconds.
            pause = max(_LOOK_S, _REST * (time.monotonic() - began))
            silent += pause
            self.server.stopping.wait(pause)

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def _index(checkpoints: Sequence[StoredCheckpoint]) -> str:
    queries = []
    for number, checkpoint in enumerate(checkpoints):
        history = read_history(checkpoint.events, runs=checkpoint.driver_runs)
        nothing = "without an event log" if checkpoint.is_there else "not started yet"
        state = f"{history.status}, {history.mode}" if history.query else nothing
        queries.append((number, history.query or checkpoint.location, state, checkpoint.location))
    return report.templates().get_template("index.html").render(queries=queries)
