"""Says what a failure of Kafka means and what to do."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.kafka.properties import TRANSACTION_TIMEOUT, ProducerProperties

__all__ = ["DENIED", "IDS", "LOGINS", "MISSING", "PASSING", "explained", "missing_topic", "unreachable"]

IDS: Final = "backlog_spark-"
"""Beginning of all transactional ids, for rights that are granted by it."""

LOGINS: Final = {KafkaError._AUTHENTICATION, KafkaError._SSL}
MISSING: Final = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
DENIED: Final = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
PASSING: Final = {
    KafkaError._TRANSPORT,
    KafkaError.LEADER_NOT_AVAILABLE,
    # For some 100 ms after a topic was created, a broker does not know yet that it leads.
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.NOT_CONTROLLER,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
    # Not every broker hears of a new topic at once.
    *MISSING,
}
"""Errors of brokers that start, end, or choose leaders."""
_AWAY: Final = {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}
_FENCED: Final = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
_LARGE: Final = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


def explained(error: KafkaError, properties: ProducerProperties, what: str) -> BacklogError:
    """The error for the user.

    Parameters
    ----------
    error : confluent_kafka.KafkaError
    properties : ProducerProperties
    what : str
        What failed: the beginning of a sentence, such as ``writing to the topic 'orders'``.
    """
    code, why = error.code(), properties.security.clean(error.str())
    if code in LOGINS:
        return BacklogError(
            f"{properties} cannot be reached: {why}.",
            "Check kafka.security.protocol, kafka.sasl.mechanism, user and password (or token), and the certificates.",
        )
    if code in _AWAY:
        return unreachable(properties, why)
    if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        return SettingError(
            TRANSACTION_TIMEOUT, properties.transaction_timeout_ms, "is more than the brokers allow.",
            "Set at most the brokers' transaction.max.timeout.ms, 15 minutes by default.",
        )  # fmt: skip
    if code in _FENCED:
        return BacklogError(
            f"{what} was ended by {properties}: another driver or task has taken over ({why}).",
            "If this is not a restart, see that only one driver runs on this checkpoint.",
        )
    hints = {
        **dict.fromkeys(MISSING, "Create the topic again, or give the user DESCRIBE on it."),
        KafkaError.TOPIC_AUTHORIZATION_FAILED: "Give the user WRITE and DESCRIBE on the topic, and READ, WRITE and "
        "DESCRIBE on the topic of the sink's marks.",
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Give the user WRITE and DESCRIBE on transactional ids that "
        f"begin with {IDS}, or set delivery='at_least_once'.",
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Give the user IDEMPOTENT_WRITE on the cluster, and CREATE if the "
        "sink creates topics.",
    }
    if code in _LARGE:
        hint = "Set kafka.max.request.size, and the topic's max.message.bytes, to more than the record has."
    else:
        hint = hints.get(code, "The batch is tried again. If this goes on, look at the brokers' log.")
    return BacklogError(f"{what} failed at {properties}: {why}.", hint)


def unreachable(properties: ProducerProperties, why: str = "") -> BacklogError:
    """The error for brokers that do not answer."""
    return BacklogError(
        f"{properties} did not answer in {properties.api_timeout_s:g} s{f' ({why})' if why else ''}.",
        "Check kafka.bootstrap.servers, kafka.security.protocol, and that driver and executors reach every broker "
        "under the address that it advertises. kafka.default.api.timeout.ms sets the time.",
    )


def missing_topic(topic: str, properties: ProducerProperties) -> BacklogError:
    """The error for a topic that is not there."""
    return BacklogError(
        f"{properties} has no topic {topic!r}, or the user may not DESCRIBE it.",
        "Create it, or give KafkaSink the argument partitions: then the sink creates it.",
    )
