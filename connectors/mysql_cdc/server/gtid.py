"""GTIDs: MySQL's sets, and MariaDB's lists of each domain's last transaction (pure).

A *source* is the part of a GTID before its number: ``uuid``, with the tags of MySQL 8.3 also ``uuid:tag``; in MariaDB
``domain-server``.

Sources: MySQL Reference Manual, "GTID Format and Storage"; MySQL source, sql/rpl_gtid_set.cc (``Gtid_set::encode``) and
"mysql::serialization" for tagged GTIDs; MariaDB Knowledge Base, "Global Transaction ID".
"""

from __future__ import annotations

import bisect
import re
import struct
from collections.abc import Iterator
from uuid import UUID

from backlog_spark.errors import BacklogError

__all__ = ["GtidSet", "MariaDbGtids", "committed_ms", "gtid_text", "is_mariadb_source", "previous_gtids", "tagged_gtid"]

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_INTERVAL = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?\Z", re.ASCII)
_MOST_NUMBER = 2**63 - 2
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}\Z")
_UUID_SIZE = 36
_SHOWN = 200  # characters of a malformed text
# In the header of an encoded set, which is the number of sources: the format, in the last byte and also in the first.
_TAGGED = 1 << 56 | 1

# Its place behind flags, source, number, the kind of the logical time and two logical times; in microseconds. The
# highest bit says that the time at the first server of a chain of replicas follows.
_COMMITTED = 1 + 16 + 8 + 1 + 8 + 8
_ANOTHER_TIME = 1 << 55


def is_mariadb_source(source: str) -> bool:
    """Whether a source is MariaDB's. The empty source, of a transaction without a GTID, is not."""
    return 0 < len(source) < _UUID_SIZE


def gtid_text(source: str, number: int) -> str:
    """A GTID as its server writes it; "" without one."""
    return f"{source}{'-' if is_mariadb_source(source) else ':'}{number}" if source else ""


class GtidSet:
    """A set of global transaction identifiers ``uuid:number`` and ``uuid:tag:number``.

    Parameters
    ----------
    text : str
        The server's own form, for example ``"3e11fa47-...:1-5:8,4a2b...:7:backup:1-3"``. White space is ignored. The
        empty string is the empty set.

    Raises
    ------
    BacklogError
        The text is not a GTID set.
    """

    __slots__ = ("_ranges",)

    def __init__(self, text: str = "") -> None:
        # source -> sorted, disjoint, non-adjacent [first, last] ranges, both ends included
        self._ranges: dict[str, list[tuple[int, int]]] = {}
        for part in "".join(text.split()).split(","):
            if not part:
                continue
            uuid, *rest = part.lower().split(":")
            source, is_named = uuid, False
            if not _UUID.match(uuid):
                raise _no_set(part)
            for each in rest:
                if interval := _INTERVAL.match(each):
                    first, last = int(interval[1]), int(interval[2] or interval[1])
                    if not 1 <= first <= last <= _MOST_NUMBER:
                        raise _no_set(each)
                    self.add_range(source, first, last)
                    is_named = True
                elif _TAG.match(each):
                    source, is_named = f"{uuid}:{each}", False
                else:
                    raise _no_set(part)
            if not is_named:
                raise _no_set(part)

    def contains(self, source: str, number: int) -> bool:
        """Whether transaction ``number`` of a source is in the set. ``source`` in lower case."""
        ranges = self._ranges.get(source)
        if not ranges:
            return False
        index = bisect.bisect_right(ranges, (number, 2**63)) - 1
        return index >= 0 and ranges[index][1] >= number

    def add(self, source: str, number: int) -> None:
        """Add transaction ``number`` of a source."""
        self.add_range(source, number, number)

    passed = add

    def update(self, other: GtidSet) -> None:
        """Add all transactions of another set."""
        for source, first, last in other:
            self.add_range(source, first, last)

    def issuperset(self, other: GtidSet) -> bool:
        """Whether every transaction of ``other`` is in this set."""
        for source, first, last in other:
            ranges = self._ranges.get(source, [])
            index = bisect.bisect_right(ranges, (first, 2**63)) - 1
            if index < 0 or ranges[index][1] < last:
                return False
        return True

    def add_range(self, source: str, first: int, last: int) -> None:
        """Add transactions ``first`` to ``last`` of a source."""
        ranges = self._ranges.setdefault(source, [])
        index = bisect.bisect_left(ranges, (first, 0))
        if index > 0 and ranges[index - 1][1] >= first - 1:
            index -= 1
            first = ranges[index][0]
        end = index
        while end < len(ranges) and ranges[end][0] <= last + 1:
            last = max(last, ranges[end][1])
            end += 1
        ranges[index:end] = [(first, last)]

    def encoded(self) -> bytes:
        """The set as a replica sends it to ask for what follows. Only servers since 8.3 read a set with tags."""
        tagged = any(":" in source for source in self._ranges)
        parts = [((len(self._ranges) << 8 | _TAGGED) if tagged else len(self._ranges)).to_bytes(8, "little")]
        for source, ranges in sorted(self._ranges.items()):
            uuid, _, tag = source.partition(":")
            parts.append(UUID(uuid).bytes)
            if tagged:
                parts.append(bytes([len(tag) << 1]) + tag.encode())
            parts.append(struct.pack("<q", len(ranges)))
            parts += [struct.pack("<qq", first, last + 1) for first, last in ranges]
        return b"".join(parts)

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        for source, ranges in self._ranges.items():
            for first, last in ranges:
                yield source, first, last

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GtidSet) and self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        parts = []
        for source, ranges in sorted(self._ranges.items()):
            intervals = ":".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
            parts.append(f"{source}:{intervals}")
        return ",".join(parts)

    def __repr__(self) -> str:
        return f"GtidSet({str(self)!r})"


