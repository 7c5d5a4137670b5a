"""Options ``kafka.*`` of the sink: properties of Java's producer that configure librdkafka (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from backlog_spark.errors import SettingError
from backlog_spark.spi.kafka_names import check_name
from backlog_spark.spi.kafka_security import SECURITY_NAMES, Security

__all__ = ["TRANSACTION_TIMEOUT", "ProducerProperties", "check_options"]

_PREFIX: Final = "kafka."
TRANSACTION_TIMEOUT: Final = "kafka.transaction.timeout.ms"

# Java's name, and librdkafka's. All clients take the first ones; only producers take the others.
_COMMON: Final = {
    "client.id": "client.id",
    "client.dns.lookup": "client.dns.lookup",
    "connections.max.idle.ms": "connections.max.idle.ms",
    "metadata.max.age.ms": "metadata.max.age.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "reconnect.backoff.max.ms": "reconnect.backoff.max.ms",
    "reconnect.backoff.ms": "reconnect.backoff.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "socket.connection.setup.timeout.ms": "socket.connection.setup.timeout.ms",
    "ssl.cipher.suites": "ssl.cipher.suites",
}
_PRODUCER: Final = {
    "batch.size": "batch.size",
    "compression.type": "compression.type",
    "delivery.timeout.ms": "delivery.timeout.ms",
    "linger.ms": "linger.ms",
    "max.request.size": "message.max.bytes",
    "request.timeout.ms": "request.timeout.ms",
    "retry.backoff.max.ms": "retry.backoff.max.ms",
    "retry.backoff.ms": "retry.backoff.ms",
}
_TEXTS: Final = ("client.id", "client.dns.lookup", "compression.type", "ssl.cipher.suites")
_OWN: Final = ("bootstrap.servers", "default.api.timeout.ms", "transaction.timeout.ms", "group.id")
_KNOWN: Final = (*_OWN, *_COMMON, *_PRODUCER, *SECURITY_NAMES)

_FIXED: Final = "The sink sets it, so that no record is lost or written twice. Leave it out."
_PARTITIONS: Final = "Records go to the partitions that Java's default partitioner chooses. Leave it out."
_REFUSED: Final = {
    "transactional.id": "It is made of the checkpoint's identity. Leave it out.",
    "partitioner.class": _PARTITIONS,
    "partitioner.adaptive.partitioning.enable": _PARTITIONS,
    "partitioner.availability.timeout.ms": _PARTITIONS,
    "partitioner.ignore.keys": _PARTITIONS,
    "buffer.memory": "The client's queue has a bound of its own. Leave it out.",
    "metadata.max.idle.ms": "The client forgets unused topics by itself. Leave it out.",
    "max.block.ms": "Set kafka.default.api.timeout.ms and kafka.delivery.timeout.ms.",
    **{
        f"compression.{codec}.level": "The codec's own level is used. Leave it out."
        for codec in ("gzip", "lz4", "zstd")
    },
    "key.serializer": "The argument format says what keys and values are. Leave it out.",
    "value.serializer": "The argument format says what keys and values are. Leave it out.",
    **dict.fromkeys(
        ("acks", "enable.idempotence", "max.in.flight.requests.per.connection", "retries", "isolation.level"), _FIXED
    ),
}


@dataclass(frozen=True)
class ProducerProperties:
    """Parsed properties.

    Parameters
    ----------
    servers : str
        Brokers to contact first, as ``host:port``, separated by commas.
    security : Security
    api_timeout_ms : int
        A request without an answer fails after this time.
    transaction_timeout_ms : int
        Brokers end a transaction that is open for longer than this.
    group_id : str
        Group name of the reader of the sink's own topic, for brokers that grant rights by it. Nothing is committed.
    common, producer : tuple of (str, str)
        librdkafka's names of all clients and of producers, with values that have been checked.
    """

    servers: str
    security: Security = field(default_factory=Security)
    api_timeout_ms: int = 60_000
    transaction_timeout_ms: int = 60_000
    group_id: str = "backlog_spark"
    common: tuple[tuple[str, str], ...] = ()
    producer: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse options.

        Raises
        ------
        SettingError
            For a property that is unknown, malformed, or has no meaning here.
        """
        given = {name[len(_PREFIX) :]: str(value) for name, value in options.items() if name.startswith(_PREFIX)}
        for name in given:
            check_name(name, "KafkaSink", _KNOWN, _REFUSED, "See docs/topics.md.")
        servers = given.get("bootstrap.servers", "").strip()
        if not servers:
            raise SettingError(
                "kafka.bootstrap.servers", given.get("bootstrap.servers"), "KafkaSink needs this option.",
                'Set options={"kafka.bootstrap.servers": "host:port"}, with several separated by commas.',
            )  # fmt: skip
        return cls(
            servers=servers,
            security=Security.parse({name: given[name] for name in SECURITY_NAMES if name in given}),
            api_timeout_ms=_number("default.api.timeout.ms", given.get("default.api.timeout.ms", "60000"), 1),
            transaction_timeout_ms=_number(
                "transaction.timeout.ms", given.get("transaction.timeout.ms", "60000"), 1000
            ),
            group_id=given.get("group.id", "backlog_spark"),
            common=tuple((theirs, _checked(name, given[name])) for name, theirs in _COMMON.items() if name in given),
            producer=tuple(
                (theirs, _checked(name, given[name])) for name, theirs in _PRODUCER.items() if name in given
            ),
        )

    @property
    def api_timeout_s(self) -> float:
        return self.api_timeout_ms / 1000

    def for_clients(self) -> dict[str, Any]:
        """librdkafka's properties of any client."""
        return {
            # Errors come by callback or exception. Otherwise each broker that is away writes to standard error.
            "log_level": "0",
            # A restarted broker is back within seconds; by default the pause grows to 10 s.
            "reconnect.backoff.max.ms": "1000",
            "bootstrap.servers": self.servers,
            **dict(self.common),
            **self.security.for_librdkafka(),
        }

    def __str__(self) -> str:
        return f"Kafka at {self.servers}{self.security.who}"


def check_options(options: Mapping[str, str], format: str) -> None:
    """Refuse options that the sink does not have.

    Raises
    ------
    SettingError
    """
    for name in options:
        if not name.startswith(("kafka.", "schema.registry.")):
            raise SettingError(
                "KafkaSink options", name, "KafkaSink has no such option.", "Known: kafka.* and schema.registry.*."
            )
        if name.startswith("schema.registry.") and format != "avro":
            raise SettingError("KafkaSink options", name, f"has no meaning with format={format!r}.", "Leave it out.")
    if format == "avro" and not options.get("schema.registry.url"):
        raise SettingError(
            "schema.registry.url", None, "KafkaSink with format='avro' needs it.",
            'Add it to options, such as "http://host:8081", or set format="json".',
        )  # fmt: skip


def _checked(name: str, text: str) -> str:
    return text if name in _TEXTS else str(_number(name, text, 0))


def _number(name: str, text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise SettingError(
            f"{_PREFIX}{name}", text, f"is not an integer >= {least}.", "Set such a number, or leave it out."
        )
    return value
