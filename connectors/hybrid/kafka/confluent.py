"""The client by ``confluent_kafka``, which is librdkafka."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from backlog_spark.common.patience import patiently
from backlog_spark.errors import BacklogError

from .client import Lookups, OffsetGone, Topic, TopicGone, Unreachable, topic_id
from .offsets import EARLIEST, Partition
from .properties import Properties

__all__ = ["KafkaClient", "Records"]

_REQUEST_S = 30.0
"""Bound of one request, which is then repeated. A request waits for a broker that is away for a moment."""

_NAMES_S = 5.0
"""Bound of a request for all names, which reports no errors."""

_LOGINS = 3
"""A login must fail this often before it counts as wrong: a broker that stops may cut one off."""

_END_S = 3.0
"""A log may end before the batch's end for this long: a broker that has just started may learn its end late."""

_ADMIN = {
    # Errors come by callback. Otherwise every broker that is away for a moment writes to standard error.
    "log_level": "0",
    # A restarted broker is back within seconds; by default the pause grows to 10 s.
    "reconnect.backoff.max.ms": "1000",
}
_READER = {
    **_ADMIN,
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",
    # Reports the log's end even if its last records are not delivered (an aborted transaction, or its marker).
    "enable.partition.eof": "true",
    # When its queue is full, librdkafka waits this long before it fetches again. In one second, the default, a fast
    # reader empties the queue several times: 150,000 rows a second against 500,000 with 5 ms.
    "fetch.queue.backoff.ms": "5",
    # All wanted records are in the log, so a broker need not wait for more. While it waits (by default half a second),
    # the next partition cannot be fetched from it.
    "fetch.wait.max.ms": "5",
    # Read ahead for two batches. What is fetched beyond a partition's end is thrown away.
    "queued.min.messages": "20000",
    "queued.max.messages.kbytes": "32768",
}

_BATCH = 10_000
"""Most messages of a call. More are not faster, and they are all in memory."""

_BATCH_BYTES = 8 << 20
"""A batch ends when keys and values reach this. They are in memory three times: as messages, as bytes, in Arrow."""

_STEP = 32
"""Messages asked for at a time, since they may all be as large as the broker allows."""

_CALL_S = 0.02
"""A call that finds fewer messages returns after this; 10,000 take 20 ms."""

_GONE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._NOENT,
}
_FATAL = {KafkaError._AUTHENTICATION, KafkaError._SSL}
_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}


