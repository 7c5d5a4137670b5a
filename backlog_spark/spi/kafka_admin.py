"""Questions about Kafka's topics, as Spark's own client answers them to a connector (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

__all__ = ["AdminError", "FoundTopic", "KafkaAdmin", "Partition"]

Partition = tuple[str, int]


class FoundTopic(NamedTuple):
    """A topic: its id as Kafka's tools write it, "" where brokers have none; its partitions; whether it is internal."""

    id: str
    partitions: tuple[int, ...]
    is_internal: bool


class AdminError(Exception):
    """A question that was not answered.

    Parameters
    ----------
    text : str
        Kafka's own words, which may hold values of options.
    is_gone : bool
        A topic or partition is not there.
    is_timeout : bool
        No broker answered.
    """

    def __init__(self, text: str, *, is_gone: bool = False, is_timeout: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.is_gone = is_gone
        self.is_timeout = is_timeout


class KafkaAdmin(Protocol):
    """A client of Kafka. Each method raises `AdminError`."""

    def names(self) -> list[str]:
        """All topics that may be seen."""

    def topics(self, names: Collection[str]) -> dict[str, FoundTopic]:
        """Those of the topics that exist."""

    def offsets(self, partitions: Collection[Partition], *, earliest: bool, committed: bool) -> dict[Partition, int]:
        """Of each partition the first offset there is, or the one after the last; committed: the last stable offset."""

    def offsets_for_times(
        self, times: Mapping[Partition, int], *, committed: bool
    ) -> dict[Partition, tuple[int, int] | None]:
        """Of each partition offset and time of its first record with that time or a later one; None without one."""
