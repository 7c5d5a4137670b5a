"""Kafka's admin client in Spark's JVM, with the options of Spark's Kafka source.

Reaches for: ``SubscribePatternStrategy.createAdmin`` of Spark's Kafka source, which adds Spark's own credentials, such
as delegation tokens (seen in Spark 4.2; entry "Kafka client" of `backlog_spark.spark.jvm.internals`). The fallback is
Kafka's public ``Admin``: it gets the options only, without delegation tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.common.failure_causes import first_line
from backlog_spark.spark.jvm.internals import is_usable
from backlog_spark.spark.jvm.py4j_helpers import java_class
from backlog_spark.spi.kafka_admin import AdminError, FoundTopic, Partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JvmKafkaAdmin", "kafka_admin"]

_ADMIN = "org.apache.spark.sql.kafka010.SubscribePatternStrategy"
_API = "org.apache.kafka.clients.admin"
_GONE = ("UnknownTopicOrPartitionException", "LeaderNotAvailableException")


@contextmanager
def kafka_admin(spark: SparkSession, options: Mapping[str, str]) -> Iterator[JvmKafkaAdmin]:
    """An admin client, closed at the end of the context.

    Parameters
    ----------
    spark : SparkSession
    options : mapping of str to str
        Options of Spark's Kafka source, names in lower case.

    Raises
    ------
    AdminError
    """
    with _java_errors():
        admin = JvmKafkaAdmin(spark, options)
    try:
        yield admin
    finally:
        admin.close()


class JvmKafkaAdmin:
    """See `backlog_spark.spi.kafka_admin.KafkaAdmin`."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        self._spark = spark
        self._partitions: dict[Partition, Any] = {}
        given = java_class(spark, "java.util.HashMap")()
        for name, value in options.items():
            if name.startswith("kafka."):
                given.put(name.removeprefix("kafka."), value)
        if is_usable("Kafka client"):
            self._admin = java_class(spark, _ADMIN)(".*").createAdmin(given)
        else:
            self._admin = java_class(spark, f"{_API}.Admin").create(given)

    def close(self) -> None:
        """Close its connections."""
        self._admin.close()

    def names(self) -> list[str]:
        with _java_errors():
            return list(self._admin.listTopics().names().get())

    def topics(self, names: Collection[str]) -> dict[str, FoundTopic]:
        if not names:
            return {}
        found: dict[str, FoundTopic] = {}
        with _java_errors():
            answers = self._admin.describeTopics(list(names)).topicNameValues()
            for name in names:
                try:
                    topic = answers.get(name).get()
                except Py4JJavaError as error:
                    if _is_gone(error):
                        continue
                    raise
                numbers = tuple(sorted(partition.partition() for partition in topic.partitions()))
                found[name] = FoundTopic(_id(topic.topicId().toString()), numbers, topic.isInternal())
        return found

    def offsets(self, partitions: Collection[Partition], *, earliest: bool, committed: bool) -> dict[Partition, int]:
        with _java_errors():
            spec = self._spec().earliest() if earliest else self._spec().latest()
            return {p: answer.offset() for p, answer in self._list(dict.fromkeys(partitions, spec), committed).items()}

    def offsets_for_times(
        self, times: Mapping[Partition, int], *, committed: bool
    ) -> dict[Partition, tuple[int, int] | None]:
        with _java_errors():
            specs = {p: self._spec().forTimestamp(at) for p, at in times.items()}
            found = {p: (answer.offset(), answer.timestamp()) for p, answer in self._list(specs, committed).items()}
        return {p: None if offset < 0 else (offset, int(time)) for p, (offset, time) in found.items()}

    def _spec(self) -> Any:
        return java_class(self._spark, f"{_API}.OffsetSpec")

    def _list(self, specs: Mapping[Partition, Any], committed: bool) -> dict[Partition, Any]:
        if not specs:
            return {}
        wanted = java_class(self._spark, "java.util.HashMap")()
        for partition, spec in specs.items():
            wanted.put(self._partition(partition), spec)
        levels = java_class(self._spark, "org.apache.kafka.common.IsolationLevel")
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        options = java_class(self._spark, f"{_API}.ListOffsetsOptions")(level)
        answers = self._admin.listOffsets(wanted, options).all().get()
        return {partition: answers.get(self._partition(partition)) for partition in specs}

    def _partition(self, partition: Partition) -> Any:
        if partition not in self._partitions:
            made = java_class(self._spark, "org.apache.kafka.common.TopicPartition")(*partition)
            self._partitions[partition] = made
        return self._partitions[partition]


@contextmanager
def _java_errors() -> Iterator[None]:
    """Turns Java's exceptions into `AdminError`."""
    try:
        yield
    except Py4JJavaError as error:
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        text = f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"
        raise AdminError(text, is_gone=_is_gone(error), is_timeout="Timeout" in text) from None
    except Py4JError as error:
        raise AdminError(first_line(error)) from None


def _is_gone(error: Py4JJavaError) -> bool:
    cause = error.java_exception.getCause()
    return cause is not None and cause.getClass().getSimpleName() in _GONE


def _id(text: str) -> str:
    """A topic's id; "" for a broker without topic ids."""
    return "" if set(text) == {"A"} else text
