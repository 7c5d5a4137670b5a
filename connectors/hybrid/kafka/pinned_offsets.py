"""The state of the topics when a query first started, long before its Kafka phase begins (pure).

The phases before may take days. What retention removes meanwhile, and what is written meanwhile, is known only from
the offsets of the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backlog_spark.common.stored_values import checked, reading_stored

from .offsets import Partition, from_json, to_json

__all__ = ["Pin"]


@dataclass(frozen=True)
class Pin:
    """The topics at one moment.

    Parameters
    ----------
    earliest, latest : mapping
        For each partition the first offset, and the one after the last.
    topics : mapping of str to str
        Ids; "" if the brokers give none.
    at_ms : int
        The time, milliseconds since 1970.
    """

    earliest: Mapping[Partition, int]
    latest: Mapping[Partition, int]
    topics: Mapping[str, str]
    at_ms: int

    def to_json(self) -> dict[str, Any]:
        """The form that an offset keeps, in a stable order."""
        return {
            "earliest": to_json(self.earliest),
            "latest": to_json(self.latest),
            "topics": dict(sorted(self.topics.items())),
            "at": self.at_ms,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Pin:
        """Read back what `to_json` wrote."""
        with reading_stored("The first position of Kafka in the checkpoint"):
            return checked(
                cls(from_json(data["earliest"]), from_json(data["latest"]), dict(data["topics"]), data["at"])
            )
