"""Reads back what a query has stored in a checkpoint: checks types, and says which part is damaged (pure).

JSON has other types than our classes, and disks and people change files. A value of a wrong type would otherwise fail
much later, or give another result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import struct
import types
import typing
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

from backlog_spark.errors import BacklogError

__all__ = ["CHECKPOINT_VERSION", "OTHER_VERSION", "RESTORE", "check_version", "checked", "reading_stored"]

CHECKPOINT_VERSION = 1
"""Of all that a query keeps in ``backlog/`` of its checkpoint, and in its targets, without a version of its own."""
RESTORE = "Restore it from a backup, or start with a new checkpoint."
OTHER_VERSION = "Use the version of backlog_spark that wrote it, or a new checkpointLocation."
_DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError, RecursionError)
_T = TypeVar("_T")
_Check = Callable[[Any], bool]


@contextlib.contextmanager
def reading_stored(what: str, hint: str = RESTORE, more: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns what damaged values raise into a BacklogError.

    Parameters
    ----------
    what : str
        What is read, for the beginning of a sentence: "The offset of mysql_cdc".
    hint : str
    more : tuple of exception types
        What a library raises for damaged values, too.
    """
    damage: tuple[type[Exception], ...] = (*_DAMAGE, struct.error, zlib.error, *more)
    try:
        yield
    except damage as error:
        raise BacklogError(f"{what} is damaged: {type(error).__name__} {error}.", hint) from error


def check_version(what: str, found: object, reads: int, hint: str = OTHER_VERSION) -> None:
    """Refuse what has another version of its format. Called before anything else of it is read.

    Parameters
    ----------
    what : str
        What is read, for the beginning of a sentence.
    found : object
        Its version; None if it has none.
    reads : int
        The version that this code reads.
    hint : str

    Raises
    ------
    BacklogError
        Names both versions.
    """
    if type(found) is not int or found != reads:
        raise BacklogError(
            f"{what} has version {found!r} of its format; this version of backlog_spark reads version {reads}.", hint
        )


def checked(made: _T) -> _T:
    """A dataclass's instance, if its fields have the declared types.

    Raises
    ------
    TypeError
        Names the field.
    """
    for name, check in _checks(cast(Any, type(made))):
        if not check(getattr(made, name)):
            raise TypeError(f"{name} is {type(getattr(made, name)).__name__}, or has a value of a wrong type")
    return made


@functools.cache
def _checks(kind: Any) -> tuple[tuple[str, _Check], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((field.name, _check(hints[field.name])) for field in dataclasses.fields(kind))


def _is_of(kind: Any) -> _Check:
    return lambda value: type(value) is kind


def _check(hint: Any) -> _Check:
    """A check of values for a type hint. A hint of another form passes everything."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        checks = [_check(each) for each in arguments]
        return lambda value: any(check(value) for check in checks)
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        every = _every(arguments[0])
        return lambda value: type(value) is tuple and every(value)
    if origin is tuple:
        checks = [_check(each) for each in arguments]
        return lambda value: (
            type(value) is tuple
            and len(value) == len(checks)
            and all(check(each) for check, each in zip(checks, value, strict=True))
        )
    if origin is frozenset:
        every = _every(arguments[0])
        return lambda value: isinstance(value, frozenset) and every(value)
    if origin in (dict, Mapping):
        keys, values = map(_every, arguments)
        return lambda value: isinstance(value, dict) and keys(value) and values(value.values())
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return lambda value: (
            isinstance(value, hint) and all(check(getattr(value, name)) for name, check in _checks(type(value)))
        )
    if hint in (str, int, bool, type(None)):
        return _is_of(hint)
    return lambda value: True


def _every(hint: Any) -> Callable[[Iterable[Any]], bool]:
    """A check of many values. Of simple ones only the set of types is looked at: there may be 10,000 partitions."""
    if hint in (str, int, bool):
        return lambda values: {*map(type, values)} <= {hint}
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and {*parts} <= {str, int, bool}:
        return lambda values: _are_tuples([*values], parts)
    check = _check(hint)
    return lambda values: all(map(check, values))


def _are_tuples(values: list[Any], parts: tuple[Any, ...]) -> bool:
    if not values:
        return True
    if {*map(type, values)} != {tuple} or {*map(len, values)} != {len(parts)}:
        return False
    columns = zip(*values, strict=True)
    return all({*map(type, column)} <= {part} for part, column in zip(parts, columns, strict=True))
