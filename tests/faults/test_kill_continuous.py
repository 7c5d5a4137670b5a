"""SIGKILL of the driver of a query of new files, at each step of a listing, a batch and the cleaning: exact rows.

The source plans in a process of its own. It stops at a step and waits to be killed with the driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .continuous_job import start
from .lives import LIMIT_S, World
from .watching import newest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST, ROWS = 6, 10

# Run by each Python process of Spark at its start.
_STOPS = """
import os, time
from backlog_spark.connectors.hybrid.files import cleaning, ledger

write, one, moved = ledger.Ledger._write, cleaning.Cleaner._one, []

def stop(step):
    if os.environ["STOPS_AT"] == step:
        with open(os.environ["STOPPED"] + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(os.environ["STOPPED"] + ".new", os.environ["STOPPED"])
        time.sleep(600)

def writes(self, kind, seq, data):
    if kind == "head":
        stop("list" if seq == 1 else "later list")
    name = write(self, kind, seq, data)
    if kind == "head":
        stop("head" if seq == 1 else "later head")
    return name

def cleans(self, file):
    one(self, file)
    moved.append(file)
    if len(moved) == 2:
        stop("clean")

ledger.Ledger._write, cleaning.Cleaner._one = writes, cleans
"""


class FilesWorld(World):
    """The files of a job, and what a test sees of it."""

    def __init__(self, root: Path, during: str | None, options: dict[str, str]) -> None:
        folders = {name: str(root / name) for name in ("files", "archive")}
        super().__init__(root, "continuous_job", **folders, during=during, options=options)
        self.count = 0
        (root / "files").mkdir()
        (root / "site").mkdir()
        (root / "site" / "sitecustomize.py").write_text(_STOPS)

    def write(self, files: int) -> None:
        for _ in range(files):
            rows = list(range(self.count * ROWS, (self.count + 1) * ROWS))
            hidden = self.root / "files" / f".{self.count:04d}"
            pq.write_table(pa.table({"n": rows}), hidden)
            hidden.rename(hidden.with_name(hidden.name[1:]))
            self.count += 1

    def archived(self) -> int:
        return sum(path.is_file() for path in (self.root / "archive").rglob("*"))

    def offsets(self) -> list[dict[str, Any]]:
        log = self.root / "checkpoint" / "offsets"
        return [json.loads((log / str(n)).read_text().splitlines()[2]) for n in range(newest(log) + 1)]

    def is_switched(self) -> bool:
        """A batch after the backlog is planned, or the one that ends it."""
        log = self.root / "checkpoint" / "offsets"
        last = newest(log)
        with contextlib.suppress(FileNotFoundError, IndexError, ValueError):
            return last >= 0 and not json.loads((log / str(last)).read_text().splitlines()[2])["isProcessingBacklog"]
        return False

    def is_live(self) -> bool:
        """A planned batch that began after the backlog."""
        with contextlib.suppress(FileNotFoundError, IndexError, ValueError):
            return self.is_planned() and not self.offsets()[-1]["isBacklog"]
        return False

    def live_until(self, step: str = "", condition: Callable[[], bool] | None = None, meanwhile: int = 0) -> None:
        """One life. It ends at a step of the source, or when a condition holds.

        ``meanwhile`` files come while it has nothing to do.
        """
        stopped = self.root / "stopped"
        stopped.unlink(missing_ok=True)
        environment = {
            "PYTHONPATH": f"{self.root / 'site'}:{os.environ.get('PYTHONPATH', '')}",
            "STOPS_AT": step,
            "STOPPED": str(stopped),
        }

        def write() -> None:
            nonlocal meanwhile
            if meanwhile and newest(self.root / "checkpoint/commits") >= 0 and not self.is_planned():
                self.write(1)
                meanwhile -= 1
                time.sleep(0.2)

        try:
            self.lives(condition or stopped.exists, write, environment)
        finally:
            if stopped.exists():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(stopped.read_text()), signal.SIGKILL)


ALL = ("list", "head", "planned", "written", "switched", "later list", "later head", "live", "clean")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("during", "options", "lives"),
    [
        (None, {"maxFilesPerBatch": "2"}, ("head", "written", "clean")),
        pytest.param(None, {"maxFilesPerBatch": "2"}, ALL, marks=pytest.mark.grid),
        pytest.param("0", {}, ("head", "written", "later head", "clean"), marks=pytest.mark.grid),
        pytest.param(
            "1 second", {"maxRowsPerBatch": "25", "discoveryOrder": "name"}, ("planned", "switched", "live", "clean"),
            marks=pytest.mark.grid,
        ),
    ],
)  # fmt: skip
def test_a_killed_driver_loses_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path, during: str | None, options: dict[str, str], lives: tuple[str, ...]
) -> None:
    world = FilesWorld(tmp_path, during, options)
    world.write(FIRST)
    moments = {
        "planned": world.is_planned, "written": world.is_written, "switched": world.is_switched, "live": world.is_live,
    }  # fmt: skip
    for life in lives:
        world.live_until(life, moments.get(life), meanwhile=20 if life == "live" else 0)
        assert (life not in ("list", "head")) or not world.offsets()
        world.write(2 if life not in ("list", "head") else 0)
    query = start(spark, world.job)
    target = spark.read.format("delta").load
    try:
        world.write(1)
        limit = time.monotonic() + LIMIT_S
        while target(world.job["target"]).count() < world.count * ROWS or world.archived() < world.count:
            assert query.isActive, query.exception()
            assert time.monotonic() < limit, (world.count, world.archived())
            time.sleep(0.3)
    finally:
        query.stop()
    assert query.exception() is None
    found = Counter(row.n for row in target(world.job["target"]).collect())
    assert found == Counter(range(world.count * ROWS))
    flags = [offset["isProcessingBacklog"] for offset in world.offsets()]
    assert not flags[-1]
    if during == "0":
        (first, *_) = [offset["position"] for offset in world.offsets() if offset["position"]]
        assert first["file"] >= first["first"] == FIRST, "one commit"
    names = [path.name for path in (tmp_path / "archive").rglob("*") if path.is_file()]
    names += [path.name for path in (tmp_path / "files").iterdir()]
    assert sorted(names) == [f"{n:04d}" for n in range(world.count)], "each file is in one place"
