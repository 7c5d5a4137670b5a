"""Where a phase of Spark's own Kafka source begins, such that nothing is missing between it and the phases before.

The source by itself looks when its phase begins, which may be days after the query's first start: what retention has
removed by then, and what ``latest`` leaves out, it does not notice. So the offsets of the first start are kept, and
turned into explicit ``startingOffsets`` by the same rules as in the source ``hybrid``. They are asked of the brokers by
the very client of Kafka that the source has, with its options.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.causes import first_line
from backlog_spark.errors import BacklogError
from backlog_spark.jvm import java_class
from connectors.hybrid.kafka.client import Lookups, Topic, TopicGone, Unreachable
from connectors.hybrid.kafka.offsets import EARLIEST, Partition, to_json
from connectors.hybrid.kafka.options import KafkaOptions
from connectors.hybrid.kafka.pins import Pin
from connectors.hybrid.kafka.planner import Planner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PLACES", "pinned", "starting_offsets"]

PLACES = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
"""Options of Spark's Kafka source that say where it begins, in lower case."""

_OTHERS = (
    "subscribe", "subscribepattern", "assign", "startingoffsetsbytimestampstrategy", "failondataloss",
    "kafka.bootstrap.servers", "kafka.isolation.level",
)  # fmt: skip
_ADMIN = "org.apache.spark.sql.kafka010.SubscribePatternStrategy"
_API = "org.apache.kafka.clients.admin"


def pinned(spark: SparkSession, options: Mapping[str, str]) -> dict[str, Any]:
    """What is to be known later of the topics as they are now.

    Parameters
    ----------
    spark : SparkSession
    options : mapping of str to str
        Of the Kafka source, names in lower case.

    Raises
    ------
    BacklogError
        Brokers or topics are not there.
    """
    with _lookups(spark, options) as found:
        return Planner(_parsed(options), found).pin(time.time() * 1000).to_json()


def starting_offsets(
    spark: SparkSession,
    options: Mapping[str, str],
    pin: Mapping[str, Any] | None,
    reached_ms: int | None,
    listed: Mapping[str, Any] | None = None,
) -> str:
    """The ``startingOffsets`` of a phase that begins now; "" where there is no partition yet.

    Parameters
    ----------
    spark : SparkSession
    options : mapping of str to str
        As for `pinned`.
    pin : mapping or None
        What `pinned` gave when the query first started; None where that is now.
    reached_ms : int or None
        Time of the newest row of the phases before, milliseconds since 1970, if it is known.
    listed : mapping or None
        What `pinned` gave just before the files with that row were listed, which may be long after the first start.

    Raises
    ------
    BacklogError
        Records are missing, unless ``failOnDataLoss`` is false.
    """
    parsed = _parsed(options)
    if reached_ms is not None and parsed.starting.timestamp is not None:
        # It is meant to go on where the rows before end, or so much earlier.
        parsed = replace(parsed, from_files=True, overlap_ms=reached_ms - parsed.starting.timestamp)
    then, later = (None if found is None else Pin.from_json(found) for found in (pin, listed))
    with _lookups(spark, options) as found:
        begin = Planner(parsed, found).begin(reached_ms, "", time.time() * 1000, then, later)
    return json.dumps(to_json(begin.offsets)) if begin.offsets else ""


def _parsed(options: Mapping[str, str]) -> KafkaOptions:
    known = {name: value for name, value in options.items() if name in (*PLACES, *_OTHERS)}
    # As Spark's source takes them where they are not set.
    defaults = {"startingoffsets": "latest", "kafka.isolation.level": "read_uncommitted"}
    return KafkaOptions.parse({**defaults, **known})


@contextmanager
def _lookups(spark: SparkSession, options: Mapping[str, str]) -> Iterator[_JavaLookups]:
    found = _JavaLookups(spark, options)
    try:
        yield found
    except Py4JError as error:
        raise found.failed(error) from None
    finally:
        found.close()


class _JavaLookups(Lookups):
    """Kafka's own client in Spark's JVM."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        super().__init__(_parsed(options).properties)
        self._spark = spark
        self._secrets = [v for k, v in options.items() if "password" in k or "jaas" in k or k.endswith(".key")]
        self._partitions: dict[Partition, Any] = {}
        given = java_class(spark, "java.util.HashMap")()
        for name, value in options.items():
            if name.startswith("kafka."):
                given.put(name.removeprefix("kafka."), value)
        try:
            # It adds what Spark knows itself to log in with, such as delegation tokens.
            self._admin = java_class(spark, _ADMIN)(".*").createAdmin(given)
        except Py4JError as error:
            raise self.failed(error) from None

    def close(self) -> None:
        self._admin.close()

    def failed(self, error: Py4JError) -> BacklogError:
        """What a call of the client has failed with."""
        text = first_line(error)
        if isinstance(error, Py4JJavaError):
            cause = error.java_exception
            while cause.getCause() is not None:
                cause = cause.getCause()
            text = f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"
        for secret in filter(None, self._secrets):
            text = text.replace(secret, "***")
        kind = Unreachable if "Timeout" in text else BacklogError
        return kind(
            f"{self.properties} could not be asked where the phase begins: {text}.",
            "Check the options kafka.* and that the driver reaches every broker under the address that it advertises.",
        )

    def names(self) -> list[str]:
        return list(self._admin.listTopics().names().get())

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        if not names:
            return {}
        answers = self._admin.describeTopics(list(names)).topicNameValues()
        found: dict[str, Topic] = {}
        for name in names:
            try:
                topic = answers.get(name).get()
            except Py4JJavaError as error:
                if _is_gone(error):
                    continue
                raise
            numbers = tuple(sorted(partition.partition() for partition in topic.partitions()))
            found[name] = Topic(_id(topic.topicId().toString()), numbers, topic.isInternal())
        return found

    def offsets(self, partitions: Collection[Partition], at: int, *, committed: bool) -> dict[Partition, int]:
        spec = self._spec().earliest() if at == EARLIEST else self._spec().latest()
        return {p: answer.offset() for p, answer in self._list(dict.fromkeys(partitions, spec), committed).items()}

    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        specs = {p: self._spec().forTimestamp(at) for p, at in times.items()}
        found = {p: answer.offset() for p, answer in self._list(specs, self.properties.read_committed).items()}
        return {p: None if offset < 0 else offset for p, offset in found.items()}

    def first_time(self, partition: Partition, first: int, until: int) -> int | None:
        (answer,) = self._list({partition: self._spec().forTimestamp(0)}, False).values()
        return None if answer.offset() < 0 else int(answer.timestamp())

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
        try:
            answers = self._admin.listOffsets(wanted, options).all().get()
        except Py4JJavaError as error:
            if _is_gone(error):
                raise TopicGone(first_line(error)) from None
            raise
        return {partition: answers.get(self._partition(partition)) for partition in specs}

    def _partition(self, partition: Partition) -> Any:
        if partition not in self._partitions:
            made = java_class(self._spark, "org.apache.kafka.common.TopicPartition")(*partition)
            self._partitions[partition] = made
        return self._partitions[partition]


def _is_gone(error: Py4JJavaError) -> bool:
    cause = error.java_exception.getCause()
    return cause is not None and cause.getClass().getSimpleName() in (
        "UnknownTopicOrPartitionException",
        "LeaderNotAvailableException",
    )


def _id(text: str) -> str:
    """A topic's id; "" for the one that brokers without ids give."""
    return "" if set(text) == {"A"} else text
