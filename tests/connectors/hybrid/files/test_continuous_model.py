"""Random lives of a phase that finds new files: with crashes anywhere, every row is read once, or by the option's rule.

The driver here does what Spark's does: it plans, logs the offset, reads and writes by batch id, and commits. It may die
between any two of these, and a new one goes on from the log.
"""

from __future__ import annotations

import json
import os
import pickle
import random
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backlog_spark.connectors.hybrid.files import cleaning
from backlog_spark.connectors.hybrid.offsets import HybridOffset
from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.connectors.hybrid.phases import Columns, Limit
from backlog_spark.connectors.hybrid.planner import HybridPlanner
from backlog_spark.connectors.hybrid.source import make_phases
from backlog_spark.errors import BacklogError

SCHEMA = pa.schema([("n", pa.int64())])


class Crash(Exception):
    """The driver dies."""


@dataclass
class Kept:
    """What outlives a driver: Spark's two logs, and the sink's batches."""

    log: list[str] = field(default_factory=list)
    commits: int = 0
    sink: dict[int, list[int]] = field(default_factory=dict)

    def rows(self) -> Counter[int]:
        return Counter(n for batch in self.sink.values() for n in batch)


class Driver:
    """A process that dies, and starts again."""

    def __init__(self, options: dict[str, str], chance: random.Random, kept: Kept | None = None) -> None:
        self.options = options
        self.chance = chance
        self.kept = kept or Kept()
        self.may_crash = True
        self.restart()

    def restart(self) -> None:
        parsed = HybridOptions.parse(self.options)
        self.phases = make_phases(parsed)
        for phase in self.phases:
            phase.open(Columns(SCHEMA))
        self.planner = HybridPlanner(self.phases, parsed.kinds)
        self.is_new = True

    def offset(self, batch: int) -> HybridOffset:
        return self.planner.first() if batch < 0 else HybridOffset.from_json(json.loads(self.kept.log[batch]))

    @property
    def last(self) -> HybridOffset:
        return self.offset(self.kept.commits - 1)

    def trigger(self) -> Generator[None, None, bool]:
        """One micro-batch, step by step. False if there is nothing new."""
        kept, batch = self.kept, self.kept.commits
        start = self.offset(batch - 1)
        if batch == len(kept.log):  # no batch to be done again
            self.planner.committed(start)
            yield
            rows = self.chance.choice([None, None, 1, 7])
            end = self.planner.next(start, Limit(rows), 0, whole_backlog=self.chance.random() < 0.1)
            yield
            if end == start:
                return False
            if len(kept.log) != batch:
                raise Crash  # another driver has logged this batch, and Spark refuses a second one
            kept.log.append(json.dumps(end.to_json()))
            assert len(kept.log[-1]) < 1_500
            yield
            if not self.is_new:  # after a restart Spark commits no earlier batch
                self.planner.committed(start)
            yield
        self.is_new = False
        end = self.offset(batch)
        found = []
        for span in self.planner.spans(start, end):
            for partition in self.phases[span.phase].partitions(span.start, span.end):
                phase, part = pickle.loads(pickle.dumps((self.phases[span.phase], partition)))
                found += [n for batch in phase.read(part) for n in batch.column("n").to_pylist()]
        yield
        kept.sink.setdefault(batch, found)
        assert kept.sink[batch] == found, "a replay reads the same"
        yield
        if kept.commits != batch:
            raise Crash
        kept.commits += 1
        yield
        return True

    def whole(self) -> bool:
        """One micro-batch, or a crash in it."""
        steps = self.trigger()
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return bool(done.value)
            if self.may_crash and self.chance.random() < 0.15:
                raise Crash

    def live(self, steps: int | None = None) -> None:
        """Some triggers, over crashes; None: until all is read."""
        while steps is None or steps > 0:
            steps = None if steps is None else steps - 1
            try:
                if not self.whole() and steps is None:
                    return
            except Crash:
                self.restart()


