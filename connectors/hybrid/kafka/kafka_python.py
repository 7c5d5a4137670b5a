"""The client with ``kafka-python``: pure Python, much slower, for systems without librdkafka."""

from __future__ import annotations

import functools
import logging
import ssl
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from kafka import KafkaConsumer, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec
from kafka.admin._partitions import IsolationLevel

from backlog_spark.errors import BacklogError, SettingError

from .client import NO_TIMESTAMP, KafkaClient, OffsetGone, Topic, TopicGone, patiently, topic_id
from .offsets import EARLIEST, Partition
from .security import Secret, Security

__all__ = ["KafkaPythonClient"]

T = TypeVar("T")

_BATCH = 10_000
"""Most records of a poll, as with the other client."""

_POLL_MS = 100
_LOOK_S = 5.0
"""After this time without a record, check that the topic still exists: the library would wait for it."""

_OPEN_MS = 5_000
"""Bound of one try to reach a broker."""

_ADMIN = {
    # A restarted broker is back within seconds; by default the pause grows to 30 s.
    "reconnect_backoff_max_ms": 1_000,
}
_READER = {
    **_ADMIN,
    "enable_auto_commit": False,
    "auto_offset_reset": "none",
    "allow_auto_create_topics": False,
    "request_timeout_ms": 30_000,
    # As with the other client, and because it is done in Python: 4 MB a second.
    "check_crcs": False,
    # As with the other client: all that is asked for is there.
    "fetch_max_wait_ms": 5,
}


