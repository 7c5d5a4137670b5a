"""Writes a batch as one task without Spark, for tests that kill it."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

from backlog_spark.sinks.kafka import task
from backlog_spark.sinks.kafka.brokers import Brokers
from backlog_spark.sinks.kafka.marks import Marks, ensure_marks_topic
from backlog_spark.sinks.kafka.properties import ProducerProperties
from backlog_spark.sinks.kafka.records import Change
from backlog_spark.sinks.kafka.task import TaskDone, TaskWriter
from backlog_spark.sinks.kafka.topics import MARKS_TOPIC, TopicRoutes
from tests.sinks.kafka.killing import at_point

__all__ = ["RECORDS", "changes", "written"]

RECORDS = 24
IN_TRANSACTION = 10


def changes(batch: int) -> list[Change]:
    return [
        Change(f'{{"id":{number:02}}}', None, None, "insert", f'{{"batch":{batch},"id":{number}}}')
        for number in range(RECORDS)
    ]


def written(address: str, topic: str, batch: int, *, exactly_once: bool = True) -> TaskDone:
    """Write a batch, in transactions of `IN_TRANSACTION` records."""
    properties = ProducerProperties.parse({"kafka.bootstrap.servers": address})
    marks = None
    if exactly_once:
        ensure_marks_topic(Brokers(properties), MARKS_TOPIC, None)
        marks = Marks(MARKS_TOPIC, topic, 1)
    writer = TaskWriter(
        properties, TopicRoutes(topic, []), None, None, "json", False, False, True, None, batch, 1, marks
    )
    with mock.patch.object(task, "_RECORDS", IN_TRANSACTION):
        return writer.write(0, changes(batch))


def main() -> None:
    point, flag, delivery, address, topic, batch = sys.argv[1:]
    with at_point(point, Path(flag), halts="halt" in delivery):
        print(written(address, topic, int(batch), exactly_once="at_least_once" not in delivery).records)


if __name__ == "__main__":
    main()
