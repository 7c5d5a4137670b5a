"""Reads the flags in a source's offset (pure). No other module does.

A connector's offset is a JSON object with ``isProcessingBacklog``, ``isBacklog`` and, if the source has an end,
``isFinished``. ``hasTableEvents`` says that the batch that ends here has rows of type ``truncate`` or ``drop``.
``hasChanges`` says that its rows may be changes of earlier rows, although they are backlog. Only a JSON true counts.
``fills`` has new columns that old rows get at the end of the batch. Offsets of other sources have another form and no
flags.

``isSnapshot`` of a source that first reads a complete snapshot of its tables: true as long as rows of it follow after
this offset, false afterwards. Here an absent flag is neither.

For display an offset may also have the numbers ``rows`` (read so far), ``total`` (an estimate of all rows of the
backlog), and ``committedMs``: when the oldest and the newest row of the batch that ends here were committed at the
source, in milliseconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = [
    "FILLS",
    "committed_ms",
    "fills",
    "has_changes",
    "has_flag",
    "has_table_events",
    "is_backlog",
    "is_finished",
    "is_processing_backlog",
    "parse_offset",
    "rows_behind",
    "snapshot_follows",
]


FILLS = "fills"
"""A list of [database, table, values]: the columns to fill, one row as an Arrow stream, in base64."""


def parse_offset(text: str | None) -> dict[str, Any] | None:
    """Parse an offset, a JSON text as Spark keeps and shows it.

    Returns
    -------
    dict or None
        None unless the text is a JSON object: absent offsets read ``"null"`` or ``"None"``, rate and socket
        sources have bare numbers, and a foreign source may write anything.
    """
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def has_flag(offset: Mapping[str, Any] | None) -> bool:
    """Whether the offset has the flag ``isProcessingBacklog``."""
    return offset is not None and "isProcessingBacklog" in offset


def is_processing_backlog(offset: Mapping[str, Any] | None) -> bool:
    """Whether the source is processing backlog from this offset on; a finished source is not (FLIP-147)."""
    return offset is not None and offset.get("isProcessingBacklog") is True and not is_finished(offset)


def is_finished(offset: Mapping[str, Any] | None) -> bool:
    """Whether the source has come to its end."""
    return offset is not None and offset.get("isFinished") is True


def has_table_events(end: Mapping[str, Any] | None) -> bool:
    """Whether the rows up to this offset tell of statements that removed all rows of a table."""
    return end is not None and end.get("hasTableEvents") is True


def has_changes(end: Mapping[str, Any] | None) -> bool:
    """Whether the rows up to this offset may be changes of earlier rows, although they are backlog."""
    return end is not None and end.get("hasChanges") is True


def fills(end: Mapping[str, Any] | None) -> tuple[tuple[str, str, str], ...]:
    """New columns that all rows of a table get at this offset: database, table and values, as in `FILLS`."""
    return tuple((database, table, values) for database, table, values in (end or {}).get(FILLS, ()))


def snapshot_follows(offset: Mapping[str, Any] | None) -> bool | None:
    """Whether rows of a complete snapshot follow after this offset; None if it does not say."""
    found = None if offset is None else offset.get("isSnapshot")
    return found if isinstance(found, bool) else None


def committed_ms(end: Mapping[str, Any] | None) -> tuple[int, int] | None:
    """When the oldest and the newest row of the batch that ends here were committed at the source; None if unknown."""
    found = None if end is None else end.get("committedMs")
    if isinstance(found, list) and len(found) == 2 and all(type(each) is int for each in found):
        return found[0], found[1]
    return None


def rows_behind(offset: Mapping[str, Any] | None) -> int | None:
    """Rows of the backlog that are not read yet, as the source estimates; 0 out of backlog, None if unknown."""
    if not has_flag(offset) or offset is None:
        return None
    if not is_processing_backlog(offset):
        return 0
    rows, total = offset.get("rows"), offset.get("total")
    return max(0, total - rows) if type(rows) is int and type(total) is int else None


def is_backlog(start: Mapping[str, Any] | None, end: Mapping[str, Any] | None) -> bool:
    """Whether the rows between two offsets are backlog records.

    The flag at the start says so. A source's first batch has no start; then ``isBacklog`` of its end does.
    """
    if start is not None:
        return start.get("isProcessingBacklog") is True
    return end is not None and end.get("isBacklog") is True
