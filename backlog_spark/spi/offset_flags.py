"""Reads the flags in a source's offset (pure). No other module does.

A connector's offset is a JSON object with ``isProcessingBacklog``, ``isBacklog`` and, if the source has an end,
``isFinished``. ``hasTableEvents`` says that the batch that ends here has rows of type ``truncate`` or ``drop``.
``hasChanges`` says that its rows may be changes of earlier rows, although they are backlog. Only a JSON true counts.
``fills`` has new columns that old rows get at the end of the batch. Offsets of other sources have another form and no
flags.

``isSnapshot`` of a source that first reads a complete snapshot of its tables: true as long as rows of it follow after
this offset, false afterwards. Here an absent flag is neither.

``noRowsYet`` says that the source has given no row up to this offset. Then a backlog that begins here is still the
first one of keyed operators. Without it they may have state.

For display an offset may also have the numbers ``rows`` (read so far), ``total`` (an estimate of all rows of the
backlog), and ``committedMs``: when the oldest and the newest row of the batch that ends here were committed at the
source, in milliseconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from backlog_spark.common.figures import rows_left

__all__ = [
    "FILLS",
    "NO_ROWS_YET",
    "BatchFlags",
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


NO_ROWS_YET = "noRowsYet"
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
    except (ValueError, RecursionError):
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
    return rows_left(rows, total) if type(rows) is int and type(total) is int else None


def is_backlog(start: Mapping[str, Any] | None, end: Mapping[str, Any] | None) -> bool:
    """Whether the rows between two offsets are backlog records.

    The flag at the start says so. A source's first batch has no start; then ``isBacklog`` of its end does.
    """
    if start is not None:
        return start.get("isProcessingBacklog") is True
    return end is not None and end.get("isBacklog") is True


@dataclass(frozen=True)
class BatchFlags:
    """What the offsets say about one batch. Lists have one entry per declared source, in the order of the arguments.

    Parameters
    ----------
    starts, ends : sequence of (dict or None)
        Offsets at the batch's start and end. None: the source has none yet.
    starts_in_backlog : sequence of bool
        The flag of a source that has no offset yet.
    others : sequence of (dict or None, dict or None)
        The same two offsets of all other sources: a streaming DataFrame may read a source that has flags, too.
    """

    starts: Sequence[Mapping[str, Any] | None]
    ends: Sequence[Mapping[str, Any] | None]
    starts_in_backlog: Sequence[bool]
    others: Sequence[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]] = ()

    @cached_property
    def in_backlog(self) -> list[bool]:
        """Whether each source is processing backlog, from the batch's end on."""
        return [
            first if end is None else is_processing_backlog(end)
            for end, first in zip(self.ends, self.starts_in_backlog, strict=True)
        ]

    @cached_property
    def finished(self) -> list[bool]:
        """Whether each source has finished, at the batch's end."""
        return list(map(is_finished, self.ends))

    @cached_property
    def no_rows_yet(self) -> bool:
        """Whether no source has given a row, up to the batch's end."""
        return all(end is None or end.get(NO_ROWS_YET) is True for end in self.ends)

    @cached_property
    def rows_in_backlog(self) -> list[bool]:
        """Whether each source's rows in the batch are backlog records."""
        return [
            first if start is None and end is None else is_backlog(start, end) and not is_finished(start)
            for start, end, first in zip(self.starts, self.ends, self.starts_in_backlog, strict=True)
        ]

    @cached_property
    def had_finished(self) -> list[bool]:
        """Whether each source had finished before the batch."""
        return list(map(is_finished, self.starts))

    @cached_property
    def is_backlog(self) -> bool:
        """RecordAttributes of the batch: whether any of its rows is a backlog record."""
        return any(is_backlog(start, end) and not is_finished(start) for start, end in self._moved)

    @cached_property
    def _moved(self) -> list[tuple[Mapping[str, Any] | None, Mapping[str, Any]]]:
        """The offsets of the sources that gave rows to the batch. The others' are unchanged."""
        pairs = (*zip(self.starts, self.ends, strict=True), *self.others)
        return [(start, end) for start, end in pairs if end is not None and end != start]

    @property
    def has_table_events(self) -> bool:
        """Whether the batch may have rows of type ``truncate`` or ``drop``."""
        return any(has_table_events(end) for _, end in self._moved)

    @property
    def has_changes(self) -> bool:
        """Whether the batch may have changes of earlier rows although it is backlog."""
        return any(has_changes(end) for _, end in self._moved)

    @property
    def fills(self) -> tuple[tuple[str, str, str], ...]:
        """The new columns that old rows get after the batch."""
        return tuple(fill for _, end in self._moved for fill in fills(end))

    @property
    def snapshot(self) -> Literal["", "part", "end"]:
        """Whether the batch is of the sources' snapshots: ``"end"`` if the last of them ends with it.

        For a query whose sources all begin with a snapshot. Empty if the snapshots have ended before, or an offset does
        not say.
        """
        # Also before a source's first batch its snapshot follows.
        before, after = ([True if o is None else snapshot_follows(o) for o in at] for at in (self.starts, self.ends))
        if True in after:
            return "part"
        return "end" if None not in after and any(before) else ""
