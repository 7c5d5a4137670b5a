"""Options ``kafka.*``: properties of Java's consumer that configure librdkafka (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from backlog_spark.errors import SettingError
from backlog_spark.spi.kafka_names import check_name
from backlog_spark.spi.kafka_security import SECURITY_NAMES, Security
from backlog_spark.spi.options import Option, parsed

__all__ = ["Properties"]

_PREFIX = "kafka."

# By Java's name: librdkafka's name.
_TUNING = {
    "client.id": "client.id",
    "client.rack": "client.rack",
    "client.dns.lookup": "client.dns.lookup",
    "fetch.min.bytes": "fetch.min.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "fetch.max.bytes": "fetch.max.bytes",
    "max.partition.fetch.bytes": "max.partition.fetch.bytes",
    "check.crcs": "check.crcs",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "reconnect.backoff.ms": "reconnect.backoff.ms",
    "reconnect.backoff.max.ms": "reconnect.backoff.max.ms",
    "retry.backoff.ms": "retry.backoff.ms",
    "retry.backoff.max.ms": "retry.backoff.max.ms",
    "request.timeout.ms": "socket.timeout.ms",
    "connections.max.idle.ms": "connections.max.idle.ms",
    "metadata.max.age.ms": "metadata.max.age.ms",
    "socket.connection.setup.timeout.ms": "socket.connection.setup.timeout.ms",
    "ssl.cipher.suites": "ssl.cipher.suites",
}
_TEXTS = ("client.id", "client.rack", "client.dns.lookup", "ssl.cipher.suites")
_SWITCHES = ("check.crcs",)

# Properties that only librdkafka has. They are passed on unchanged.
_NATIVE = (
    "api.version.fallback.ms", "api.version.request", "broker.address.family", "broker.address.ttl",
    "broker.version.fallback", "debug", "enable.ssl.certificate.verification", "fetch.error.backoff.ms",
    "fetch.message.max.bytes", "fetch.queue.backoff.ms", "log_level", "message.max.bytes",
    "queued.max.messages.kbytes", "queued.min.messages", "receive.message.max.bytes", "socket.keepalive.enable",
    "socket.max.fails", "socket.nagle.disable", "ssl.crl.location", "ssl.curves.list", "ssl.sigalgs.list",
    "topic.metadata.refresh.fast.interval.ms", "topic.metadata.refresh.interval.ms",
)  # fmt: skip
_OWN = ("bootstrap.servers", "group.id", "isolation.level", "default.api.timeout.ms")

_NO_GROUP = "The source joins no consumer group: offsets are in the checkpoint. Leave it out."
_BYTES = "Keys and values are read as bytes, and the option valueFormat decodes values. Leave it out."
_REFUSED = {
    "client": "confluent-kafka reads all topics. Leave it out.",
    "auto.offset.reset": "Set startingOffsets: the stream decides what is read, not the client.",
    "enable.auto.commit": _NO_GROUP,
    "auto.commit.interval.ms": _NO_GROUP,
    "session.timeout.ms": _NO_GROUP,
    "heartbeat.interval.ms": _NO_GROUP,
    "max.poll.interval.ms": _NO_GROUP,
    "group.instance.id": _NO_GROUP,
    "group.protocol": _NO_GROUP,
    "group.remote.assignor": _NO_GROUP,
    "partition.assignment.strategy": _NO_GROUP,
    "max.poll.records": "The stream's own options limit the rows of a batch. Leave it out.",
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "key.serializer": "The source writes nothing. Leave it out.",
    "value.serializer": "The source writes nothing. Leave it out.",
    "exclude.internal.topics": "subscribePattern never matches internal topics. Name them with subscribe.",
    "allow.auto.create.topics": "Reading never creates topics. Leave it out.",
}
_KNOWN = (*_OWN, *_TUNING, *SECURITY_NAMES, *_NATIVE)


@dataclass(frozen=True)
class Properties:
    """Parsed properties.

    Parameters
    ----------
    security : Security
    read_committed : bool
        Whether records of transactions are read only after the commit.
    group_id : str
        Group name of the reader, for brokers that grant rights by it; "" for a generated one.
    api_timeout_ms : int
        A request of the planner fails after this time without an answer.
    tuning : tuple of (str, str)
        Java's names, with values that have been checked.
    native : tuple of (str, str)
        librdkafka's own.
    """

    servers: str = parsed(
        None, Option("kafka.bootstrap.servers", "addresses", "required", spark="kafka.bootstrap.servers")
    )
    """Brokers to contact first, as `host:port`, separated by commas."""
    security: Security = parsed(None, Security, default=Security())
    read_committed: bool = True
    group_id: str = ""
    api_timeout_ms: int = 60_000
    tuning: tuple[tuple[str, str], ...] = parsed(None, Option("kafka.*", "", "Kafka's", spark="kafka.*"), default=())
    """Properties of Java's consumer that have a meaning here. Others are refused, with what to do instead. Defaults:
    `kafka.isolation.level` is read_committed, `kafka.check.crcs` is false."""
    native: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse options. Those that do not begin with ``kafka.`` are ignored.

        Raises
        ------
        SettingError
            For a property that is unknown, malformed, or has no meaning here.
        """
        # Property names are lower case, and Spark may have changed option names to lower case.
        lower = {name.lower(): value for name, value in options.items()}
        given = {name[len(_PREFIX) :]: value for name, value in lower.items() if name.startswith(_PREFIX)}
        for name in given:
            check_name(name, "the Kafka phase", _KNOWN, _REFUSED, "See the table of options.")
        servers = given.get("bootstrap.servers", "").strip()
        if not servers:
            raise SettingError(
                "kafka.bootstrap.servers", given.get("bootstrap.servers"), "the Kafka phase needs this option.",
                'Set it to "host:port", or to several, separated by commas.',
            )  # fmt: skip
        isolation = given.get("isolation.level", "read_committed").strip().lower()
        if isolation not in ("read_committed", "read_uncommitted"):
            raise SettingError(
                "kafka.isolation.level",
                isolation,
                "is neither read_committed nor read_uncommitted.",
                "Set one of these, or leave it out.",
            )
        return cls(
            servers=servers,
            security=Security.parse({name: given[name] for name in SECURITY_NAMES if name in given}),
            read_committed=isolation == "read_committed",
            group_id=given.get("group.id", ""),
            api_timeout_ms=_number("default.api.timeout.ms", given.get("default.api.timeout.ms", "60000"), 1),
            tuning=tuple((name, _checked(name, given[name])) for name in _TUNING if name in given),
            native=tuple((name, given[name]) for name in _NATIVE if name in given),
        )

    def for_librdkafka(self) -> dict[str, str]:
        """The tuning in librdkafka's names."""
        return {**{_TUNING[name]: value for name, value in self.tuning}, **dict(self.native)}

    def __str__(self) -> str:
        return f"Kafka at {self.servers}{self.security.who}"


def _checked(name: str, text: str) -> str:
    if name in _TEXTS:
        return text
    if name in _SWITCHES:
        if text.strip().lower() not in ("true", "false"):
            raise SettingError(
                f"{_PREFIX}{name}", text, "is neither true nor false.", "Set one of these, or leave it out."
            )
        return text.strip().lower()
    return str(_number(name, text, -1 if name.endswith("buffer.bytes") else 0))


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
