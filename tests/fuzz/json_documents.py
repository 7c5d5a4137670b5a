"""MySQL's binary JSON and its partial updates, written here as the documentation says."""

from __future__ import annotations

import json
import random
import struct
from decimal import Decimal
from typing import Any

from backlog_spark.connectors.mysql_cdc.binlog.damaged import UNREADABLE
from backlog_spark.connectors.mysql_cdc.schema.json_diff import patched
from backlog_spark.connectors.mysql_cdc.schema.json_values import from_binary, from_text
from tests.fuzz.kinds import ANY, Kind, Wrong, mutated_bytes, refused

__all__ = ["KINDS", "document", "encoded", "text_of"]

_LETTERS = 'ab"\\/\n\t\x01\x7fé漢😀 .[]$'


def value_of(chance: random.Random, depth: int = 0) -> Any:
    """A document as Python objects."""
    match chance.randrange(6 if depth > 3 else 9):
        case 0:
            return chance.choice((None, True, False))
        case 1:
            return chance.choice(
                (0, 1, -1, 2**15 - 1, 2**15, -(2**31), 2**31, 2**63, 2**64 - 1, -(2**63), chance.getrandbits(40))
            )
        case 2:
            return chance.choice((0.5, -0.0, 1e300, 5e-324, chance.uniform(-1e6, 1e6)))
        case 3 | 4 | 5:
            return "".join(chance.choices(_LETTERS, k=chance.choice((0, 1, 4, 9, 130))))
        case 6 | 7:
            return {_name(chance): value_of(chance, depth + 1) for _ in range(chance.randint(0, 4))}
        case _:
            return [value_of(chance, depth + 1) for _ in range(chance.randint(0, 4))]


def _name(chance: random.Random) -> str:
    return "".join(chance.choices("abé \"'.漢", k=chance.choice((0, 1, 2, 5))))


def text_of(value: Any) -> str:
    """The server's text: names in its order, no exponents."""
    if isinstance(value, float):
        text = format(Decimal(repr(value)), "f")
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return text if "." in text else f"{text}.0"
    if isinstance(value, list):
        return f"[{', '.join(map(text_of, value))}]"
    if isinstance(value, dict):
        names = sorted(value, key=lambda n: (len(n.encode()), n.encode()))
        return "{" + ", ".join(f"{json.dumps(n, ensure_ascii=False)}: {text_of(value[n])}" for n in names) + "}"
    return json.dumps(value, ensure_ascii=False)


def _varint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def _scalar(value: Any) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return 4, bytes([{None: 0, True: 1, False: 2}[value]])
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        return 12, _varint(len(value.encode())) + value.encode()
    for kind, size, signed in ((5, 2, True), (7, 4, True), (9, 8, True), (10, 8, False)):
        try:
            return kind, value.to_bytes(size, "little", signed=signed)
        except OverflowError:
            continue
    raise ValueError(value)


def encoded(value: Any, *, large: bool = False) -> bytes:
    """A document in binary, its type first."""
    kind, data = _part(value, large)
    return bytes([kind]) + data


def _part(value: Any, large: bool) -> tuple[int, bytes]:
    if not isinstance(value, dict | list):
        return _scalar(value)
    width = 4 if large else 2
    names = sorted(value, key=lambda n: (len(n.encode()), n.encode())) if isinstance(value, dict) else []
    items = [value[n] for n in names] if names or isinstance(value, dict) else value
    keys = b"".join(n.encode() for n in names)
    head = 2 * width + len(names) * (width + 2) + len(items) * (1 + width)
    entries, at = b"", head
    for name in names:
        entries += at.to_bytes(width, "little") + len(name.encode()).to_bytes(2, "little")
        at += len(name.encode())
    body, at = b"", head + len(keys)
    for item in items:
        kind, data = _part(item, large)
        if kind == 4 or (kind in (5, 7) and len(data) <= width):
            entries += bytes([kind]) + data.ljust(width, b"\0")
            continue
        entries += bytes([kind]) + at.to_bytes(width, "little")
        body += data
        at += len(data)
    found = len(items).to_bytes(width, "little") + at.to_bytes(width, "little") + entries + keys + body
    return (0 if isinstance(value, dict) else 2) + large, found


