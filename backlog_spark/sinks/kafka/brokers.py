"""Asks Kafka's brokers for topics, and creates them."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from backlog_spark.common.patience import patiently
from backlog_spark.errors import BacklogError
from backlog_spark.sinks.kafka.failures import DENIED, LOGINS, MISSING, PASSING, explained, missing_topic, unreachable
from backlog_spark.sinks.kafka.properties import ProducerProperties

__all__ = ["Brokers"]

_LOGINS: Final = 3
"""A login must fail this often before it counts as wrong: a broker that stops may cut one off."""
_PAUSE_S: Final = 0.1


class Brokers:
    """A client for questions. It connects at the first call. For one thread at a time.

    Every method raises a `BacklogError` if no broker answers in `ProducerProperties.api_timeout_s`, or if one refuses.
    """

    def __init__(self, properties: ProducerProperties) -> None:
        self._properties = properties
        self._failed_logins: list[KafkaError] = []
        self._last: KafkaError | None = None
        self._client: AdminClient | None = AdminClient({**properties.for_clients(), "error_cb": self._heard})

    def close(self) -> None:
        """Close all connections, after which nothing can be asked."""
        self._client = None  # its callback refers to this object, so it would only go with Python's next collection

    def _heard(self, error: KafkaError) -> None:
        if error.code() in LOGINS:
            self._failed_logins.append(error)
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last = error

    def _answer(
        self, ask: Callable[[AdminClient, float], Mapping[Any, Any]], what: str, answers: Collection[int] = ()
    ) -> Any:
        """The only answer of a request, which is repeated while brokers are away or choose leaders.

        Parameters
        ----------
        ask : callable
            Takes the client, and how many seconds the request may take. Makes its future.
        what : str
            As of `explained`.
        answers : collection of int
            Codes of errors that are an answer, too.
        """
        client, seconds = self._client, self._properties.api_timeout_s
        assert client is not None
        end = time.monotonic() + seconds

        def once() -> Any:
            (future,) = ask(client, max(_PAUSE_S, end - time.monotonic())).values()
            while not concurrent.futures.wait([future], timeout=0.2).done:
                client.poll(0)  # hears of errors
                if len(self._failed_logins) >= _LOGINS:
                    raise explained(self._failed_logins[-1], self._properties, what)
            error = future.exception()
            if isinstance(error, KafkaException) and error.args[0].code() in answers:
                return error.args[0]
            return future.result()

        def passes(error: Exception) -> bool:
            return isinstance(error, KafkaException) and error.args[0].code() in PASSING

        try:
            return patiently(once, passes, seconds)
        except KafkaException as raised:
            error = raised.args[0]
            client.poll(0)
            if error.code() == KafkaError._TIMED_OUT and self._last is not None:
                raise unreachable(self._properties, self._properties.security.clean(self._last.str())) from None
            raise explained(error, self._properties, what) from None

    def partitions_of(self, topic: str) -> int | None:
        """How many partitions a topic has; None if there is no such topic.

        Raises
        ------
        BacklogError
            The user may not write to the topic.
        """
        found = self._answer(
            lambda client, seconds: client.describe_topics(
                TopicCollection([topic]), include_authorized_operations=True, request_timeout=seconds
            ),
            f"Asking for the topic {topic!r}",
            MISSING,
        )
        if isinstance(found, KafkaError):
            return None
        may = found.authorized_operations
        if may and AclOperation.WRITE not in may:
            raise BacklogError(
                f"{self._properties} may not write to the topic {topic!r}.", "Give the user WRITE on the topic."
            )
        return len(found.partitions)

    def ensure(
        self,
        topic: str,
        partitions: int | None,
        replication: int | None,
        config: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        """The partitions of a topic, which is created if it is not there.

        Parameters
        ----------
        partitions : int or None
            Of a new topic. None: a topic that is not there is refused.
        replication : int or None
            Of a new topic. None: the brokers' default.
        """
        found = self.partitions_of(topic)
        if found is not None:
            return found
        if partitions is None:
            raise missing_topic(topic, self._properties)
        new = NewTopic(topic, partitions, -1 if replication is None else replication, config=dict(config))
        # Another query may create it at the same moment.
        self._answer(
            lambda client, seconds: client.create_topics([new], request_timeout=seconds),
            f"Creating the topic {topic!r}",
            {KafkaError.TOPIC_ALREADY_EXISTS},
        )
        end = time.monotonic() + self._properties.api_timeout_s
        while (found := self.partitions_of(topic)) is None:
            if time.monotonic() > end:
                raise missing_topic(topic, self._properties)
            time.sleep(_PAUSE_S)
        return found

    def config_of(self, topic: str) -> dict[str, str]:
        """The settings of a topic; empty if the user may not see them."""
        found = self._answer(
            lambda client, seconds: client.describe_configs(
                [ConfigResource(ResourceType.TOPIC, topic)], request_timeout=seconds
            ),
            f"Asking for the settings of the topic {topic!r}",
            DENIED,
        )
        return {} if isinstance(found, KafkaError) else {name: str(entry.value) for name, entry in found.items()}

    def end_of(self, topic: str, partition: int) -> int:
        """The offset after a partition's last record, also if its transaction is open."""
        where = TopicPartition(topic, partition)
        found = self._answer(
            lambda client, seconds: client.list_offsets(
                {where: OffsetSpec.latest()},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=seconds,
            ),
            f"Asking for the end of the topic {topic!r}",
        )
        return int(found.offset)
