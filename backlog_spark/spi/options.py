"""Options of a source, each declared once: a field of a frozen dataclass parses it, and says what it means (pure).

    @dataclass(frozen=True)
    class ClickOptions:
        port: int = integer("port", "The server's port.", 80, 1, 65535)
        follows: bool = flag("follow", "Whether later clicks are read too.")

    ClickOptions(**values(ClickOptions, UserOptions({"PORT": "8080"})))

Type checkers see the value's type, as with `dataclasses.field`. All functions that declare an option take the
attributes of `Option` by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypedDict, TypeVar, Unpack

from backlog_spark.common.durations import format_duration

from .user_options import UserOptions, bounds_text

__all__ = [
    "Option", "choice", "duration", "flag", "integer", "number", "option", "options_of", "parsed", "switch", "text",
    "values",
]  # fmt: skip

_T = TypeVar("_T")


@dataclass(frozen=True)
class Option:
    """An option of a source, for its documentation, for editors and for errors.

    Parameters
    ----------
    name : str
    doc : str
        What it means.
    type : str
        Kind of its values.
    shown : str
        Its default.
    bounds : str
        Its values, if they are limited.
    choices : tuple of str
        All values that it may have; empty if there are others.
    secret : bool
        Whether its value is secret.
    flink, debezium, spark : str
        The same option there.
    """

    name: str
    doc: str
    type: str = "string"
    shown: str = "unset"
    bounds: str = ""
    choices: tuple[str, ...] = ()
    secret: bool = False
    flink: str = ""
    debezium: str = ""
    spark: str = ""


class _More(TypedDict, total=False):
    type: str
    shown: str
    bounds: str
    choices: tuple[str, ...]
    secret: bool
    flink: str
    debezium: str
    spark: str


def parsed(parse: Callable[[UserOptions], _T] | None, *options: Option, default: Any = MISSING) -> _T:
    """A field from some options.

    Parameters
    ----------
    parse : callable or None
        Makes the value. None: the class sets it itself.
    options : Option
        The options that it reads and no other field declares.
    default
        The value in objects that are made without options.
    """
    made: _T = field(
        default=default, repr=not any(o.secret for o in options), metadata={"parse": parse, "options": options}
    )
    return made


def option(
    name: str, doc: str, parse: Callable[[UserOptions, str], _T], default: Any = MISSING, **more: Unpack[_More]
) -> _T:
    """A field from one option. ``parse`` gets its name, as documented."""
    return parsed(lambda given: parse(given, name), Option(name, doc, **more), default=default)


def text(name: str, doc: str, default: str = "", **more: Unpack[_More]) -> str:
    """Any text."""
    more.setdefault("shown", default or "unset")
    return option(name, doc, lambda given, name: given.text(name, default), default, **more)


def choice(name: str, doc: str, words: Sequence[str], default: str | None = None, **more: Unpack[_More]) -> str:
    """One of some words. The first is the default, if there is no other."""
    other = words[0] if default is None else default
    more.setdefault("shown", other)
    more["choices"] = tuple(words)
    return option(name, doc, lambda given, name: given.choice(name, words, other), other, **more)


def switch(name: str, doc: str, words: Sequence[str], on: str, **more: Unpack[_More]) -> bool:
    """Whether one of some words is set. The first word is the default."""
    more["shown"], more["choices"] = words[0], tuple(words)
    return option(name, doc, lambda given, name: given.choice(name, words) == on, words[0] == on, **more)


def flag(name: str, doc: str, default: bool = False, **more: Unpack[_More]) -> bool:
    """True or false."""
    more["type"], more["shown"], more["choices"] = "boolean", str(default).lower(), ("true", "false")
    return option(name, doc, lambda given, name: given.flag(name, default), default, **more)


def integer(
    name: str, doc: str, default: _T, low: int, high: int | None = None, hint: str = "", **more: Unpack[_More]
) -> int | _T:
    """A whole number within bounds. ``hint`` is for errors."""
    more.setdefault("shown", "unset" if default is None else str(default))
    more.setdefault("bounds", bounds_text(low, high))
    more["type"] = "int"
    return option(name, doc, lambda given, name: given.integer(name, default, low, high, hint), default, **more)


def number(name: str, doc: str, default: float, low: float, high: float | None = None, **more: Unpack[_More]) -> float:
    """A number within bounds."""
    more["type"], more["shown"], more["bounds"] = "float", f"{default:g}", bounds_text(low, high)
    return option(name, doc, lambda given, name: given.number(name, default, low, high), default, **more)


def duration(
    name: str, doc: str, default: _T, low: int = 0, high: int | None = None, **more: Unpack[_More]
) -> int | _T:
    """Milliseconds within bounds."""
    more.setdefault("shown", format_duration(default) if isinstance(default, int) else "unset")
    more.setdefault("bounds", bounds_text(low, high, format_duration) if high else "> 0" if low else "")
    more["type"] = "duration"
    return option(name, doc, lambda given, name: given.duration(name, default, low, high), default, **more)


def values(kind: type[object], given: UserOptions) -> dict[str, Any]:
    """The values of a class's fields that are parsed from options.

    Raises
    ------
    SettingError
        For a text that does not fit.
    """
    found = {f.name: f.metadata.get("parse") for f in fields(kind)}  # type: ignore[arg-type]
    return {name: parse(given) for name, parse in found.items() if parse}


def options_of(kind: type[object]) -> tuple[Option, ...]:
    """The options of a class, in the order of its fields."""
    return tuple(o for f in fields(kind) for o in f.metadata.get("options", ()))  # type: ignore[arg-type]
