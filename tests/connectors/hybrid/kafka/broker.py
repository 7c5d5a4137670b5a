"""A real broker with operations for tests. Planner and worker run in one process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from backlog_spark.connectors.hybrid.decode import Decoder
from backlog_spark.connectors.hybrid.kafka import workers
from backlog_spark.connectors.hybrid.kafka.arrow import raw_schema
from backlog_spark.connectors.hybrid.kafka.phase import KafkaPhase
from backlog_spark.connectors.hybrid.phases import Columns, Limit, Position, Step
from servers.kafka import KafkaServer

__all__ = ["ALL", "PASSWORD", "USER", "Broker", "read", "step"]

USER, PASSWORD = "reader", 'pa"ss;word'
ALL = Limit(None)
_numbers = itertools.count()


def _whatever(decoder: Decoder, schema: pa.Schema) -> Decoder:
    return decoder


class Broker:
    """Parameters: the server."""

    def __init__(self, server: KafkaServer) -> None:
        self.server = server
        self.address = server.address()
        self.admin = AdminClient({"bootstrap.servers": self.address, "log_level": "0"})
        self._phases: list[KafkaPhase] = []
        self._forget()

    def _forget(self) -> None:
        # A producer takes minutes to hear of new partitions, or of a topic that was made anew.
        settings = {"bootstrap.servers": self.address, "log_level": "0", "linger.ms": "1"}
        # Else records are reordered when a new partition's leader refuses the first of them.
        self._producer = Producer({**settings, "enable.idempotence": "true"})

    def topic(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        """Make a topic; its name is new unless it is given."""
        name = name or f"topic-{next(_numbers)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        # A topic of that name that is just being deleted is in the way for a moment.
        for last in (False,) * 50 + (True,):
            try:
                self.admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)
                break
            except KafkaException:
                if last:
                    raise
                time.sleep(0.1)
        self._until(lambda: self._count(name) == partitions)
        return name

    def _count(self, topic: str) -> int:
        found = self.admin.list_topics(timeout=10).topics.get(topic)
        return len(found.partitions) if found else 0

    def add_partitions(self, topic: str, total: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(30)
        self._until(lambda: self._count(topic) == total)
        self._forget()

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(30)
        self._until(lambda: self._count(topic) == 0)
        self._forget()

    def remove_before(self, topic: str, offset: int, partition: int = 0) -> None:
        """As retention does."""
        where = TopicPartition(topic, partition, offset)
        self.admin.delete_records([where])[where].result(30)

    @staticmethod
    def _until(reached: Any) -> None:
        while not reached():
            time.sleep(0.02)

    def send(
        self,
        topic: str,
        values: Iterable[bytes | str | None],
        partition: int = 0,
        *,
        key: bytes | None = None,
        at: int | Sequence[int] = 0,
        headers: Any = None,
    ) -> None:
        """Write records; ``at``: their times, the first one's if it is one number, then a millisecond each."""
        # Records that wait for the producer to hear of their topic may be reordered.
        self._producer.list_topics(topic, timeout=30)
        for i, value in enumerate(values):
            when = at + i if isinstance(at, int) and at else at[i] if not isinstance(at, int) else 0
            self._produce(self._producer, topic, value, partition, key, when, headers)
        assert self._producer.flush(60) == 0

    @staticmethod
    def _produce(producer: Producer, topic: str, value: Any, partition: int, key: Any, at: int, headers: Any) -> None:
        while True:
            try:
                more = {"headers": headers} if headers is not None else {}
                producer.produce(topic, value, key=key, partition=partition, timestamp=at, **more)
                return
            except BufferError:
                producer.poll(0.1)

    @contextmanager
    def transaction(self, topic: str, values: Iterable[str], *, commit: bool, partition: int = 0) -> Iterator[None]:
        """Records of a transaction that is open while the block runs."""
        producer = Producer(
            {"bootstrap.servers": self.address, "transactional.id": f"t-{next(_numbers)}", "log_level": "0"}
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=partition)
        producer.flush(60)
        yield
        end = self._stable_end(topic, partition, IsolationLevel.READ_UNCOMMITTED)
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
        # The mark is written after the call has returned.
        self._until(lambda: self._stable_end(topic, partition, IsolationLevel.READ_COMMITTED) > end)

    def _stable_end(self, topic: str, partition: int, level: IsolationLevel) -> int:
        where = TopicPartition(topic, partition)
        found = self.admin.list_offsets({where: OffsetSpec.latest()}, isolation_level=level)
        return int(found[where].result(30).offset)

    def commit(self, topic: str, values: Iterable[str], partition: int = 0) -> None:
        with self.transaction(topic, values, commit=True, partition=partition):
            pass

    def abort(self, topic: str, values: Iterable[str], partition: int = 0) -> None:
        with self.transaction(topic, values, commit=False, partition=partition):
            pass

    def close_phases(self) -> None:
        """Close what a test has opened, and what it has left to the next reader of this process."""
        for phase in self._phases:
            phase.close()
        self._phases.clear()
        while workers._idle:
            workers._idle.pop()[2].close()

    def commits_of(self, group: str) -> list[TopicPartition]:
        """What is committed under a group's name."""
        request = [ConsumerGroupTopicPartitions(group)]
        return list(self.admin.list_consumer_group_offsets(request)[group].result(30).topic_partitions)

    def phase(
        self,
        columns: pa.Schema | None = None,
        metadata: tuple[str, ...] = (),
        decoder: Decoder | None = None,
        **options: str,
    ) -> KafkaPhase:
        """A phase that has been opened. In names of options ``__`` is a dot."""
        given = {"kafka.bootstrap.servers": self.address}
        given |= {name.replace("__", "."): value for name, value in options.items()}
        phase = KafkaPhase("kafka", given, None if decoder is None else partial(_whatever, decoder))
        headers = options.get("includeHeaders") == "true"
        self._phases.append(phase)
        phase.open(Columns(raw_schema(headers) if columns is None else columns, metadata))
        return phase


def step(phase: KafkaPhase, start: Position, rows: int | None = None, now_ms: float | None = None) -> Step:
    return phase.next(start, Limit(rows), time.time() * 1000 if now_ms is None else now_ms)


def read(phase: KafkaPhase, start: Position, end: Position) -> list[dict[str, Any]]:
    """All rows of a batch, in the order of its partitions."""
    rows: list[dict[str, Any]] = []
    for partition in phase.partitions(start, end):
        for batch in phase.read(partition):
            rows += batch.to_pylist()
    return rows