def document(chance: random.Random) -> tuple[str, bytes]:
    """A document's text, and its bytes."""
    value = value_of(chance)
    return text_of(value), encoded(value, large=chance.random() < 0.3)


def _valid(chance: random.Random) -> tuple[Any, Any]:
    text, data = document(chance)
    return data, text


def _judge(data: Any, told: Any) -> None:
    with refused(*UNREADABLE):
        found = from_binary(data)
    if told is not ANY and found != told:
        raise Wrong(f"{found} for {told}")
    try:
        json.loads(found)
    except ValueError as error:
        raise Wrong(f"{found[:99]} is no JSON") from error
    if told is not ANY and from_text(found) != found:
        raise Wrong(f"{found} is not canonical")


# -- partial updates ----------------------------------------------------------------------------------------------


def length(number: int) -> bytes:
    return bytes([number]) if number < 251 else b"\xfc" + number.to_bytes(2, "little")


def _leg(name: str) -> str:
    return f".{json.dumps(name, ensure_ascii=False)}"


def _changed(chance: random.Random, value: Any) -> tuple[Any, bytes]:
    """A document after a change, and the change."""
    parents: list[tuple[str, Any]] = []

    def walk(path: str, at: Any) -> None:
        if isinstance(at, dict | list):
            parents.append((path, at))
            for key, item in at.items() if isinstance(at, dict) else enumerate(at):
                walk(path + (_leg(key) if isinstance(key, str) else f"[{key}]"), item)

    walk("$", value)
    new, large = value_of(chance, 3), chance.random() < 0.3
    if not parents or chance.random() < 0.05:
        return new, _diff(0, "$", new, large)
    path, parent = chance.choice(parents)
    keys: list[Any] = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
    match chance.randrange(3) if keys else 1:
        case 0:
            key = chance.choice(keys)
            parent[key] = new
            operation = 0
        case 1 if isinstance(parent, dict):
            key = next(n for n in ("new", "né", "n2", "n3", "n4", "n5", "n6") if n not in parent)
            parent[key] = new
            operation = 1
        case 1:
            key = chance.randint(0, len(keys) + 2)
            parent.insert(key, new)
            operation = 1
        case _:
            key = chance.choice(keys)
            del parent[key]
            operation = 2
    return value, _diff(operation, path + (_leg(key) if isinstance(key, str) else f"[{key}]"), new, large)


def _diff(operation: int, path: str, new: Any, large: bool) -> bytes:
    out = bytes([operation]) + length(len(path.encode())) + path.encode()
    data = encoded(new, large=large)
    return out if operation == 2 else out + length(len(data)) + data


def _valid_diff(chance: random.Random) -> tuple[Any, Any]:
    value = value_of(chance)
    while not isinstance(value, dict | list):
        value = value_of(chance)
    before, diffs = text_of(value), b""
    for _ in range(chance.randint(0, 4)):
        value, diff = _changed(chance, value)
        diffs += diff
    return (before, diffs), text_of(value)


def _judge_diff(found: Any, told: Any) -> None:
    with refused(*UNREADABLE):
        made = patched(*found)
    if told is not ANY and made != told:
        raise Wrong(f"{made} for {told}")
    json.loads(made)


def _mutate_diff(chance: random.Random, found: Any, other: Any) -> Any:
    before, diffs = found
    return chance.choice((before, before, other[0])), mutated_bytes(chance, diffs, other[1])


KINDS = [Kind("binary JSON", _valid, _judge), Kind("partial JSON", _valid_diff, _judge_diff, _mutate_diff)]
