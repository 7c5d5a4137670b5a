"""Random lives of a phase that follows a Delta table: over crashes and repeats, each row of each commit comes once.

The rows that must come are worked out by the package's own reader of versions: what a version has more than the one
before.
"""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from backlog_spark.connectors.hybrid.offsets import HybridOffset
from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.connectors.hybrid.phases import Columns, Limit
from backlog_spark.connectors.hybrid.planner import HybridPlanner
from backlog_spark.connectors.hybrid.source import make_phases
from backlog_spark.errors import BacklogError

SCHEMA = pa.schema([("n", pa.int64()), ("k", pa.string())])
CHANGES = ("_change_type", "_commit_seq")


class Driver:
    """Plans, logs and reads as Spark does. It may die at any point, and a new one goes on from the log."""

    def __init__(self, options: dict[str, str], chance: random.Random, metadata: tuple[str, ...] = ()) -> None:
        self.options, self.chance, self.metadata = options, chance, metadata
        self.log: list[str] = []
        self.sink: list[list[tuple[Any, ...]]] = []
        self.restart()

    def restart(self) -> None:
        parsed = HybridOptions.parse(self.options)
        self.phases = make_phases(parsed)
        for phase in self.phases:
            phase.open(Columns(SCHEMA, self.metadata))
        self.planner = HybridPlanner(self.phases, parsed.kinds)

    def offset(self, batch: int) -> HybridOffset:
        return self.planner.first() if batch < 0 else HybridOffset.from_json(json.loads(self.log[batch]))

    def rows(self, batch: int) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for span in self.planner.spans(self.offset(batch - 1), self.offset(batch)):
            for partition in self.phases[span.phase].partitions(span.start, span.end):
                phase, part = pickle.loads(pickle.dumps((self.phases[span.phase], partition)))
                found += [tuple(row.values()) for part_batch in phase.read(part) for row in part_batch.to_pylist()]
        return found

    def trigger(self) -> bool:
        batch = len(self.sink)
        if batch == len(self.log):
            start = self.offset(batch - 1)
            end = self.planner.next(start, Limit(self.chance.choice([None, 1, 4])), 0)
            if self.chance.random() < 0.1:
                self.restart()  # the plan is lost
                return True
            if end == start:
                return False
            self.log.append(json.dumps(end.to_json()))
        if self.chance.random() < 0.2:
            self.restart()
        rows = self.rows(batch)
        if self.chance.random() < 0.2:
            self.restart()
            assert self.rows(batch) == rows, "a replay reads the same"
        self.sink.append(rows)
        return True

    def live(self, triggers: int | None = None) -> None:
        while triggers is None or triggers > 0:
            triggers = None if triggers is None else triggers - 1
            if not self.trigger() and triggers is None:
                return

    def found(self) -> Counter[tuple[Any, ...]]:
        return Counter(row for batch in self.sink for row in batch)


def rows_at(path: Path, version: int) -> Counter[tuple[Any, ...]]:
    table = DeltaTable(path, version=version).to_pyarrow_table()
    return Counter(tuple(row[name] for name in SCHEMA.names) for row in table.to_pylist())


class World:
    """A table that changes."""

    def __init__(self, path: Path, chance: random.Random, *, feed: bool, partitioned: bool) -> None:
        self.path, self.chance, self.count = path, chance, 0
        self.options: dict[str, Any] = {"partition_by": ["k"]} if partitioned else {}
        configuration = {"delta.enableChangeDataFeed": "true"} if feed else None
        write_deltalake(path, self.rows(3), configuration=configuration, **self.options)

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.path)

    def rows(self, count: int) -> pa.Table:
        numbers = list(range(self.count, self.count + count))
        self.count += count
        return pa.table({"n": numbers, "k": [[None, "a b", "c%20=d"][n % 3] for n in numbers]}, schema=SCHEMA)

    def append(self) -> None:
        for _ in range(self.chance.choice([1, 1, 4])):
            write_deltalake(self.path, self.rows(self.chance.randint(1, 5)), mode="append", **self.options)

    def optimize(self) -> None:
        self.table.optimize.compact()

    def checkpoint(self) -> None:
        self.table.create_checkpoint()

    def configure(self) -> None:
        self.table.alter.set_table_properties({"delta.logRetentionDuration": f"interval {self.count + 1} days"})

    def delete(self) -> None:
        self.table.delete(f"n % 7 = {self.chance.randrange(7)}")

    def update(self) -> None:
        self.table.update({"n": "n + 1000"}, predicate=f"n % 5 = {self.chance.randrange(5)}")

    def overwrite(self) -> None:
        write_deltalake(self.path, self.rows(3), mode="overwrite", **self.options)

    def restore(self) -> None:
        if latest := self.table.version():
            self.table.restore(self.chance.randrange(latest))


