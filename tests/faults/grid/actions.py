"""What happens at a fault point: `backlog_spark.common.fault_points` calls `reached` in each process of a query.

A test writes rules into a directory. Each process appends the points that it reaches to ``log`` there, and acts when a
rule says so. Nothing is kept in memory: the driver and the processes that plan for its sources share the log.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["PLACE", "Plan", "Rule", "reached"]

PLACE = "BACKLOG_SPARK_FAULTS"
"""The environment variable with the directory."""

LIMIT_S = 120
_BACK_S = 3_600


@dataclass(frozen=True)
class Rule:
    """One fault.

    Parameters
    ----------
    points : sequence of str
        The points after which it happens, in this order; others may come between them. It happens at the last one.
        ``a|b`` is either of two.
    do : str
        One of `ACTIONS`.
    always : bool
        Whether it happens again each time that the last point is reached.
    """

    points: Sequence[str]
    do: str
    always: bool = False

    def is_due(self, log: Sequence[str]) -> bool:
        """Whether the newest point of a log is this rule's. ``log``: since the rule holds."""
        *before, last = (point.split("|") for point in self.points)
        rest = iter(log[:-1])
        return bool(log) and log[-1] in last and all(any(p in these for p in rest) for these in before)


class Plan:
    """The rules of a driver, and what has happened so far.

    Parameters
    ----------
    place : Path
        The directory.
    """

    def __init__(self, place: Path) -> None:
        self.place = place

    def begin(self, group: int, disk: Path) -> None:
        """Forget all. ``group``: the driver's process group. ``disk``: where the checkpoint is."""
        self.place.mkdir(parents=True, exist_ok=True)
        for old in self.place.glob("*"):
            old.unlink()
        self._write({"rules": [], "group": group, "disk": str(disk)})

    def add(self, rule: Rule) -> int:
        """A rule that counts points from now on. Returns its number."""
        with self._locked():
            told = self.told()
            assert told is not None, "begin() comes first"
            told["rules"].append({**asdict(rule), "since": len(self.log())})
            self._write(told)
            return len(told["rules"]) - 1

    def log(self) -> list[str]:
        """The points that were reached."""
        return [line for line in self._lines() if not line.startswith("!")]

    def has_happened(self, rule: int) -> bool:
        """Whether a rule was carried out."""
        return f"!{rule}" in self._lines()

    def killed_workers(self) -> int:
        """How many workers the action ``worker`` has killed."""
        mark = self.place / "worker"
        return len(mark.read_text().splitlines()) if mark.exists() else 0

    def go(self, rule: int) -> None:
        """Let the process go on that waits at a rule's ``pause``."""
        self._go(rule).touch()

    def take(self, point: str) -> list[tuple[int, str]]:
        """Log a point. Returns number and action of the rules that are to be carried out."""
        if self.told() is None:
            return []
        with self._locked():
            with (self.place / "log").open("a") as log:
                log.write(f"{point}\n")
            told = self.told()
            assert told is not None
            points, due = self.log(), []
            for number, given in enumerate(told["rules"]):
                since = given.pop("since")
                rule = Rule(**given)
                if (rule.always or not self.has_happened(number)) and rule.is_due(points[since:]):
                    due.append((number, rule.do))
            with (self.place / "log").open("a") as log:
                log.write("".join(f"!{number}\n" for number, _ in due))
        return due

    def told(self) -> dict[str, Any] | None:
        """Rules, group and disk; None before `begin`."""
        try:
            found: dict[str, Any] = json.loads((self.place / "plan.json").read_text())
        except FileNotFoundError:
            return None
        return found

    def wait(self, rule: int) -> None:
        """Wait for `go`."""
        limit = time.monotonic() + LIMIT_S
        while not self._go(rule).exists():
            if time.monotonic() > limit:
                raise TimeoutError(f"nobody let rule {rule} go on")
            time.sleep(0.02)

    def _write(self, told: dict[str, Any]) -> None:
        (self.place / "new").write_text(json.dumps(told))
        (self.place / "new").rename(self.place / "plan.json")

    def _go(self, rule: int) -> Path:
        return self.place / f"go-{rule}"

    def _lines(self) -> list[str]:
        try:
            return (self.place / "log").read_text().splitlines()
        except FileNotFoundError:
            return []

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.place / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def reached(point: str) -> None:
    """A process of a query has come to a point."""
    plan = Plan(Path(os.environ[PLACE]))
    _set_clock(plan)
    for number, action in plan.take(point):
        told = plan.told()
        assert told is not None
        ACTIONS[action](plan, number, told)


def _kill(plan: Plan, _: int, told: dict[str, Any]) -> None:
    os.killpg(told["group"], signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)  # a process that plans for a source has another group


def _stop(plan: Plan, _: int, told: dict[str, Any]) -> None:
    os.killpg(told["group"], signal.SIGSTOP)


def _fail(plan: Plan, number: int, told: dict[str, Any]) -> None:
    raise OSError(errno.EIO, f"{os.strerror(errno.EIO)} (fault {number})")


def _pause(plan: Plan, number: int, told: dict[str, Any]) -> None:
    plan.wait(number)


def _fill(plan: Plan, _: int, told: dict[str, Any]) -> None:
    """Write a file until the disk of the checkpoint is full."""
    block = bytes(1 << 16)
    with (Path(told["disk"]) / "filler").open("ab", buffering=0) as file:
        for size in (len(block), 1):
            try:
                while file.write(block[:size]):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def _free(plan: Plan, _: int, told: dict[str, Any]) -> None:
    (Path(told["disk"]) / "filler").unlink(missing_ok=True)


def _back(plan: Plan, _: int, told: dict[str, Any]) -> None:
    """Set the clock back by an hour: here now, and in each other process at its next point."""
    with (plan.place / "hours").open("a") as file:
        file.write("1\n")
    _set_clock(plan)


_now = time.time


def _set_clock(plan: Plan) -> None:
    mark = plan.place / "hours"
    if mark.exists():
        back = _BACK_S * len(mark.read_text().splitlines())
        time.time = lambda: _now() - back


def _worker(plan: Plan, _: int, told: dict[str, Any]) -> None:
    """Kill the next Python worker that works."""
    threading.Thread(target=_kill_worker, args=[plan.place / "worker", told["group"]], daemon=True).start()


def _kill_worker(mark: Path, group: int) -> None:
    used: dict[int, int] = {}
    limit = time.monotonic() + LIMIT_S
    while time.monotonic() < limit:
        for pid, ticks in task_workers(group).items():
            if used.setdefault(pid, ticks) < ticks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    with mark.open("a") as file:
                        file.write(f"{pid}\n")
                    return
        time.sleep(0.01)


def task_workers(group: int) -> dict[int, int]:
    """The Python workers below a driver, and how much of the processor each has used."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            names = [(one / "cmdline").read_bytes() for one in (entry, Path("/proc", stat[1]))]
            if all(b"pyspark.daemon" in name for name in names) and _is_below(int(stat[1]), group):
                found[int(entry.name)] = int(stat[11]) + int(stat[12])
    return found


def _is_below(pid: int, top: int) -> bool:
    while pid > 1 and pid != top:
        pid = int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    return pid == top


ACTIONS: dict[str, Callable[[Plan, int, dict[str, Any]], None]] = {
    "kill": _kill,
    "stop": _stop,
    "fail": _fail,
    "pause": _pause,
    "fill": _fill,
    "free": _free,
    "back": _back,
    "worker": _worker,
}
