"""SIGKILL of the driver after a task has stored a new column, and after a start has made it a version: exact rows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .lives import LIMIT_S, World
from .schema_job import start
from .watching import newest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Run by each Python process of Spark at its start. It stops after it has stored new columns, or a version with them.
_STOPS = """
import os, time
from backlog_spark.connectors.hybrid.files.schemas import stored

propose, write = stored.StoredSchema.propose, stored.StoredSchema._write

def stop(step):
    if os.environ["STOPS_AT"] == step:
        with open(os.environ["STOPPED"] + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(os.environ["STOPPED"] + ".new", os.environ["STOPPED"])
        time.sleep(600)

def proposes(self, found):
    propose(self, found)
    stop("found")

def writes(self, version, schema):
    write(self, version, schema)
    if version:
        stop("version")

stored.StoredSchema.propose, stored.StoredSchema._write = proposes, writes
"""


class LandingWorld(World):
    """The files of a job."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, "schema_job", files=str(root / "files"))
        self.count = 0
        (root / "files").mkdir()
        (root / "site").mkdir()
        (root / "site" / "sitecustomize.py").write_text(_STOPS)

    def write(self, column: str = "") -> None:
        """Two rows in a file. The second one has a value in a column."""
        rows = {"n": self.count}, {"n": self.count} | ({column: 1} if column else {})
        path = self.root / "files" / f".{self.count:04d}"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        path.rename(path.with_name(path.name[1:]))
        self.count += 1

    def live_until(self, step: str, column: str = "") -> None:
        """One life. A file with a new column comes once it has nothing to do, and it is killed at a step."""
        stopped = self.root / "stopped"
        stopped.unlink(missing_ok=True)
        environment = {
            "PYTHONPATH": f"{self.root / 'site'}:{os.environ.get('PYTHONPATH', '')}",
            "STOPS_AT": step,
            "STOPPED": str(stopped),
        }
        before = self.count

        def write() -> None:
            if (
                column
                and self.count == before
                and newest(self.root / "checkpoint/commits") >= 0
                and not self.is_planned()
            ):
                self.write(column)

        try:
            self.lives(stopped.exists, write, environment)
        finally:
            if stopped.exists():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(stopped.read_text()), signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_driver_loses_and_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    world = LandingWorld(tmp_path)
    world.write()
    # The batch of a new column is planned, its rows are not written, and nothing of the run is left but the column.
    world.live_until("found", "a")
    world.live_until("version")  # at its start
    world.write("b")
    query = start(spark, world.job)
    target = spark.read.format("delta").load
    try:
        limit = time.monotonic() + LIMIT_S
        while target(world.job["target"]).count() < 2 * world.count:
            assert query.isActive, query.exception()
            assert time.monotonic() < limit
            time.sleep(0.3)
    finally:
        query.stop()
    assert query.exception() is None
    found = target(world.job["target"]).select("n", "a", "b", "_rescued_data").collect()
    assert Counter(map(tuple, found)) == Counter(
        [(0, None, None, None)] * 2
        + [(1, None, None, None), (1, 1, None, None), (2, None, None, None), (2, None, 1, None)]
    )
    versions = tmp_path.glob("checkpoint/backlog/sources/*/_schemas/schema-*.json")
    assert sorted(path.name for path in versions) == [f"schema-{n:08d}.json" for n in range(3)]
