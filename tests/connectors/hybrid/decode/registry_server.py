"""A schema registry over real HTTP, only for reading: ``GET /schemas/ids/{id}`` as Confluent documents it."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

__all__ = ["RegistryServer"]


class RegistryServer:
    """Runs within ``with``.

    Parameters
    ----------
    login : str, optional
        The only value of the header Authorization that is let in.
    tls : ssl.SSLContext, optional
        To speak HTTPS.

    Attributes
    ----------
    schemas : dict of int to dict
        Answers by id.
    failures : list of int
        Statuses of the next answers, before the schemas' own.
    requests : list of str
        Paths that were asked for.
    """

    def __init__(self, login: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.schemas: dict[int, Any] = {}
        self.failures: list[int] = []
        self.requests: list[str] = []
        self.login = login
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._scheme = "https" if tls else "http"
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://localhost:{self._server.server_address[1]}"

    def add(self, id: int, schema: Any, **more: Any) -> None:
        self.schemas[id] = {"schema": json.dumps(schema), **more}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, path: str, login: str | None) -> tuple[int, Any]:
        self.requests.append(path)
        if self.failures:
            return self.failures.pop(0), {"error_code": 50001, "message": "Error in the backend data store"}
        if self.login and login != self.login:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        head, _, id = path.rpartition("/")
        if head != "/schemas/ids" or int(id) not in self.schemas:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, self.schemas[int(id)]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, answer = registry._answer(self.path, self.headers["Authorization"])
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                if status in (301, 302, 307):
                    self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        return Handler
