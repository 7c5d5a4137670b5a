"""SIGKILL of a task before, in and after its transactions, zombies, and brokers that restart. Without Spark."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.kafka.brokers import Brokers
from backlog_spark.sinks.kafka.marks import PARTITIONS, Mark, Marks
from backlog_spark.sinks.kafka.producers import SinkProducer
from backlog_spark.sinks.kafka.properties import ProducerProperties
from backlog_spark.sinks.kafka.records import Change
from backlog_spark.sinks.kafka.task import TaskWriter
from backlog_spark.sinks.kafka.topics import MARKS_TOPIC, TopicRoutes
from servers.kafka import KafkaServer
from tests.sinks.kafka.killing import POINTS
from tests.sinks.kafka.task_job import RECORDS, changes, written
from tests.sinks.kafka.topics import Topics

KILLED = -9


def job(
    flag: Path, point: str, topics: Topics, topic: str, batch: int, delivery: str = "exactly_once"
) -> subprocess.Popen[bytes]:
    given = [point, str(flag), delivery, topics.server.address(), topic, str(batch)]
    return subprocess.Popen([sys.executable, "-m", "tests.sinks.kafka.task_job", *given], stderr=subprocess.PIPE)


def expected(*batches: int) -> Counter[tuple[bytes | None, bytes | None]]:
    return Counter((str(c.key).encode(), str(c.image).encode()) for batch in batches for c in changes(batch))


@pytest.mark.parametrize("point", POINTS)
def test_a_task_that_is_killed_writes_each_record_once(topics: Topics, tmp_path: Path, point: str) -> None:
    topic, address = topics.new(), topics.server.address()
    written(address, topic, 0)
    assert job(tmp_path / "flag", point, topics, topic, 1).wait(120) == KILLED
    done = written(address, topic, 1)
    # The first transaction has ten records, and is over after the last point.
    assert (done.records, done.skipped) == (RECORDS - 10 if point == "after" else RECORDS, False)
    assert written(address, topic, 1).skipped
    written(address, topic, 2)
    assert Counter(topics.records(topic)) == expected(0, 1, 2)
    with pytest.raises(BacklogError, match="has written batch 2 to Kafka, and this driver is at batch 1"):
        written(address, topic, 1)


@pytest.mark.parametrize("point", ["in", "flushed"])
def test_a_task_that_wakes_up_after_its_successor_writes_nothing(topics: Topics, tmp_path: Path, point: str) -> None:
    topic, flag = topics.new(), tmp_path / "flag"
    halted = job(flag, point, topics, topic, 0, "halt")
    try:
        until(flag.exists)
        assert written(topics.server.address(), topic, 0).records == RECORDS
        flag.with_suffix(".go").touch()
        _, told = halted.communicate(timeout=120)
    finally:
        halted.kill()
    assert b"another driver or task has taken over" in told, told.decode()
    assert Counter(topics.records(topic)) == expected(0)


class Reasonless:
    """A client whose `flush` loses its exception, as happens if it calls back while one is set."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def flush(self, seconds: float) -> int:
        with contextlib.suppress(KafkaException, SystemError):
            self._client.flush(seconds)
        raise SystemError("returned NULL without setting an exception")


class Dropped:
    """The report of a record that the client drops, since it has failed for good."""

    def topic(self) -> str:
        return "t"


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("dropped", [None, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT])
def test_a_lost_reason_is_asked_for_again(topics: Topics, dropped: int | None, is_lost: bool) -> None:
    topic, properties = topics.new(), ProducerProperties.parse(topics.options())
    with SinkProducer(properties, topic) as first:
        first.send(topic, "a", "1")
        first.flush()
        with SinkProducer(properties, topic):
            if is_lost:
                first._producer = Reasonless(first._producer)  # type: ignore[assignment]
            first.send(topic, "b", "2")
            if dropped is not None:
                first._delivered(KafkaError(dropped), Dropped())
            with pytest.raises(BacklogError, match="another driver or task has taken over"):
                first.flush()


