"""What KafkaSink says before the start of brokers that are away, rights that are missing, and topics."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from backlog_spark.errors import BacklogError
from backlog_spark.sinks import BatchInfo
from backlog_spark.sinks.kafka.failures import IDS
from backlog_spark.sinks.kafka.topics import MARKS_TOPIC
from servers.server import free_port
from tests.sinks.kafka.changes import opened
from tests.sinks.kafka.topics import PASSWORD, Topics

WRITE, DESCRIBE, READ = AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.READ


def refusal(topics: Topics, topic: str, **given: Any) -> str:
    with pytest.raises(BacklogError) as error:
        opened(topics, topic, **given)
    assert PASSWORD not in str(error.value)
    return str(error.value)


def test_no_broker_answers(topics: Topics) -> None:
    address = f"127.0.0.1:{free_port()}"
    options = {"kafka.bootstrap.servers": address, "kafka.default.api.timeout.ms": "1500"}
    told = refusal(topics, "t", options=options)
    assert told.startswith(f"Kafka at {address} did not answer in 1.5 s (")
    assert "Check kafka.bootstrap.servers" in told
    assert "did not answer" in refusal(topics, "t", options=options, delivery="at_least_once")


def test_a_topic_that_is_not_there(topics: Topics) -> None:
    address = topics.server.address()
    assert refusal(topics, "missing") == (
        f"Kafka at {address} has no topic 'missing', or the user may not DESCRIBE it. Create it, or give KafkaSink the "
        "argument partitions: then the sink creates it."
    )
    opened(topics, "made-at-start", partitions=5)
    assert topics.partitions("made-at-start") == 5
    assert "Creating the topic 'wide' failed" in refusal(topics, "wide", partitions=1, replication=9)


def test_a_wrong_password(topics: Topics) -> None:
    options = {**topics.login("writer"), "kafka.sasl.password": "wrong-7"}
    told = refusal(topics, "t", options=options)
    assert "cannot be reached: " in told
    assert "user and password" in told
    assert "wrong-7" not in told


def test_each_missing_right_is_named(topics: Topics) -> None:
    topic = topics.new()
    options = topics.login("half")
    opened(topics, topic, app=f"{topic}-first")  # the topic of marks is there
    assert "TOPIC" in refusal(topics, topic, options=options).upper()
    topics.allow("half", ResourceType.TOPIC, topic, DESCRIBE)
    assert f"may not write to the topic '{topic}'. Give the user WRITE" in refusal(topics, topic, options=options)
    topics.allow("half", ResourceType.TOPIC, topic, WRITE)
    assert f"'{MARKS_TOPIC}'" in refusal(topics, topic, options=options)
    opened(topics, topic, options=options, delivery="at_least_once")
    topics.allow("half", ResourceType.TOPIC, MARKS_TOPIC, READ, WRITE, DESCRIBE)
    told = refusal(topics, topic, options=options)
    assert f"WRITE and DESCRIBE on transactional ids that begin with {IDS}" in told
    assert "or set delivery='at_least_once'" in told
    topics.allow("half", ResourceType.TRANSACTIONAL_ID, IDS, WRITE, DESCRIBE, prefix=True)
    opened(topics, topic, options=options)


def test_these_rights_are_enough(topics: Topics, spark: Any) -> None:
    from tests.sinks.kafka.changes import batches, counted, frame, upserts_of

    topic, rows = topics.new(), batches(2)[0]
    topics.allow("writer", ResourceType.TOPIC, topic, WRITE, DESCRIBE)
    topics.allow("writer", ResourceType.TOPIC, MARKS_TOPIC, READ, WRITE, DESCRIBE)
    topics.allow("writer", ResourceType.TRANSACTIONAL_ID, IDS, WRITE, DESCRIBE, prefix=True)
    for number in range(2):
        before = number - 1 if number else None
        sink = opened(topics, topic, spark=spark, options=topics.login("writer"), planned=before, committed=before)
        sink.write(frame(spark, rows), BatchInfo(number, True))
    assert counted(topics.messages(topic)) == counted(upserts_of(rows) * 2)


def test_a_timeout_that_the_brokers_do_not_allow(topics: Topics) -> None:
    told = refusal(topics, topics.new(), options=topics.options(**{"kafka.transaction.timeout.ms": "900000"}))
    assert told.startswith("kafka.transaction.timeout.ms = 900000: is more than the brokers allow.")


def test_a_topic_of_marks_that_forgets(topics: Topics) -> None:
    topic = topics.new()
    few, old = topics.new(3, cleanup_policy="compact"), topics.new(16)
    assert f"The topic '{few}' has 3 partitions; the marks of KafkaSink need 16" in refusal(
        topics, topic, marks_topic=few
    )
    assert f"The topic '{old}' has cleanup.policy=delete" in refusal(topics, topic, marks_topic=old)
