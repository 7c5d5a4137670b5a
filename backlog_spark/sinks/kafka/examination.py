"""What ``backlog-spark check`` tells of a sink's topics. Nothing of it stays in Kafka for readers."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from backlog_spark.sinks.kafka.brokers import Brokers
from backlog_spark.sinks.kafka.failures import missing_topic
from backlog_spark.sinks.kafka.producers import SinkProducer
from backlog_spark.sinks.kafka.properties import ProducerProperties
from backlog_spark.spi.examination import Finding, Severity

__all__ = ["examine_topics"]

_ANSWER_MS: Final = 15_000
"""A person waits for the answer, so brokers that are away are given less time than in a query."""


def examine_topics(
    properties: ProducerProperties, topics: Sequence[str], partitions: int | None, marks_topic: str | None
) -> Iterator[Finding]:
    """Look at topics, and try a transaction.

    Parameters
    ----------
    properties : ProducerProperties
    topics : sequence of str
        Topics that are known without rows.
    partitions : int or None
        As of `KafkaSink`.
    marks_topic : str or None
        None: at least once.

    Raises
    ------
    BacklogError
        No broker answers, or one refuses.
    """
    properties = replace(properties, api_timeout_ms=min(properties.api_timeout_ms, _ANSWER_MS))
    with contextlib.closing(Brokers(properties)) as brokers:
        for topic in topics:
            found = brokers.partitions_of(topic)
            if found is not None:
                yield _ok(f"{properties} answers: the topic {topic} has {found} partitions and may be written.")
            elif partitions is not None:
                yield _note(f"{properties} answers. The first start creates the topic {topic}.")
            else:
                raise missing_topic(topic, properties)
        has_marks = marks_topic is not None and brokers.partitions_of(marks_topic) is not None
    if marks_topic is None:
        yield _note("it writes at least once: after a failure records of the last batch are written again.")
        return
    with SinkProducer(properties, f"check-{uuid.uuid4()}") as producer:
        if has_marks:
            # The transaction is not committed.
            producer.send(marks_topic, "check", "")
            producer.flush()
    if not has_marks:
        yield _note(f"the first start creates the topic {marks_topic}, which says which batches are written.")
    yield _ok("it writes exactly once: transactions work. Readers need isolation.level=read_committed.")


def _ok(text: str) -> Finding:
    return Finding(Severity.OK, "", text)


def _note(text: str) -> Finding:
    return Finding(Severity.NOTE, "", text)