def test_at_least_once_loses_nothing(topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    assert job(tmp_path / "flag", "in", topics, topic, 0, "at_least_once").wait(120) == KILLED
    written(topics.server.address(), topic, 0, exactly_once=False)
    found = Counter(topics.records(topic))
    assert found > expected(0)
    assert set(found) == set(expected(0))


def test_an_open_transaction_of_another_query_hides_no_mark(topics: Topics) -> None:
    """A mark behind it is not readable before it ends. Without a wait the batch would be written again."""
    topic, address = topics.new(), topics.server.address()
    written(address, topic, 0)
    properties = ProducerProperties.parse({"kafka.bootstrap.servers": address})
    other = SinkProducer(properties, "other")
    other.send(MARKS_TOPIC, "other/0", Mark(0, 1).to_json(), Marks(MARKS_TOPIC, topic).partition)
    other.flush()
    assert written(address, topic, 1).records == RECORDS, "no mark is behind it"
    again = f"from tests.sinks.kafka.task_job import written; assert written({address!r}, {topic!r}, 1).skipped"
    process = subprocess.Popen([sys.executable, "-c", again])
    try:
        time.sleep(1)  # it may have begun to wait
        assert process.poll() is None
        other.finish()
        assert process.wait(120) == 0
    finally:
        process.kill()
    assert Counter(topics.records(topic)) == expected(0, 1)


def test_brokers_that_restart_within_a_batch() -> None:
    with KafkaServer() as server:
        topics = Topics(server)
        topic = topics.new()
        written(server.address(), topic, 0)

        def slowly() -> Iterator[Change]:
            for number, change in enumerate(changes(1)):
                if number == RECORDS // 2:
                    server.restart()
                yield change

        properties = ProducerProperties.parse({"kafka.bootstrap.servers": server.address(), "kafka.linger.ms": "0"})
        marks = Marks(MARKS_TOPIC, topic, 1)
        writer = TaskWriter(
            properties, TopicRoutes(topic, []), None, None, "json", False, False, True, None, 1, 1, marks
        )
        assert writer.write(0, slowly()).records == RECORDS
        assert Counter(topics.records(topic)) == expected(0, 1)
        with contextlib.closing(Brokers(properties)) as brokers:
            server.restart()
            assert brokers.ensure(topic, None, None) == 2
            assert brokers.end_of(topic, 0) + brokers.end_of(topic, 1) >= 2 * RECORDS


def test_a_new_topic_can_be_asked_about_at_once(topics: Topics) -> None:
    with contextlib.closing(Brokers(ProducerProperties.parse(topics.options()))) as brokers:
        for number in range(10):
            topic = f"new-{number}"
            assert brokers.ensure(topic, 16, None, {"cleanup.policy": "compact"}) == 16
            assert brokers.end_of(topic, number) == 0
            assert brokers.config_of(topic)["cleanup.policy"] == "compact"
        brokers.close()  # as a sink does when it fails to open, and again when its query ends


def test_the_marks_are_never_forgotten(topics: Topics) -> None:
    written(topics.server.address(), topics.new(), 0)
    properties = ProducerProperties.parse({"kafka.bootstrap.servers": topics.server.address()})
    assert Brokers(properties).config_of(MARKS_TOPIC)["cleanup.policy"] == "compact"
    assert topics.partitions(MARKS_TOPIC) == PARTITIONS


def test_a_record_that_is_too_large_is_refused(topics: Topics) -> None:
    topic = topics.new(max_message_bytes="2000")
    properties = ProducerProperties.parse(topics.options())
    for size, what in (
        (3_000, rf"Writing to the topic '{topic}' failed"),
        (2_000_000, r"a record of 2,000,0\d\d bytes"),
    ):
        said = pytest.raises(BacklogError, match=f"{what}.*max.request.size, and the topic's max.message.bytes")
        with said, SinkProducer(properties, f"{topic}-{size}") as producer:
            _send(producer, topic, size)
    assert topics.records(topic) == []


def _send(producer: SinkProducer, topic: str, size: int) -> None:
    producer.send(topic, "key", "x" * size)
    producer.finish()


def until(reached: object) -> None:
    limit = time.monotonic() + 120
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < limit
        time.sleep(0.02)
