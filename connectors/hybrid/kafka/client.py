"""Questions to Kafka brokers for planning, their answers and errors."""

from __future__ import annotations

import base64
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from backlog_spark.errors import BacklogError

from .offsets import LATEST, Partition
from .properties import Properties

__all__ = [
    "Lookups",
    "OffsetGone",
    "Topic",
    "TopicGone",
    "Unreachable",
    "looked_again",
    "topic_id",
]

T = TypeVar("T")

_SHARE = 10
"""A description holds for so many times as long as it takes, so readers spend a tenth of their time on them."""

_LOOKS_S = (0.2, 0.4, 0.8, 1.6)
"""A topic that seems to be gone is looked for again after each of these: a broker that has just started, or that has
old metadata, does not know it for a moment. A topic that is gone is reported 3 s later."""


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
        self._described: dict[str, tuple[Topic, float]] = {}  # and until when it holds

    @abstractmethod
    def names(self) -> list[str]:
        """Names of all topics that the user may see."""

    @abstractmethod
    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """Descriptions of those topics that exist."""

    def topic_of(self, partition: Partition) -> Topic | None:
        """The description of a partition's topic; None if the topic does not exist.

        One that has the partition may be used again, for ten times as long as it took: a broker describes all
        partitions, in 50 ms for a thousand, and a batch asks for each of them.
        """
        (name, number), asked = partition, time.monotonic()
        found, until = self._described.pop(name, (None, 0.0))
        if found is None or number not in found.partitions or asked > until:
            found = self.topics([name]).get(name)
            now = time.monotonic()
            until = now + _SHARE * (now - asked)
        if found is not None:
            self._described[name] = (found, until)
        return found

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


def looked_again(look: Callable[[], T], is_whole: Callable[[T], bool]) -> T:
    """What ``look`` finds. If something seems to be gone, look again a few times."""
    found = look()
    for pause in _LOOKS_S:
        if is_whole(found):
            break
        time.sleep(pause)
        found = look()
    return found


def topic_id(found: object) -> str:
    """A topic's id in the form of Kafka's own tools, from a client's form."""
    if found is None:
        return ""
    if isinstance(found, (uuid.UUID, str)) and "-" in str(found) and len(str(found)) == 36:
        data = uuid.UUID(str(found)).bytes
    else:
        data = base64.b64decode(str(found) + "==")
    return "" if data == bytes(16) else base64.urlsafe_b64encode(data).decode().rstrip("=")
