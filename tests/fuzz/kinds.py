"""The contract of a kind of input, and the mutators that all kinds share.

A kind makes valid inputs and judges any input. Everything is drawn from the given generator of random numbers, so that
a kind, a seed and a number name one input.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "ANY",
    "Kind",
    "Refusal",
    "Wrong",
    "as_text",
    "mutated",
    "mutated_bytes",
    "mutated_json",
    "mutated_text",
    "refused",
]

ANY = object()
"""What a mutated input should give: anything that is consistent, or a documented error."""


class Wrong(Exception):
    """An input was accepted and gives a wrong value, or a valid one was refused."""


class Refusal(Exception):
    """A judge refuses the input in another documented way than by a BacklogError: a malformed record, say."""


@contextlib.contextmanager
def refused(*kinds: type[Exception]) -> Iterator[None]:
    """Turns errors that the caller of a decoder converts into refusals."""
    try:
        yield
    except kinds as error:
        raise Refusal(str(error)) from error


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    Parameters
    ----------
    name : str
    valid : callable
        From random numbers to a valid input, and what it has to give.
    judge : callable
        Called with an input and what it has to give, `ANY` for a mutated one. Returns if the input is accepted. Raises
        a BacklogError or `Refusal` if it is refused, `Wrong` for a wrong value. Whatever else it raises is a fault.
    mutate : callable, optional
        From random numbers, an input and another one to a mutated input. Default: `mutated`.
    corpus : int
        So many valid inputs are made at a time; each is mutated a few dozen times.
    begin, close : callable, optional
        Called before the first and after the last input.
    is_apart : bool
        It runs in a process of its own, with a limit for memory. Not with a JVM, which would live on.
    deadline_s : float
        An input that takes longer hangs.
    """

    name: str
    valid: Callable[[random.Random], tuple[Any, Any]]
    judge: Callable[[Any, Any], None]
    mutate: Callable[[random.Random, Any, Any], Any] = field(default=lambda chance, a, b: mutated(chance, a, b))
    corpus: int = 24
    close: Callable[[], None] = lambda: None
    begin: Callable[[], object] = lambda: None
    is_apart: bool = True
    deadline_s: float = 5.0


# Lengths, counts and signs at the ends of their ranges.
_NUMBERS = [0, 1, 2, 127, 128, 250, 251, 252, 253, 254, 255, 256, 32767, 65535, 65536, 2**24 - 1, 2**31 - 1, 2**31]
_NUMBERS += [2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
_TEXTS = [
    "",
    "\0",
    "\ufeff",
    "\u2028",
    "\ud7ff",
    "\U0010ffff",
    "é",
    "e\u0301",
    "İ",
    "ß",
    "１",
    "²",
    "٣",
    "\u202e",
    "\x85",
]
_TEXTS += [
    "'",
    '"',
    "`",
    "\\",
    ";",
    "--",
    "/*",
    "*/",
    "${",
    "}",
    "(",
    ")",
    "[",
    "]",
    "{",
    ",",
    ":",
    "\n",
    "\r",
    "\t",
    " ",
]
_TEXTS += ["NULL", "null", "NaN", "-Infinity", "1e999", "-1", "0x", "1_0", "9" * 40, "%s", "%", "\x1b[0m"]
_ODD: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2**31,
    2**63,
    2**64,
    -(2**63) - 1,
    10**30,
    1.5,
    float("inf"),
    float("nan"),
]
_ODD += ["", "x", "\0", "1", "-1", "²", "\ud800", [], {}, [[]], [None], {"": None}, {"zlib": "x"}, {"version": 1}]


def mutated(chance: random.Random, found: Any, other: Any) -> Any:
    """A mutated input by its type: bytes, text, or values of JSON."""
    if isinstance(found, bytes):
        return mutated_bytes(chance, found, other)
    if isinstance(found, str):
        return mutated_text(chance, found, other)
    return mutated_json(chance, found, other)


def _times(chance: random.Random) -> int:
    return chance.choice((1, 1, 1, 2, 3, 6))