class Records:
    """Some records of one partition in the order of their offsets, without markers and aborted records.

    Each method gives one value for each record. It is called at most once.
    """

    def __init__(self, messages: list[Any]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def next_offset(self) -> int:
        """The offset after the last record."""
        return int(self._messages[-1].offset()) + 1

    def keys(self) -> list[bytes | None]:
        return [message.key() for message in self._messages]

    def values(self) -> list[bytes | None]:
        return [message.value() for message in self._messages]

    def offsets(self) -> list[int]:
        return [message.offset() for message in self._messages]

    def timestamps(self) -> tuple[list[int | None], list[int]]:
        """Milliseconds since 1970, and Spark's timestampType: 0 CreateTime, 1 LogAppendTime, -1 none."""
        found = [message.timestamp() for message in self._messages]
        kinds = [kind for kind, _ in found]
        if confluent_kafka.TIMESTAMP_NOT_AVAILABLE in kinds:
            times = [None if kind == confluent_kafka.TIMESTAMP_NOT_AVAILABLE else at for kind, at in found]
        else:
            times = [at for _, at in found]
        # Here 0 is none, 1 CreateTime and 2 LogAppendTime, which is one more than in Spark.
        return times, [kind - 1 for kind in kinds]

    def headers(self) -> list[list[tuple[str, bytes | None]]]:
        return [message.headers() or [] for message in self._messages]


class KafkaClient(Lookups):
    """A client of confluent-kafka. It connects at the first call. For one thread at a time.

    Every method raises `Unreachable` if no broker answers, and `BacklogError` if a broker refuses, for example a wrong
    password.

    Parameters
    ----------
    properties : Properties
    group_id : str
        Name under which brokers know the reader. Nothing is committed under it.
    timeout_s : float
        How long `fetch` waits for a broker that does not answer.
    """

    _admin: AdminClient | None = None
    _consumer: Consumer | None = None
    _last_error: KafkaError | None = None
    _step: int = _STEP
    _failed_logins = 0

    def __init__(self, properties: Properties, group_id: str, timeout_s: float) -> None:
        super().__init__(properties)
        self.group_id = group_id
        self.timeout_s = timeout_s

    def _settings(self, base: Mapping[str, str]) -> dict[str, Any]:
        return {
            **base,
            **self.properties.for_librdkafka(),
            "bootstrap.servers": self.properties.servers,
            "error_cb": self._heard,
            **self.properties.security.for_librdkafka(),
        }

    def _heard(self, error: KafkaError) -> None:
        # "All brokers down" comes after the error that caused it. That one is more useful.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._last_error is None:
            self._last_error = error
        if error.code() in _FATAL:
            self._failed_logins += 1

    def _forget(self) -> None:
        self._last_error, self._failed_logins = None, 0

    def _open_admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = self._made(AdminClient, self._settings(_ADMIN))
        return self._admin

    def _open_consumer(self) -> Consumer:
        if self._consumer is None:
            isolation = "read_committed" if self.properties.read_committed else "read_uncommitted"
            settings = {**self._settings(_READER), "group.id": self.group_id, "isolation.level": isolation}
            self._consumer = self._made(Consumer, settings)
        return self._consumer

    def _made(self, kind: Any, settings: Mapping[str, Any]) -> Any:
        try:
            return kind(settings)
        except KafkaException as error:
            raise BacklogError(
                f"{self.properties}: the client's configuration is wrong: {self.clean(error.args[0].str())}.",
                "Correct the option kafka.* of that name.",
            ) from None

    def _ask(self, what: Any) -> Any:
        """Futures of a request, which is repeated while no broker answers.

        ``what`` makes them from an `AdminClient`, which must live as long as they do, and the bound of one request in
        seconds.
        """
        seconds = self.properties.api_timeout_ms / 1000

        def once() -> Any:
            admin = self._open_admin()
            futures = what(admin, min(seconds, _REQUEST_S))
            waiting = set(futures.values())
            while waiting:
                waiting = concurrent.futures.wait(waiting, timeout=0.2).not_done
                if waiting:
                    admin.poll(0)  # hears of errors
                    self._check_fatal()
            found = {key: future.exception() or future.result() for key, future in futures.items()}
            for answer in found.values():
                if isinstance(answer, KafkaException) and answer.args[0].code() not in _GONE:
                    raise answer
            self._forget()
            return found

        try:
            return patiently(once, self._is_retriable, seconds)
        except KafkaException as error:
            raise self._translated(error.args[0], seconds) from None

    def _is_retriable(self, error: Exception) -> bool:
        self._open_admin().poll(0)
        self._check_fatal()
        return isinstance(error, KafkaException) and error.args[0].code() not in _DENIED

    def _translated(self, error: KafkaError, seconds: float) -> BacklogError:
        if error.code() in _DENIED:
            return BacklogError(
                f"{self.properties} refused: {self.clean(error.str())}.",
                "Give the user READ and DESCRIBE on the topics.",
            )
        last = self._last_error or error
        if last.code() in _FATAL:
            return self.refused(last.str())  # a token server that refuses is asked again only every 10 s
        return self.unreachable(seconds, last.str())

    def _check_fatal(self) -> None:
        if self._last_error is not None and self._failed_logins >= _LOGINS:
            raise self.refused(self._last_error.str())

    def names(self) -> list[str]:
        seconds = self.properties.api_timeout_ms / 1000

        def ask() -> list[str]:
            found = self._open_admin().list_topics(timeout=min(seconds, _NAMES_S)).topics
            self._forget()
            return list(found)

        try:
            return patiently(ask, self._is_retriable, seconds)
        except KafkaException as error:
            raise self._translated(error.args[0], seconds) from None

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        if not names:
            return {}
        found = self._ask(
            lambda admin, bound: admin.describe_topics(TopicCollection(sorted(names)), request_timeout=bound)
        )
        return {
            name: Topic(topic_id(t.topic_id), tuple(sorted(p.id for p in t.partitions)), t.is_internal)
            for name, t in found.items()
            if not isinstance(t, KafkaException)
        }

    def offsets(self, partitions: Collection[Partition], at: int, *, committed: bool) -> dict[Partition, int]:
        spec = OffsetSpec.earliest() if at == EARLIEST else OffsetSpec.latest()
        return self._list(dict.fromkeys(partitions, spec), committed=committed)

    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        specs = {p: OffsetSpec.for_timestamp(at) for p, at in times.items()}
        found = self._list(specs, committed=self.properties.read_committed)
        return {p: None if offset < 0 else offset for p, offset in found.items()}

    def _list(self, specs: Mapping[Partition, OffsetSpec], *, committed: bool) -> dict[Partition, int]:
        if not specs:
            return {}
        wanted = {TopicPartition(*p): spec for p, spec in specs.items()}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        found = self._ask(lambda admin, bound: admin.list_offsets(wanted, isolation_level=level, request_timeout=bound))
        for answer in found.values():
            if isinstance(answer, KafkaException):
                raise TopicGone(self.clean(answer.args[0].str()))
        return {(p.topic, p.partition): answer.offset for p, answer in found.items()}

    def configs(self, names: Collection[str]) -> dict[str, dict[str, str]]:
        """Settings of topics, such as ``retention.ms``. Needs the right DESCRIBE_CONFIGS. Only for messages."""
        asked = {ConfigResource(ResourceType.TOPIC, name): name for name in sorted(names)}
        found = self._ask(lambda admin, bound: admin.describe_configs(list(asked), request_timeout=bound))
        return {
            asked[resource]: {name: entry.value for name, entry in answer.items()}
            for resource, answer in found.items()
            if not isinstance(answer, KafkaException)
        }

    def fetch(self, partition: Partition, start: int, until: int) -> Iterator[Records]:
        """The records from ``start`` on, before ``until``. Ends when there are no more, even if the last ones are gone.

        ``until`` is at most the log's end when the batch was planned. Each `Records` has at least one record.

        Raises
        ------
        OffsetGone
            The next offset is not in the log. Records before it have been yielded.
        TopicGone
        Unreachable
            No broker answers for ``timeout_s``, counted from the last answer.
        """
        consumer = self._open_consumer()
        self._forget()
        try:
            consumer.assign([TopicPartition(*partition, start)])
            yield from self._fetch(consumer, start, until)
            consumer.unassign()
        except BaseException as error:
            # The consumer's state is unknown now.
            self._drop_consumer()
            if isinstance(error, KafkaException):
                raise BacklogError(
                    f"{self.properties}: reading failed: {self.clean(error.args[0].str())}.",
                    "The task is tried again. If it goes on, look at the brokers' log.",
                ) from None
            raise

    def _fetch(self, consumer: Consumer, start: int, until: int) -> Iterator[Records]:
        at, heard = start, time.monotonic()
        ended = False
        while at < until:
            messages = self._consume(consumer, min(_BATCH, until - at))
            events = [message for message in messages if message.error() is not None]
            if events:
                messages = [message for message in messages if message.error() is None]
            reached = [self._end(event) for event in events]
            if messages:
                reached.append(messages[-1].offset() + 1)
            if not any(offset > at for offset in reached):
                ended = ended or at in reached
                self._wait(time.monotonic() - heard, f"the log ends at {at}" if ended else "")
                continue
            at, ended = max(reached), False
            if at > until:
                messages = [message for message in messages if message.offset() < until]
            if messages:
                yield Records(messages)
                del messages, events  # otherwise they stay in memory until the next ones arrive
            heard = time.monotonic()

    def _consume(self, consumer: Consumer, most: int) -> list[Any]:
        """A batch's messages and events, as far as they have arrived."""
        found: list[Any] = []
        size, step = 0, self._step
        while len(found) < most and size < _BATCH_BYTES:
            wanted = min(step, most - len(found))
            some = consumer.consume(wanted, _CALL_S)
            found += some
            lengths = [len(message) + len(message.key() or b"") for message in some]
            size += sum(lengths)
            self._step = step = max(1, min(_STEP, _BATCH_BYTES // max(1, *lengths, 1)))
            if len(some) < wanted:
                break
        return found

    def _wait(self, silent_s: float, ended: str) -> None:
        """Raise if nothing has come for too long."""
        self._check_fatal()
        if ended and silent_s > min(_END_S, self.timeout_s):
            raise OffsetGone(ended)
        if silent_s > self.timeout_s:
            raise self.unreachable(self.timeout_s, self._last_error.str() if self._last_error else "")

    def _end(self, event: Any) -> int:
        """The offset that an event says was reached, or -1. Raises if the event is an error."""
        error = event.error()
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            return int(event.offset())
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise OffsetGone(self.clean(error.str()))
        if code in _GONE:
            raise TopicGone(self.clean(error.str()))
        if code in _DENIED:
            raise self._translated(error, 0)
        # A token may have expired just now: the client logs in again with a new one, and `_heard` counts failures.
        if not error.retriable() and code not in _FATAL:
            raise KafkaException(error)
        self._last_error = error
        return -1

    def _drop_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def close(self) -> None:
        """Close all connections. The client may be used again, and then connects again."""
        self._drop_consumer()
        self._admin = None

    def first_time(self, partition: Partition, first: int, until: int) -> int | None:
        try:
            for records in self.fetch(partition, first, until):
                return records.timestamps()[0][0]
        except (OffsetGone, TopicGone):
            pass
        return None

    def unreachable(self, seconds: float, last_error: str) -> Unreachable:
        """The error for brokers that did not answer for this time."""
        why = f" ({self.clean(last_error)})" if last_error else ""
        return Unreachable(
            f"{self.properties} did not answer for {seconds:.0f} s{why}.",
            "Check kafka.bootstrap.servers, kafka.security.protocol, and that driver and executors reach every broker"
            " under the address that it advertises.",
        )

    def refused(self, why: str) -> BacklogError:
        """The error for a login or a certificate that was refused."""
        return BacklogError(
            f"{self.properties} cannot be reached: {self.clean(why)}.",
            "Check kafka.security.protocol, kafka.sasl.mechanism, user and password (or token), and the certificates.",
        )

    def clean(self, text: str) -> str:
        """A client's message without secrets, on one line, without a full stop at its end."""
        return self.properties.security.clean(text)
