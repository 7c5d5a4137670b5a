"""Functions that make unsigned tokens, as a user's module would, and a token server of OpenID Connect."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "s3cret-token"
calls: list[float] = []


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def unsigned(life_s: float) -> tuple[str, float]:
    now = time.time()
    end = now + life_s
    return f"{_part({'alg': 'none'})}.{_part({'sub': 'reader', 'iat': now, 'exp': end, 'x': SECRET})}.", end


def short() -> tuple[str, float]:
    calls.append(time.time())
    return unsigned(4)


def long() -> tuple[str, float]:
    return unsigned(600)


def refused() -> tuple[str, float]:
    return f"{SECRET}.x.y", time.time() + 600


def failing() -> tuple[str, float]:
    raise ValueError(SECRET)


def expired() -> tuple[str, float]:
    return unsigned(-5)


def in_milliseconds() -> tuple[str, float]:
    token, end = unsigned(600)
    return token, end * 1000


def without_time() -> str:
    return SECRET


@contextmanager
def token_server(life_s: float, client: str, secret: str) -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """Its address, and the forms of all requests that it has answered."""
    asked: list[dict[str, list[str]]] = []
    login = "Basic " + base64.b64encode(f"{client}:{secret}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            right = self.headers["Authorization"] == login
            if right:
                asked.append(urllib.parse.parse_qs(form))
            answer = {"access_token": unsigned(life_s)[0], "token_type": "Bearer", "expires_in": life_s}
            body = json.dumps(answer if right else {"error": "invalid_client"}).encode()
            self.send_response(200 if right else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
