"""Starts and stops an embedded server, and removes its files.

A subclass gives the command, and finds out whether the server is ready. The server always ends with the Python process
that started it:

* if the process ends normally: by ``close()``, the end of the ``with`` block, or an ``atexit`` hook;
* if the process is killed: by the kernel (see `launch`). The next server that starts, in any process, removes the
  files that are left in the temporary directory.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, TextIO

from backlog_spark.errors import BacklogError
from servers.cache import locked
from servers.launch import launch

__all__ = ["EmbeddedServer", "ServerError", "free_port"]

_START_SECONDS = 120.0
"""A start takes 2 to 5 s. Crash recovery of a large data directory on a busy machine takes much longer."""

_STOP_SECONDS = 60.0
"""After this time the server is killed. A shutdown takes long because MySQL flushes its buffer pool."""

_PORTS = range(20000, 32000)
"""Below Linux's ephemeral range (32768 and up). Outgoing connections of any process take ports from that range. They
could take the server's port between ``kill()`` and ``start()``."""

_HOME_PREFIX = "backlog-spark-"
_LOCK_NAME = "owner.lock"


class ServerError(BacklogError):
    """An embedded server did not start, or died.

    Parameters
    ----------
    problem : str
        What happened.
    log_path : Path
        The server's log. The file is kept.
    """

    def __init__(self, problem: str, log_path: Path) -> None:
        self.log_path = log_path
        super().__init__(problem, f"The whole log is in {log_path}. It ends:\n{_tail(log_path)}")


class EmbeddedServer(ABC):
    """A real server on 127.0.0.1 for tests, examples and benchmarks.

    Parameters
    ----------
    datadir : Path or str, optional
        The data directory. It is created if it is missing, and kept at the end. Default: a temporary directory, which
        `close` removes.
    port : int, optional
        Default: a free one. A restart does not change it.

    Notes
    -----
    ``with`` starts and closes the server. You can also call `start` and `close`. Only one thread at a time may call
    methods.
    """

    name: ClassVar[str]
    """The product's short name in lower case, for paths and messages."""

    host: ClassVar[str] = "127.0.0.1"

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    """What the server shuts down by, without waiting for its clients."""

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
        """Fill `datadir`, which is an empty directory. Called before its first start."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command line that runs the server in the foreground. Called before every start."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether *this* server answers. Called every few milliseconds during a start. Must not wait or raise."""

    def environment(self) -> dict[str, str]:
        """Environment of the server process. Default: this process's environment."""
        return dict(os.environ)

    def working_directory(self) -> Path | None:
        """Working directory of the server process. Default: that of this process."""
        return None

    @property
    def home(self) -> Path:
        """A temporary directory of this server, for sockets and other files. `close` removes it."""
        if self._home is None:
            # Under a lock: no other process may remove the directory before its own lock is held.
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
        """Start the server, and return when it answers. Does nothing if it already runs.

        Raises
        ------
        ServerError
            The server ended, or did not answer within two minutes.
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
            # The log is empty if no process was started, for example without a network.
            self._keep_log = self.log_path.stat().st_size > 0
            self.close()
            raise
        # Clients know the port from now on, so a restart must not change it.
        self._port_is_ours_to_choose = False
        return self

    def _start_process(self) -> None:
        for _ in range(3):
            self._launch()
            if self._wait_until_ready():
                return
            if not (self._port_is_ours_to_choose and _is_taken(self.port)):
                break
            # Another process took the port before the server did.
            self.port = free_port()
        status = self._process.returncode if self._process is not None else None
        raise ServerError(f"{self.name} ended with status {status} before it was ready.", self.log_path)

    def _launch(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = launch(self.command(), self.environment(), log, cwd=self.working_directory())

    def _wait_until_ready(self) -> bool:
        """True once the server answers, False if it has ended."""
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
        """Shut the server down. Data and port stay for a later `start`. Does nothing if it is down."""
        self._end(kill=False)

    def kill(self) -> None:
        """Kill the server by SIGKILL, and wait until it has ended. `start` recovers its data, as after a crash."""
        self._end(kill=True)

    def _end(self, *, kill: bool) -> None:
        process = self._process
        if process is None or self._owner != os.getpid():
            return
        if kill:
            process.kill()
        else:
            process.send_signal(self.stop_signal)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def restart(self) -> Self:
        """Stop the server, and start it again with the same data and port."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """End the server and remove its temporary files.

        A given ``datadir`` and the log of a failed start are kept.
        """
        if self._owner != os.getpid():
            return
        # A shutdown takes seconds, which temporary data does not need.
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
    """A free port of 127.0.0.1, outside the range of ports for outgoing connections."""
    for port in random.sample(_PORTS, 200):
        if not _is_taken(port):
            return port
    raise BacklogError(f"no free port between {_PORTS.start} and {_PORTS.stop} on 127.0.0.1.")


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # Servers set this too. With it, a port with old connections in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((EmbeddedServer.host, port))
        except OSError:
            return True
    return False


def _sweep() -> None:
    """Remove the directories of killed processes: those whose lock nobody holds."""
    for home in Path(tempfile.gettempdir()).glob(f"{_HOME_PREFIX}*/"):
        with contextlib.suppress(OSError), (home / _LOCK_NAME).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(home, ignore_errors=True)


def _tail(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-15:]) or "(empty)"
    except OSError as error:
        return f"(cannot be read: {error.strerror})"
