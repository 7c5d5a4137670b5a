"""Live batches that wait for more records: the rule by random arrivals, without a broker, then on a real one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.hybrid import inspect, reader
from backlog_spark.connectors.hybrid.kafka.arrow import raw_schema
from backlog_spark.connectors.hybrid.kafka.offsets import Partition
from backlog_spark.connectors.hybrid.kafka.options import KafkaOptions
from backlog_spark.connectors.hybrid.kafka.phase import KafkaPhase
from backlog_spark.connectors.hybrid.offsets import HybridOffset
from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.connectors.hybrid.phases import Columns, Limit
from backlog_spark.errors import SettingError

from .broker import Broker
from .test_starts import T0, Log

KAFKA = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}
WAITING = {**KAFKA, "phases": "kafka", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "60 s"}
LIMIT = ReadMaxRows(1000)


class Clock:
    """The reader's clock, which a test sets."""

    def __init__(self) -> None:
        self.ms = float(T0)

    def time(self) -> float:
        return self.ms / 1000


@contextmanager
def opened(options: dict[str, str], clock: Clock, log: Log | None = None) -> Iterator[reader.HybridStreamReader]:
    """A reader of one topic; with a log it asks no broker."""
    parsed = HybridOptions.parse(options)
    phase = KafkaPhase("kafka", parsed.of_phase[0])
    phase._client = log  # type: ignore[assignment]
    columns = Columns(raw_schema(False))
    phase.open(columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "time", clock)
        yield reader.HybridStreamReader(parsed, [phase], columns)
    if log is None:
        phase.close()


def end_of(offset: dict[str, Any]) -> int:
    """How many records have been read."""
    return int(offset["position"]["offsets"].get("t", {}).get("0", 0))


@pytest.mark.parametrize("threshold", [None, 15, 3])
@given(steps=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 25), st.booleans()), max_size=30))
def test_a_live_batch_waits_for_offsets_or_time(threshold: int | None, steps: list[tuple[int, int, bool]]) -> None:
    options = WAITING | ({} if threshold is None else {"backlogOffsetsThreshold": str(threshold)})
    clock, log = Clock(), Log(KafkaOptions.parse(KAFKA))
    at: dict[str, Any] = {}
    given_at: float | None = None
    for seconds, more, restarts in [(0, 0, True), *steps]:
        clock.ms += 1000 * seconds
        log.grow(len(log.times) + more)
        with opened(options, clock, log) as source:
            source._given_ms = given_at = None if restarts else given_at
            at = at or source.latestOffset(source.initialOffset(), LIMIT)  # where the phase begins
            end = source.latestOffset(at, LIMIT)
        unread = len(log.times) - end_of(at)
        waits = given_at is not None and unread < 10 and clock.ms - given_at < 60_000
        if HybridOffset.from_json(at).is_processing_backlog or not waits:
            assert end_of(end) == len(log.times)
        else:
            assert end is at
        if end is not at:
            given_at = clock.ms
        at = end


def test_a_flag_that_changes_is_not_held_back() -> None:
    """Old records begin a backlog, although there are fewer than a batch waits for."""
    clock, log = Clock(), Log(KafkaOptions.parse(KAFKA))
    options = {**WAITING, "backlogLagThreshold": "30 s", "maxOffsetsPerTrigger": "10"}
    with opened(options, clock, log) as source:
        log.grow(20)
        at = source.latestOffset(source.initialOffset(), ReadMaxRows(1))
        at = source.latestOffset(at, ReadMaxRows(12))
        assert end_of(at) == 12
        clock.ms = T0 + 13_000 + 30_000
        assert source.latestOffset(at, LIMIT) is at, "the batch would leave nothing unread"
        clock.ms += 10_000
        flagged = source.latestOffset(at, ReadMaxRows(1))
        assert (end_of(flagged), flagged["isProcessingBacklog"]) == (13, True)
        assert end_of(source.latestOffset(flagged, ReadMaxRows(1))) == 14, "in backlog nothing waits"


def test_nothing_is_held_back_in_a_run_that_ends() -> None:
    clock, log = Clock(), Log(KafkaOptions.parse(KAFKA))
    log.grow(3)
    for options in (WAITING, {**WAITING, "endingOffsets": "latest"}):
        with opened(options, clock, log) as source:
            if options is WAITING:
                source.prepareForTriggerAvailableNow()
            one = source.latestOffset(source.initialOffset(), ReadMaxRows(1))
            found = [end_of(one)]
            while (two := source.latestOffset(one, ReadMaxRows(1))) != one:
                one = two
                found.append(end_of(one))
        assert found[-3:] == [1, 2, 3]
    bounded = KafkaPhase("last", {**KAFKA, "endingOffsets": "latest"})
    bounded._client = log  # type: ignore[assignment]
    assert bounded.next(bounded.begin({}), Limit(2, least=10), T0).rows == 2, "it is no backlog after another phase"


class Recreated(Log):
    """The topic has lost its first records."""

    def offsets(self, partitions: Any, at: int, *, committed: bool) -> dict[Partition, int]:
        return {p: max(2, end) for p, end in super().offsets(partitions, at, committed=committed).items()}


def test_lost_records_are_reported_once() -> None:
    clock = Clock()
    options = {**WAITING, "failOnDataLoss": "false"}
    log = Log(KafkaOptions.parse(KAFKA))
    with opened(options, clock, log) as source:
        begun = source.latestOffset(source.initialOffset(), LIMIT)
        log.grow(1)
        at = source.latestOffset(begun, LIMIT)
    lost = Recreated(KafkaOptions.parse(KAFKA))
    lost.grow(3)
    with opened(options, clock, lost) as source:
        source._given_ms = clock.ms
        assert end_of(source.latestOffset(at, LIMIT)) == 3


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"minOffsetsPerTrigger": "0"}, "minOffsetsPerTrigger = '0': is not an integer >= 1"),
        ({"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"}, "minOffsetsPerTrigger = 11: is above the 10"),
        ({"minOffsetsPerTrigger": "2000000"}, "is above the 1000000 rows of a batch"),
        ({"maxTriggerDelay": "1 min"}, "maxTriggerDelay = '1 min': has no meaning without minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"}, "maxTriggerDelay = 'soon'"),
        ({"phases": "files", "path": "/a", "metadataLocation": "/m", "minOffsetsPerTrigger": "1"}, "is for a Kafka"),
        ({"phase.kafka.minOffsetsPerTrigger": "1"}, "a phase of kafka has no such option"),
    ],
)
def test_what_is_refused(options: dict[str, str], problem: str) -> None:
    kafka = {} if "path" in options else KAFKA
    with pytest.raises(SettingError, match=problem):
        inspect({"phases": "kafka", **kafka, **options})


def test_the_default_delay_is_that_of_spark() -> None:
    assert HybridOptions.parse({**KAFKA, "phases": "kafka", "minOffsetsPerTrigger": "5"}).max_delay_ms == 900_000


def test_on_a_broker(broker: Broker) -> None:
    topic, clock = broker.topic(2), Clock()
    options = {**WAITING, "kafka.bootstrap.servers": broker.address, "subscribe": topic}
    with opened(options, clock) as source:
        at = source.latestOffset(source.initialOffset(), LIMIT)
        for count, expected in ((5, 0), (4, 0), (1, 10), (9, 0)):
            broker.send(topic, ["x"] * count, count % 2)
            end = source.latestOffset(at, LIMIT)
            assert end["rows"] - at["rows"] == expected
            at = end
        clock.ms += 60_000
        assert source.latestOffset(at, LIMIT)["rows"] == 19
