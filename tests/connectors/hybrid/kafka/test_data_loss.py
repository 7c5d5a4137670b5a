"""Records that are removed before they are read, on a real broker: an error that names them, or a warning."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from backlog_spark.connectors.hybrid.kafka.phase import KafkaPhase
from backlog_spark.connectors.hybrid.phases import Position
from backlog_spark.errors import BacklogError

from .broker import Broker, read, step


def _values(rows: list[dict[str, Any]]) -> list[str]:
    return [row["value"].decode() for row in rows]


def _both(broker: Broker, topics: str) -> tuple[KafkaPhase, KafkaPhase]:
    strict = broker.phase(subscribePattern=topics)
    return strict, broker.phase(subscribePattern=topics, failOnDataLoss="false")


def _warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "spark.connectors." in r.name and r.levelno == logging.WARNING]


def _goes_on(
    phase: KafkaPhase, start: Position, expected: list[str], caplog: pytest.LogCaptureFixture, warning: str
) -> Position:
    """The next batch has these values, also in a replay, with one warning."""
    caplog.clear()
    end = step(phase, start).position
    assert [warning in text for text in _warned(caplog)] == [True]
    assert _values(read(phase, start, end)) == expected
    assert _values(read(phase, start, end)) == expected
    # What was decided is in the position: it is decided once.
    caplog.clear()
    assert step(phase, end).position == end
    assert _warned(caplog) == []
    return end


def test_retention_between_batches(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    topic = broker.topic()
    broker.send(topic, ["0", "1"])
    strict, lenient = _both(broker, topic)
    start = step(strict, strict.begin({})).position
    broker.send(topic, ["2", "3", "4", "5"])
    broker.remove_before(topic, 4)
    with pytest.raises(BacklogError) as caught:
        step(strict, start)
    assert f"Records of {topic}-0 are lost: the next offset is 2, the earliest is 4" in str(caught.value)
    assert "failOnDataLoss=false" in str(caught.value)
    end = _goes_on(lenient, start, ["4", "5"], caplog, "reading continues at offset 4")
    assert end["begin"] == {topic: {"0": 4}}
    # Nothing is lost where all had been read.
    broker.remove_before(topic, 6)
    assert step(strict, end).position is end


def test_retention_before_the_query_begins_at_an_offset(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    topic = broker.topic()
    broker.send(topic, ["0", "1", "2"])
    broker.remove_before(topic, 2)
    starting = f'{{"{topic}": {{"0": 1}}}}'
    with pytest.raises(BacklogError, match="the next offset is 1, the earliest is 2"):
        broker.phase(subscribe=topic, startingOffsets=starting).begin({})
    lenient = broker.phase(subscribe=topic, startingOffsets=starting, failOnDataLoss="false")
    assert lenient.begin({})["offsets"] == {topic: {"0": 2}}
    # The earliest offset cannot be lost.
    assert broker.phase(subscribe=topic).begin({})["offsets"] == {topic: {"0": 2}}


def test_retention_after_planning(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    topic = broker.topic()
    broker.send(topic, map(str, range(10)))
    strict, lenient = _both(broker, topic)
    begin = strict.begin({})
    end = step(strict, begin).position
    assert len(read(strict, begin, end)) == 10
    broker.remove_before(topic, 7)
    with pytest.raises(BacklogError, match=r"the next offset is 0, the earliest is 7"):
        read(strict, begin, end)
    assert _values(read(lenient, begin, end)) == ["7", "8", "9"]
    assert "going on" not in _warned(caplog)
    assert len(_warned(caplog)) == 1
    broker.send(topic, ["10"])
    broker.remove_before(topic, 11)
    assert read(lenient, begin, end) == []


def test_retention_in_the_middle_of_a_read(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    topic = broker.topic()
    # More than a client reads ahead.
    text = "x" * 20_000
    broker.send(topic, [f"{i} {text}" for i in range(3000)])
    strict, lenient = _both(broker, topic)
    begin = strict.begin({})
    (partition,) = strict.partitions(begin, step(strict, begin).position)
    for phase in (strict, lenient):
        small = {"kafka.fetch.max.bytes": "1000000", "kafka.max.partition.fetch.bytes": "1000000"}
        small |= {"kafka.queued.max.messages.kbytes": "1000"}
        given = {"subscribe": topic, "failOnDataLoss": str(phase is strict).lower(), **small}
        reader = broker.phase(**{name.replace(".", "__"): value for name, value in given.items()})
        batches = reader.read(partition)
        offsets = next(batches).column("offset").to_pylist()
        broker.remove_before(topic, 2500 if phase is strict else 2900)
        if phase is strict:
            with pytest.raises(BacklogError, match="the earliest is 2500"):
                list(batches)
            continue
        for batch in batches:
            offsets += batch.column("offset").to_pylist()
        assert offsets == sorted(set(offsets))
        assert offsets[0] == 2500
        assert offsets[-100:] == list(range(2900, 3000))


@pytest.mark.usefixtures("one_look")
def test_a_topic_that_was_deleted(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    kept = broker.topic()
    gone = broker.topic(2, name=f"{kept}-gone")
    broker.send(gone, ["0"], 0)
    strict, lenient = _both(broker, f"{kept}(-gone)?")
    begin = strict.begin({})
    start = step(strict, begin).position
    broker.delete(gone)
    with pytest.raises(BacklogError, match=f"Records of {gone}-0 are lost: the next offset is 1, there is none"):
        step(strict, start)
    with pytest.raises(BacklogError, match=f"Records of {gone}-0 are lost"):
        read(strict, begin, start)
    assert read(lenient, begin, start) == []
    broker.send(kept, ["kept"])
    caplog.clear()
    end = step(lenient, start).position
    assert [gone in text and "is skipped" in text for text in _warned(caplog)] == [True, True]
    assert end["offsets"] == {kept: {"0": 1}}
    assert _values(read(lenient, start, end)) == ["kept"]
    # It comes back as a new topic.
    broker.topic(1, name=gone)
    broker.send(gone, ["new"])
    back = step(lenient, end).position
    assert _values(read(lenient, end, back)) == ["new"]


@pytest.mark.parametrize("records", [1, 2, 5])
def test_a_recreated_topic_is_not_read_from_the_old_offset(
    broker: Broker, records: int, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.topic()
    broker.send(topic, ["old 0", "old 1"])
    strict, lenient = _both(broker, topic)
    begin = strict.begin({})
    start = step(strict, begin).position
    broker.delete(topic)
    broker.topic(1, name=topic)
    values = [f"new {i}" for i in range(records)]
    broker.send(topic, values)
    with pytest.raises(BacklogError, match=r"the next offset is 2, .* deleted and recreated"):
        step(strict, start)
    # Nor do old batches have new records, when they are read again.
    with pytest.raises(BacklogError, match=r"the next offset is 0, .* deleted and recreated"):
        read(strict, begin, start)
    assert read(lenient, begin, start) == []
    _goes_on(lenient, start, values, caplog, "recreated")


def test_a_topic_that_is_not_subscribed_any_more(broker: Broker) -> None:
    one, two = broker.topic(), broker.topic()
    both = broker.phase(subscribe=f"{one},{two}")
    begin = both.begin({})
    only = broker.phase(subscribe=one)
    with pytest.raises(BacklogError, match=f"Records of {two}-0 .* the options do not name it any more"):
        step(only, begin)


def test_new_partitions_whose_first_records_are_gone(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    topic = broker.topic()
    strict, lenient = _both(broker, topic)
    begin = strict.begin({})
    broker.add_partitions(topic, 2)
    broker.send(topic, ["0", "1", "2"], 1)
    broker.remove_before(topic, 2, partition=1)
    with pytest.raises(BacklogError, match=f"Records of {topic}-1 are lost: the next offset is 0.* earliest is 2"):
        step(strict, begin)
    _goes_on(lenient, begin, ["2"], caplog, "continues at offset 2")
