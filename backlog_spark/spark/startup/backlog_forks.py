"""Forks the Python processes that Spark starts on the driver's machine from one that has finished its imports.

Spark starts a new process for each Python source and for each stateful operator at every start, restart and switch of
a query. Each of them imports pyspark, pyarrow and pandas first, 0.3 s of processor time. Spark's tasks do not: they
are forked from a daemon (``pyspark.daemon``). This module does the same for the driver's processes. Measured on two
cores in a warm JVM: from `start()` to the end, two million rows of files take 2.1 s instead of 2.9, and a million
records of Kafka 1.8 s instead of 2.3. The first query of a new JVM gains nothing.

A new process connects to the server (`ask`). The server forks a child, which takes over the environment, directory,
path and standard streams of that process. The process itself waits for the child and ends with the same exit code. If
it is killed, the server ends the child.

The server accepts only processes that would have started as it did itself (`fingerprint`). Spark starts all others as
usual, and also if there is no server. The server ends with the driver: its standard input is a pipe from the driver.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import backlog_quiet  # type: ignore[import-not-found]

__all__ = ["MODULES", "ask", "fingerprint", "main"]

MODULES = (
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
)
# The interpreter and the libraries read these only when they start.
_AT_START = ("PYTHON", "LD_", "LANG", "LC_", "OMP_", "OPENBLAS_", "MKL_", "ARROW_", "MALLOC_")
# These differ from process to process. They are read later.
_ITS_OWN = ("PYTHON_WORKER_FACTORY_", "PYTHON_UNIX_DOMAIN_")
# Longer than the server's own imports take. A process that gives up does them itself.
_PATIENCE_S = 5.0
_REQUEST_S = 2.0
_READY, _REFUSED, _GO = b"y", b"n", b"g"


def fingerprint() -> str:
    """What two processes must have in common so that one can replace the other."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_AT_START) and not name.startswith(_ITS_OWN)
    }
    return json.dumps([sys.executable, sys.version, list(sys.flags), sorted(environment.items())])


def ask(server_path: str, module: str, path: list[str]) -> None:
    """Run a module in a child of the server. It returns only if that is not possible.

    Parameters
    ----------
    server_path : str
        The path of the server's socket.
    module : str
        The argument of ``python -m``.
    path : list of str
        ``sys.path`` of the child, without the directory that ``-m`` adds.
    """
    request = {
        "fingerprint": fingerprint(), "module": module, "environment": dict(os.environ), "directory": str(Path.cwd()),
        "path": path, "umask": _umask(),
    }  # fmt: skip
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        try:
            server.settimeout(_PATIENCE_S)
            server.connect(server_path)
            text = json.dumps(request).encode()
            socket.send_fds(server, [len(text).to_bytes(4, "big")], [0, 1, 2])
            server.sendall(text)
            if server.recv(1) != _READY:
                return
            # The server does not fork before this. A process that timed out goes on alone and never runs twice.
            server.sendall(_GO)
        except OSError:
            return
        server.settimeout(None)
        status = b""
        with contextlib.suppress(OSError):
            status = server.recv(4)
    # Nothing is flushed or closed here: the child has done so.
    os._exit(int.from_bytes(status, "big") if status else 1)


def _umask() -> int:
    found = os.umask(0o077)
    os.umask(found)
    return found


