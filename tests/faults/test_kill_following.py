"""SIGKILL of the driver of a query that follows a Delta table: in the first version, between, and in later commits."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backlog_spark.spark.jvm.session import session_conf

from .following_job import start
from .lives import LIMIT_S, World
from .watching import newest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST, ROWS = 6, 10


class TableWorld(World):
    """The table of a job, and what a test sees of it."""

    def __init__(self, root: Path, during: str | None) -> None:
        super().__init__(root, "following_job", table=str(root / "table"), during=during, options={})
        self.count = 0

    def write(self, commits: int) -> None:
        for _ in range(commits):
            rows = pa.table({"n": range(self.count * ROWS, (self.count + 1) * ROWS)})
            write_deltalake(self.job["table"], rows, mode="append")
            self.count += 1

    def optimize(self) -> None:
        DeltaTable(self.job["table"]).optimize.compact()

    def position(self) -> dict[str, Any] | None:
        """Of the last planned batch."""
        log = self.root / "checkpoint" / "offsets"
        with contextlib.suppress(FileNotFoundError, IndexError, ValueError):
            found: dict[str, Any] | None = json.loads((log / str(newest(log))).read_text().splitlines()[2])["position"]
            return found
        return None

    def in_first(self) -> bool:
        at = self.position()
        return at is not None and at["version"] == at["first"] and at["file"] > 0 and self.is_planned()

    def hands_over(self) -> bool:
        at = self.position()
        return at is not None and at["version"] == at["first"] + 1 and self.is_planned()

    def in_commits(self) -> bool:
        at = self.position()
        return at is not None and at["version"] > at["first"] + 1 and self.is_planned()

    def live_until(self, condition: Callable[[], bool], *, writes: bool) -> None:
        """One life. If it ``writes``, there is a new commit twice a second."""
        wrote = 0.0

        def write() -> None:
            nonlocal wrote
            if writes and time.monotonic() - wrote > 0.5:
                self.write(1)
                wrote = time.monotonic()

        self.lives(condition, write)


class ChangingWorld(TableWorld):
    """The same of a table whose rows change, with a change data feed."""

    def __init__(self, root: Path, during: str | None, spark: SparkSession) -> None:
        super().__init__(root, during)
        self.job["options"] = {"readChangeFeed": "true"}
        self.name, self.chance = f"delta.`{self.job['table']}`", random.Random(7)
        self.sql = spark.sql
        with session_conf(spark, {"spark.databricks.delta.properties.defaults.enableChangeDataFeed": "true"}):
            spark.range(0, FIRST * ROWS, numPartitions=FIRST).selectExpr("id AS n", "0L AS v").write.format(
                "delta"
            ).save(self.job["table"])

    def write(self, commits: int) -> None:
        for _ in range(commits):
            self.count += 1
            low = self.chance.randrange(100)
            within = f"n BETWEEN {low} AND {low + 20}"
            statements = (
                f"INSERT INTO {self.name} SELECT id, {self.count} FROM range({low}, {low + ROWS})",
                f"UPDATE {self.name} SET v = {self.count} WHERE {within}",
                f"DELETE FROM {self.name} WHERE {within} AND n % 3 = 0",
                f"MERGE INTO {self.name} t USING (SELECT id AS n FROM range({low}, {low + ROWS})) s "
                f"ON t.n = s.n AND t.v > 0 WHEN MATCHED THEN UPDATE SET v = -{self.count} "
                f"WHEN NOT MATCHED THEN INSERT (n, v) VALUES (s.n, {self.count})",
            )
            self.sql(statements[self.count % len(statements)])

    def optimize(self) -> None:
        self.sql(f"OPTIMIZE {self.name}")


@pytest.mark.slow
def test_a_killed_driver_loses_and_repeats_no_change(spark: SparkSession, tmp_path: Path) -> None:
    world = ChangingWorld(tmp_path, None, spark)
    for moment in (world.in_first, world.hands_over, world.in_commits, world.is_written):
        world.live_until(moment, writes=moment in (world.in_commits, world.is_written))
        world.write(2)
        world.optimize()
    query = start(spark, world.job)
    first = world.position()["first"]  # type: ignore[index]
    last = DeltaTable(world.job["table"]).version()
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", first + 1)
    try:
        limit = time.monotonic() + LIMIT_S
        while (at := world.position()) is None or at["version"] <= last or world.is_planned():
            assert query.isActive, query.exception()
            assert time.monotonic() < limit, at
            time.sleep(0.1)
    finally:
        query.stop()
    assert query.exception() is None
    wanted = Counter((n, 0, "insert", 0) for n in range(FIRST * ROWS))
    wanted += Counter(
        map(tuple, feed.load(world.job["table"]).select("n", "v", "_change_type", "_commit_version").collect())
    )
    rows = (
        spark.read.format("delta").load(world.job["target"]).selectExpr("n", "v", "_change_type", "_commit_seq div 2")
    )
    assert Counter(map(tuple, rows.collect())) == wanted
    assert len({kind for _, _, kind, _ in wanted}) == 4


@pytest.mark.grid
@pytest.mark.parametrize("during", [None, "0", "1 second"])
def test_a_killed_driver_loses_and_repeats_nothing(spark: SparkSession, tmp_path: Path, during: str | None) -> None:
    world = TableWorld(tmp_path, during)
    world.write(FIRST)
    moments = [world.hands_over, world.in_commits, world.is_written]
    if during != "0":  # else the first version is one batch
        moments.insert(0, world.in_first)
    for moment in moments:
        world.live_until(moment, writes=moment in (world.in_commits, world.is_written))
        world.write(2)
        world.optimize()
    query = start(spark, world.job)
    target = spark.read.format("delta").load
    try:
        world.write(1)
        limit = time.monotonic() + LIMIT_S
        while target(world.job["target"]).count() < world.count * ROWS:
            assert query.isActive, query.exception()
            assert time.monotonic() < limit, world.count
            time.sleep(0.3)
    finally:
        query.stop()
    assert query.exception() is None
    found = Counter(row.n for row in target(world.job["target"]).collect())
    assert found == Counter(range(world.count * ROWS))
