"""The marks of a query: which batch each of its tasks has committed, in a compacted topic.

A mark is a record of the same transaction as the rows that it counts. So both are there, or neither. The key is
``<query's id>/<task>``. The record ``<query's id>/plan`` says how many tasks a batch of backlog has.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.kafka.brokers import Brokers
from backlog_spark.sinks.kafka.failures import explained
from backlog_spark.sinks.kafka.properties import ProducerProperties

__all__ = ["PARTITIONS", "Mark", "Marks", "MarksReader", "check_marks", "ensure_marks_topic"]

PARTITIONS: Final = 16
"""Queries that share a partition may wait for each other's open transactions. The number is part of the format."""

_CONFIG: Final = {
    "cleanup.policy": "compact",
    # A query reads its partition from the beginning when it starts. Segments in use are not compacted.
    "segment.ms": "3600000",
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
}
_READER: Final = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "earliest",
    "enable.partition.eof": "true",
    "fetch.wait.max.ms": "10",
}
# Errors of a read that pass, or that have no meaning for a reader without a group.
_PASSING: Final = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError.GROUP_AUTHORIZATION_FAILED}
_WAIT_S: Final = 0.01
"""`consume` waits this long for more records. The last one, and the end after it, mostly come at once."""
_QUIET_S: Final = 0.1
"""After this time without a record the reader looks what keeps it from the end. Mostly a transaction is just ending."""
_ABORT_S: Final = 30
"""How long brokers may take to end a transaction after its timeout: they look every 10 s."""


@dataclass(frozen=True)
class Mark:
    """What a task has committed last.

    Parameters
    ----------
    batch : int
        Its batch.
    tasks : int
        How many tasks the batch has.
    rows : int or None
        Its first rows, if it is a part of the batch; None if it is all.
    """

    batch: int
    tasks: int
    rows: int | None = None

    def to_json(self) -> str:
        return json.dumps({"batch": self.batch, "tasks": self.tasks, "rows": self.rows})


@dataclass
class Marks:
    """The marks of one query.

    Parameters
    ----------
    topic : str
    app_id : str
        The query's id.
    plan : int or None
        How many tasks a batch of backlog has; None at the first start.
    tasks : dict of int to Mark
    offset : int
        What is before it has been read.
    """

    topic: str
    app_id: str
    plan: int | None = None
    tasks: dict[int, Mark] = field(default_factory=dict)
    offset: int = 0

    @property
    def partition(self) -> int:
        return zlib.crc32(self.app_id.encode()) % PARTITIONS

    def key(self, part: int | str) -> str:
        return f"{self.app_id}/{part}"

    def note(self, key: bytes | None, value: bytes | None) -> None:
        """Take a record of the topic. Those of other queries are ignored."""
        app_id, _, part = (key or b"").decode(errors="replace").rpartition("/")
        if app_id != self.app_id or not value:
            return
        found = json.loads(value)
        if part == "plan":
            self.plan = int(found["tasks"])
        else:
            self.tasks[int(part)] = Mark(**found)


