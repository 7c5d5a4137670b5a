"""A schema registry over real HTTP: ``GET /schemas/ids/{id}``, ``POST /subjects/{subject}/versions`` and its versions.

Source: Confluent's documentation of the REST interface.
"""

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
    subjects : dict of str to int
        The newest id of each subject. Its version 1 has that id too.
    """

    def __init__(self, login: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.schemas: dict[int, Any] = {}
        self.failures: list[int] = []
        self.requests: list[str] = []
        self.subjects: dict[str, int] = {}
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

    def _answer(self, path: str, login: str | None, posted: bytes | None = None) -> tuple[int, Any]:
        self.requests.append(path)
        path = path.partition("?")[0]
        if self.failures:
            return self.failures.pop(0), {"error_code": 50001, "message": "Error in the backend data store"}
        if self.login and login != self.login:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if posted is not None:
            _, subjects, subject, versions = path.split("/")
            assert (subjects, versions) == ("subjects", "versions")
            answer = {
                name: value for name, value in json.loads(posted).items() if name in ("schema", "references") and value
            }
            known = [number for number, schema in self.schemas.items() if schema == answer]
            self.subjects[subject] = known[0] if known else len(self.schemas) + 1
            self.schemas[self.subjects[subject]] = answer
            return 200, {"id": self.subjects[subject]}
        head, _, id = path.rpartition("/")
        if head.startswith("/subjects/"):
            subject = head.split("/")[2]
            if subject not in self.subjects or id != "1":
                return 404, {"error_code": 40401, "message": "Subject not found"}
            return 200, {"subject": subject, "version": 1, "id": 1, **self.schemas[self.subjects[subject]]}
        if head != "/schemas/ids" or int(id) not in self.schemas:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, self.schemas[int(id)]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.do_GET(self.rfile.read(int(self.headers["Content-Length"])))

            def do_GET(self, posted: bytes | None = None) -> None:
                more = () if posted is None else (posted,)
                status, answer = registry._answer(self.path, self.headers["Authorization"], *more)
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
