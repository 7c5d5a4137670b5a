"""Topics that brokers do not know for a moment: by the answers of a client, and by a real broker that restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.kafka import client
from backlog_spark.connectors.hybrid.kafka.client import Topic
from backlog_spark.connectors.hybrid.kafka.offsets import Partition
from backlog_spark.connectors.hybrid.kafka.options import KafkaOptions
from backlog_spark.connectors.hybrid.kafka.planner import Planner
from backlog_spark.connectors.hybrid.kafka.positions import KafkaPosition
from backlog_spark.connectors.hybrid.kafka.reading import KafkaRange, read_range
from backlog_spark.errors import BacklogError
from servers.kafka import KafkaServer

from .broker import Broker, read, step
from .test_starts import T0, Log

LOOKS = len(client._LOOKS_S)
OPTIONS = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}


class Forgetful(Log):
    """A topic of two partitions. The next answers lack what ``lacks`` says: the topic, or a partition."""

    def __init__(self, **options: str) -> None:
        self.options = KafkaOptions.parse({**OPTIONS, **options})
        super().__init__(self.options)
        self.lacks: list[str] = []
        self.answers = 0

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        self.answers += 1
        lacks = self.lacks.pop(0) if self.lacks else ""
        return {} if lacks == "topic" else {"t": Topic("id", (0,) if lacks == "partition" else (0, 1))}

    def fetch(self, partition: Partition, start: int, until: int) -> Iterator[Any]:
        yield from ()


def clock(sleep: Callable[[float], None]) -> Any:
    """The client's ``time`` alone: threads of other tests sleep too."""
    return SimpleNamespace(monotonic=time.monotonic, sleep=sleep)


def looks() -> dict[str, Callable[[Forgetful, KafkaPosition], Any]]:
    """All that finds out which topics exist."""

    def reads(log: Forgetful, at: KafkaPosition) -> list[Any]:
        return list(read_range(cast(Any, log), KafkaRange("t", 1, "id", 0, 5), log.options))

    return {
        "check": lambda log, at: Planner(log.options, log).check(),
        "pin": lambda log, at: Planner(log.options, log).pin(T0),
        "begin": lambda log, at: Planner(log.options, log).begin(None, "", T0),
        "next": lambda log, at: Planner(log.options, log).next(at, None, None, T0).end,
        "target": lambda log, at: Planner(log.options, log).target(at),
        "read": reads,
    }


@pytest.mark.parametrize("look", list(looks()))
@given(lacks=st.lists(st.sampled_from(["topic", "partition"]), max_size=LOOKS))
def test_a_topic_that_is_not_known_for_a_moment(look: str, lacks: list[str]) -> None:
    """The result is that of a broker that knows it."""
    if look in ("check", "pin", "begin"):  # which partitions there are is only known afterwards
        lacks = ["topic"] * len(lacks)
    with pytest.MonkeyPatch.context() as patch:
        slept: list[float] = []
        patch.setattr(client, "time", clock(slept.append))
        log = Forgetful()
        log.grow(5)
        at = Planner(log.options, log).begin(None, "", T0)
        expected = looks()[look](log, at)
        log.lacks, log.answers = list(lacks), 0
        log._described.clear()
        assert looks()[look](log, at) == expected
    assert log.answers == len(lacks) + 1
    assert sum(slept) <= 3.01


@pytest.mark.parametrize(("look", "error"), [("check", "has no t"), ("next", "t-0 are lost"), ("read", "no longer")])
def test_a_topic_that_is_gone(look: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "time", clock(lambda seconds: None))
    log = Forgetful()
    log.grow(5)
    at = Planner(log.options, log).begin(None, "", T0)
    log.lacks, log.answers = ["topic"] * 99, 0
    with pytest.raises(BacklogError, match=error):
        looks()[look](log, at)
    assert log.answers == LOOKS + 1


def test_a_topic_that_is_gone_is_dropped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With failOnDataLoss=false later batches do not look again."""
    monkeypatch.setattr(client, "time", clock(lambda seconds: None))
    log = Forgetful(failOnDataLoss="false")
    at = Planner(log.options, log).begin(None, "", T0)
    log.lacks = ["topic"] * 99
    at = Planner(log.options, log).next(at, None, None, T0).end
    assert at.offsets == {}
    log.answers = 0
    assert Planner(log.options, log).next(at, None, None, T0).end is at
    assert log.answers == 1


@pytest.mark.slow
def test_restarts_of_a_broker() -> None:
    with KafkaServer() as server:
        broker = Broker(server)
        topic = broker.topic(3)
        phase = broker.phase(subscribe=topic)
        position, rows = phase.begin({}), 0
        for how in ("stop", "kill"):
            broker.send(topic, ["x"])
            getattr(server, how)()
            server.start()
            end = step(phase, position).position
            rows += len(read(phase, position, end))
            position = end
        assert rows == 2
        broker.close_phases()
