"""Rows that files have brought are left out of Kafka's, on a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backlog_spark.errors import BacklogError, SettingError
from connectors.hybrid.kafka.dedup import Known

from .broker import Broker, read, step
from .test_reading import NUMBERS, Numbers

T0 = 1_700_000_000_000


def _keys(path: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def _numbers(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["n"] for row in rows]


def test_overlap_with_files_is_left_out_and_the_rest_is_not(broker: Broker, client: str, tmp_path: Path) -> None:
    topic = broker.topic(2)
    # The files' newest row is of T0 + 10. Number 5 was not in them, and 11 comes again after their time.
    broker.send(topic, ["3", "4", "5", "6"], 0, at=[T0 + 7, T0 + 8, T0 + 9, T0 + 10])
    broker.send(topic, ["11", "12", "6"], 0, at=[T0 + 11, T0 + 12, T0 + 13])
    broker.send(topic, ["7"], 1, at=[T0 + 9])
    before = {
        "lastTimestamp": T0 + 10,
        "dedup": _keys(tmp_path / "keys.parquet", n=pa.array([3, 4, 6, 7, 11], pa.int32())),
    }
    options = {"subscribe": topic, "startingFrom": "lastFileTimestamp", "startingOverlap": "2 ms", "dedupKey": "n"}
    phase = broker.phase(client, NUMBERS, (), Numbers(), **options)
    begin = phase.begin(before)
    assert begin["offsets"] == {topic: {"0": 1, "1": 0}}
    assert begin["dedupUntil"] == {topic: {"0": 4, "1": 1}}
    end = step(phase, begin).position
    assert _numbers(read(phase, begin, end)) == [5, 11, 12, 6]
    # All has been passed, and the position says no more of it; but the first one does.
    assert "dedup" not in end
    assert phase.first(end) == begin
    assert _numbers(read(phase, phase.first(end), end)) == [5, 11, 12, 6]
    # In small batches as well.
    positions = [begin]
    while (found := step(phase, positions[-1], rows=1)).position is not positions[-1]:
        positions.append(found.position)
    batches = [read(phase, positions[i], positions[i + 1]) for i in range(len(positions) - 1)]
    assert [n for batch in batches for n in _numbers(batch)] == [5, 11, 12, 6]
    assert ["dedup" in position for position in positions] == [True] * 3 + [False] * (len(positions) - 3)


def test_nothing_to_leave_out(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic()
    broker.send(topic, ["3"], at=T0 + 11)
    phase = broker.phase(columns=NUMBERS, decoder=Numbers(), subscribe=topic, dedupKey="n")
    # No record is so old, no file had a row, no key was kept.
    for before in ({"lastTimestamp": T0 + 10, "dedup": "no-such-file"}, {"dedup": "no-such-file"}, {}):
        begin = phase.begin(before)
        assert "dedup" not in begin
        assert _numbers(read(phase, begin, step(phase, begin).position)) == [3]


def test_what_is_wrong_with_the_keys(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic()
    broker.send(topic, ["3"], at=T0)
    phase = broker.phase(columns=NUMBERS, decoder=Numbers(), subscribe=topic, dedupKey="n")
    begin = phase.begin({"lastTimestamp": T0, "dedup": str(tmp_path / "none.parquet")})
    end = step(phase, begin).position
    with pytest.raises(BacklogError, match=r"cannot be read from .*none\.parquet: FileNotFoundError"):
        read(phase, begin, end)
    begin = phase.begin({"lastTimestamp": T0, "dedup": _keys(tmp_path / "keys.parquet", m=[1])})
    with pytest.raises(BacklogError, match=r"keys\.parquet has no column 'n' of dedupKey; it has m"):
        read(phase, begin, end)
    with pytest.raises(SettingError, match="dedupKey = None: the phase before has kept keys"):
        broker.phase(subscribe=topic).begin({"lastTimestamp": T0, "dedup": "keys"})
    with pytest.raises(SettingError, match="dedupKey = 'x': the stream has no column 'x'"):
        broker.phase(columns=NUMBERS, decoder=Numbers(), subscribe=topic, dedupKey="x")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a"], [False, False, True, True, False]),
        (["a", "b"], [True, False, True, True, False]),
    ],
)
def test_keys_of_one_column_and_of_several(names: list[str], expected: list[bool]) -> None:
    # NULL is a value like any other here: it tells the row from the others.
    known = Known(pa.table({"a": [1, 2, None], "b": ["x", "y", None]}).select(names))
    rows = {"a": [1, 2, 3, 1, None], "b": ["z", "y", "x", "x", None]}
    batch = pa.RecordBatch.from_pydict(rows)
    may_be = pa.array([True, True, True, False, True])
    kept = known.without(batch, may_be)
    assert kept.to_pylist() == [row for row, keep in zip(batch.to_pylist(), expected, strict=True) if keep]
