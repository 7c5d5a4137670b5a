"""GTIDs: MySQL's sets, and MariaDB's lists of each domain's last transaction (pure).

The tagged GTIDs of MySQL 8.3 are refused.

Sources: MySQL Reference Manual, "GTID Format and Storage"; MariaDB Knowledge Base, "Global Transaction ID".
"""

from __future__ import annotations

import bisect
import re
import struct
from collections.abc import Iterator
from uuid import UUID

from backlog_spark.errors import BacklogError

__all__ = ["GtidSet", "MariaDbGtids", "previous_gtids"]

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


class GtidSet:
    """A set of global transaction identifiers ``uuid:number``.

    Parameters
    ----------
    text : str
        The server's own form, for example ``"3e11fa47-...:1-5:8,4a2b...:7"``. White space is ignored. The empty string
        is the empty set.

    Raises
    ------
    BacklogError
        The text is not a GTID set.
    """

    __slots__ = ("_ranges",)

    def __init__(self, text: str = "") -> None:
        # uuid -> sorted, disjoint, non-adjacent [first, last] ranges, both ends included
        self._ranges: dict[str, list[tuple[int, int]]] = {}
        for part in "".join(text.split()).split(","):
            if not part:
                continue
            uuid, *intervals = part.lower().split(":")
            if not _UUID.match(uuid) or not intervals:
                raise BacklogError(f"{part!r} is not a GTID set.", "Expected uuid:first-last[:first-last]….")
            for interval in intervals:
                first, _, last = interval.partition("-")
                if not first.isdigit() or (last and not last.isdigit()):
                    raise BacklogError(
                        f"{part!r} is not a GTID set that this version reads.",
                        "Tagged GTIDs (MySQL 8.3 and later) are not supported.",
                    )
                self.add_range(uuid, int(first), int(last or first))

    def contains(self, uuid: str, number: int) -> bool:
        """Whether transaction ``uuid:number`` is in the set. ``uuid`` in lower case."""
        ranges = self._ranges.get(uuid)
        if not ranges:
            return False
        index = bisect.bisect_right(ranges, (number, 2**63)) - 1
        return index >= 0 and ranges[index][1] >= number

    def add(self, uuid: str, number: int) -> None:
        """Add transaction ``uuid:number``."""
        self.add_range(uuid, number, number)

    passed = add

    def update(self, other: GtidSet) -> None:
        """Add all transactions of another set."""
        for uuid, first, last in other:
            self.add_range(uuid, first, last)

    def issuperset(self, other: GtidSet) -> bool:
        """Whether every transaction of ``other`` is in this set."""
        for uuid, first, last in other:
            ranges = self._ranges.get(uuid, [])
            index = bisect.bisect_right(ranges, (first, 2**63)) - 1
            if index < 0 or ranges[index][1] < last:
                return False
        return True

    def gaps(self) -> list[str]:
        """The uuids whose numbers have a gap. Commits out of binary log order leave one for a moment."""
        return [uuid for uuid, ranges in self._ranges.items() if len(ranges) > 1]

    def add_range(self, uuid: str, first: int, last: int) -> None:
        """Add transactions ``first`` to ``last`` of ``uuid``."""
        ranges = self._ranges.setdefault(uuid, [])
        index = bisect.bisect_left(ranges, (first, 0))
        if index > 0 and ranges[index - 1][1] >= first - 1:
            index -= 1
            first = ranges[index][0]
        end = index
        while end < len(ranges) and ranges[end][0] <= last + 1:
            last = max(last, ranges[end][1])
            end += 1
        ranges[index:end] = [(first, last)]

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        for uuid, ranges in self._ranges.items():
            for first, last in ranges:
                yield uuid, first, last

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GtidSet) and self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        parts = []
        for uuid, ranges in sorted(self._ranges.items()):
            intervals = ":".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
            parts.append(f"{uuid}:{intervals}")
        return ",".join(parts)

    def __repr__(self) -> str:
        return f"GtidSet({str(self)!r})"


def previous_gtids(event: bytes) -> Iterator[tuple[str, int, int]]:
    """The ranges of a Previous_gtids event: uuid, first and last number. ``event`` has one byte before it."""
    at = 20
    sources, at = int.from_bytes(event[at : at + 8], "little"), at + 8
    for _ in range(sources):
        uuid = str(UUID(bytes=event[at : at + 16]))
        intervals, at = int.from_bytes(event[at + 16 : at + 24], "little"), at + 24
        for _ in range(intervals):
            first, after = struct.unpack_from("<qq", event, at)
            at += 16
            yield uuid, first, after - 1


_MARIADB_GTID = re.compile(r"(\d+)-(\d+)-(\d+)\Z", re.ASCII)


class MariaDbGtids:
    """A position in MariaDB's binary log, named by the last transaction of each replication domain before it.

    It is not a set: without ``gtid_strict_mode`` the numbers of a domain need not grow along the log. Only log
    positions decide whether a transaction lies before another.

    Parameters
    ----------
    text : str
        The server's own form, ``domain-server-number`` for each domain: ``"0-1-17,7-2-3"``, in any order. The empty
        string is the log's beginning.

    Raises
    ------
    BacklogError
        The text is not such a list.
    """

    __slots__ = ("_last",)

    def __init__(self, text: str = "") -> None:
        self._last: dict[int, tuple[int, int]] = {}
        for part in filter(None, "".join(text.split()).split(",")):
            found = _MARIADB_GTID.match(part)
            if found is None:
                raise BacklogError(f"{part!r} is not a GTID of MariaDB.", "Expected domain-server-number.")
            domain, server, number = map(int, found.groups())
            self._last[domain] = server, number

    def passed(self, source: str, number: int) -> None:
        """Advance past transaction ``number`` of ``source``: a domain and a server, as in ``"0-1"``."""
        domain, _, server = source.partition("-")
        self._last[int(domain)] = int(server), number

    def is_where(self, told: MariaDbGtids) -> bool:
        """Whether the GTIDs that the server gives at a log position mean this position.

        The server may have forgotten domains (``FLUSH BINARY LOGS DELETE_DOMAIN_ID``), but those that it gives must be
        equal.
        """
        if not told._last:
            return not self._last
        return all(self._last.get(domain) == last for domain, last in told._last.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MariaDbGtids) and self._last == other._last

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self._last.items()))

    def __repr__(self) -> str:
        return f"MariaDbGtids({str(self)!r})"