def mutated_bytes(chance: random.Random, data: bytes, other: bytes) -> bytes:
    """Cut, flipped, spliced, with huge lengths, repeated parts."""
    for _ in range(_times(chance)):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((1, 1, 2, 4, 8, 40)))
        match chance.randrange(12):
            case 0:
                data = data[:at]
            case 1 | 2 | 3 if data:
                at = min(at, len(data) - 1)
                data = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
            case 4 if data:
                at = min(at, len(data) - 1)
                data = data[:at] + bytes([chance.choice((0, 1, 127, 128, 251, 252, 253, 254, 255))]) + data[at + 1 :]
            case 5:
                to = chance.randrange(len(other) + 1)
                data = data[:at] + other[to:]
            case 6 | 7:
                size = chance.choice((1, 2, 3, 4, 8))
                number = (chance.choice(_NUMBERS) & ((1 << 8 * size) - 1)).to_bytes(
                    size, chance.choice(("little", "big"))
                )
                data = data[:at] + number + data[at + size :]
            case 8:
                data = data[:end] + data[at:end] * chance.choice((1, 2, 50)) + data[end:]
            case 9:
                data = data[:at] + data[end:]
            case 10:
                data = data[:at] + chance.randbytes(chance.choice((1, 2, 8))) + data[at:]
            case _:
                data = data[:at] + b"\xff" * chance.choice((1, 9, 10)) + data[end:]
    return data


def mutated_text(chance: random.Random, text: str, other: str) -> str:
    """Cut, spliced, with odd characters, repeated parts, deep nesting."""
    for _ in range(_times(chance)):
        at = chance.randrange(len(text) + 1)
        end = min(len(text), at + chance.choice((1, 1, 2, 5, 12, 40)))
        match chance.randrange(10):
            case 0:
                text = text[:at]
            case 1 | 2:
                text = text[:at] + chance.choice(_TEXTS) + text[at:]
            case 3:
                text = text[:at] + chance.choice(_TEXTS) + text[end:]
            case 4:
                to = chance.randrange(len(other) + 1)
                text = text[:at] + other[to:]
            case 5:
                text = text[:end] + text[at:end] * chance.choice((1, 2, 20)) + text[end:]
            case 6:
                text = text[:at] + text[end:]
            case 7:
                begin, close = chance.choice(
                    ("()", "[]", "{}", "((", "[[", "<>", ("NOT ", ""), ("- ", ""), ("CASE WHEN ", ""))
                )
                deep = chance.choice((3, 30, 1000))
                text = text[:at] + begin * deep + text[at:end] + close * deep + text[end:]
            case 8:
                to = chance.randrange(len(other) + 1)
                text = text[:at] + other[to : to + chance.choice((3, 10, 30))] + text[at:]
            case _:
                text = (
                    text[:at]
                    + chr(chance.choice((chance.randrange(0xD800), chance.randrange(0xE000, 0x110000))))
                    + text[end:]
                )
    return text


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(value, dict):
        for key in value:
            found += _places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            found += _places(value[index], (*path, index))
    return found


def _at(value: Any, path: Sequence[Any]) -> Any:
    for step in path:
        value = value[step]
    return value


def mutated_json(chance: random.Random, value: Any, other: Any) -> Any:
    """Values of other types, keys that are gone, extreme numbers, odd texts, deep nesting."""
    value = copy.deepcopy(value)
    for _ in range(_times(chance)):
        places = [path for path in _places(value) if path]
        if not places:
            return value
        path = chance.choice(places)
        parent, last = _at(value, path[:-1]), path[-1]
        here = parent[last]
        match chance.randrange(9):
            case 0 | 1:
                parent[last] = copy.deepcopy(chance.choice(_ODD))
            case 2:
                del parent[last]
            case 3:
                others = _places(other)
                parent[last] = copy.deepcopy(_at(other, chance.choice(others)))
            case 4 if isinstance(here, str):
                parent[last] = mutated_text(chance, here, here[::-1])
            case 5 if type(here) is int:
                parent[last] = chance.choice(
                    (here + 1, -here, here * 2**40, float(here), str(here), [here], bool(here))
                )
            case 6 if isinstance(parent, list):
                parent.insert(last, copy.deepcopy(here))
            case 7:
                made = here
                for _ in range(chance.choice((1, 20, 60))):
                    made = [made]
                parent[last] = made
            case _ if isinstance(parent, dict):
                parent[chance.choice(("", "x", str(last).upper(), f"{last}2"))] = parent.pop(last)
            case _:
                parent[last] = copy.deepcopy(chance.choice(_ODD))
    return value


def as_text(value: Any) -> str:
    """Values of JSON as the text that Spark or a checkpoint keeps."""
    return json.dumps(value)
