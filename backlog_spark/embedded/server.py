"""The life of an embedded server: a port, a data directory, start, ready, stop, and nothing left behind.

A subclass says what to run and how to ask whether it is ready; this module sees to it that the process ends with
the Python process that started it, however that ends:

* normally: ``close()``, the end of the ``with`` block, or an ``atexit`` hook;
* by SIGKILL: the kernel kills the server (see `launch`). What stays in the temporary directory is removed when the next
  server starts, here or in another process.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, TextIO

from backlog_spark.embedded.cache import locked
from backlog_spark.embedded.launch import launch
from backlog_spark.errors import BacklogError

__all__ = ["EmbeddedServer", "ServerError", "free_port"]

_START_SECONDS = 120.0
"""A start takes 2 to 5 s; crash recovery of a large data directory on a busy machine takes much longer."""

_STOP_SECONDS = 60.0
"""After this long the server is killed; MySQL flushes its buffer pool on the way down."""

_PORTS = range(20000, 32000)
"""Below Linux's ephemeral range (32768 and up): from there an outgoing connection of any process could take the
port while the server is down between ``kill()`` and ``start()``."""

_HOME_PREFIX = "backlog-spark-"
_LOCK_NAME = "owner.lock"


class ServerError(BacklogError):
    """An embedded server did not start, or died.

    Parameters
    ----------
    problem : str
        What happened.
    log_path : Path
        The server's own log; it is kept.
    """

    def __init__(self, problem: str, log_path: Path) -> None:
        self.log_path = log_path
        super().__init__(problem, f"The whole log is in {log_path}; its end:\n{_tail(log_path)}")


class EmbeddedServer(ABC):
    """A real server on 127.0.0.1 for tests, examples and benchmarks.

    Parameters
    ----------
    datadir : Path or str, optional
        Where its data lives; created and filled when missing or empty, kept at the end. Default: a temporary
        directory, removed by `close`.
    port : int, optional
        Default: a free one. It stays the same over restarts.

    Notes
    -----
    ``with`` starts it and closes it. Alternatively call `start` and `close`. All methods are for one thread at a time.
    """

    name: ClassVar[str]
    """Short lower-case name of the product, for paths and messages."""

    host: ClassVar[str] = "127.0.0.1"

    def __init__(self, datadir: Path | str | None = None, port: int | None = None) -> None:
        self.port = port if port is not None else free_port()
        self._port_is_ours_to_choose = port is None
        self._home: Path | None = None
        self._home_lock: TextIO | None = None
        self._given_datadir = Path(datadir).absolute() if datadir is not None else None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        handle, log = tempfile.mkstemp(prefix=f"{_HOME_PREFIX}{self.name}-", suffix=".log")
        os.close(handle)
        self.log_path = Path(log)
        self._keep_log = False

    @abstractmethod
    def initialise(self) -> None:
        """Fill `datadir`, which exists and is empty. Called once, before the first start on it."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command line that runs the server in the foreground. Called before every start."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether *this* server answers. Called every few milliseconds during a start; must not wait nor raise."""

    def environment(self) -> dict[str, str]:
        """Environment of the server process. Default: that of this process."""
        return dict(os.environ)

    @property
    def home(self) -> Path:
        """A private temporary directory for sockets and the like; removed by `close`."""
        if self._home is None:
            # Under a lock, so that nobody sweeps a home between its creation and its lock.
            with locked("homes"):
                _sweep()
                self._home = Path(tempfile.mkdtemp(prefix=f"{_HOME_PREFIX}{self.name}-"))
                self._home_lock = (self._home / _LOCK_NAME).open("w")
                fcntl.flock(self._home_lock, fcntl.LOCK_EX)
        return self._home

    @property
    def datadir(self) -> Path:
        """The data directory."""
        return self._given_datadir if self._given_datadir is not None else self.home / "data"

    @property
    def pid(self) -> int | None:
        """Process id of the running server, or None."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process is not None else None

    def start(self) -> Self:
        """Start and return when the server answers. Does nothing when it runs already.

        Raises
        ------
        ServerError
            It ended, or did not answer within two minutes; with the end of its log.
        """
        if self.pid is not None:
            return self
        atexit.register(self._close_at_exit)
        try:
            self.datadir.mkdir(parents=True, exist_ok=True)
            if not any(self.datadir.iterdir()):
                self.initialise()
            self._start_process()
        except BaseException:
            # Empty when it failed before there was a process, as without a network.
            self._keep_log = self.log_path.stat().st_size > 0
            self.close()
            raise
        # From now on clients know the port, so a restart must not change it.
        self._port_is_ours_to_choose = False
        return self

    def _start_process(self) -> None:
        for _ in range(3):
            self._launch()
            if self._wait_until_ready():
                return
            if not (self._port_is_ours_to_choose and _is_taken(self.port)):
                break
            # Another process took the port between our look and the server's bind.
            self.port = free_port()
        status = self._process.returncode if self._process is not None else None
        raise ServerError(f"{self.name} ended with status {status} before it was ready.", self.log_path)

    def _launch(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = launch(self.command(), self.environment(), log)

    def _wait_until_ready(self) -> bool:
        """True when the server answers, False when it has ended."""
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while self._process.poll() is None:
            if self.is_ready():
                return True
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} did not answer within {_START_SECONDS:.0f} s.", self.log_path)
            time.sleep(0.02)
        return False

    def stop(self) -> None:
        """Shut the server down in order; data and port stay for a later `start`. Does nothing when it is down."""
        self._end(kill=False)

    def kill(self) -> None:
        """End the server by SIGKILL, as a crash would, and wait until it is gone. `start` recovers its data."""
        self._end(kill=True)

    def _end(self, *, kill: bool) -> None:
        process = self._process
        if process is None or self._owner != os.getpid():
            return
        if kill:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def restart(self) -> Self:
        """Stop and start again on the same data and port."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """End the server and remove its temporary files.

        A given ``datadir`` stays, as does the log of a failed start.
        """
        if self._owner != os.getpid():
            return
        # An orderly end takes seconds, and its data would be removed next.
        self._end(kill=self._given_datadir is None)
        atexit.unregister(self._close_at_exit)
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None
        if self._home_lock is not None:
            self._home_lock.close()
            self._home_lock = None
        if not self._keep_log:
            self.log_path.unlink(missing_ok=True)

    def _close_at_exit(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has now, outside the range from which outgoing connections take theirs."""
    for port in random.sample(_PORTS, 200):
        if not _is_taken(port):
            return port
    raise BacklogError(f"no free port between {_PORTS.start} and {_PORTS.stop} on 127.0.0.1.")


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a port whose old connections are in TIME_WAIT can be bound.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((EmbeddedServer.host, port))
        except OSError:
            return True
    return False


def _sweep() -> None:
    """Remove what processes that were killed left behind: homes whose lock nobody holds any more."""
    for home in Path(tempfile.gettempdir()).glob(f"{_HOME_PREFIX}*/"):
        with contextlib.suppress(OSError), (home / _LOCK_NAME).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(home, ignore_errors=True)


def _tail(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-15:]) or "(empty)"
    except OSError as error:
        return f"(cannot be read: {error.strerror})"
