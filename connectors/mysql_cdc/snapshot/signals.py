"""Carries out signals on the state in the offset: Debezium's ``execute-snapshot``, its pause, resume and stop (pure).

A signal that cannot be carried out is refused with a warning, and the stream goes on. An error would come back after
every restart, as the row stays at its place in the log.

Source: Debezium documentation, "Sending signals to a Debezium connector" and "Incremental snapshots".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from backlog_spark.common.lazy_patterns import lazy_pattern
from backlog_spark.errors import BacklogError
from backlog_spark.spi.signals import Signal

from ..schema.columns import MASKED, Column
from ..schema.keys import Key, key_kind
from ..schema.table import TableSchema
from ..schema.types import kind_of
from .requests import ALTERED, RangeRequest, Requests

__all__ = ["applied", "check_condition", "message_of", "ranges_asked"]

EXECUTE, STOP, PAUSE, RESUME, LOG = "execute-snapshot", "stop-snapshot", "pause-snapshot", "resume-snapshot", "log"
_TYPES = (EXECUTE, STOP, PAUSE, RESUME, LOG)
_KEYS = {
    EXECUTE: {"data-collections", "type", "additional-conditions", "additional-condition", "ranges"},
    STOP: {"data-collections", "type"},
    PAUSE: {"type"},
    RESUME: {"type"},
    LOG: {"message"},
}
# Strings and names in quotes, with backslashes as escapes within strings, which the session's sql_mode sees to.
_QUOTED = lazy_pattern(r"""'(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|""|\\.)*"|`(?:[^`]|``)*`""", re.S)
_BREAKS_OUT = lazy_pattern(r"""['"`;#]|--|/\*|\*/""")
MOST_DATA = 1 << 16
"""Characters of a signal's data. What is left of it stays in the offset until it is read."""
_LONGEST = 2_048
"""Characters of a condition. It stays in the offset until its table is read."""


def _refused(problem: str, hint: str = "") -> BacklogError:
    return BacklogError(problem, hint or "See docs/mysql_cdc_signals.md.")


def parsed(signal: Signal) -> Mapping[str, Any]:
    """The data of a signal.

    Raises
    ------
    BacklogError
        Another type, no JSON object, or a key or value that the type does not have.
    """
    if signal.type not in _TYPES:
        raise _refused(f"There is no signal of type {signal.type!r}.", f"There are {', '.join(_TYPES)}.")
    if len(signal.data) > MOST_DATA:
        raise _refused(f"The data of the signal has {len(signal.data):,} characters; {MOST_DATA:,} are allowed.")
    try:
        data = json.loads(signal.data) if signal.data.strip() else {}
    except (ValueError, RecursionError) as error:
        raise _refused(f"The data of the signal is not JSON: {error}.") from None
    if not isinstance(data, dict):
        raise _refused("The data of the signal is not a JSON object.")
    if unknown := sorted(set(data) - _KEYS[signal.type]):
        raise _refused(
            f"{signal.type} has no {', '.join(map(repr, unknown))} in its data.",
            f"It has {', '.join(sorted(_KEYS[signal.type]))}.",
        )
    kind = data.get("type", "INCREMENTAL")
    if not isinstance(kind, str) or kind.upper() != "INCREMENTAL":
        raise _refused(f"There is no snapshot of type {kind!r}.", 'Leave "type" out, or set it to "INCREMENTAL".')
    return data


def applied(signal: Signal, state: Requests, tables: Sequence[TableSchema]) -> Requests:
    """The state after a signal.

    Parameters
    ----------
    tables : sequence of TableSchema
        The captured tables.

    Raises
    ------
    BacklogError
        The signal cannot be carried out, or nothing of it.
    """
    data = parsed(signal)
    if signal.type == PAUSE:
        return replace(state, is_paused=True)
    if signal.type == RESUME:
        return replace(state, is_paused=False)
    if signal.type == STOP:
        patterns = _patterns(data, required=False)
        # What an ALTER TABLE has rewritten must be read again, or the target stays wrong.
        return state.kept(
            lambda request: (
                request.id == ALTERED
                or (patterns is not None and not any(p.fullmatch(".".join(request.table)) for p in patterns))
            )
        )
    if signal.type == EXECUTE:
        return state.added(ranges_asked(signal, tables))
    return state


def message_of(signal: Signal) -> str | None:
    """The text of a signal of type ``log``."""
    return str(parsed(signal).get("message", "")) if signal.type == LOG else None


def ranges_asked(signal: Signal, tables: Sequence[TableSchema]) -> list[RangeRequest]:
    """What an ``execute-snapshot`` asks for.

    Raises
    ------
    BacklogError
        A collection is none of the tables, or cannot be read again.
    """
    data = parsed(signal)
    patterns = _patterns(data, required=True)
    assert patterns is not None
    found = []
    for pattern in patterns:
        named = [t for t in tables if pattern.fullmatch(t.name)]
        if not named:
            raise _refused(
                f"No captured table matches {pattern.pattern!r}.",
                f"The stream captures {', '.join(t.name for t in tables) or 'no table now'}.",
            )
        found += [t for t in named if t not in found]
    conditions = _conditions(data, found)
    return [each for t in found for each in _of_table(signal, data, t, conditions.get(t.name, ""))]


