"""Starts Spark's Python processes faster. This directory is on their path (see `sitecustomize`)."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["SERVER", "fork_server"]

SERVER = "BACKLOG_SPARK_FORK_SERVER"
# The kernel limits a socket's path to 108 bytes.
_LONGEST = 100

_PREFIX = "backlog-forks-"
_SCRIPT = Path(__file__).parent / "backlog_forks.py"

# The key has the process id, as a fork of the driver does not own its servers, and what the server was started with.
_servers: dict[tuple[int, str, str], tuple[str, subprocess.Popen[bytes]]] = {}
_lock = threading.Lock()


def fork_server(python: str, environment: Mapping[str, str], modules: Sequence[str]) -> str | None:
    """Address of the server that forks Python processes (see `backlog_forks`); the first call starts it.

    The server ends with this process, even if this process is killed.

    Parameters
    ----------
    python : str
        The interpreter.
    environment : mapping of str to str
        The environment of the processes. The server refuses a process whose variables differ in what matters at start.
    modules : sequence of str
        Imported before the first fork, besides what Spark's processes need. Missing ones are left out.

    Returns
    -------
    str or None
        The path of a socket, or None if no server can run here.
    """
    if not _SCRIPT.is_file():
        return None  # this package was not unpacked: --py-files brought it as a zip
    key = os.getpid(), python, repr((sorted(environment.items()), list(modules)))
    with _lock:
        known = _servers.get(key)
        if known is None or known[1].poll() is not None:
            try:
                known = _start(python, environment, modules)
            except OSError:
                return None
            _servers[key] = known
        return known[0]


def _start(python: str, environment: Mapping[str, str], modules: Sequence[str]) -> tuple[str, subprocess.Popen[bytes]]:
    _sweep(Path(tempfile.gettempdir()))
    directory = tempfile.mkdtemp(prefix=_PREFIX)
    if len(os.fsencode(directory)) > _LONGEST - len("/s"):
        Path(directory).rmdir()
        directory = tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp")
    path = f"{directory}/s"
    server = subprocess.Popen(
        [python, str(_SCRIPT), path, *modules], env=dict(environment),
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        # A signal to the driver's process group, as `timeout` sends it, must not end sources: a query ends its batch.
        start_new_session=True,
    )  # fmt: skip
    atexit.register(_stop, server)
    return path, server


def _sweep(folder: Path) -> None:
    """Remove the sockets of servers that were killed together with their driver."""
    for directory in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as one:
            try:
                one.connect(str(directory / "s"))
            except ConnectionRefusedError:
                (directory / "s").unlink()
                directory.rmdir()


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.stdin is not None:
        with contextlib.suppress(OSError):
            server.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(timeout=1)
