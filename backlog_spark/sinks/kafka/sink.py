"""Writes a query's rows to topics of Kafka, exactly once or at least once."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.common.requirements import require
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.changes import CHANGE_TYPE, METADATA
from backlog_spark.sinks.base import BatchInfo, Sink, SinkContext, Written
from backlog_spark.sinks.kafka.avro import AvroFormat, registry_of
from backlog_spark.sinks.kafka.frames import SEQUENCE, Shape, shape_of
from backlog_spark.sinks.kafka.properties import ProducerProperties, check_options
from backlog_spark.sinks.kafka.topics import MARKS_TOPIC, TopicRoutes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backlog_spark.sinks.kafka.marks import Marks, MarksReader
    from backlog_spark.sinks.kafka.task import TaskWriter
    from backlog_spark.spi.examination import Finding
    from backlog_spark.spi.schema_registry import Registry

__all__ = ["KafkaSink"]

_log = logging.getLogger(__name__)

_FORMATS: Final = ("json", "avro", "debezium")
_DELIVERIES: Final = ("exactly_once", "at_least_once")
_MOST_TASKS: Final = 32


class KafkaSink(Sink):
    """Writes changes to a topic: an upsert as key and value, a delete as a tombstone.

    A batch of backlog has a fixed number of tasks, by the hash of the key; a batch of live rows has one. Each task has
    a transactional producer. Its last transaction carries a mark, which says that the task has the batch. A replay
    skips what the marks say. So each record is written exactly once for readers with
    ``isolation.level=read_committed``. A batch is not atomic: its tasks commit one after the other.

    Records of a key come in the order of `sequence`, and go to the partition that Java's default partitioner chooses.

    Parameters
    ----------
    topic : str
        The topic. ``<>`` in it stands for the name of the row's table.
    key : sequence of str, default ()
        Columns that identify a row. Leave it out for envelopes of ``mysql_cdc`` (``format=debezium``), which have keys,
        and for rows that are only added: with ``change_type=None`` each row is then a record without a key.
    format : {"json", "avro", "debezium"}, default "json"
        * ``json``: key and value are JSON objects. Of each key the newest change of a batch is written.
        * ``avro``: the same in Avro, with ids of a schema registry. Needs the option ``schema.registry.url``.
        * ``debezium``: each change is an envelope with ``before``, ``after``, ``source``, ``op`` and ``ts_ms``. The key
          is a JSON object.
    options : mapping of str to str
        ``kafka.bootstrap.servers``, other properties ``kafka.*`` of Java's producer, and ``schema.registry.*``.
    delivery : {"exactly_once", "at_least_once"}, default "exactly_once"
        ``at_least_once`` needs no transactions: after a failure records of the last batch are written again.
    routes : sequence of (str, str)
        Tables such as ``shop.orders`` or ``shop.order_*``, and their topic. The first route that matches counts. The
        stream needs the columns ``_database`` and ``_table``.
    change_type : str or None, default "_change_type"
        As of `DeltaUpsert`. None: each row is an upsert.
    sequence : str or None, default "_commit_seq"
        Column that orders the changes of a key. None: a batch never has two upserts of one key.
    metadata_columns : sequence of str, default ("_change_type", "_commit_timestamp", "_commit_seq")
        Columns that are not in the value.
    partitions : int, optional
        Partitions of topics that the sink creates. Without it a topic must be there.
    replication : int, optional
        Replicas of topics that the sink creates, also of `marks_topic`. Default: the brokers' own.
    tasks : int, optional
        Tasks of a batch of backlog, 1 to 1,000. The first start decides. Default: the cores of the cluster, up to 32.
    marks_topic : str, default "_backlog_spark_marks"
        The topic of the marks. All queries may share it. The first start creates it.

    Raises
    ------
    SettingError
        An argument is none of its values, or an option is unknown, malformed or missing.

    Examples
    --------
    >>> KafkaSink("orders", key=["id"], options={"kafka.bootstrap.servers": "broker:9092"})
    KafkaSink('orders')
    """

    keeps_newest = True

    @checked_arguments
    def __init__(
        self,
        topic: str,
        *,
        key: Sequence[str] = (),
        format: str = "json",
        options: Mapping[str, str] = MappingProxyType({}),
        delivery: str = "exactly_once",
        routes: Sequence[tuple[str, str]] = (),
        change_type: str | None = CHANGE_TYPE,
        sequence: str | None = SEQUENCE,
        metadata_columns: Sequence[str] = METADATA,
        partitions: int | None = None,
        replication: int | None = None,
        tasks: int | None = None,
        marks_topic: str = MARKS_TOPIC,
    ) -> None:
        for setting, value, known in (("format", format, _FORMATS), ("delivery", delivery, _DELIVERIES)):
            if value not in known:
                raise SettingError(
                    f"KafkaSink {setting}", value, f"is none of {', '.join(known)}.", "Set one of these."
                )
        for setting, number, most in (
            ("partitions", partitions, 100_000), ("replication", replication, 100), ("tasks", tasks, 1_000)
        ):  # fmt: skip
            if number is not None and not 1 <= number <= most:
                raise SettingError(
                    f"KafkaSink {setting}", number, "is out of bounds.", f"Give a number from 1 to {most:,}."
                )
        check_options(options, format)
        self.topic = topic
        self.key = tuple(key)
        self.format = format
        self._routes = TopicRoutes(topic, routes)
        self._properties = ProducerProperties.parse(options)
        self._registry: Registry | None = registry_of(options) if format == "avro" else None
        self._is_exact = delivery == "exactly_once"
        self._changes = (change_type, sequence, tuple(metadata_columns))
        self._partitions, self._replication, self._tasks = partitions, replication, tasks
        self._marks_topic = marks_topic
        self._marks: Marks | None = None
        self._reader: MarksReader | None = None
        self._shape: Shape | None = None
        self._avro: AvroFormat | None = None
        if format == "avro" and (self._routes.needs_tables or not self.key):
            raise SettingError(
                "KafkaSink format", format, "with routes, or without key, is not supported: a topic has one schema.",
                "Name a topic and a key, or set format='json' or 'debezium'.",
            )  # fmt: skip

    def for_output(self) -> KafkaSink:
        return copy.copy(self)

    def described(self) -> dict[str, Any]:
        change_type, sequence, metadata = self._changes
        return {
            "kind": "KafkaSink",
            "topic": self.topic,
            "keys": list(self.key),
            "format": self.format,
            "change_type": change_type,
            "sequence": sequence,
            "metadata_columns": list(metadata),
        }

    def open(self, context: SinkContext) -> None:
        """Check columns, brokers, topics and rights, and that the marks fit the checkpoint. See :meth:`Sink.open`.

        Raises
        ------
        SettingError
            A column is missing, or the number of tasks has changed.
        BacklogError
            No broker answers, a topic or a right is missing, or marks and checkpoint contradict each other.
        """
        require("KafkaSink", "confluent_kafka")
        from backlog_spark.sinks.kafka.brokers import Brokers

        self._shape = shape_of(context, self.key, *self._changes, self.format, self.topic)
        lacking = {"_database", "_table"} - set(context.schema.names)
        if self._routes.needs_tables and lacking:
            raise SettingError(
                "KafkaSink routes", self.topic, f"the stream does not say its tables: it has no {min(lacking)}.",
                "Add _database and _table to the source's metadataColumns, or name one topic without <>.",
            )  # fmt: skip
        self.close()
        brokers = Brokers(self._properties)
        try:
            known = {self._routes.topic_of(*name) for name in context.snapshot_of if len(name) == 2}
            for topic in sorted(known or self._routes.fixed()):
                brokers.ensure(topic, self._partitions, self._replication)
            if self._registry is not None:
                fields = [context.schema[name] for name in self._shape.stored]
                self._avro = AvroFormat(self._registry, self.topic, fields, self.key)
            if self._is_exact:
                self._marks = self._opened_marks(context, brokers)
                return
        except BaseException:
            brokers.close()
            raise
        brokers.close()
        self._tasks = self._tasks or _cores(context)
        _log.warning("%r writes at least once: after a failure records of the last batch are written again.", self)

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
            reader.brokers.close()

    def _opened_marks(self, context: SinkContext, brokers: Any) -> Marks:
        """The marks of all earlier runs. Tries transactions, so that a missing right is known now."""
        from backlog_spark.sinks.kafka.marks import Mark, Marks, MarksReader, check_marks, ensure_marks_topic
        from backlog_spark.sinks.kafka.producers import SinkProducer

        ensure_marks_topic(brokers, self._marks_topic, self._replication)
        marks = Marks(self._marks_topic, context.txn_app_id)
        self._reader = MarksReader(self._properties, brokers)
        with SinkProducer(self._properties, f"{marks.app_id}-0", marks.topic) as producer:
            self._reader.read_on(marks, ["plan"])
            if context.newest_planned != context.newest_committed:
                # Tasks of an earlier driver may be at work. From here on none of them can commit.
                for task in range(1, marks.plan or 1):
                    SinkProducer(self._properties, f"{marks.app_id}-{task}", marks.topic).close()
            self._reader.read_on(marks)
            check_marks(marks, context.newest_committed, context.newest_planned)
            if marks.plan is None:
                marks.plan = self._tasks or _cores(context)
                plan = Mark(-1, marks.plan).to_json()
                producer.send(marks.topic, marks.key("plan"), plan, marks.partition)
                producer.finish()
        if self._tasks not in (None, marks.plan):
            raise SettingError(
                "KafkaSink tasks", self._tasks, f"the query was begun with {marks.plan}.",
                "Leave it out, or start with a new checkpointLocation.",
            )  # fmt: skip
        return marks

    def examined(self) -> Iterator[Finding]:
        """What ``backlog-spark check`` tells: whether the brokers can be reached, and written to."""
        require("KafkaSink", "confluent_kafka")
        from backlog_spark.sinks.kafka.examination import examine_topics

        marks = self._marks_topic if self._is_exact else None
        return examine_topics(self._properties, self._routes.fixed(), self._partitions, marks)

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        """Write a batch. See :meth:`Sink.write`.

        Raises
        ------
        BacklogError
            Kafka does not take a record, or another driver is ahead.
        """
        from backlog_spark.sinks.kafka.task import RESULT, TaskDone

        began = time.monotonic()
        if self._marks is not None and self._reader is not None:
            self._reader.read_on(self._marks)  # so that the tasks have none to read
        writer = self._writer(batch)
        if writer.is_done():
            self.written = Written(batch.batch_id, "none", "the topic has the batch")
            return
        found = self._opened_shape().prepared(batch_df, writer.tasks).mapInArrow(writer, RESULT).collect()
        done = {row["task"]: TaskDone(row["task"], row["records"], row["skipped"]) for row in found}
        for task in range(writer.tasks if self._marks is not None else 0):
            if task not in done:
                # Spark leaves out the tasks of a plan without rows. Their marks must not be missing.
                done[task] = writer.write(task, ())
        every = [each.records for each in done.values()]
        seconds = time.monotonic() - began
        self.written = Written(batch.batch_id, "spark", "the workers write it", sum(every), seconds=seconds)

    def _opened_shape(self) -> Shape:
        if self._shape is None:
            raise BacklogError(f"{self!r} is not open.", "Call open() before write().")
        return self._shape

    def _writer(self, batch: BatchInfo) -> TaskWriter:
        from backlog_spark.sinks.kafka.task import TaskWriter

        shape, marks = self._opened_shape(), self._marks
        tasks = (self._tasks or 1) if marks is None or marks.plan is None else marks.plan
        return TaskWriter(
            self._properties,
            self._routes,
            self._partitions,
            self._replication,
            self.format,
            shape.of_envelopes,
            shape.adds_rows,
            shape.sequence is not None,
            self._avro,
            batch.batch_id,
            # A replay has the same value. The rows of a batch must come to the same tasks again.
            tasks if batch.is_backlog else 1,
            marks,
        )

    def __repr__(self) -> str:
        return f"KafkaSink({self.topic!r})"


def _cores(context: SinkContext) -> int:
    return max(1, min(_MOST_TASKS, context.spark.sparkContext.defaultParallelism))