class _LastMessage(logging.Handler):
    """Keeps the library's last log message about a connection: its exceptions only say that there is none."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "Connection lost: " in message:
            self.text = message.rpartition("Connection lost: ")[2]


class _ConsumerRecords:
    """`Records` of kafka-python's."""

    def __init__(self, records: list[Any]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def next_offset(self) -> int:
        return int(self._records[-1].offset) + 1

    def keys(self) -> list[bytes | None]:
        return [record.key for record in self._records]

    def values(self) -> list[bytes | None]:
        return [record.value for record in self._records]

    def offsets(self) -> list[int]:
        return [record.offset for record in self._records]

    def timestamps(self) -> tuple[list[int | None], list[int]]:
        times = [
            None if record.timestamp is None or record.timestamp < 0 else record.timestamp for record in self._records
        ]
        kinds = [record.timestamp_type for record in self._records]
        return times, [NO_TIMESTAMP if kind is None else kind for kind in kinds]

    def headers(self) -> list[list[tuple[str, bytes | None]]]:
        return [record.headers or [] for record in self._records]


class KafkaPythonClient(KafkaClient):
    """See `KafkaClient`."""

    _admin: KafkaAdminClient | None = None
    _consumer: KafkaConsumer | None = None

    def _settings(self, kind: Any, base: Mapping[str, Any]) -> dict[str, Any]:
        s = self.properties.security
        found: dict[str, Any] = {**base, **self.properties.for_kafka_python()}
        found = {name: value for name, value in found.items() if value != -1}  # in Java -1 means the system's default
        found |= {
            "bootstrap_servers": [server.strip() for server in self.properties.servers.split(",")],
            "bootstrap_timeout_ms": min(_OPEN_MS, self.properties.api_timeout_ms),
            "security_protocol": s.protocol,
        }
        if s.has_login:
            # The library writes everything that it sends into its debug log, also the password.
            logging.getLogger("kafka").setLevel(logging.INFO)
            found |= {
                "sasl_mechanism": s.mechanism,
                "sasl_plain_username": s.username,
                "sasl_plain_password": Secret(s.password),
            }
        if s.has_tls:
            found |= {"ssl_context": _context(s, found.get("ssl_ciphers"))}
        # An admin client does not accept options for fetching.
        return {name: value for name, value in found.items() if name in kind.DEFAULT_CONFIG}

    def _open(self, kind: Any, base: Mapping[str, Any]) -> Any:
        _listen().text = ""
        try:
            return kind(**self._settings(kind, base))
        except kafka_errors.KafkaConfigurationError as error:
            raise BacklogError(
                f"{self.properties}: the client's configuration is wrong: {self.clean(str(error))}.",
                "Correct the options kafka.*.",
            ) from None
        except kafka_errors.KafkaTimeoutError:
            said = _listen().text
            if self.properties.security.has_login and "socket disconnected" in said:
                # The library does not read the broker's answer to a wrong password.
                raise self.refused("the broker ended the connection during the login") from None
            if "CERTIFICATE" in said.upper():
                raise self.refused(said) from None
            raise

    def _ask(self, what: Callable[[KafkaAdminClient], T]) -> T:
        """The answer to a request. It is repeated while no broker answers."""

        def once() -> T:
            if self._admin is None:
                self._admin = self._open(KafkaAdminClient, _ADMIN)
            return what(self._admin)

        def retriable(error: Exception) -> bool:
            gone = isinstance(error, kafka_errors.UnknownTopicOrPartitionError)
            return isinstance(error, kafka_errors.KafkaError) and error.retriable and not gone

        seconds = self.properties.api_timeout_ms / 1000
        try:
            return patiently(once, retriable, seconds)
        except kafka_errors.UnknownTopicOrPartitionError as error:
            raise TopicGone(self.clean(str(error))) from None
        except kafka_errors.KafkaError as error:
            raise self._translated(error, seconds) from None

    def _translated(self, error: Exception, seconds: float) -> BacklogError:
        if isinstance(error, kafka_errors.AuthorizationError):
            return BacklogError(
                f"{self.properties} refused: {self.clean(str(error))}.",
                "Give the user READ and DESCRIBE on the topics.",
            )
        if isinstance(error, kafka_errors.UnsupportedCodecError):
            return BacklogError(
                f"{self.properties}: kafka-python cannot unpack the records: {self.clean(str(error))}.",
                "Install the codec (`pip install lz4`, `python-snappy` or `zstandard`), or set kafka.client=confluent.",
            )
        if getattr(error, "retriable", False):
            return self.unreachable(seconds, _listen().text or str(error))
        return BacklogError(f"{self.properties}: {type(error).__name__}: {self.clean(str(error))}.")

    def names(self) -> list[str]:
        return list(self._ask(lambda admin: admin.list_topics()))

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        if not names:
            return {}

        def ask(admin: KafkaAdminClient) -> dict[str, Topic]:
            found = {}
            for topic in admin.describe_topics(sorted(names)):
                error = kafka_errors.for_code(topic["error_code"])
                if error is kafka_errors.UnknownTopicOrPartitionError:
                    continue
                if error is not kafka_errors.NoError:
                    raise error(topic["name"])
                numbers = sorted(p["partition_index"] for p in topic["partitions"])
                found[topic["name"]] = Topic(topic_id(topic["topic_id"]), tuple(numbers), topic["is_internal"])
            return found

        return self._ask(ask)

    def offsets(self, partitions: Collection[Partition], at: int, *, committed: bool) -> dict[Partition, int]:
        spec = OffsetSpec.EARLIEST if at == EARLIEST else OffsetSpec.LATEST
        return self._list(dict.fromkeys(partitions, spec), committed=committed)

    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        found = self._list(times, committed=self.properties.read_committed)
        return {p: None if offset < 0 else offset for p, offset in found.items()}

    def _list(self, specs: Mapping[Partition, Any], *, committed: bool) -> dict[Partition, int]:
        if not specs:
            return {}
        wanted = {TopicPartition(*p): spec for p, spec in specs.items()}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        found = self._ask(lambda admin: admin.list_partition_offsets(wanted, level))
        return {(p.topic, p.partition): answer.offset for p, answer in found.items()}

    def configs(self, names: Collection[str]) -> dict[str, dict[str, str]]:
        asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in sorted(names)]
        found = self._ask(lambda admin: admin.describe_configs(asked, config_filter="all"))
        return {
            topic: {name: entry["value"] for name, entry in entries.items()}
            for topic, entries in found.get("topic", {}).items()
        }

    def fetch(self, partition: Partition, start: int, until: int) -> Iterator[_ConsumerRecords]:
        wanted = TopicPartition(*partition)
        try:
            yield from self._fetch(wanted, start, until)
        except kafka_errors.OffsetOutOfRangeError as error:
            self._drop_consumer()
            raise OffsetGone(self.clean(str(error))) from None
        except kafka_errors.KafkaError as error:
            self._drop_consumer()
            raise self._translated(error, self.timeout_s) from None
        except BaseException:
            self._drop_consumer()
            raise
        else:
            if self._consumer is not None:
                self._consumer.assign([])

    def _fetch(self, wanted: Any, start: int, until: int) -> Iterator[_ConsumerRecords]:
        consumer = self._open_consumer()
        consumer.assign([wanted])
        consumer.seek(wanted, start)
        at, heard = start, time.monotonic()
        looked = heard
        while at < until:
            records = consumer.poll(_POLL_MS, max_records=min(_BATCH, until - at)).get(wanted, [])
            # Moves past control records of transactions, even if no record follows.
            reached = max(at, consumer.position(wanted, timeout_ms=_POLL_MS) or 0)
            now = time.monotonic()
            if reached == at:
                if now - looked > _LOOK_S:
                    self._look(wanted)
                    looked = now
                if now - heard > self.timeout_s:
                    raise self.unreachable(self.timeout_s, _listen().text)
                continue
            at = reached
            records = [record for record in records if record.offset < until] if at > until else records
            if records:
                yield _ConsumerRecords(records)
            heard = looked = time.monotonic()

    def _open_consumer(self) -> Any:
        if self._consumer is None:
            isolation = "read_committed" if self.properties.read_committed else "read_uncommitted"
            base = {**_READER, "isolation_level": isolation, "group_id": self.properties.group_id or None}

            def retriable(error: Exception) -> bool:
                return isinstance(error, kafka_errors.KafkaTimeoutError)

            self._consumer = patiently(lambda: self._open(KafkaConsumer, base), retriable, self.timeout_s)
        return self._consumer

    def _look(self, wanted: Any) -> None:
        there = self.topics([wanted.topic]).get(wanted.topic)
        if there is None or wanted.partition not in there.partitions:
            raise TopicGone(f"{wanted.topic}-{wanted.partition} does not exist")

    def _drop_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close(autocommit=False, timeout_ms=1000)

    def close(self) -> None:
        self._drop_consumer()
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()


@functools.cache
def _listen() -> _LastMessage:
    handler = _LastMessage(logging.WARNING)
    logging.getLogger("kafka").addHandler(handler)
    return handler


def _context(security: Security, ciphers: str | None) -> ssl.SSLContext:
    s = security
    try:
        context = ssl.create_default_context(cafile=s.ca_file or None, cadata=s.ca_text or None)
        context.check_hostname = s.checks_host
        if ciphers:
            context.set_ciphers(ciphers)
        if s.certificate_file or s.certificate_text:
            with tempfile.NamedTemporaryFile("w") as certificate, tempfile.NamedTemporaryFile("w") as key:
                certificate.write(s.certificate_text)
                key.write(s.key_text)
                certificate.flush()
                key.flush()
                context.load_cert_chain(
                    s.certificate_file or certificate.name, s.key_file or key.name, s.key_password or None
                )
    except (OSError, ssl.SSLError) as error:
        raise SettingError(
            "kafka.ssl.truststore.location", s.ca_file or "***", f"it or the client's certificate cannot be used: "
            f"{error.strerror or error}.", "Give PEM files that driver and executors have.",
        ) from None  # fmt: skip
    return context