class MarksReader:
    """Reads marks. It connects when there are some to read. For the marks of one query, and one thread at a time."""

    def __init__(self, properties: ProducerProperties, brokers: Brokers) -> None:
        self._properties = properties
        self.brokers = brokers
        self._consumer: Consumer | None = None

    def read_on(self, marks: Marks, only: Collection[int | str] | None = None) -> None:
        """Read up to the present end, or to an open transaction of others behind which there is no mark of interest.

        Parameters
        ----------
        marks : Marks
        only : collection of int or str, optional
            Tasks whose marks are needed, or ``"plan"``. Default: all of the query. Their earlier attempts have been
            ended, so a transaction of theirs is over soon.

        Raises
        ------
        BacklogError
            Kafka does not answer, refuses, or a transaction stays open.
        """
        end = self.brokers.end_of(marks.topic, marks.partition)
        if end <= marks.offset:
            return
        try:
            self._read(marks, end, only)
        except BaseException:
            self.close()  # its state is unknown now
            raise

    def _read(self, marks: Marks, end: int, only: Collection[int | str] | None) -> None:
        if self._consumer is None:
            self._consumer = self._opened(marks, "read_committed")
        properties = self._properties
        last = time.monotonic() + properties.api_timeout_s + properties.transaction_timeout_ms / 1000 + _ABORT_S
        heard = time.monotonic()
        while marks.offset < end:
            for offset, key, value in self._records(self._consumer, marks.topic):
                if offset > marks.offset:
                    marks.offset, heard = offset, time.monotonic()
                marks.note(key, value)
            if time.monotonic() - heard > _QUIET_S:
                if not self._is_behind(marks, end, only):
                    return
                heard = time.monotonic()
            if time.monotonic() > last:
                raise BacklogError(
                    f"{properties}: the topic {marks.topic!r} has a transaction at offset {marks.offset} of partition "
                    f"{marks.partition} that stays open.",
                    "Find it with kafka-transactions.sh find-hanging, and abort it.",
                )

    def _is_behind(self, marks: Marks, end: int, only: Collection[int | str] | None) -> bool:
        """Whether a mark of interest is behind an open transaction. It may be of an aborted one."""
        consumer, at = self._opened(marks, "read_uncommitted"), marks.offset
        last = time.monotonic() + self._properties.api_timeout_s
        try:
            while at < end and time.monotonic() < last:
                for offset, key, _ in self._records(consumer, marks.topic):
                    at = max(at, offset)
                    app_id, _, part = (key or b"").decode(errors="replace").rpartition("/")
                    if app_id == marks.app_id and (only is None or part in map(str, only)):
                        return True
        finally:
            consumer.close()
        return at < end

    def _opened(self, marks: Marks, isolation: str) -> Consumer:
        given = {"group.id": self._properties.group_id, "isolation.level": isolation}
        consumer = Consumer({**self._properties.for_clients(), **_READER, **given})
        consumer.assign([TopicPartition(marks.topic, marks.partition, marks.offset)])
        return consumer

    def _records(self, consumer: Consumer, topic: str) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """The offset after each record, its key and value. The end of the log has neither."""
        for message in consumer.consume(1_000, _WAIT_S):
            error = message.error()
            if error is None:
                yield message.offset() + 1, message.key(), message.value()
            elif error.code() == KafkaError._PARTITION_EOF:
                yield message.offset(), None, None
            elif error.code() not in _PASSING and not error.retriable():
                raise explained(error, self._properties, f"Reading the topic {topic!r}")

    def close(self) -> None:
        """Close the connection. The reader may be used again."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def ensure_marks_topic(brokers: Brokers, topic: str, replication: int | None) -> None:
    """Create the topic of marks, or check it.

    Raises
    ------
    BacklogError
        It has too few partitions, or it forgets records.
    """
    found = brokers.ensure(topic, PARTITIONS, replication, _CONFIG)
    if found < PARTITIONS:
        raise BacklogError(
            f"The topic {topic!r} has {found} partitions; the marks of KafkaSink need {PARTITIONS}.",
            f"Create it with {PARTITIONS} partitions and cleanup.policy=compact, or name another one with marks_topic.",
        )
    policy = brokers.config_of(topic).get("cleanup.policy", "compact")
    if policy != "compact":
        raise BacklogError(
            f"The topic {topic!r} has cleanup.policy={policy}: marks would be removed by their age, and batches would "
            "be written twice.",
            "Set cleanup.policy=compact.",
        )


def check_marks(marks: Marks, committed: int | None, planned: int | None) -> None:
    """Check that marks and checkpoint belong together.

    Parameters
    ----------
    committed, planned : int or None
        As of `SinkContext`.

    Raises
    ------
    BacklogError
        A committed batch has no mark, or a mark is of a batch that was never planned.
    """
    tasks: Mapping[int, Mark] = marks.tasks
    ahead = [mark.batch for mark in tasks.values() if mark.batch > (-1 if planned is None else planned)]
    if ahead:
        raise BacklogError(
            f"The topic {marks.topic!r} has batch {max(ahead)} of this query, and its checkpoint has "
            f"{'no batch' if planned is None else f'batches up to {planned}'}: the checkpoint is an older copy.",
            "Put the newest checkpoint back, or start with a new checkpointLocation.",
        )
    if committed is None:
        return
    first = tasks.get(0)
    at_end = range(first.tasks) if first is not None and first.batch == committed else ()
    lacking = first is None or first.batch < committed
    of_others = [tasks.get(task) for task in at_end]
    # Some tasks may have the batch after it, which was planned.
    if lacking or any(
        mark is None or (mark.batch <= committed and mark != Mark(committed, len(at_end))) for mark in of_others
    ):
        raise BacklogError(
            f"The checkpoint has committed batch {committed}, and the topic {marks.topic!r} does not have it of all "
            "tasks of this query: the brokers are others, the topic lost records, or the query ran with "
            "delivery='at_least_once'.",
            "Set the brokers and marks_topic as they were, go on with delivery='at_least_once', or start with a new "
            "checkpointLocation.",
        )
