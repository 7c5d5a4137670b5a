"""GTID sets of MySQL with tags, MariaDB's lists of GTIDs, and both as the log has them."""

from __future__ import annotations

import random
import struct
from typing import Any
from uuid import UUID

from backlog_spark.connectors.mysql_cdc.binlog.damaged import UNREADABLE
from backlog_spark.connectors.mysql_cdc.server.gtid import (
    GtidSet,
    MariaDbGtids,
    committed_ms,
    previous_gtids,
    tagged_gtid,
)
from tests.fuzz.kinds import ANY, Kind, Wrong, mutated_text, refused

__all__ = ["KINDS"]

_UUIDS = (
    "3e11fa47-71ca-11e1-9e33-c80aa9429562",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "00000000-0000-0000-0000-000000000001",
)
_MOST = 40
Sets = dict[str, set[int]]


def _sets(chance: random.Random) -> Sets:
    found: Sets = {}
    for uuid in chance.sample(_UUIDS, chance.randint(0, 3)):
        for tag in chance.sample(("", "backup", "_x1", "a" * 32), chance.choice((1, 1, 2))):
            numbers = set(chance.sample(range(1, _MOST), chance.randint(1, 12)))
            found[f"{uuid}:{tag}" if tag else uuid] = numbers
    return found


def _text(chance: random.Random, sets: Sets) -> str:
    parts = []
    for source, numbers in sets.items():
        each = []
        for number in chance.sample(sorted(numbers), len(numbers)):
            last = number
            while chance.random() < 0.7 and last + 1 in numbers:
                last += 1
            each.append(str(number) if last == number else f"{number}-{last}")
        parts.append(f"{source.upper() if chance.random() < 0.2 else source}:{':'.join(each)}")
    return chance.choice((",", ",\n", " , ")).join(parts)


def _valid(chance: random.Random) -> tuple[Any, Any]:
    one, other = _sets(chance), _sets(chance)
    return (_text(chance, one), _text(chance, other)), (one, other)


def _members(found: GtidSet) -> Sets:
    members: Sets = {}
    for source, first, last in found:
        members.setdefault(source, set()).update(range(first, last + 1))
    return members


def _judge(texts: Any, told: Any) -> None:
    one, other = map(GtidSet, texts)
    if GtidSet(str(one)) != one:
        raise Wrong(f"{one} is read as {GtidSet(str(one))}")
    event = bytes(20) + one.encoded()
    again = GtidSet()
    for source, first, last in previous_gtids(event):
        again.add_range(source, first, last)
    if again != one:
        raise Wrong(f"{one} is encoded as {again}")
    both = GtidSet(str(one))
    both.update(other)
    if not (both.issuperset(one) and both.issuperset(other)):
        raise Wrong(f"{both} is no union")
    if told is not ANY:
        first, second = told
        if _members(one) != first or _members(other) != second:
            raise Wrong(f"{one} for {first}")
        if one.issuperset(other) != all(numbers <= first.get(source, set()) for source, numbers in second.items()):
            raise Wrong("issuperset")
        if _members(both) != {s: first.get(s, set()) | second.get(s, set()) for s in {*first, *second}}:
            raise Wrong("union")
        source = _UUIDS[0]
        if any(one.contains(source, n) != (n in first.get(source, ())) for n in range(_MOST)):
            raise Wrong("contains")


def _mutate(chance: random.Random, found: Any, other: Any) -> Any:
    return mutated_text(chance, found[0], other[1]), found[1]


def _valid_of_mariadb(chance: random.Random) -> tuple[Any, Any]:
    last = {
        chance.choice((0, 1, 7, 2**32 - 1)): (chance.randint(1, 2**32 - 1), chance.choice((1, 2**64 - 1)))
        for _ in range(3)
    }
    parts = [f"{domain}-{server}-{number}" for domain, (server, number) in last.items()]
    return ",".join(parts), last


def _judge_of_mariadb(text: str, told: Any) -> None:
    found = MariaDbGtids(text)
    if MariaDbGtids(str(found)) != found or not found.is_where(found):
        raise Wrong(f"{found} is read otherwise")
    if told is not ANY and str(found) != ",".join(f"{d}-{s}-{n}" for d, (s, n) in sorted(told.items())):
        raise Wrong(f"{found} for {told}")


# -- as the log has them ------------------------------------------------------------------------------------------


def number(value: int) -> bytes:
    """A number of mysql::serialization."""
    size = next(n for n in range(1, 10) if n == 9 or value < 1 << 7 * n)
    if size == 9:
        return b"\xff" + value.to_bytes(8, "little")
    return (value << size | (1 << size - 1) - 1).to_bytes(size, "little")


def _valid_tagged(chance: random.Random) -> tuple[Any, Any]:
    uuid, gno = UUID(chance.choice(_UUIDS)), chance.choice((1, 127, 2**20, 2**62 - 1))
    tag = chance.choice(("", "backup", "_x1", "a" * 32))
    body = number(1) + number(90) + number(3) + number(0) + number(1) + number(1) + b"".join(map(number, uuid.bytes))
    body += number(2) + number(gno << 1) + number(3) + number(len(tag)) + tag.encode()
    body += number(4) + number(7) + chance.randbytes(4)
    return body, (str(uuid) + (f":{tag}" if tag else ""), gno)


def _judge_tagged(body: bytes, told: Any) -> None:
    with refused(*UNREADABLE):
        found = tagged_gtid(body)
        committed_ms(body)
    if told is not ANY and found != told:
        raise Wrong(f"{found} for {told}")


def _valid_previous(chance: random.Random) -> tuple[Any, Any]:
    sets = _sets(chance)
    return bytes(20) + GtidSet(_text(chance, sets)).encoded(), sets


def _judge_previous(event: bytes, told: Any) -> None:
    found = GtidSet()
    with refused(*UNREADABLE, struct.error):
        for source, first, last in previous_gtids(event):
            found.add_range(source, first, last)
    if told is not ANY and _members(found) != told:
        raise Wrong(f"{found} for {told}")


KINDS = [
    Kind("GTID sets", _valid, _judge, _mutate),
    Kind("MariaDB's GTIDs", _valid_of_mariadb, _judge_of_mariadb),
    Kind("tagged GTIDs", _valid_tagged, _judge_tagged),
    Kind("previous GTIDs", _valid_previous, _judge_previous),
]
