"""The position of the Kafka phase: all that fixes what a batch reads, in a small JSON object (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from backlog_spark.common.stored_values import check_version, checked, reading_stored

from ..phases import Position
from .backlog import Flag
from .offsets import Partition, from_json, to_json

__all__ = ["KafkaPosition"]

_VERSION = 1


@dataclass(frozen=True)
class KafkaPosition:
    """A point between two batches.

    Parameters
    ----------
    offsets : mapping
        The next offset to read, for each partition.
    topics : mapping of str to str
        Id of each topic; "" if the brokers give none. A topic that was deleted and made again has another id.
    begin : mapping
        Offsets at which the batch that ends here began, for partitions where that was not the end of the batch before:
        new ones, and those that lost records (``failOnDataLoss=false``). So a replay begins there as well.
    until : mapping or None
        Where the phase ends, if it has an end.
    dedup : str
        File with the keys of rows that came from files already; "" for none.
    dedup_ms : int or None
        Records with a timestamp up to this may be among these rows; milliseconds since 1970.
    dedup_until : mapping
        Used instead of ``dedup_ms`` in positions of earlier versions: for each partition the offset before which
        records may be among these rows. Partitions that have passed it are omitted.
    flag : Flag
        Whether what follows is backlog.
    started : KafkaPosition or None
        The position that the phase began with; None if it is this one.
    """

    offsets: Mapping[Partition, int]
    topics: Mapping[str, str]
    begin: Mapping[Partition, int] = field(default_factory=dict)
    until: Mapping[Partition, int] | None = None
    dedup: str = ""
    dedup_ms: int | None = None
    dedup_until: Mapping[Partition, int] = field(default_factory=dict)
    flag: Flag = field(default_factory=Flag)
    started: KafkaPosition | None = None

    @property
    def first(self) -> KafkaPosition:
        """The position that the phase began with."""
        return self.started or self

    def moved(
        self,
        offsets: Mapping[Partition, int],
        topics: Mapping[str, str],
        begin: Mapping[Partition, int],
        flag: Flag,
    ) -> KafkaPosition:
        """The end of a batch that starts here; equal to it if nothing is new."""
        if (offsets, topics, flag) == (self.offsets, self.topics, self.flag) and not begin:
            return self
        left = {p: end for p, end in self.dedup_until.items() if p in offsets and offsets[p] < end}
        return replace(
            self,
            offsets=offsets,
            topics=topics,
            begin=begin,
            dedup=self.dedup if left or self.dedup_ms is not None else "",
            dedup_until=left,
            flag=flag,
            started=self.first,
        )

    def start_of(self, end: KafkaPosition, partition: Partition) -> int:
        """Where the batch from here to ``end`` begins in a partition of ``end``."""
        if partition in end.begin:
            return end.begin[partition]
        topic = partition[0]
        if self.topics.get(topic, "") != end.topics.get(topic, ""):
            return 0  # recreated since
        return self.offsets.get(partition, 0)

    def to_json(self) -> Position:
        """As kept in Spark's offset log. The order of keys is fixed: Spark compares offsets as text."""
        out: Position = {"version": _VERSION, **self._part()}
        if self.started is not None:
            out["first"] = self.started._part()
        return out

    def _part(self) -> dict[str, Any]:
        out: dict[str, Any] = {"offsets": to_json(self.offsets), "topics": dict(sorted(self.topics.items()))}
        if self.begin:
            out["begin"] = to_json(self.begin)
        if self.until is not None:
            out["until"] = to_json(self.until)
        if self.dedup:
            out["dedup"] = self.dedup
            if self.dedup_ms is None:
                out["dedupUntil"] = to_json(self.dedup_until)
            else:
                out["dedupMs"] = self.dedup_ms
        out["isBacklog"] = self.flag.is_backlog
        out["since"] = self.flag.since_ms
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KafkaPosition:
        """Read back what `to_json` wrote.

        Raises
        ------
        BacklogError
            If it has another version, is damaged, or is not a position of Kafka.
        """
        check_version("The position of Kafka in the checkpoint", data.get("version"), _VERSION)
        with reading_stored("The position of Kafka in the checkpoint"):
            first = data.get("first")
            return checked(replace(cls._from_part(data), started=cls._from_part(first) if first else None))

    @classmethod
    def _from_part(cls, data: Mapping[str, Any]) -> KafkaPosition:
        return cls(
            offsets=from_json(data["offsets"]),
            topics=dict(data["topics"]),
            begin=from_json(data.get("begin", {})),
            until=from_json(data["until"]) if "until" in data else None,
            dedup=data.get("dedup", ""),
            dedup_ms=data.get("dedupMs"),
            dedup_until=from_json(data.get("dedupUntil", {})),
            flag=Flag(data["isBacklog"], data["since"]),
        )
