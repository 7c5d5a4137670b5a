"""The driver of a query, a process of its own: started, killed, and started again."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from servers.launch import launch

from .samples import Sample, birth, members, of_driver, on_disk

# A query ends if a server is away for longer than its restarts go on. Its service would start it again.
_MOST_ENDED = 10


class Driver:
    """A driver and its files below a directory.

    Parameters
    ----------
    root : Path
    kind : str
        The query, one of `QUERIES`.
    **job
        The rest of what `job.start` takes.
    """

    def __init__(self, root: Path, kind: str, **job: Any) -> None:
        root.mkdir()
        self.checkpoint, self.target, self._status = root / "checkpoint", root / "target", root / "status"
        self.log = root / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._job = {
            "kind": kind,
            "checkpoint": str(self.checkpoint),
            "target": str(self.target),
            "status": str(self._status),
            **job,
        }
        self.lives: list[tuple[float, float]] = []
        """Seconds on the clock of `time.monotonic` of each life's begin and end."""
        self.ended: list[str] = []
        """Why it ended without being killed."""
        self.commits = self.restarts = 0
        """Of all lives, as far as they were told."""
        self._told: dict[str, Any] = {}
        self._seen: set[tuple[int, int]] = set()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start the program. Its status is that of this life from now on."""
        self._count({})
        self._status.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.soak.job", json.dumps(self._job)]
        with self.log.open("ab") as out:
            self._process = launch(command, dict(os.environ), out, cwd=Path(__file__).parents[2])
        self.lives.append((time.monotonic(), float("inf")))

    def kill(self) -> None:
        """SIGKILL of the driver and its JVM. Their workers have to notice."""
        if self._process is None:
            return
        process, self._process = self._process, None
        self.status()
        found = members(process.pid)
        self._seen |= {(pid, born) for pid in found if (born := birth(pid)) is not None}
        for pid, kind in found.items():
            if kind != "worker":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.wait()
        self.lives[-1] = self.lives[-1][0], time.monotonic()

    def left(self, *, kill: bool = False) -> int:
        """How many processes of killed lives still run; ``kill`` ends them."""
        left = [pid for pid, born in self._seen if birth(pid) == born]
        for pid in left if kill else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(left)

    def kill_worker(self, chance: random.Random) -> bool:
        """SIGKILL of a Python process that plans for the source or runs tasks, if there is one."""
        there = members(self._process.pid) if self._process else {}
        found = [pid for pid, kind in there.items() if kind == "worker"]
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(found), signal.SIGKILL)
        return bool(found)

    def go_on(self) -> None:
        """Start it again if it has ended by itself.

        Raises
        ------
        RuntimeError
            It did so too often.
        """
        if self._process is None or self._process.poll() is None:
            return
        told = self.log.read_text(errors="replace")[-4000:]
        self.ended.append(told.strip().splitlines()[-1] if told.strip() else "")
        if len(self.ended) > _MOST_ENDED:
            raise RuntimeError(f"the driver ends again and again: {told}")
        self.kill()
        self.start()

    def status(self) -> dict[str, Any]:
        """What this life said last; empty before its first commit."""
        told: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(self._status.read_text())
        if told:
            self._count(told)
        return told

    def _count(self, told: dict[str, Any]) -> None:
        before = self._told if told.get("pid") == self._told.get("pid") else {}
        for name in ("commits", "restarts"):
            new = told.get(name, 0) - before.get(name, 0)
            setattr(self, name, getattr(self, name) + max(0, new))
        self._told = told

    def sample(self) -> Sample:
        """Its processes' needs; empty if it does not run."""
        if self._process is None:
            return {}
        told = {name: value for name, value in self.status().items() if name.endswith("MiB")}
        return {**of_driver(self._process.pid), **told}

    def disk(self) -> Sample:
        """Files of its checkpoint and its table."""
        return on_disk(self.checkpoint, self.target)