class World:
    """The files, and the rows that must have been read in the end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"
        self.data.mkdir(parents=True)
        self.count = 0
        self.clock = 1_700_000_000
        self.expected: Counter[int] = Counter()

    def write(self, name: str, *, counts: bool = True) -> None:
        """A file with new rows, in its place at once."""
        rows = list(range(self.count, self.count + 1 + self.count % 5))
        self.count += len(rows)
        self.clock += 1
        hidden = self.data / f".{name}"
        pq.write_table(pa.table({"n": rows}, schema=SCHEMA), hidden, row_group_size=2)
        os.utime(hidden, (self.clock, self.clock))
        hidden.rename(self.data / name)
        if counts:
            self.expected.update(rows)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.data.iterdir())


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(n, marks=pytest.mark.slow) for n in range(12, 40))])
def test_every_row_by_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(cleaning, "_AT_ONCE", chance.choice([1, 2, 1_000]))
    world = World(tmp_path)
    order, clean = chance.choice(["modified", "name"]), chance.choice(["off", "archive", "delete"])
    late, rewritten = (chance.choice(["refuse", "ignore", "read"]) for _ in range(2))
    options = {
        "phases": "live:files", "path": str(world.data), "metadataLocation": str(tmp_path / "meta"),
        "discovery": "continuous", "discoveryInterval": "0 s", "discoveryOrder": order, "rewrittenFiles": rewritten,
        "cleanSource": clean, "allowEmpty": "true",
    }  # fmt: skip
    if order == "name":
        options["lateFiles"] = late
    if clean == "archive":
        options["sourceArchiveDir"] = str(tmp_path / "archive")
    if chance.random() < 0.5:
        options["maxFilesPerBatch"] = str(chance.randint(1, 4))
    if chance.random() < 0.3:
        options["maxBytesPerBatch"] = "1500"
    if chance.random() < 0.5:
        options |= {"backlogFilesThreshold": "3", "backlogBytesThreshold": "20k"}

    def add() -> None:
        for _ in range(chance.choice([1, 1, 6])):
            world.write(f"m{world.count:06d}")

    def refused(option: str, name: str, undo: Callable[[], None]) -> None:
        driver.may_crash = False
        with pytest.raises(BacklogError, match=rf"data/{name} .*{option}=refuse"):
            driver.whole()
        undo()
        driver.restart()
        driver.may_crash = True

    def add_late() -> None:
        if order == "modified":
            return add()
        driver.live()
        if not driver.last.position["files"]:  # type: ignore[index]
            return None
        name = f"a{world.count:06d}"
        world.write(name, counts=late == "read")
        if late == "refuse":
            refused("lateFiles", name, (world.data / name).unlink)
        return None

    def rewrite() -> None:
        driver.live()
        if not (there := [name for name in world.names() if name.startswith("m")]):
            return
        name = chance.choice(there)
        before, times = (world.data / name).read_bytes(), (world.data / name).stat()
        world.write(name, counts=rewritten == "read")

        def undo() -> None:
            (world.data / name).write_bytes(before)
            os.utime(world.data / name, ns=(times.st_atime_ns, times.st_mtime_ns))

        if rewritten == "refuse":
            refused("rewrittenFiles", name, undo)

    def delete() -> None:
        driver.live()
        if there := world.names():
            (world.data / chance.choice(there)).unlink()

    for _ in range(chance.randint(0, 6)):
        add()
    driver = Driver(options, chance)
    for _ in range(16):
        chance.choice([add, add, add, add_late, rewrite, delete])()
        driver.live(chance.randint(0, 4))
    driver.live()
    assert driver.kept.rows() == world.expected
    end = driver.last
    assert not end.is_processing_backlog
    if clean != "off":
        for _ in range(world.count):
            driver.planner.committed(end)
        left = world.names()
        if rewritten == "read" and late != "ignore":  # others may look rewritten when their turn comes, and then stay
            assert left == []
        assert clean == "delete" or sum(1 for path in (tmp_path / "archive").rglob("m*")) > 0


@pytest.mark.parametrize("seed", range(6))
def test_after_another_phase(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    old, live = World(tmp_path / "old"), World(tmp_path / "live")
    live.count = 10_000
    for name in "abc":
        old.write(name)
    options = {
        "phases": "old:files, live:files", "metadataLocation": str(tmp_path / "meta"), "maxFilesPerBatch": "2",
        "phase.old.path": str(old.data), "phase.live.path": str(live.data), "phase.live.discovery": "continuous",
        "phase.live.discoveryInterval": "0 s", "phase.live.allowEmpty": "true",
    }  # fmt: skip
    for n in range(chance.randint(0, 4)):
        live.write(f"m{n}")
    driver = Driver(options, chance)
    for n in range(10, 20):
        live.write(f"m{n}")
        driver.live(chance.randint(0, 3))
    driver.live()
    assert driver.kept.rows() == old.expected + live.expected
    flags = [driver.offset(n).is_processing_backlog for n in range(driver.kept.commits)]
    assert flags == sorted(flags, reverse=True), "backlog ends once"
    position = driver.offset(flags.index(False)).position
    assert position is not None
    assert position["file"] >= position["first"], "with the first listing"


@pytest.mark.parametrize("seed", range(12))
def test_two_drivers_on_one_checkpoint(tmp_path: Path, seed: int) -> None:
    """Neither knows of the other. Spark's logs let one of them write each entry, and the other one fails."""
    chance = random.Random(seed)
    world = World(tmp_path)
    for n in range(4):
        world.write(f"m{n:06d}")
    options = {
        "phases": "live:files", "path": str(world.data), "metadataLocation": str(tmp_path / "meta"),
        "discovery": "continuous", "discoveryInterval": "0 s", "maxFilesPerBatch": "2", "cleanSource": "delete",
    }  # fmt: skip
    kept = Kept()
    drivers = [Driver(options, chance, kept) for _ in range(2)]
    running = [driver.trigger() for driver in drivers]
    ended = [0, 0]
    for step in range(400):
        if step % 20 == 0:
            world.write(f"m{world.count + 10:06d}")
        one = chance.randrange(2)
        try:
            next(running[one])
        except StopIteration:
            running[one] = drivers[one].trigger()
        except (Crash, BacklogError) as error:  # it may find files gone whose rows the other one has committed
            if "is gone" not in str(error) and not isinstance(error, Crash):
                raise
            ended[one] += 1
            drivers[one].restart()
            running[one] = drivers[one].trigger()
    assert sum(ended) > 0
    last = Driver(options, chance, kept)
    last.live()
    assert kept.rows() == world.expected
    last.planner.committed(last.last)
    assert world.names() == []
