"""A topic of a thousand partitions: what is asked and kept grows with their number, and no faster."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from backlog_spark.connectors.hybrid.kafka import client
from backlog_spark.connectors.hybrid.kafka.client import Topic
from backlog_spark.connectors.hybrid.kafka.confluent import KafkaClient
from backlog_spark.connectors.hybrid.kafka.options import KafkaOptions
from servers.kafka import KafkaServer

from .broker import Broker, read, step
from .test_starts import Log

PARTITIONS = 1000


def test_a_description_holds_for_ten_times_as_long_as_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [0.0], Counter[str]()
    log = Log(KafkaOptions.parse({"kafka.bootstrap.servers": "a:1", "subscribe": "t"}))

    def topics(names: Any) -> dict[str, Topic]:
        asked.update(names)
        now[0] += 0.05
        return {name: Topic("id", (0,)) for name in names if name != "none"}

    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(log, "topics", topics)
    for at in (0, 0.3, 0.54, 0.56, 0.8, 2.0):
        now[0] = max(now[0], at)
        for name in "ab":
            assert log.topic_of((name, 0)) is not None
    assert asked == {"a": 3, "b": 3}
    assert [log.topic_of(("none", 0)) for _ in range(2)] == [None, None]
    assert [log.topic_of(("a", 1)) for _ in range(2)] == [Topic("id", (0,))] * 2
    assert (asked["none"], asked["a"]) == (2, 5), "what does not exist is asked for each time"


@pytest.fixture
def alone() -> Iterator[Broker]:
    """A broker without the topics of others."""
    with KafkaServer() as server:
        broker = Broker(server)
        yield broker
        broker.close_phases()


@pytest.mark.slow
def test_a_thousand_partitions(alone: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = alone
    topic = broker.topic(PARTITIONS)
    phase = broker.phase(subscribe=topic, failOnDataLoss="true")
    position = begin = phase.begin({})
    for _ in range(2):
        for number in range(PARTITIONS):
            broker._produce(broker._producer, topic, f"{number}", number, None, 0, None)
    assert broker._producer.flush(60) == 0
    rows: list[dict[str, Any]] = []
    asked = Counter[str]()
    describe = KafkaClient.topics

    def counted(self: KafkaClient, names: Any) -> dict[str, Topic]:
        asked.update(names)
        return describe(self, names)

    monkeypatch.setattr(KafkaClient, "topics", counted)
    for limit in (PARTITIONS, None):
        end = step(phase, position, limit).position
        assert len(phase.partitions(position, end)) == PARTITIONS
        asked.clear()
        rows += read(phase, position, end)
        assert asked[topic] < PARTITIONS / 10, "not once for each partition, whose answer has all of them"
        position = end
    assert Counter(row["value"].decode() for row in rows) == {str(number): 2 for number in range(PARTITIONS)}
    assert step(phase, position).position is position
    assert phase.first(position) == begin
    # 10 bytes for a partition, in two offsets: where the batch ends, and where the phase began.
    assert len(json.dumps(position)) < 25 * PARTITIONS