def _of_table(signal: Signal, data: Mapping[str, Any], table: TableSchema, condition: str) -> list[RangeRequest]:
    if not table.key:
        raise _refused(
            f"{table.name} has no primary key, so its rows cannot be upserts.", "Set messageKeyColumns for it."
        )
    name = table.database, table.table
    if "ranges" not in data:
        return [RangeRequest(signal.id, name, condition=condition)]
    if condition or not table.chunks_stay:
        raise _refused(
            f"Ranges of {table.name} cannot be read: they need a chunk key inside the key, and no condition."
        )
    ranges, requests = data["ranges"], []
    if not isinstance(ranges, list) or not ranges or not all(isinstance(r, list) and len(r) in (2, 3) for r in ranges):
        raise _refused('"ranges" is not a list of [after, last] or [after, last, keys].')
    for after, last, *more in ranges:
        begin, end = (
            _key(e, table, table.chunk_columns, "chunk key") if e is not None else None for e in (after, last)
        )
        keys = more[0] if more else []
        if not isinstance(keys, list):
            raise _refused('"ranges" has keys that are no list.')
        if keys and any(c.use == MASKED for c in table.key_columns):
            raise _refused(f"The key of {table.name} is masked: its rows cannot be named.")
        in_target = tuple(_key(key, table, table.key_columns, "key") for key in keys)
        requests.append(RangeRequest(signal.id, name, begin, end, "", in_target))
    return requests


def _key(data: Any, table: TableSchema, columns: Sequence[Column], what: str) -> Key:
    """A key that a worker can read by. It must not fail there: it would, again and again."""
    parts = data if isinstance(data, list) else [data]
    if len(parts) != len(columns):
        raise _refused(
            f'"ranges" has a {what} of {table.name} that has {len(parts)} values.',
            f"It needs {len(columns)}: {', '.join(c.name for c in columns)}.",
        )
    return tuple(_value(part, table, column, what) for part, column in zip(parts, columns, strict=True))


def _value(data: Any, table: TableSchema, column: Column, what: str) -> Any:
    """One value of a key, as `key_to_json` writes it."""
    if data is None and what == "key" and column.nullable:
        return None
    arrow = kind_of(column).arrow(column)
    plain = (int, float) if pa.types.is_floating(arrow) else int
    wanted = bytes if pa.types.is_binary(arrow) else str if pa.types.is_string(arrow) else plain
    try:
        value = bytes.fromhex(data["hex"]) if isinstance(data, dict) and set(data) == {"hex"} else data
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise TypeError
        kind_of(column).build(column, [value])
        if what != "key":
            kind = key_kind(column)
            assert kind is not None, "only columns that can order are chosen"
            kind.literal(column, value)
    except (TypeError, ValueError, ArithmeticError):  # those of Arrow too
        raise _refused(
            f'"ranges" has a {what} of {table.name} with a value that the column {column.name} ({column.column_type}) '
            "cannot have.",
            'Bytes are {"hex": "00ff"}, a date is its days since 1970, a time its microseconds since then.',
        ) from None
    return value


def _patterns(data: Mapping[str, Any], *, required: bool) -> list[re.Pattern[str]] | None:
    """Regular expressions for ``database.table``."""
    given = data.get("data-collections")
    if given is None and not required:
        return None
    if not isinstance(given, list) or not given or not all(isinstance(name, str) for name in given):
        raise _refused('"data-collections" is not a list of names or regular expressions, such as ["shop.orders"].')
    try:
        return [re.compile(name.strip()) for name in given]
    except (re.error, OverflowError, RecursionError) as error:
        raise _refused(f'"data-collections" has an invalid regular expression: {error}.') from None


def _conditions(data: Mapping[str, Any], tables: Sequence[TableSchema]) -> dict[str, str]:
    """The condition of each table that has one."""
    one, several = data.get("additional-condition", ""), data.get("additional-conditions", [])
    found = {t.name: one for t in tables} if one != "" else {}
    for each in several if isinstance(several, list) else [several]:
        if not isinstance(each, dict) or set(each) != {"data-collection", "filter"}:
            raise _refused('"additional-conditions" is not a list of {"data-collection": …, "filter": …}.')
        patterns = _patterns({"data-collections": [each["data-collection"]]}, required=True)
        named = [t for t in tables if patterns and patterns[0].fullmatch(t.name)]
        if not named:
            raise _refused(f'{each["data-collection"]!r} in "additional-conditions" is none of "data-collections".')
        found |= {t.name: each["filter"] for t in named}
    for condition in found.values():
        check_condition(condition)
    return found


def check_condition(condition: Any) -> None:
    """Refuse a condition that would not stay within the brackets that the source puts around it.

    Raises
    ------
    BacklogError
    """
    if not isinstance(condition, str) or not condition.strip():
        raise _refused("A condition is not SQL text.")
    try:
        condition.encode()
    except UnicodeEncodeError:
        raise _refused("A condition has characters that UTF-8 does not have: halves of surrogate pairs.") from None
    if len(condition) > _LONGEST:
        raise _refused(f"A condition has {len(condition):,} characters; {_LONGEST:,} are allowed.")
    bare = _QUOTED.sub(" ", condition)
    if found := _BREAKS_OUT.search(bare):
        raise _refused(f"A condition has {found.group()!r} outside of quotes: {condition!r}.", "Write it without.")
    depth = 0
    for mark in bare:
        depth += {"(": 1, ")": -1}.get(mark, 0)
        if depth < 0:
            break
    if depth:
        raise _refused(f"The brackets of a condition do not match: {condition!r}.")
