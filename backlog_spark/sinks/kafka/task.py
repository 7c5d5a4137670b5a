"""Writes the rows of one task of a batch, on a worker.

With transactions, a task goes on where its mark says that an earlier attempt ended. A transaction holds up to
`_RECORDS` records, and is open for a third of its timeout at most: the mark counts the rows up to its end. The rows of
a replay come in the same order, so the next attempt skips those.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.kafka.avro import AvroFormat
from backlog_spark.sinks.kafka.brokers import Brokers
from backlog_spark.sinks.kafka.marks import Mark, Marks, MarksReader
from backlog_spark.sinks.kafka.producers import SinkProducer
from backlog_spark.sinks.kafka.properties import ProducerProperties
from backlog_spark.sinks.kafka.records import Change, Record, Step, added, envelopes, passed_on, upserts
from backlog_spark.sinks.kafka.topics import TopicRoutes

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RESULT", "TaskDone", "TaskWriter"]

RESULT: Final = "task INT, records LONG, skipped BOOLEAN"
_RECORDS: Final = 100_000
"""Most records of a transaction."""
_SHARE: Final = 3


@dataclass(frozen=True)
class TaskDone:
    """What a task did.

    Parameters
    ----------
    task : int
    records : int
        Records that this attempt has written.
    skipped : bool
        An earlier attempt had written all of them.
    """

    task: int
    records: int
    skipped: bool


@dataclass(frozen=True)
class TaskWriter:
    """Writes one task of a batch. The workers get it by pickle, with the login.

    Parameters
    ----------
    properties : ProducerProperties
    routes : TopicRoutes
    partitions, replication : int or None
        Of topics that the sink creates.
    format : str
    of_envelopes, adds_rows, has_order : bool
        As of `Shape`; whether it has a sequence.
    avro : AvroFormat or None
    batch : int
    tasks : int
        How many tasks the batch has.
    marks : Marks or None
        As the driver knows them. None: at least once.
    """

    properties: ProducerProperties
    routes: TopicRoutes
    partitions: int | None
    replication: int | None
    format: str
    of_envelopes: bool
    adds_rows: bool
    has_order: bool
    avro: AvroFormat | None
    batch: int
    tasks: int
    marks: Marks | None

    def is_done(self) -> bool:
        """Whether the driver knows that all tasks have the batch."""
        marks = {} if self.marks is None else self.marks.tasks
        return all(marks.get(task) == Mark(self.batch, self.tasks) for task in range(self.tasks))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For ``mapInArrow``: the rows of `Change` in, one row of `RESULT` out."""
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        done = self.write(context.partitionId(), _changes(batches))
        yield pa.RecordBatch.from_pylist(
            [asdict(done)], pa.schema([("task", pa.int32()), ("records", pa.int64()), ("skipped", pa.bool_())])
        )

    def write(self, task: int, changes: Iterable[Change]) -> TaskDone:
        """Write a task's changes, which are sorted.

        Raises
        ------
        BacklogError
            A row is no record, Kafka does not take one, or another driver is ahead.
        """
        brokers = Brokers(self.properties)
        try:
            if self.marks is None:
                with SinkProducer(self.properties, None) as producer:
                    return TaskDone(task, self._send_all(changes, brokers, producer, None), False)
            return self._write_once(task, changes, brokers, replace(self.marks, tasks=dict(self.marks.tasks)))
        finally:
            brokers.close()

    def _write_once(self, task: int, changes: Iterable[Change], brokers: Brokers, marks: Marks) -> TaskDone:
        with SinkProducer(self.properties, f"{marks.app_id}-{task}", marks.topic) as producer:
            # Only now no earlier attempt can commit any more.
            reader = MarksReader(self.properties, brokers)
            reader.read_on(marks, [task])
            reader.close()
            mark = marks.tasks.get(task, Mark(-1, 0))
            if mark.batch > self.batch:
                raise BacklogError(
                    f"Task {task} of this query has written batch {mark.batch} to Kafka, and this driver is at batch "
                    f"{self.batch}.",
                    "Another driver runs on this checkpoint: stop one of them.",
                )
            is_begun = mark.batch == self.batch
            if is_begun and mark.tasks != self.tasks:
                raise BacklogError(
                    f"Batch {self.batch} was begun with {mark.tasks} tasks, and has {self.tasks} now: rows would be "
                    "written twice or never.",
                    "Start with a new checkpointLocation and an empty topic.",
                )
            if is_begun and mark.rows is None:
                return TaskDone(task, 0, True)
            done = (mark.rows or 0) if is_begun else 0

            def note(rows: int | None) -> None:
                made = Mark(self.batch, self.tasks, None if rows is None else done + rows)
                producer.send(marks.topic, marks.key(task), made.to_json(), marks.partition)

            left = itertools.islice(changes, done, None)
            return TaskDone(task, self._send_all(left, brokers, producer, note), False)

    def _send_all(
        self,
        changes: Iterable[Change],
        brokers: Brokers,
        producer: SinkProducer,
        note: Callable[[int | None], None] | None,
    ) -> int:
        return _Sending(self, brokers, producer).send_all(self._steps(changes), note)

    def _steps(self, changes: Iterable[Change]) -> Iterator[Step]:
        if self.adds_rows and self.format != "debezium":
            return added(changes)
        if self.format != "debezium":
            return upserts(changes, has_order=self.has_order)
        return passed_on(changes) if self.of_envelopes else envelopes(changes, has_order=self.has_order)


class _Sending:
    """Sends records in transactions of limited size and time."""

    def __init__(self, writer: TaskWriter, brokers: Brokers, producer: SinkProducer) -> None:
        self._writer = writer
        self._brokers = brokers
        self._producer = producer
        self._topics: dict[tuple[str | None, str | None], str] = {}

    def send_all(self, steps: Iterator[Step], note: Callable[[int | None], None] | None) -> int:
        """Send all records, and count them. ``note`` sends a mark of so many rows, or of all."""
        longest = self._writer.properties.transaction_timeout_ms / 1000 / _SHARE
        rows = sent = size = 0
        began = time.monotonic()
        for taken, records in steps:
            for record in records:
                self._send(record)
            rows, size = rows + taken, size + len(records)
            if note is not None and (size >= _RECORDS or time.monotonic() - began > longest):
                note(rows)
                self._producer.finish()
                sent, size, began = sent + size, 0, time.monotonic()
        if note is not None:
            note(None)
        self._producer.finish()
        return sent + size

    def _send(self, record: Record) -> None:
        change, avro = record.change, self._writer.avro
        name = (change.database, change.table)
        topic = self._topics.get(name) or self._topic_of(*name)
        if avro is not None:
            value = None if record.value is None else avro.value(record.value)
            self._producer.send(topic, avro.key(change.image), value)
        else:
            self._producer.send(topic, change.key if record.has_key else None, record.value)

    def _topic_of(self, database: str | None, table: str | None) -> str:
        writer = self._writer
        topic = writer.routes.topic_of(database, table)
        if writer.routes.needs_tables:
            self._brokers.ensure(topic, writer.partitions, writer.replication)
        self._topics[database, table] = topic
        return topic


def _changes(batches: Iterable[pa.RecordBatch]) -> Iterator[Change]:
    for batch in batches:
        columns = [column.to_pylist(maps_as_pydicts="strict") for column in batch.columns]
        yield from map(Change._make, zip(*columns, strict=True))
