"""Reads a line of the event log: its values have the types that the log writes, or the line is dropped (pure).

A machine that stops may tear a line, and people edit files. One bad line must not hide the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from backlog_spark.spi.offset_flags import parse_offset

__all__ = ["event_of"]

_Check = Callable[[Any], bool]
# No count and no time in milliseconds is greater: a date of it still has four digits in its year.
_MOST = 10**14


def _text(value: Any) -> bool:
    """A text without half of a surrogate pair, which no file and no terminal takes."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < _MOST


def _count(value: Any) -> bool:
    return type(value) is int and abs(value) < _MOST


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _time(value: Any) -> bool:
    try:
        at = datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        return False
    return 1970 <= at.year < 5000


def _each(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _fields(**checks: _Check) -> _Check:
    """A check of an object's fields. None counts as left out."""
    return lambda value: (
        isinstance(value, dict)
        and all(check(value[name]) for name, check in checks.items() if value.get(name) is not None)
    )


def _span(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_number, value))


_HEAD: Final = ("v", "at", "kind")
_OF_ALL: Final = _fields(
    v=_count,
    at=_time,
    kind=_text,
    query=_text,
    batch=_count,
    rows=_count,
    backlog=_flag,
    started=_time,
    took_ms=_number,
    parts_ms=lambda value: isinstance(value, dict) and all(map(_number, value.values())),
    interval_ms=_count,
    interval_during_backlog_ms=_count,
    backlog_rows=_count,
    backlog_total=_count,
    written_ms=_number,
    writer=_text,
    mode=_text,
    why=_text,
    error=_text,
    status=_text,
    attempt=_count,
    spark=_text,
    python=_text,
    after_batch=_count,
    sources=_each(_fields(name=_text, format=_text, rows=_count, total=_count, rows_behind=_count, committed_ms=_span)),
    state=_each(_fields(name=_text, rows=_count, bytes=_count)),
)
# What the readers need beyond the head, by kind, and of each source.
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "batch": ("batch",),
    "switch": ("batch", "mode"),
    "estimate": ("after_batch", "sources"),
}
_OF_SOURCES: Final[Mapping[str, tuple[str, ...]]] = {"start": ("name",), "estimate": ("rows", "total")}


def event_of(line: str) -> dict[str, Any] | None:
    """The event of a line; None if it is none. The caller compares its version, ``v``."""
    found = parse_offset(line)
    if found is None or not _has(found, _HEAD) or not _OF_ALL(found) or not _has(found, _NEEDED.get(found["kind"], ())):
        return None
    needed = _OF_SOURCES.get(found["kind"], ())
    parts_fit = all(_has(each, needed) for each in found.get("sources") or ())
    return found if parts_fit and all(_has(each, ("rows", "bytes")) for each in found.get("state") or ()) else None


def _has(found: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    return all(found.get(name) is not None for name in names)
