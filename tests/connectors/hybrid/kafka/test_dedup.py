"""Records that files already had are dropped, on a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backlog_spark.connectors.hybrid.kafka.dedup import Known, known
from backlog_spark.connectors.hybrid.phases import TIME
from backlog_spark.errors import BacklogError, SettingError

from .broker import Broker, read, step
from .test_reading import NUMBERS, Numbers

T0 = 1_700_000_000_000


def _keys(path: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def _numbers(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["n"] for row in rows]


def test_overlap_with_files_is_dropped_and_the_rest_is_kept(broker: Broker, tmp_path: Path) -> None:
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
    phase = broker.phase(NUMBERS, (), Numbers(), **options)
    begin = phase.begin(before)
    assert begin["offsets"] == {topic: {"0": 1, "1": 0}}
    assert begin["dedupMs"] == T0 + 10
    end = step(phase, begin).position
    assert _numbers(read(phase, begin, end)) == [5, 11, 12, 6]
    assert phase.first(end) == begin
    assert _numbers(read(phase, phase.first(end), end)) == [5, 11, 12, 6]
    # In small batches as well.
    positions = [begin]
    while (found := step(phase, positions[-1], rows=1)).position is not positions[-1]:
        positions.append(found.position)
    batches = [read(phase, positions[i], positions[i + 1]) for i in range(len(positions) - 1)]
    assert [n for batch in batches for n in _numbers(batch)] == [5, 11, 12, 6]


def test_each_record_is_judged_by_its_own_time(broker: Broker, tmp_path: Path) -> None:
    """Its offset does not matter, neither within the topic nor relative to the begin of the phase."""
    topic = broker.topic()
    ahead = [(1, 0), (2, 1), (4, 3), (5, 4), (3, 2), (6, 5)]
    broker.send(topic, [str(n) for n, _ in ahead], at=[T0 + at for _, at in ahead])
    keys = _keys(tmp_path / "keys.parquet", n=pa.array([1, 2, 3, 4, 7], pa.int32()))
    options = {"subscribe": topic, "startingFrom": "lastFileTimestamp", "startingOverlap": "3 ms", "dedupKey": "n"}
    phase = broker.phase(NUMBERS, (), Numbers(), **options)
    begin = phase.begin({"lastTimestamp": T0 + 3, "dedup": keys})
    end = step(phase, begin).position
    assert _numbers(read(phase, begin, end)) == [5, 6]
    broker.send(topic, ["7", "2", "2", "8"], at=[T0 + 3, T0 + 1, T0 + 6, T0 + 2])
    later = step(phase, end).position
    assert _numbers(read(phase, end, later)) == [2, 8]
    assert _numbers(read(phase, begin, later)) == [5, 6, 2, 8]


def test_positions_of_earlier_versions_go_on_by_offset(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic()
    broker.send(topic, ["1", "2", "3", "4"], at=T0)
    keys = _keys(tmp_path / "keys.parquet", n=pa.array([1, 2, 3], pa.int32()))
    phase = broker.phase(NUMBERS, (), Numbers(), subscribe=topic, dedupKey="n")
    begin = {**phase.begin({}), "dedup": keys, "dedupUntil": {topic: {"0": 2}}}
    end = step(phase, begin).position
    assert _numbers(read(phase, begin, end)) == [3, 4]
    assert "dedup" not in end
    assert _numbers(read(phase, phase.first(end), end)) == [3, 4]


def test_a_null_is_never_known(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic()
    broker.send(topic, ["1", None, "2"], at=T0)
    keys = _keys(tmp_path / "keys.parquet", n=pa.array([1, None], pa.int32()))
    phase = broker.phase(NUMBERS, (), Numbers(), subscribe=topic, dedupKey="n")
    begin = phase.begin({"lastTimestamp": T0 + 9, "dedup": keys})
    assert _numbers(read(phase, begin, step(phase, begin).position)) == [None, 2]


def test_nothing_to_drop(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic()
    broker.send(topic, ["3"], at=T0 + 11)
    phase = broker.phase(columns=NUMBERS, decoder=Numbers(), subscribe=topic, dedupKey="n")
    # No record is so old, no file had a row, no key was kept.
    for before in ({"lastTimestamp": T0 + 10, "dedup": "no-such-file"}, {"dedup": "no-such-file"}, {}):
        begin = phase.begin(before)
        assert ("dedup" in begin) == (len(before) == 2)  # where it is not even opened
        assert _numbers(read(phase, begin, step(phase, begin).position)) == [3]


def test_refused_keys(broker: Broker, tmp_path: Path) -> None:
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
        (["a"], [False, False, True, True, True, True]),
        (["a", "b"], [True, False, True, True, True, True]),
    ],
)
def test_keys_of_one_column_and_of_several(names: list[str], expected: list[bool]) -> None:
    known = Known(pa.table({"a": [1, 2, None, None], "b": ["x", "y", None, "z"]}).select(names))
    rows = {"a": [1, 2, 3, 1, None, None], "b": ["z", "y", "x", "x", None, "z"]}
    batch = pa.RecordBatch.from_pydict(rows)
    may_be = pa.array([True, True, True, False, True, True])
    kept = known.without(batch, may_be)
    assert kept.to_pylist() == [row for row, keep in zip(batch.to_pylist(), expected, strict=True) if keep]


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_another_time_is_another_version_of_a_key(tmp_path: Path, zone: str | None) -> None:
    """The newest version of a key may be only in the topic, with a time before the files' last one."""
    kind = pa.timestamp("us", zone)
    rows = pa.table({"n": [1, 2, 3], "at": pa.array([10, 10, None], kind)})
    path = tmp_path / "keys.parquet"
    pq.write_table(rows.replace_schema_metadata({TIME: b"at"}), path)
    batch = pa.RecordBatch.from_pydict(
        {"at": pa.array([10, 11, 9, None, 10, None, 10], kind), "n": [1, 1, 2, 2, 2, 3, 4]}
    )
    may_be = pa.array([True] * 4 + [False] + [True] * 2)
    kept = known(str(path), ("n",), {}).without(batch, may_be)
    assert kept.column("n").to_pylist() == [1, 2, 2, 2, 3, 4]
    assert kept.column("at").cast(pa.int64()).to_pylist() == [11, 9, None, 10, None, 10]
    # The time may be one of the keys; files of keys of earlier versions have none.
    assert known(str(path), ("n", "at"), {}).without(batch, may_be).equals(kept)
    pq.write_table(rows.select(["n"]), tmp_path / "earlier.parquet")
    earlier = known(str(tmp_path / "earlier.parquet"), ("n",), {}).without(batch, may_be)
    assert earlier.column("n").to_pylist() == [2, 4]
