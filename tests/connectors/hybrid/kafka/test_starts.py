"""Where a phase begins if its files were listed late. No broker."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from backlog_spark.connectors.hybrid.delta import DeltaPhase
from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.kafka.client import Lookups, Topic
from backlog_spark.connectors.hybrid.kafka.offsets import EARLIEST, Partition
from backlog_spark.connectors.hybrid.kafka.options import KafkaOptions
from backlog_spark.connectors.hybrid.kafka.planner import Planner
from backlog_spark.connectors.hybrid.offsets import HybridOffset
from backlog_spark.connectors.hybrid.phases import Columns, Limit, Position
from backlog_spark.connectors.hybrid.planner import HybridPlanner
from backlog_spark.errors import BacklogError
from tests.connectors.hybrid.numbers import Live

T0 = 1_700_000_000_000
ZERO: Partition = ("t", 0)


class Log(Lookups):
    """A topic of one partition. Only the times of its records exist."""

    def __init__(self, options: KafkaOptions) -> None:
        super().__init__(options.properties)
        self.times: list[int] = []

    def names(self) -> list[str]:
        return ["t"]

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        return {"t": Topic("id", (0,))}

    def offsets(self, partitions: Collection[Partition], at: int, *, committed: bool) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 0 if at == EARLIEST else len(self.times))

    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        return {p: next((i for i, t in enumerate(self.times) if t >= at), None) for p, at in times.items()}

    def first_time(self, partition: Partition, first: int, until: int) -> int | None:
        return self.times[0]

    def grow(self, end: int) -> None:
        """Add records up to this number, one per second."""
        self.times += [T0 + 1000 * i for i in range(len(self.times), end)]


def test_it_begins_as_of_the_list_that_has_the_newest_row() -> None:
    options = KafkaOptions.parse(
        {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "startingFrom": "lastFileTimestamp"}
    )
    log = Log(options)
    planner = Planner(options, log)
    log.grow(100)
    pin = planner.pin(T0 + 100_000)
    log.grow(5000)
    listed = planner.pin(T0 + 5_000_000)
    log.times += [T0] * 7  # whose times are old, and no list can have them
    log.grow(6000)
    newest, now = T0 + 4_900_000, T0 + 6_000_000
    # Alone, the first start says that the row is of the future.
    with pytest.raises(BacklogError, match="was in the future"):
        planner.begin(newest, "", now, pin)
    assert planner.begin(newest, "", now, pin, listed).offsets == {ZERO: 4900}
    # A row that is newer than all records of that moment, by clocks that differ: the late ones are read.
    assert planner.begin(T0 + 5_020_000, "", now, pin, listed).offsets == {ZERO: 5000}
    with pytest.raises(BacklogError, match="was in the future when the files were listed"):
        planner.begin(T0 + 5_070_000, "", now, pin, listed)


class Told(Live):
    """Records the state at the time of the pin."""

    def __init__(self, seen: Path) -> None:
        super().__init__("live", 0)
        self.seen = seen

    def pin(self) -> Position:
        return {"manifests": len(list(self.seen.glob("*")))}


def test_all_phases_are_of_the_first_start(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    start = datetime(2026, 1, 1, tzinfo=UTC)

    def table(*numbers: int) -> pa.Table:
        return pa.table({"n": numbers, "at": [start + timedelta(minutes=n) for n in numbers]}, schema)

    def write(name: str, *numbers: int) -> None:
        path = tmp_path / name / f"{numbers[0]}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table(*numbers), path)

    meta = tmp_path / "meta"
    common = {"timestampColumn": "at", "metadataLocation": str(meta)}

    def phases() -> list[Any]:
        made = [
            FilePhase("old", {"path": str(tmp_path / "old"), **common}),
            DeltaPhase("table", {"path": str(tmp_path / "table"), **common}),
            FilePhase("more", {"path": str(tmp_path / "more"), **common}),
        ]
        for phase in made:
            phase.open(Columns(schema))
        return [*made, Told(meta)]

    def planned(at: HybridOffset, rows: int | None) -> HybridOffset:
        """Planned by another process, from Spark's log."""
        return HybridOffset.from_json(json.loads(json.dumps(planner().next(at, Limit(rows), 0).to_json())))

    def planner() -> HybridPlanner:
        return HybridPlanner(phases(), ["old:files", "table:delta", "more:files", "live:numbers"])

    write("old", 0)
    write("old", 1)
    write_deltalake(tmp_path / "table", table(2, 3))
    write("more", 4, 5)
    at = planned(planner().first(), 1)
    assert at.phase == 0
    fixed = at.fixed_ms
    assert fixed is not None
    # What an archiver writes while the first files are read is the topic's to give.
    write_deltalake(tmp_path / "table", table(6), mode="append")
    write("more", 7, 8)
    offsets = [planner().first(), at]
    while offsets[-1].phase < 3:
        offsets.append(planned(offsets[-1], 1))
    found: list[int] = []
    for a, b in pairwise(offsets):
        for span in planner().spans(a, b):
            phase = phases()[span.phase]
            for partition in phase.partitions(span.start, span.end):
                found += [n for batch in phase.read(partition) for n in batch.column(0).to_pylist()]
    assert found == [0, 1, 2, 3, 4, 5]
    last = offsets[-1]
    assert last.position is not None
    # The topic's offsets were looked up before any list was made.
    newest = int((start + timedelta(minutes=5)).timestamp() * 1000)
    assert last.position["told"] == {"lastTimestamp": newest, "pinned": {"manifests": 0}, "fixedAt": fixed}
    assert (last.pinned, last.fixed_ms) == ({}, None)
