"""Lets a source ask the query's runner questions, over a connection within the machine.

A Python source has a process of its own and sees only its options. The port and a secret key are such options, so no
other process on the machine gets an answer. An answer takes 0.1 ms.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from typing import Any

__all__ = ["LoopbackLine", "LoopbackServer"]

_HOST = "127.0.0.1"
# Length of the connection queue: all sources of a query connect at once. One that does not fit waits for a second.
_SOURCES = 64
_AFTER_AN_ERROR_S = 0.05


class LoopbackServer:
    """Answers processes on this machine that know the key.

    Parameters
    ----------
    answer : callable
        Takes a question and returns the answer, both JSON objects. Called from a thread of each connection.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        self._answer = answer
        self.token = secrets.token_hex(16)
        self._listener = Listener((_HOST, 0), backlog=_SOURCES)
        self._address: tuple[str, int] = self._listener.address
        self.port = self._address[1]
        self._closing = False
        threading.Thread(target=self._accept, name="backlog-loopback", daemon=True).start()

    def close(self) -> None:
        """Stop listening. Connections end with their sources."""
        self._closing = True
        # A close does not wake a thread that waits in accept(), so connect once.
        with contextlib.suppress(OSError), socket.create_connection(self._address):
            pass
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection = self._listener.accept()
            except OSError:  # `close`, or too many open files
                time.sleep(_AFTER_AN_ERROR_S)
                continue
            threading.Thread(target=self._serve, args=(connection,), name="backlog-loopback", daemon=True).start()

    def _serve(self, connection: Connection[Any, Any]) -> None:
        with connection:
            # In this thread, because a silent client would keep the others waiting in `Listener.accept`.
            try:
                deliver_challenge(connection, self.token.encode())
                answer_challenge(connection, self.token.encode())
            except (OSError, EOFError, AuthenticationError):  # a client without the key
                return
            while True:
                try:
                    asked = json.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    return
                connection.send_bytes(json.dumps(self._answer(asked)).encode())


class LoopbackLine:
    """A source's end of the connection. It connects at the first question, and again after an error.

    Parameters
    ----------
    port, token
        Those of the `LoopbackServer`.
    """

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self._token = token
        self._connection: Connection[Any, Any] | None = None

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The server's answer.

        Raises
        ------
        EOFError, OSError or multiprocessing.AuthenticationError
            If there is none.
        """
        try:
            if self._connection is None:
                self._connection = Client((_HOST, self.port), authkey=self._token.encode())
                _send_at_once(self._connection)
            self._connection.send_bytes(json.dumps(question).encode())
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            raise
        return answer

    def __getstate__(self) -> dict[str, Any]:
        # Readers are pickled for workers; an open connection cannot be.
        return {**self.__dict__, "_connection": None}


def _send_at_once(connection: Connection[Any, Any]) -> None:
    """Switch off Nagle's algorithm: data after the handshake would wait 40 ms for the other side's acknowledgement."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
