"""A program in a process of its own, with the processor time and memory of all processes that it starts.

A small parent waits for every process of the program, also for those whose own parent has ended. So the kernel adds the
time of ended processes to the time of those that are left, and nothing is lost between two samples.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from benchmarks.processes import memory_of, tree

__all__ = ["Ended", "Measured", "Sample", "Sampler"]

_SAMPLE_S = 0.2
# Linux walks the pages of a process for its PSS, which takes 20 ms for some GB. This is done less often.
_MEMORY_EVERY = 5
_END_S = 60.0
_LAST_LINES = 25
# From its first line to the one without indentation, which has the error.
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ ].*\n)*.*", re.MULTILINE)

# PR_SET_CHILD_SUBREAPER is 36. It ends once the last process has ended, with the status of the first.
_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1)
first, status = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:]), 1
while True:
    try:
        process, ended = os.wait()
    except ChildProcessError:
        sys.exit(status)
    if process == first:
        status = max(os.waitstatus_to_exitcode(ended), -1) % 256
"""


class Ended(Exception):
    """A program ended, or has not said in time what was waited for. The text is the end of its log."""


class Sample(NamedTuple):
    """Processor seconds of a tree of processes up to a time in seconds since 1970, and bytes of memory (PSS)."""

    at: float
    cpu: float
    memory: int


class Sampler:
    """Samples the tree of processes below ``root`` in a thread, from `start` to `end`."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.samples: list[Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> Self:
        self._take(0)
        self._thread.start()
        return self

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def cpu(self, at: float) -> float:
        """Processor seconds up to a time, by the first sample after it.

        The processes of a sample are not read at one moment: one that ends meanwhile may count twice, or not at all. So
        this is the median of three samples.
        """
        later = next((i for i, sample in enumerate(self.samples) if sample.at >= at), len(self.samples) - 1)
        return statistics.median(sample.cpu for sample in self.samples[max(0, later - 1) : later + 2])

    def peak(self) -> int:
        """The most memory of a sample, in bytes."""
        return max(sample.memory for sample in self.samples)

    def _run(self) -> None:
        number = 1
        while not self._over.wait(_SAMPLE_S):
            self._take(number)
            number += 1

    def _take(self, number: int) -> None:
        found = tree(self.root)
        memory = self.samples[-1].memory if number % _MEMORY_EVERY else memory_of(found)
        self.samples.append(Sample(time.time(), sum(used.own + used.waited for used in found.values()), memory))


class Measured:
    """A running program that says on its standard output, in one word a line, how far it is.

    It ends when its standard input ends.

    Parameters
    ----------
    command : sequence of str
        The path of the program, and its arguments.
    log : Path
        For its standard error.
    environment : mapping of str to str
        Variables in addition to those of this process.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.began = time.time()
        self._log = log
        self._said: dict[str, float] = {}
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PARENT, *command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env={**os.environ, **(environment or {})}, start_new_session=True,
            )  # fmt: skip
        self.sampler = Sampler(self._process.pid).start()
        self._reader = threading.Thread(target=self._read, name="said", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def said(self, word: str, limit_s: float, meanwhile: Callable[[], None] = lambda: None) -> float:
        """Wait for a word. Returns the time at which it was said, in seconds since 1970."""
        limit = time.monotonic() + limit_s
        while word not in self._said:
            self.require_running()
            if time.monotonic() > limit:
                raise Ended(f"not done within {limit_s:,.0f} s")
            meanwhile()
            time.sleep(0.1)
        return self._said[word]

    def require_running(self) -> None:
        """Raise `Ended` if the program has ended."""
        if self._process.poll() is not None:
            raise Ended(f"ended with status {self._process.returncode}: {_told(self._log.read_text(errors='replace'))}")

    def end(self) -> None:
        """Ask the program to end, and kill what is left of it after a minute."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            # The parent is last, since it lists the others.
            for process in reversed(tree(self._process.pid)):
                os.kill(process, signal.SIGKILL)
            self._process.wait()
        self.sampler.end()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.setdefault(line.strip(), time.time())


def _told(log: str) -> str:
    """The end of the last traceback of a Python program; without one the end of the log."""
    # A driver's JVM goes on writing after that.
    tracebacks = list(_TRACEBACK.finditer(log))
    text = tracebacks[-1][0] if tracebacks else log
    return "\n".join(text.splitlines()[-_LAST_LINES:])
