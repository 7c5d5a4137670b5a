"""Adds numbered events to a checkpoint's event log, and kills itself at one step of a merge: a process of its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from backlog_spark.runner import event_log
from backlog_spark.runner.event_log import EventLog
from backlog_spark.spark.checkpoint.logs import Checkpoint

from .session import job_session

MERGED, FILES = 4, 6
STEPS = ("half written", "written", "one removed", "all removed")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Doomed(Checkpoint):
    """Dies at a step of the merge with this number: the first of a flush merges small files, the second reduces."""

    merge, step = 0, ""
    _merges = _removed = 0

    def write_file(self, name: str, text: str) -> None:
        if "_" in name:
            self._merges, self._removed = self._merges + 1, 0
            if self._is_at("half written"):
                self._files.createAtomic(self._path(name), True).write(text[: len(text) // 2].encode())
                kill()
        super().write_file(name, text)
        if "_" in name and self._is_at("written"):
            kill()

    def delete(self, name: str) -> None:
        super().delete(name)
        self._removed += 1
        if self._is_at("one removed"):
            kill()

    def names_in(self, name: str) -> list[str]:
        if self._removed and self._is_at("all removed"):
            kill()
        return super().names_in(name)

    def _is_at(self, step: str) -> bool:
        return (self._merges, self.step) == (self.merge, step)


def main(root: Path, first: int, merge: int, step: str) -> None:
    event_log._MERGED, event_log._FILES = MERGED, FILES  # type: ignore[misc]
    files = Doomed(job_session(), str(root / "checkpoint"))
    files.merge, files.step = merge, step
    log = EventLog(files)
    for number in range(first, first + 1_000):
        (root / "last").write_text(str(number))
        log.add("restart", query="orders", attempt=number)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
