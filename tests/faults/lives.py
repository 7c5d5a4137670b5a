"""Lives of a driver that is killed when a test says so, and what a test sees of its checkpoint and target."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .watching import newest, versions

__all__ = ["LIMIT_S", "World"]

LIMIT_S = 300


class World:
    """A job and its files: ``checkpoint``, ``target`` and ``driver.log`` below a directory.

    Parameters
    ----------
    root : Path
    program : str
        Module below ``tests.faults`` that takes the job in JSON.
    **job
        What the program needs beside checkpoint and target.
    """

    def __init__(self, root: Path, program: str, **job: Any) -> None:
        self.root, self.program = root, program
        self.job = {"target": str(root / "target"), "checkpoint": str(root / "checkpoint"), **job}
        self.versions = 0

    def is_planned(self) -> bool:
        """Whether a batch is planned and not committed."""
        log = self.root / "checkpoint"
        return newest(log / "offsets") > newest(log / "commits")

    def is_in_target(self) -> bool:
        """Whether this life has written a batch."""
        return len(versions(self.root / "target")) > self.versions

    def is_written(self) -> bool:
        """Whether a batch of this life is written and not committed."""
        return self.is_planned() and self.is_in_target()

    def lives(
        self,
        is_over: Callable[[], bool],
        meanwhile: Callable[[], None] = lambda: None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Run the driver until ``is_over``, with ``meanwhile`` again and again, then SIGKILL it with its workers."""
        log = self.root / "driver.log"
        self.versions = len(versions(self.root / "target"))
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", f"tests.faults.{self.program}", json.dumps(self.job)],
                env={**os.environ, **(environment or {})},
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            limit = time.monotonic() + LIMIT_S
            while not is_over():
                meanwhile()
                assert process.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < limit, log.read_text()[-3000:]
                time.sleep(0.005)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