def _no_set(part: str) -> BacklogError:
    return BacklogError(
        f"{part[:_SHOWN]!r} is not a GTID set.",
        "Expected uuid:first-last[:first-last]…, with tags uuid:tag:first-last….",
    )


def previous_gtids(event: bytes) -> Iterator[tuple[str, int, int]]:
    """The ranges of a Previous_gtids event: source, first and last number. ``event`` has one byte before it."""
    at = 20
    sources, at = int.from_bytes(event[at : at + 8], "little"), at + 8
    tagged = bool(sources >> 56)
    for _ in range(sources >> 8 & (1 << 48) - 1 if tagged else sources):
        source, at = str(UUID(bytes=event[at : at + 16])), at + 16
        if tagged:
            size, at = event[at] >> 1, at + 1
            source += f":{event[at : at + size].decode()}" if size else ""
            at += size
        intervals, at = int.from_bytes(event[at : at + 8], "little"), at + 8
        for _ in range(intervals):
            first, after = struct.unpack_from("<qq", event, at)
            at += 16
            yield source, first, after - 1


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of mysql::serialization, without sign, and the offset after it."""
    more = (~data[at] & data[at] + 1).bit_length() - 1  # as many bytes follow as the first one ends in ones
    end = at + 1 + more
    return int.from_bytes(data[at:end], "little") >> min(more + 1, 8), end


def committed_ms(body: bytes) -> int:
    """When the server committed, milliseconds since 1970, from a Gtid or Anonymous_Gtid event's bytes after the header.

    0 before MySQL 8.0.1, which does not tell. Source: MySQL source, libbinlogevents, class Gtid_event.
    """
    found = int.from_bytes(body[_COMMITTED : _COMMITTED + 7], "little") if len(body) >= _COMMITTED + 7 else 0
    return (found & ~_ANOTHER_TIME) // 1000


def tagged_gtid(body: bytes) -> tuple[str, int]:
    """Source and number of a Gtid_tagged event, from its bytes after the header."""
    at = 0
    for _ in range(3):  # version, size, the last field that a reader must know
        _, at = _number(body, at)
    uuid, number, tag = b"", 0, ""
    while at < len(body):
        found, at = _number(body, at)
        if found == 0:
            _, at = _number(body, at)  # flags
        elif found == 1:
            for _ in range(16):
                byte, at = _number(body, at)
                uuid += bytes([byte])
        elif found == 2:
            number, at = _number(body, at)
            number >>= 1  # below it: the sign
        elif found == 3:
            size, at = _number(body, at)
            tag = body[at : at + size].decode()
            break
        else:
            break
    return str(UUID(bytes=uuid)) + (f":{tag}" if tag else ""), number


_MARIADB_GTID = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})\Z", re.ASCII)


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
                raise BacklogError(f"{part[:_SHOWN]!r} is not a GTID of MariaDB.", "Expected domain-server-number.")
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
