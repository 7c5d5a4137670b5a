"""Applies MySQL's partial JSON updates to the text of a document (pure).

With ``binlog_row_value_options=PARTIAL_JSON`` an after-image may have changes instead of a document. The before-image
has the whole document, as with ``binlog_row_image=FULL``.

Source: MySQL source documentation, "Partial_update_rows_event"; MySQL source, sql-common/json_diff.cc.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from backlog_spark.errors import BacklogError

from .json_values import from_binary
from .packed import read_length

__all__ = ["patched"]

_REPLACE, _INSERT, _REMOVE = 0, 1, 2
_LEG = re.compile(r'\.(?:"((?:[^"\\]|\\.)*)"|([^.\[\s"]+))|\[(\d+)\]', re.DOTALL)


class _Number(str):
    """A number as it was written."""


class _Diff(NamedTuple):
    operation: int
    path: str
    value: str  # "" for a removal


def patched(document: str, diffs: bytes) -> str:
    """The document after the changes, as `json_values` writes it.

    Parameters
    ----------
    document : str
        The document before, as `json_values` writes it.
    diffs : bytes
        The changes, as a row image has them.

    Raises
    ------
    BacklogError
        A change does not fit the document.
    """
    # A list of one: then the document itself has a parent too.
    whole = [_parsed(document)]
    for diff in _read(diffs):
        _apply(whole, diff)
    return _text(whole[0])


def _read(data: bytes) -> Iterator[_Diff]:
    at = 0
    while at < len(data):
        operation = data[at]
        size, at = read_length(data, at + 1)
        path, at = data[at : at + size].decode(), at + size
        value = b""
        if operation != _REMOVE:
            size, at = read_length(data, at)
            value, at = data[at : at + size], at + size
        yield _Diff(operation, path, from_binary(value) if operation != _REMOVE else "")


def _apply(whole: list[Any], diff: _Diff) -> None:
    legs: list[str | int] = [0, *_legs(diff.path)]
    parent: Any = whole
    for leg in legs[:-1]:
        if not _has(parent, leg):
            raise _does_not_fit(diff)
        parent = parent[leg]
    last = legs[-1]
    if diff.operation == _INSERT and isinstance(parent, dict) and isinstance(last, str) and last not in parent:
        parent[last] = _parsed(diff.value)
    elif diff.operation == _INSERT and isinstance(parent, list) and isinstance(last, int) and len(legs) > 1:
        parent.insert(last, _parsed(diff.value))
    elif diff.operation == _REPLACE and _has(parent, last):
        parent[last] = _parsed(diff.value)
    elif diff.operation == _REMOVE and _has(parent, last) and len(legs) > 1:
        del parent[last]
    else:
        raise _does_not_fit(diff)


def _has(parent: Any, leg: str | int) -> bool:
    if isinstance(parent, dict):
        return isinstance(leg, str) and leg in parent
    return isinstance(parent, list) and isinstance(leg, int) and leg < len(parent)


def _legs(path: str) -> Iterator[str | int]:
    at = 1 if path[:1] == "$" else 0
    while at < len(path):
        found = _LEG.match(path, at)
        if found is None:
            raise BacklogError(
                f"The binary log has a partial JSON update with the path {path!r}, which is not read.",
                "Set binlog_row_value_options='' on the server.",
            )
        quoted, plain, index = found.groups()
        yield int(index) if index is not None else plain if plain is not None else str(json.loads(f'"{quoted}"'))
        at = found.end()


def _does_not_fit(diff: _Diff) -> BacklogError:
    return BacklogError(
        f"The binary log has a partial JSON update of {diff.path}, which the document before it does not have.",
        "Set binlog_row_value_options='' on the server, and start with a new checkpoint.",
    )


def _parsed(text: str) -> Any:
    return json.loads(text, parse_float=_Number, parse_int=_Number)


def _text(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        # The server's order: shorter names first, then by bytes.
        names = sorted(value, key=lambda name: (len(name.encode()), name.encode()))
        return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {_text(value[name])}" for name in names) + "}"
    return json.dumps(value, ensure_ascii=False)