def limited(chance: random.Random, path: Path, **more: str) -> dict[str, str]:
    options = {"phases": "live:delta", "path": str(path), "discovery": "continuous", "discoveryInterval": "0 s", **more}
    if chance.random() < 0.5:
        options["maxFilesPerBatch"] = str(chance.randint(1, 4))
    if chance.random() < 0.3:
        options["maxBytesPerBatch"] = "1500"
    if chance.random() < 0.5:
        options |= {"backlogVersionsThreshold": "3", "backlogBytesThreshold": "20k"}
    return options


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 40))])
def test_appends(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    world = World(tmp_path / "t", chance, feed=chance.random() < 0.3, partitioned=chance.random() < 0.5)
    skips = chance.random() < 0.5
    for _ in range(chance.randint(0, 5)):
        chance.choice([world.append, world.append, world.delete, world.optimize])()
    first = world.table.version()
    driver = Driver(limited(chance, world.path, **({"skipChangeCommits": "true"} if skips else {})), chance)
    while not driver.log:
        driver.live(1)
    expected = rows_at(world.path, first)
    changes = [world.delete, world.update, world.overwrite, world.restore] if skips else []
    for _ in range(14):
        before = world.table.version()
        step = chance.choice([world.append, world.append, world.optimize, world.checkpoint, world.configure, *changes])
        step()
        if step == world.append:
            expected += rows_at(world.path, world.table.version()) - rows_at(world.path, before)
        driver.live(chance.randint(0, 3))
    driver.live()
    assert driver.found() == expected
    end = driver.offset(len(driver.log) - 1)
    assert not end.is_processing_backlog
    assert end.position is not None
    assert end.position["version"] == world.table.version() + 1
    if not skips:
        while True:  # until a commit that changes rows
            before = world.table.version()
            chance.choice([world.delete, world.update, world.overwrite])()
            if world.table.version() > before and rows_at(world.path, before) != rows_at(world.path, before + 1):
                break
            driver.live()
        with pytest.raises(BacklogError, match=rf"Version {before + 1} .*is no append: it removes"):
            driver.live()
        assert driver.found() == expected


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 40))])
def test_changes(tmp_path: Path, seed: int) -> None:
    """The changes of each version, applied to the rows before it, give its rows."""
    chance = random.Random(seed)
    world = World(tmp_path / "t", chance, feed=True, partitioned=chance.random() < 0.5)
    for _ in range(chance.randint(0, 4)):
        chance.choice([world.append, world.delete])()
    first = world.table.version()
    options = limited(chance, world.path, readChangeFeed="true", metadataColumns=",".join(CHANGES))
    driver = Driver(options, chance, CHANGES)
    while not driver.log:
        driver.live(1)
    steps = [
        world.append, world.optimize, world.checkpoint, world.configure, world.delete, world.update, world.overwrite,
        world.restore,
    ]  # fmt: skip
    for _ in range(14):
        chance.choice(steps)()
        driver.live(chance.randint(0, 3))
    driver.live()
    found = driver.found()
    state = Counter({row[:2]: n for row, n in found.items() if row[3] == 0})
    assert state == rows_at(world.path, first)
    for version in range(first + 1, world.table.version() + 1):
        for seq, sign in ((2 * version, -1), (2 * version + 1, 1)):
            for row, n in found.items():
                if row[3] == seq:
                    assert (row[2] in ("insert", "update_postimage")) == (sign > 0)
                    state[row[:2]] += sign * n
        assert +state == rows_at(world.path, version), version
        assert min(state.values(), default=0) >= 0
    assert {row[3] // 2 for row in found} <= {0, *range(first + 1, world.table.version() + 1)}
    for n in range(len(driver.log)):
        position = driver.offset(n).position
        whole = {row[3] // 2 for row in driver.sink[n] if row[2].startswith("update")}
        assert position is not None
        assert all(version < position["version"] for version in whole), "an update is in one batch"
