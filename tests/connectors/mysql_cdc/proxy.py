"""A bad network before a real server: slow, stalling, and sometimes cut."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time

__all__ = ["Proxy"]

_PIECE = 4_096  # bytes that are let through at a time


class Proxy:
    """Forwards to a port of this machine.

    Parameters
    ----------
    port : int
        Of the server.
    bytes_per_second : int
        Of each connection in either direction.
    stall_s : float
        Every hundredth piece waits so long.
    seed : int

    Attributes
    ----------
    to : int
        The port. If it is changed, new connections go there.
    """

    def __init__(self, port: int, *, bytes_per_second: int, stall_s: float, seed: int = 0) -> None:
        self.to = port
        self._pause = _PIECE / bytes_per_second
        self._stall_s = stall_s
        self._chance = random.Random(seed)
        self._open: set[socket.socket] = set()
        self._halves = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone would let a waiting accept go on
        self._listener.close()
        self.cut()

    def cut(self) -> int:
        """End all connections at once, wherever they are; how many there were."""
        found = list(self._open)
        for one in found:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        return len(found) // 2

    def cut_inside(self) -> None:
        """End all connections as soon as half of the next piece of a server has been let through."""
        self._halves.set()

    @property
    def is_to_cut(self) -> bool:
        """Whether that has not happened yet."""
        return self._halves.is_set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.to))
            except OSError:  # it is down, and may come back
                client.close()
                continue
            self.connections += 1
            for a, b in ((client, server), (server, client)):
                self._open.add(a)
                threading.Thread(target=self._pump, args=(a, b, a is server), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE):
                time.sleep(self._stall_s if self._chance.random() < 0.01 else self._pause * len(data) / _PIECE)
                if is_answer and len(data) > 1 and self._halves.is_set():
                    self._halves.clear()
                    target.sendall(data[: len(data) // 2])
                    self.cut()
                    break
                target.sendall(data)
        self._open.discard(source)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()
