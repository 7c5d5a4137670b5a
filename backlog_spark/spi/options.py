"""Options of a source, each declared once: a field of a frozen dataclass parses it, and says what it means (pure).

    @dataclass(frozen=True)
    class ClickOptions:
        port: int = integer("port", 80, 1, 65535)
        '''The server's port.'''
        follows: bool = flag("follow")
        '''Whether later clicks are read too.'''

    ClickOptions(**values(ClickOptions, UserOptions({"PORT": "8080"})))

The text below a field is its option's documentation, as in pydantic. Type checkers see the value's type, as with
`dataclasses.field`. All functions that declare an option take the attributes of `Option` by name.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, TypedDict, TypeVar, Unpack, cast

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
    doc : str
        What it means. "": the text below the only field that it is for.
    """

    name: str
    type: str = "string"
    shown: str = "unset"
    bounds: str = ""
    choices: tuple[str, ...] = ()
    secret: bool = False
    flink: str = ""
    debezium: str = ""
    spark: str = ""
    doc: str = ""


class _More(TypedDict, total=False):
    type: str
    shown: str
    bounds: str
    choices: tuple[str, ...]
    secret: bool
    flink: str
    debezium: str
    spark: str
    doc: str


def parsed(parse: Callable[[UserOptions], _T] | None, *options: Option | type[_T], default: Any = MISSING) -> _T:
    """A field from some options.

    Parameters
    ----------
    parse : callable or None
        Makes the value. None: the class sets it itself.
    options : Option or type
        The options that it reads and no other field declares, or a class that declares them.
    default
        The value in objects that are made without options.
    """
    made: _T = field(
        default=default,
        repr=not any(isinstance(o, Option) and o.secret for o in options),
        metadata={"parse": parse, "options": options},
    )
    return made


def option(name: str, parse: Callable[[UserOptions, str], _T], default: Any = MISSING, **more: Unpack[_More]) -> _T:
    """A field from one option. ``parse`` gets its name, as documented."""
    return parsed(lambda given: parse(given, name), Option(name, **more), default=default)


def text(name: str, default: str = "", **more: Unpack[_More]) -> str:
    """Any text."""
    more.setdefault("shown", default or "unset")
    return option(name, lambda given, name: given.text(name, default), default, **more)


def choice(name: str, words: Sequence[str], default: str | None = None, **more: Unpack[_More]) -> str:
    """One of some words. The first is the default, if there is no other."""
    other = words[0] if default is None else default
    more.setdefault("shown", other)
    more["choices"] = tuple(words)
    return option(name, lambda given, name: given.choice(name, words, other), other, **more)


def switch(name: str, words: Sequence[str], on: str, **more: Unpack[_More]) -> bool:
    """Whether one of some words is set. The first word is the default."""
    more["shown"], more["choices"] = words[0], tuple(words)
    return option(name, lambda given, name: given.choice(name, words) == on, words[0] == on, **more)


def flag(name: str, default: bool = False, **more: Unpack[_More]) -> bool:
    """True or false."""
    more["type"], more["shown"], more["choices"] = "boolean", str(default).lower(), ("true", "false")
    return option(name, lambda given, name: given.flag(name, default), default, **more)


def integer(
    name: str, default: _T, low: int, high: int | None = None, hint: str = "", **more: Unpack[_More]
) -> int | _T:
    """A whole number within bounds. ``hint`` is for errors."""
    more.setdefault("shown", "unset" if default is None else str(default))
    more.setdefault("bounds", bounds_text(low, high))
    more["type"] = "int"
    return option(name, lambda given, name: given.integer(name, default, low, high, hint), default, **more)


def number(name: str, default: float, low: float, high: float | None = None, **more: Unpack[_More]) -> float:
    """A number within bounds."""
    more["type"], more["shown"], more["bounds"] = "float", f"{default:g}", bounds_text(low, high)
    return option(name, lambda given, name: given.number(name, default, low, high), default, **more)


def duration(name: str, default: _T, low: int = 0, high: int | None = None, **more: Unpack[_More]) -> int | _T:
    """Milliseconds within bounds."""
    more.setdefault("shown", format_duration(default) if isinstance(default, int) else "unset")
    more.setdefault("bounds", bounds_text(low, high, format_duration) if high else "> 0" if low else "")
    more["type"] = "duration"
    return option(name, lambda given, name: given.duration(name, default, low, high), default, **more)


def values(kind: type[Any], given: UserOptions) -> dict[str, Any]:
    """The values of a class's fields that are parsed from options.

    Raises
    ------
    SettingError
        For a text that does not fit.
    """
    found = {f.name: f.metadata.get("parse") for f in fields(kind)}
    return {name: parse(given) for name, parse in found.items() if parse}


def options_of(kind: type[Any], *, with_docs: bool = False) -> tuple[Option, ...]:
    """The options of a class and of its parts, in the order of the fields.

    Parameters
    ----------
    kind : type
    with_docs : bool
        Whether to read the texts below the fields. They are in the source file alone, so this takes milliseconds.
    """
    below: dict[str, str] = {}
    if with_docs:
        for each in filter(is_dataclass, kind.__mro__):
            below = _texts_below(each) | below
    found: list[Option] = []
    for made in fields(kind):
        for o in made.metadata.get("options", ()):
            if isinstance(o, Option):
                found.append(replace(o, doc=o.doc or below.get(made.name, "")) if with_docs else o)
            else:
                found += options_of(o, with_docs=with_docs)
    return tuple(found)


def _texts_below(kind: type[Any]) -> dict[str, str]:
    """The text below each field. None where Python has no source."""
    try:
        (declared,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):
        return {}
    found = {}
    for line, below in itertools.pairwise(cast(ast.ClassDef, declared).body):
        match line, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found
