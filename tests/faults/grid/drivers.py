"""Drivers for the lives of a query. The next one starts while the present one works, so a life costs no JVM start."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from backlog_spark.common.fault_points import VARIABLE

from .actions import PLACE, Plan

__all__ = ["LIMIT_S", "Drivers", "Failed", "Life"]

LIMIT_S = 150
_MARK = "BACKLOG_SPARK_GRID_DRIVER"


class Failed(Exception):
    """The query has failed, or was refused. ``hint``: the next step that its error names."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.hint = hint


class Life:
    """One driver process. ``plan``: the faults of its query."""

    def __init__(self, root: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.home = root / self.mark[:8]
        self.home.mkdir(parents=True)
        self.plan = Plan(self.home / "faults")
        self.log = self.home / "log"
        environment = {
            **os.environ, VARIABLE: "tests.faults.grid.actions", PLACE: str(self.plan.place), _MARK: self.mark,
            "TMPDIR": str(self.home), "SPARK_LOCAL_DIRS": str(self.home / "spark"),
        }  # fmt: skip
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.grid.driver"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        self._rest = b""
        self._owed = 1  # answers: the first one says that it is ready

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_dead(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def order(self, do: str, **given: Any) -> None:
        """Send an order."""
        assert self._process.stdin is not None
        while self._owed:
            self.answer()
        self._process.stdin.write(json.dumps({"do": do, **given}).encode() + b"\n")
        self._process.stdin.flush()
        self._owed += 1

    def has_answered(self) -> bool:
        """Whether an answer is there, so that `answer` does not wait."""
        assert self._process.stdout is not None
        return b"\n" in self._rest or bool(select.select([self._process.stdout], [], [], 0)[0])

    def answer(self, limit_s: float = LIMIT_S) -> Any:
        """The answer to the oldest order.

        Raises
        ------
        Failed
            The query has failed.
        AssertionError
            The driver is dead, or has not answered in time.
        """
        assert self._process.stdout is not None
        limit = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            there, _, _ = select.select([self._process.stdout], [], [], 0.5)
            found = os.read(self._process.stdout.fileno(), 1 << 16) if there else b""
            if there and not found:
                raise AssertionError(f"the driver has ended: {self.tail()}")
            assert time.monotonic() < limit, f"no answer within {limit_s} s: {self.tail()}"
            self._rest += found
        line, _, self._rest = self._rest.partition(b"\n")
        self._owed -= 1
        told = json.loads(line)
        if "error" in told:
            raise Failed(told["error"], told["step"])
        return told["value"]

    def ask(self, do: str, **given: Any) -> Any:
        """Send an order and wait for its answer."""
        self.order(do, **given)
        return self.answer()

    def failure(self) -> Failed | None:
        """The answer to the oldest order, if it is a failure."""
        try:
            self.answer()
        except Failed as error:
            return error
        return None

    def wait_until_dead(self) -> None:
        """Until it has killed itself."""
        limit = time.monotonic() + LIMIT_S
        while not self.is_dead():
            assert time.monotonic() < limit, f"{self.plan.log()[-12:]}: {self.tail()}"
            with contextlib.suppress(AssertionError):
                if self._owed and self.has_answered():
                    self.answer()
            time.sleep(0.02)
        assert self._process.returncode == -signal.SIGKILL, self.tail()

    def signal(self, number: int) -> None:
        """To the whole group."""
        os.killpg(self.pid, number)

    def end(self) -> None:
        """Kill it, if it runs."""
        if not self.is_dead():
            self.signal(signal.SIGKILL)
            self._process.wait()

    def tail(self, length: int = 4_000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-length:]

    def processes(self) -> list[str]:
        """Processes that it has left."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and f"{_MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if state not in "ZX":
                        found.append(f"{entry.name}: {(entry / 'cmdline').read_bytes()[:200]!r}")
        return found


class Drivers:
    """A driver that is ready, and the next one. ``root``: for their files."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ready: list[Life] = []

    def take(self) -> Life:
        """A driver without a query."""
        life = self._ready.pop(0) if self._ready else Life(self._root)
        if not self._ready:
            self._ready.append(Life(self._root))
        return life

    def give_back(self, life: Life) -> None:
        """A driver whose query has ended is as good as a new one."""
        self._ready.insert(0, life)

    def close(self) -> None:
        for life in self._ready:
            life.end()
