"""Workers read exactly their range, with any transactions and compaction, on a real broker."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import multiprocessing
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from backlog_spark.connectors.hybrid.decode import Decoded, Decoder, decoder, parse
from backlog_spark.connectors.hybrid.kafka import workers
from backlog_spark.connectors.hybrid.kafka.arrow import RAW, raw_schema
from backlog_spark.connectors.hybrid.kafka.phase import KafkaPhase
from backlog_spark.connectors.hybrid.kafka.reading import KafkaRange
from backlog_spark.connectors.hybrid.phases import METADATA
from backlog_spark.errors import BacklogError

from .broker import Broker, read, step

T0 = 1_700_000_000_000


def _at(ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)


def _values(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["value"] and row["value"].decode() for row in rows]


def _everything(phase: KafkaPhase) -> list[dict[str, Any]]:
    begin = phase.begin({})
    end = step(phase, begin).position
    rows = read(phase, begin, end)
    assert read(phase, begin, end) == rows
    return rows


def test_sparks_columns_are_as_spark_gives_them(broker: Broker) -> None:
    topic = broker.topic(2, message_timestamp_type="CreateTime")
    headers = [("a", b"1"), ("b", None), ("a", b"")]
    broker.send(topic, [b"\x00\xff", ""], 1, key=b"k", at=T0, headers=headers)
    broker.send(topic, [None], 1, at=T0 + 9)
    phase = broker.phase(subscribe=topic, includeHeaders="true")
    assert phase.schema() == raw_schema(include_headers=True)
    assert phase.schema().names == list(RAW)
    same = {"topic": topic, "partition": 1, "timestampType": 0}
    shown = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "a", "value": b""}]
    assert _everything(phase) == [
        {**same, "key": b"k", "value": b"\x00\xff", "offset": 0, "timestamp": _at(T0), "headers": shown},
        {**same, "key": b"k", "value": b"", "offset": 1, "timestamp": _at(T0 + 1), "headers": shown},
        {**same, "key": None, "value": None, "offset": 2, "timestamp": _at(T0 + 9), "headers": None},
    ]


def test_timestamps_of_the_broker(broker: Broker) -> None:
    topic = broker.topic(message_timestamp_type="LogAppendTime")
    before = time.time()
    broker.send(topic, ["a"], at=T0)
    (row,) = _everything(broker.phase(subscribe=topic))
    assert row["timestampType"] == 1
    assert before - 1 <= row["timestamp"].timestamp() <= time.time() + 1


def test_some_columns_in_another_order_and_metadata(broker: Broker) -> None:
    topic = broker.topic()
    broker.send(topic, ["a"], key=b"k", at=T0)
    columns = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    phase = broker.phase(columns, tuple(METADATA), subscribe=topic)
    (partition,) = phase.partitions(begin := phase.begin({}), step(phase, begin).position)
    (batch,) = phase.read(partition)
    assert batch.schema == pa.schema([*columns, *METADATA.items()])
    assert batch.to_pylist() == [
        {
            **dict.fromkeys(METADATA),
            **{"offset": 0, "value": b"a", "_phase": "kafka", "_topic": topic, "_partition": 0},
            **{"_offset": 0, "_timestamp": _at(T0), "_key": b"k"},
        }
    ]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (("headers", RAW["headers"]), "no column 'headers'. Set includeHeaders=true"),
        (("values", pa.binary()), "no column 'values'. Columns: key, value, topic"),
        (("value", pa.string()), "column 'value' is binary, but the schema has string"),
    ],
)
def test_columns_that_raw_records_do_not_have(broker: Broker, column: tuple[str, pa.DataType], expected: str) -> None:
    with pytest.raises(BacklogError, match=expected):
        broker.phase(columns=pa.schema([column]), subscribe="t")


@pytest.mark.parametrize(
    "parts",
    [
        # Letters: c committed, a aborted, p plain; each with its records.
        ["a3"],
        ["c2"],
        ["p2", "a3"],
        ["a2", "p1", "c2", "a1", "a1"],
        ["p1", "a200", "c1"],
    ],
    ids=" ".join,
)
def test_what_transactions_left_is_passed_over(broker: Broker, parts: list[str]) -> None:
    topic = broker.topic()
    expected = []
    for number, part in enumerate(parts):
        values = [f"{part}-{number}-{i}" for i in range(int(part[1:]))]
        {"c": broker.commit, "a": broker.abort, "p": broker.send}[part[0]](topic, values)
        expected += [] if part[0] == "a" else values
    phase = broker.phase(subscribe=topic)
    begin = phase.begin({})
    end = step(phase, begin).position
    count = end["offsets"][topic]["0"]
    # Also records and marks count as offsets.
    assert count == sum(int(part[1:]) + (part[0] != "p") for part in parts)
    assert _values(read(phase, begin, end)) == expected
    # Nothing comes after the range, with more after it and without.
    broker.send(topic, ["more"])
    assert _values(read(phase, begin, end)) == expected
    # Every range of it, wherever it begins and ends: of large ones only some.
    (whole,) = phase.partitions(begin, end)
    assert isinstance(whole, KafkaRange)
    cuts = [*range(min(count, 8)), count]
    singles = [_read(phase, dataclasses.replace(whole, start=a, until=b)) for a, b in itertools.pairwise(cuts)]
    assert [value for values in singles for value in values] == expected


def _read(phase: KafkaPhase, wanted: KafkaRange) -> list[Any]:
    return [value for batch in phase.read(wanted) for value in _values(batch.to_pylist())]


def test_all_records_of_transactions_without_their_outcome(broker: Broker) -> None:
    topic = broker.topic()
    broker.abort(topic, ["a"])
    broker.commit(topic, ["b"])
    phase = broker.phase(subscribe=topic, kafka__isolation__level="read_uncommitted")
    assert _values(_everything(phase)) == ["a", "b"]


def test_compacted_topics(broker: Broker) -> None:
    topic = broker.topic(
        cleanup_policy="compact", min_cleanable_dirty_ratio="0.0", segment_ms="100", delete_retention_ms="0"
    )
    for i in range(20):
        broker.send(topic, [str(i)], key=b"x")
    phase = broker.phase(subscribe=topic)
    begin = phase.begin({})
    end = step(phase, begin).position
    (whole,) = phase.partitions(begin, end)
    assert isinstance(whole, KafkaRange)
    # A record past the segment's time begins a new one, and the old one is compacted.
    while True:
        time.sleep(0.2)
        broker.send(topic, ["later"], key=b"y")
        rows = read(phase, begin, end)
        if len(rows) < 20:
            break
    assert all(int(value) >= 1 for value in _values(rows))
    # Of a part that is gone as a whole nothing comes, and it ends.
    first = min(row["offset"] for row in rows)
    assert _read(phase, dataclasses.replace(whole, until=first)) == []


def test_replays_give_the_same_rows_when_the_topic_has_grown(broker: Broker) -> None:
    topic = broker.topic(3)
    for number in range(3):
        broker.send(topic, [f"{number}-{i}" for i in range(50)], number)
    phase = broker.phase(subscribe=topic, minPartitions="7")
    begin = phase.begin({})
    ends = [begin]
    while (found := step(phase, ends[-1], rows=40)).position != ends[-1]:
        ends.append(found.position)
    batches = [read(phase, a, b) for a, b in itertools.pairwise(ends)]
    assert sorted(_values([row for batch in batches for row in batch])) == sorted(
        f"{number}-{i}" for number in range(3) for i in range(50)
    )
    broker.send(topic, ["more"], 1)
    broker.commit(topic, ["more"], 0)
    again = broker.phase(subscribe=topic, minPartitions="7")
    assert [read(again, a, b) for a, b in itertools.pairwise(ends)] == batches


def test_partitions_are_cut_for_more_tasks(broker: Broker) -> None:
    topic = broker.topic(2)
    broker.send(topic, map(str, range(1000)), 0)
    broker.send(topic, map(str, range(10)), 1)
    phase = broker.phase(subscribe=topic, minPartitions="5")
    begin = phase.begin({})
    end = step(phase, begin).position
    found = phase.partitions(begin, end)
    shown = [(p.number, p.start, p.until) for p in found if isinstance(p, KafkaRange)]
    assert shown == [(0, 0, 250), (0, 250, 500), (0, 500, 750), (0, 750, 1000), (1, 0, 10)]
    assert [row["offset"] for row in read(phase, begin, end)] == [*range(1000), *range(10)]


def test_large_ranges_come_in_batches_of_at_most_ten_thousand(broker: Broker) -> None:
    topic = broker.topic()
    broker.send(topic, map(str, range(25_000)))
    phase = broker.phase(subscribe=topic)
    begin = phase.begin({})
    (partition,) = phase.partitions(begin, step(phase, begin).position)
    batches = list(phase.read(partition))
    assert max(batch.num_rows for batch in batches) <= 10_000
    offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(25_000))


class Numbers(Decoder):
    """Decodes numbers and drops negative ones."""

    def decode(self, values: pa.Array) -> Decoded:
        numbers = values.cast(pa.string()).cast(pa.int64())
        negative = pc.fill_null(pc.less(numbers, 0), False)
        kept = pc.indices_nonzero(pc.invert(negative)).cast(pa.int64())
        return Decoded([numbers.take(kept), pc.multiply(numbers, 2).take(kept)], kept)


NUMBERS = pa.schema([("n", pa.int64()), ("twice", pa.int64())])


@pytest.mark.parametrize("tombstones", ["null", "drop"])
def test_a_malformed_record_is_named(broker: Broker, tombstones: str) -> None:
    topic = broker.topic(2)
    broker.send(topic, ['{"n": 1}', None, '{"n": 2}', "{", '{"n": 3}'], 1)
    columns = pa.schema([("n", pa.int64())])
    json = decoder(parse({"valueFormat": "json", "mode": "FAILFAST"}), columns)
    phase = broker.phase(columns=columns, decoder=json, subscribe=topic, tombstones=tombstones)
    begin = phase.begin({})
    with pytest.raises(BacklogError, match=rf"Offset 3 of {topic}-1 is malformed: .*Set mode to PERMISSIVE"):
        read(phase, begin, step(phase, begin).position)


@pytest.mark.parametrize(("tombstones", "expected"), [("null", [0, 1, 3, 5]), ("drop", [0, 3, 5])])
def test_a_decoder_makes_columns_and_may_leave_records_out(
    broker: Broker, tombstones: str, expected: list[int]
) -> None:
    topic = broker.topic()
    numbers = [7, None, -1, 9, -2, 11]
    broker.send(topic, [None if n is None else str(n) for n in numbers])
    phase = broker.phase(NUMBERS, ("_offset", "_partition"), Numbers(), subscribe=topic, tombstones=tombstones)
    assert phase.schema() is None
    assert _everything(phase) == [
        {"n": n, "twice": None if n is None else 2 * n, "_offset": i, "_partition": 0}
        for i, n in enumerate(numbers)
        if i in expected
    ]


def test_records_without_a_value_can_be_left_out_as_they_are(broker: Broker) -> None:
    topic = broker.topic()
    broker.send(topic, ["a", None, "b"])
    rows = _everything(broker.phase(subscribe=topic, tombstones="drop"))
    assert [(row["offset"], row["value"]) for row in rows] == [(0, b"a"), (2, b"b")]


def _in_another_process(data: bytes) -> list[Any]:
    phase, partition = pickle.loads(data)
    return [row for batch in phase.read(partition) for row in batch.to_pylist()]


def test_a_phase_is_pickled_to_another_process(broker: Broker) -> None:
    topic = broker.topic()
    broker.send(topic, ["1", "2"])
    phase = broker.phase(NUMBERS, ("_offset",), Numbers(), subscribe=topic)
    begin = phase.begin({})
    (partition,) = phase.partitions(begin, step(phase, begin).position)
    data = pickle.dumps((phase, partition))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(_in_another_process, data).result(120)
    assert found == [{"n": 1, "twice": 2, "_offset": 0}, {"n": 2, "twice": 4, "_offset": 1}]


def test_a_worker_keeps_its_client_and_commits_nothing(broker: Broker) -> None:
    topic = broker.topic(2)
    broker.send(topic, ["a"], 0)
    broker.send(topic, ["b"], 1)
    phase = broker.phase(subscribe=topic)
    begin = phase.begin({})
    end = step(phase, begin).position
    assert _values(read(phase, begin, end)) == ["a", "b"]
    ((_, _, kept),) = workers._idle
    assert _values(read(phase, begin, end)) == ["a", "b"]
    assert [client for _, _, client in workers._idle] == [kept]
    assert kept.group_id.startswith("hybrid-kafka-")
    assert broker.commits_of(kept.group_id) == []
    # Another query's options are another client's.
    other = broker.phase(subscribe=topic, groupIdPrefix="mine")
    assert _values(read(other, begin, end)) == ["a", "b"]
    ((_, _, another),) = workers._idle
    assert another is not kept
    assert another.group_id.startswith("mine-")
    named = broker.phase(subscribe=topic, kafka__group__id="ours")
    assert _values(read(named, begin, end)) == ["a", "b"]
    assert workers._idle[0][2].group_id == "ours"


def test_a_reader_that_stops_half_way_leaves_nothing_to_the_next(broker: Broker) -> None:
    topic = broker.topic(2)
    broker.send(topic, map(str, range(30_000)), 0)
    broker.send(topic, ["other"], 1)
    phase = broker.phase(subscribe=topic)
    begin = phase.begin({})
    large, small = phase.partitions(begin, step(phase, begin).position)
    half: Iterator[pa.RecordBatch] = phase.read(large)
    next(half)
    half.close()  # type: ignore[attr-defined]
    assert [value for batch in phase.read(small) for value in _values(batch.to_pylist())] == ["other"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records(broker: Broker, codec: str) -> None:
    topic = broker.topic(compression_type=codec)
    broker.send(topic, ["a" * 1000, "b"])
    assert _values(_everything(broker.phase(subscribe=topic))) == ["a" * 1000, "b"]


def test_columns_of_the_key(broker: Broker) -> None:
    topic = broker.topic()
    broker.send(topic, ['{"v":1}', None, '{"v":2}'], key=b'{"id":7}')
    broker.send(topic, ['{"v":3}'])
    schema = pa.schema([("v", pa.int32()), ("k_id", pa.int64())])
    made = decoder(parse({"valueFormat": "json", "keyFormat": "json", "keyFieldsPrefix": "k_"}), schema)
    for tombstones, values in (("null", [1, None, 2, 3]), ("drop", [1, 2, 3])):
        phase = broker.phase(schema, ("_key",), made, subscribe=topic, tombstones=tombstones)
        start = phase.begin({})
        rows = read(phase, start, step(phase, start).position)
        assert [row["v"] for row in rows] == values
        assert [row["k_id"] for row in rows] == [7] * (len(values) - 1) + [None]
        assert [row["_key"] for row in rows] == [b'{"id":7}'] * (len(values) - 1) + [None]
