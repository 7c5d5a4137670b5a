"""A producer of confluent-kafka, with or without transactions, whose failures become errors of ours."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from backlog_spark.sinks.kafka.failures import IDS, explained, unreachable
from backlog_spark.sinks.kafka.properties import ProducerProperties

__all__ = ["SinkProducer"]

PARTITION_UA: Final = -1
"""librdkafka's value for a partition that the partitioner chooses."""

_SETTINGS: Final = {
    "enable.idempotence": "true",
    "acks": "all",
    # Records of a key come to the partition to which Java's clients bring them.
    "partitioner": "murmur2_random",
    "linger.ms": "5",
    "delivery.report.only.error": True,
}
_SERVED: Final = 1_000
"""Records after which the client is given time for its callbacks."""

_DROPPED: Final = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""What the client reports of records that it drops because of another error."""

_RAISED: Final = (KafkaException, SystemError)
"""The client raises a fatal error in its next call. If that also calls back, Python makes a `SystemError` of it,
whose cause is the client's error, or nothing."""


class SinkProducer:
    """Sends records. Close it with `close`, or use it in a ``with`` statement: an open transaction is then aborted.

    Parameters
    ----------
    properties : ProducerProperties
    transactional_id : str or None
        None: no transactions.
    known_topic : str, optional
        A topic that is there: with one, transactions start half a second sooner.

    Raises
    ------
    BacklogError
        No broker answers, or one refuses the login, the transactional id or its timeout.
    """

    def __init__(
        self, properties: ProducerProperties, transactional_id: str | None, known_topic: str | None = None
    ) -> None:
        self._properties = properties
        self._is_transactional = transactional_id is not None
        self._is_open = False
        self._failed: tuple[KafkaError, Any] | None = None
        self._last: KafkaError | None = None
        self._sent = 0
        settings: dict[str, Any] = {**properties.for_clients(), **_SETTINGS, **dict(properties.producer)}
        if transactional_id is not None:
            settings["transactional.id"] = f"{IDS}{transactional_id}"
            settings["transaction.timeout.ms"] = str(properties.transaction_timeout_ms)
        settings |= {"error_cb": self._heard, "on_delivery": self._delivered}
        try:
            self._producer = Producer(settings)
        except KafkaException as raised:
            raise explained(raised.args[0], properties, "Making a producer") from None
        if transactional_id is not None:
            try:
                if known_topic is not None:
                    # librdkafka asks for the coordinator every 500 ms, and the first time before it has a connection.
                    self._try("Asking for a topic", lambda seconds: self._producer.list_topics(known_topic, seconds))
                self._try("Starting transactions", lambda seconds: self._producer.init_transactions(seconds))
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> SinkProducer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _heard(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last = error

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and self._failed is None:
            # No call here: the client may call back while an exception is set.
            self._failed = (error, message)

    def _check(self) -> None:
        if self._failed is not None:
            error, message = self._failed
            raise explained(
                self._reason(error), self._properties, f"Writing to the topic {message.topic()!r}"
            ) from None

    def _try(self, what: str, call: Callable[[float], Any]) -> None:
        """Call until it succeeds, as long as the client says that this may help and the time is not over."""
        end = time.monotonic() + self._properties.api_timeout_s
        while True:
            try:
                call(max(0.1, end - time.monotonic()))
                return
            except _RAISED as raised:
                error = self._error_of(raised)
                self._serve(0)
                self._check()  # the reason why a transaction has failed
                if error.retriable() and time.monotonic() < end:
                    continue
                if error.retriable() and self._last is not None:
                    raise unreachable(self._properties, self._properties.security.clean(self._last.str())) from None
                raise explained(error, self._properties, what) from None

    def send(
        self, topic: str, key: str | bytes | None, value: str | bytes | None, partition: int = PARTITION_UA
    ) -> None:
        """Send a record, in the open transaction. The first one opens it. The key chooses the partition by default."""
        if self._is_transactional and not self._is_open:
            self._try("Beginning a transaction", lambda seconds: self._producer.begin_transaction())
            self._is_open = True
        while True:
            try:
                self._producer.produce(topic, value, key, partition)
                break
            except BufferError:
                self._serve(0.1)
                self._check()
            except _RAISED as raised:
                size = len(value or b"") + len(key or b"")
                what = f"Writing a record of {size:,} bytes or characters to the topic {topic!r}"
                raise explained(self._error_of(raised), self._properties, what) from None
        self._sent += 1
        if not self._sent % _SERVED:
            self._serve(0)
            self._check()

    def _error_of(self, raised: BaseException) -> KafkaError:
        cause = raised if isinstance(raised, KafkaException) else raised.__cause__
        return self._reason(cause.args[0] if isinstance(cause, KafkaException) else None)

    def _reason(self, found: KafkaError | None) -> KafkaError:
        """The error that is behind others. ``found``: None if the client has lost it."""
        if found is None and self._failed is not None:
            found = self._failed[0]
        if found is not None and found.code() not in _DROPPED:
            return found
        try:  # a producer that has failed for good says so again
            if self._is_transactional:
                self._producer.begin_transaction()
        except KafkaException as again:
            if found is None or again.args[0].code() != KafkaError._STATE:
                return again.args[0]
        return found or KafkaError(KafkaError._FATAL, "the client gave no reason", True)

    def _serve(self, seconds: float, *, all_records: bool = False) -> int:
        """Let the client call back. ``all_records``: return when all are written, or how many are left."""
        try:
            return int(self._producer.flush(seconds) if all_records else self._producer.poll(seconds))
        except _RAISED as raised:
            raise explained(self._error_of(raised), self._properties, "Writing to Kafka") from None

    def flush(self) -> None:
        """Wait until all records are written. Raises as `finish`."""
        while self._serve(0.5, all_records=True):
            self._check()  # records that are not written end with an error after delivery.timeout.ms
        self._check()

    def finish(self) -> None:
        """Wait until all records are written, and commit them.

        Raises
        ------
        BacklogError
            A record was not written. With transactions none of those since the last call is visible then.
        """
        self.flush()
        if self._is_open:
            self._try("Committing a transaction", lambda seconds: self._producer.commit_transaction(seconds))
            self._is_open = False

    def close(self) -> None:
        """Abort an open transaction, and drop records that are not written."""
        if self._is_open:
            # Another attempt ends the transaction otherwise, or the brokers do after its timeout.
            with contextlib.suppress(*_RAISED):
                self._producer.abort_transaction(self._properties.api_timeout_s)
            self._is_open = False
        del self._producer  # its callbacks refer to this object, so it would only go with Python's next collection
