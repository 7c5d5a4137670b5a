"""Starts a process that the kernel kills when this process ends, also if this process is killed.

Linux has ``PR_SET_PDEATHSIG`` for this, with one trap: it sends the signal when the *thread* that forked ends. So one
thread, which lives as long as the interpreter, forks every process.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, TypeAlias

__all__ = ["launch"]

# Runs as `python -c`: it asks for the signal, then becomes the server. A preexec_fn would do the same, but it runs
# Python code in a fork of a process with threads (Spark's, pyarrow's), which can deadlock. If the parent died before
# the signal was set, it is no longer the parent.
_BECOME_SERVER = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit('the starting process is gone')\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)

_Process: TypeAlias = "subprocess.Popen[bytes]"
_Fork: TypeAlias = Callable[[], _Process]


def launch(
    command: Sequence[str], environment: Mapping[str, str], log: IO[bytes], *, cwd: Path | None = None
) -> _Process:
    """Run a command without input. It gets SIGKILL when this process ends.

    Parameters
    ----------
    command : sequence of str
        Path of the program, and its arguments. The program must not change its user, as the kernel then drops the
        signal.
    environment : mapping
        The whole environment of the program.
    log : binary file
        Open for writing; gets the program's output. It may be closed after this returns.
    cwd : Path, optional
        Its working directory. Default: that of this process.

    Returns
    -------
    subprocess.Popen
        Its ``pid`` is that of the program itself. It has a session of its own, so Ctrl-C in the terminal only reaches
        the caller, who can then stop the program properly.
    """
    wrapper = [sys.executable, "-I", "-S", "-c", _BECOME_SERVER, str(os.getpid()), *command]

    def fork() -> _Process:
        return subprocess.Popen(
            wrapper,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=cwd,
            start_new_session=True,
        )

    return _launcher.run(fork)


class _Launcher:
    """The thread that forks. The first call starts it. A forked child starts its own, as a fork copies no threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._tasks: queue.SimpleQueue[tuple[Future[_Process], _Fork]] = queue.SimpleQueue()

    def run(self, fork: _Fork) -> _Process:
        with self._lock:
            if self._owner != os.getpid():
                self._tasks = queue.SimpleQueue()
                # A daemon: the interpreter does not wait for it, and exit hooks run before it ends.
                threading.Thread(target=_work, args=(self._tasks,), name="launch-servers", daemon=True).start()
                self._owner = os.getpid()
        future: Future[_Process] = Future()
        self._tasks.put((future, fork))
        return future.result()


def _work(tasks: queue.SimpleQueue[tuple[Future[_Process], _Fork]]) -> None:
    while True:
        future, fork = tasks.get()
        try:
            future.set_result(fork())
        except BaseException as error:
            future.set_exception(error)
        del future, fork  # else the last server's Popen is kept until the next start


_launcher = _Launcher()