class _Server:
    """Listens, forks, and sends each waiting process its child's exit code."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fingerprint = fingerprint()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Another driver removes a socket at which nobody listens, so it gets its name when this one does.
        self._listener.bind(f"{path}.new")
        self._listener.listen(64)
        Path(f"{path}.new").rename(path)
        self._selector = selectors.DefaultSelector()
        self._waiting: dict[int, socket.socket] = {}
        self._woken, wake = socket.socketpair()
        self._wake = wake
        for each in (self._woken, wake):
            each.setblocking(False)

    def serve(self) -> dict[str, Any] | None:
        """Serve until the driver is gone, then return None. In a child: return its request."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the driver
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    request = self._take()
                    if request is not None:
                        return request
                elif key.fileobj is self._woken:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
                    self._reap()
                elif key.fd == sys.stdin.fileno():
                    if not os.read(key.fd, 4096):
                        self._end()
                        return None
                else:
                    self._abandon(key.data)

    def _take(self) -> dict[str, Any] | None:
        """Answer one process. In the child: return the request."""
        connection, _ = self._listener.accept()
        streams: list[int] = []
        try:
            connection.settimeout(_REQUEST_S)
            size, streams, _, _ = socket.recv_fds(connection, 4, 3)
            text = b""
            while len(text) < int.from_bytes(size, "big"):
                piece = connection.recv(int.from_bytes(size, "big") - len(text))
                if not piece:
                    raise EOFError
                text += piece
            request: dict[str, Any] = json.loads(text)
            is_alike = len(streams) == 3 and request["fingerprint"] == self._fingerprint
            connection.sendall(_READY if is_alike else _REFUSED)
            if not is_alike or connection.recv(1) != _GO:
                raise EOFError
            connection.settimeout(None)
            child = os.fork()
            if child == 0:
                try:
                    self._become(connection, streams)
                except BaseException:
                    os._exit(1)  # never continue as a second server
                return request
            self._waiting[child] = connection
            # Readable when the process that asked has ended.
            self._selector.register(connection, selectors.EVENT_READ, child)
        except (OSError, EOFError, ValueError, KeyError):
            connection.close()
        finally:
            for stream in streams:
                os.close(stream)
        return None

    def _become(self, connection: socket.socket, streams: list[int]) -> None:
        """In the child: close everything that belongs to the server.

        It goes on ignoring Ctrl-C, as do the processes that Spark starts when a Python program has started Spark.
        """
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for each in (self._listener, self._woken, self._wake, connection, *self._waiting.values()):
            each.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)

    def _reap(self) -> None:
        while self._waiting:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if child == 0:
                return
            connection = self._waiting.pop(child, None)
            if connection is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):
                connection.sendall((code if code >= 0 else 128 - code).to_bytes(4, "big"))
            self._forget(connection)

    def _abandon(self, child: int) -> None:
        """End a child whose waiting process has ended."""
        connection = self._waiting.get(child)
        if connection is None:
            return  # this round has reaped it
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
        # The child is still reaped, but nobody gets its exit code.
        self._selector.unregister(connection)

    def _forget(self, connection: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection)
        connection.close()

    def _end(self) -> None:
        self._listener.close()
        with contextlib.suppress(OSError):
            Path(self._path).unlink()
            Path(self._path).parent.rmdir()


def _take_over(request: dict[str, Any]) -> None:
    """Take over the environment, directory, path and arguments of the process that asked."""
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.umask(request["umask"])
    os.chdir(request["directory"])
    # `python -m` puts the directory first, after what runs at the start of the interpreter.
    first = [] if sys.flags.safe_path else [request["directory"]]
    sys.path[:] = [*first, *request["path"]]
    sys.orig_argv[:] = [sys.executable, "-m", request["module"]]
    sys.argv[:] = ["-m"]
    numbers = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed()  # a fork already seeds Python's own generator


def main(path: str, preload: list[str]) -> None:
    """Import the modules that exist, then listen on a socket at this path."""
    server = _Server(path)
    # Python put this file's directory on the path. No module is imported from there.
    sys.path[:] = [entry for entry in sys.path if Path(entry) != Path(__file__).parent]
    for module in (*MODULES, *preload):
        # A process that needs a broken module reports its error.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    # The collector would write to, and so copy, the memory that the children share.
    gc.collect()
    gc.freeze()
    request = server.serve()
    if request is None:
        return
    _take_over(request)
    # The module was imported to import its dependencies. As the main module it runs again.
    sys.modules.pop(request["module"], None)
    backlog_quiet.be_quiet(sys.orig_argv)
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
