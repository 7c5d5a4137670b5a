"""The interface of the two Kafka clients, and its errors."""

from __future__ import annotations

import base64
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from backlog_spark.errors import BacklogError

from .offsets import LATEST, Partition
from .properties import Properties

__all__ = [
    "NO_TIMESTAMP",
    "KafkaClient",
    "Lookups",
    "OffsetGone",
    "Records",
    "Topic",
    "TopicGone",
    "Unreachable",
    "patiently",
    "topic_id",
]

T = TypeVar("T")

NO_TIMESTAMP = -1
"""Spark's timestampType for a record without a time."""

_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0


@dataclass(frozen=True)
class Topic:
    """A topic's description from the brokers.

    Parameters
    ----------
    id : str
        In Kafka's own form; "" from brokers before 2.8, which have none.
    partitions : tuple of int
        Numbers in order.
    is_internal : bool
        Whether Kafka keeps it for itself.
    """

    id: str
    partitions: tuple[int, ...]
    is_internal: bool = False


class Records(Protocol):
    """Some records of one partition in the order of their offsets, without markers and aborted records.

    Each method gives one value for each record. It is called at most once.
    """

    def __len__(self) -> int: ...

    def next_offset(self) -> int:
        """The offset after the last record."""
        ...

    def keys(self) -> list[bytes | None]: ...

    def values(self) -> list[bytes | None]: ...

    def offsets(self) -> list[int]: ...

    def timestamps(self) -> tuple[list[int | None], list[int]]:
        """Milliseconds since 1970, and Spark's timestampType: 0 CreateTime, 1 LogAppendTime, `NO_TIMESTAMP`."""
        ...

    def headers(self) -> list[list[tuple[str, bytes | None]]]: ...


class Unreachable(BacklogError):
    """No broker answered in time."""


class OffsetGone(Exception):
    """The log does not have the next offset: it was removed, or does not exist yet."""


class TopicGone(Exception):
    """The topic or the partition does not exist."""


class Lookups(ABC):
    """Questions to the brokers for planning: topics and offsets. For one thread at a time.

    Every method raises `Unreachable` if no broker answers, and `BacklogError` if a broker refuses, for example a wrong
    password.

    Parameters
    ----------
    properties : Properties
    """

    def __init__(self, properties: Properties) -> None:
        self.properties = properties

    @abstractmethod
    def names(self) -> list[str]:
        """Names of all topics that the user may see."""

    @abstractmethod
    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """Descriptions of those topics that exist."""

    @abstractmethod
    def offsets(self, partitions: Collection[Partition], at: int, *, committed: bool) -> dict[Partition, int]:
        """For each partition the first existing offset (``at`` = `EARLIEST`) or the one after the last (`LATEST`).

        Parameters
        ----------
        committed : bool
            Whether `LATEST` is the begin of the first transaction that is still open (the last stable offset).

        Raises
        ------
        TopicGone
            A partition does not exist.
        """

    @abstractmethod
    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """For each partition the first offset whose record has this time (milliseconds since 1970) or a later one.

        None if there is none. `Properties.read_committed` decides whether open transactions count. Raises `TopicGone`.
        """

    @abstractmethod
    def first_time(self, partition: Partition, first: int, until: int) -> int | None:
        """Time of a log's first record, milliseconds since 1970; None if it is unknown. Only for messages.

        ``first`` and ``until`` are its first offset and the one after its last.
        """

    def latest(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """For each partition the offset at which reading ends now."""
        return self.offsets(partitions, LATEST, committed=self.properties.read_committed)


class KafkaClient(Lookups):
    """One of the two clients. It connects at the first call. For one thread at a time.

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

    def __init__(self, properties: Properties, group_id: str, timeout_s: float) -> None:
        super().__init__(properties)
        self.group_id = group_id
        self.timeout_s = timeout_s

    @abstractmethod
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

    @abstractmethod
    def configs(self, names: Collection[str]) -> dict[str, dict[str, str]]:
        """Settings of topics, such as ``retention.ms``. Needs the right DESCRIBE_CONFIGS. Only for messages."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections. The client may be used again, and then connects again."""

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
            "Check kafka.security.protocol, kafka.sasl.mechanism, user and password, and the certificates.",
        )

    def clean(self, text: str) -> str:
        """A client's message without secrets, on one line, without a full stop at its end."""
        for secret in self.properties.security.secrets():
            text = text.replace(secret, "***")
        return " ".join(text.split()).rstrip(".")


def patiently(ask: Callable[[], T], retriable: Callable[[Exception], bool], seconds: float) -> T:
    """Ask until there is an answer, with growing pauses. Raises the last error when the time is over."""
    end, pause = time.monotonic() + seconds, _LEAST_PAUSE_S
    while True:
        try:
            return ask()
        except Exception as error:
            if not retriable(error) or time.monotonic() + pause >= end:
                raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


def topic_id(found: object) -> str:
    """A topic's id in the form of Kafka's own tools, from a client's form."""
    if found is None:
        return ""
    if isinstance(found, (uuid.UUID, str)) and "-" in str(found) and len(str(found)) == 36:
        data = uuid.UUID(str(found)).bytes
    else:
        data = base64.b64decode(str(found) + "==")
    return "" if data == bytes(16) else base64.urlsafe_b64encode(data).decode().rstrip("=")
