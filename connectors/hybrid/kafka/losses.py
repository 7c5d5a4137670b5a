"""Finds changes of the partitions since the last batch: new partitions, and unread records that are gone (pure)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from backlog_spark.errors import BacklogError

from .client import Topic
from .offsets import Partition, shown
from .positions import KafkaPosition

__all__ = ["Gap", "Loss", "reconciled", "shown_time"]


@dataclass(frozen=True)
class Loss:
    """Records of a partition that were gone before they were read.

    Parameters
    ----------
    partition : (str, int)
    wanted : int
        The next offset to read.
    earliest : int or None
        The first offset that exists; None if the partition does not exist.
    why : str
    is_short : bool
        The log ends before ``wanted``.
    """

    partition: Partition
    wanted: int
    earliest: int | None
    why: str
    is_short: bool = False

    @property
    def going_on(self) -> str:
        """How reading continues if the query does not stop."""
        if self.earliest is None:
            return "the partition is skipped."
        return f"reading continues at offset {self.earliest}."

    def error(self) -> BacklogError:
        """The error that stops the query."""
        return BacklogError(
            str(self),
            "If that is acceptable, set failOnDataLoss=false and start the query again: it continues with the remaining"
            " records. Otherwise start a new query with a new checkpoint, and keep records longer (retention.ms,"
            " retention.bytes).",
        )

    def __str__(self) -> str:
        there = "there is none" if self.earliest is None else f"the earliest is {self.earliest}"
        return f"Records of {shown(self.partition)} are lost: the next offset is {self.wanted}, {there}: {self.why}."


@dataclass(frozen=True)
class Gap(Loss):
    """Records of the time at which reading should begin, but to which the log no longer goes back.

    Parameters
    ----------
    since_ms : int
        That time, milliseconds since 1970.
    first_ms : int or None
        Time of the first record that exists; None if there is none.
    """

    since_ms: int = 0
    first_ms: int | None = None

    def error(self) -> BacklogError:
        return BacklogError(
            str(self),
            "Start a new query whose files have these records. If there are none, or the loss is acceptable, set"
            " failOnDataLoss=false and start the query again; once it reads the topic, true works as well.",
        )

    def __str__(self) -> str:
        until = "now" if self.first_ms is None else f"{shown_time(self.first_ms)} (offset {self.earliest})"
        return (
            f"Records of {shown(self.partition)} from {shown_time(self.since_ms)} to {until} may be lost: reading"
            f" should begin at that time, but {self.why}, and nothing older is left."
        )


def shown_time(ms: float) -> str:
    """A time in a message."""
    try:
        return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError):  # beyond the year 9999
        return f"{ms:.0f} ms since 1970"


def reconciled(
    start: KafkaPosition,
    topics: Mapping[str, Topic],
    earliest: Mapping[Partition, int],
    latest: Mapping[Partition, int],
) -> tuple[dict[Partition, int], dict[Partition, Loss]]:
    """Where the next batch begins in each existing partition, and what was lost before.

    A new partition begins at 0: everything in it was written after the last batch.
    """
    begins: dict[Partition, int] = {}
    losses: dict[Partition, Loss] = {}
    for partition in sorted(latest):
        name, first = partition[0], earliest[partition]
        known, found = start.topics.get(name), topics[name].id
        at = start.offsets.get(partition)
        if at is not None and known and found and known != found:
            losses[partition] = Loss(partition, at, first, "the topic was deleted and recreated")
        elif at is None and first > 0:
            losses[partition] = Loss(partition, 0, first, "it is new, and retention has removed its first records")
        elif at is not None and at < first:
            losses[partition] = Loss(partition, at, first, "retention has removed them")
        elif at is not None and at > latest[partition]:
            why = f"the log ends at {latest[partition]}; the topic was deleted and recreated, or a broker lost records"
            losses[partition] = Loss(partition, at, first, why, is_short=True)
        begins[partition] = first if partition in losses else (at or 0)
    for partition in sorted(set(start.offsets) - set(latest)):
        what = "partition" if partition[0] in topics else "topic"
        why = f"the {what} is gone, or the options do not name it any more"
        losses[partition] = Loss(partition, start.offsets[partition], None, why)
    return begins, losses
