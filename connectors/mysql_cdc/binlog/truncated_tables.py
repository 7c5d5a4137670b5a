"""Decides what a TRUNCATE or DROP of a captured table does to the stream (pure): ``tableEvents``.

The log has no images of the rows that such a statement removes. So the stream has one row for all of them. While a
snapshot is read, some ranges of the table may have been read before the statement, others after it. The row would also
remove the rows of the later ranges from a target. Then the table leaves the stream at the statement, and joins it again
with a new snapshot (`snapshot.new_tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..offsets import Offset
from ..schema.ddl.statements import DROP, Removal
from ..schema.ddl.timeline import TableAltered
from ..schema.table import TableSchema
from ..server.watermark import watermark
from .records import TableEmptied

__all__ = ["Effect", "effect", "is_held", "removed_tables"]


class Effect(NamedTuple):
    """What a statement does.

    Parameters
    ----------
    is_told : bool
        The stream has a row for the statement.
    leaves : bool
        The table leaves the stream: a batch ends with the statement. If the server has a table with this name later,
        that table joins the stream.
    """

    is_told: bool
    leaves: bool


def effect(found: TableEmptied, start: Offset, table_events: str) -> Effect:
    """What a statement does in a batch that begins at ``start``.

    Parameters
    ----------
    start : Offset
        Of the binary log phase. Its ranges are those up to the batch's end.
    table_events : str
        ``"emit"`` or ``"skip"``.
    """
    ranges, held = _held(found, start)
    emits = table_events == "emit"
    everything = bool(held) and all(held)
    if found.kind == DROP:
        # The table leaves even if its whole snapshot is of a later table with this name: the log of that table is read
        # only after it has joined again.
        return Effect(is_told=emits and not (everything and not ranges), leaves=True)
    if everything:
        return Effect(is_told=False, leaves=False)
    return Effect(is_told=emits, leaves=emits and any(held))


def is_held(found: TableEmptied | TableAltered, start: Offset) -> bool | None:
    """Whether all rows of the snapshot were read after a statement; None for some of them.

    Parameters
    ----------
    start : Offset
        As for `effect`.
    """
    _, held = _held(found, start)
    return None if any(held) and not all(held) else any(held)


def _held(found: TableEmptied | TableAltered, start: Offset) -> tuple[bool, list[bool]]:
    """Whether the table has ranges, and for each part of its snapshot whether that holds a statement."""
    name = found.schema.database, found.schema.table
    table = next(i for i, t in enumerate(start.tables) if (t.database, t.table) == name)
    ranges = start.ranges_of(table)
    held = [watermark(r.low).includes(found.uuid, found.number, found.sequence) for r in ranges]
    if (ranges or table in start.joining) and not (ranges and ranges[-1].end is None):
        held.append(True)  # the rest will be read at a watermark that includes the statement
    return bool(ranges), held


def removed_tables(found: Removal, tables: Iterable[TableSchema], folds_case: Callable[[], bool]) -> list[TableSchema]:
    """The tables among these whose rows a statement removes.

    Parameters
    ----------
    folds_case : callable
        Whether the server takes names that differ in case for equal. Called only if that matters.
    """
    folded = {(database.lower(), table.lower()) for database, table in found.tables}
    named: list[TableSchema] = []
    for schema in tables:
        is_same = schema.database == found.database or (schema.database, schema.table) in found.tables
        is_alike = (
            schema.database.lower() == found.database.lower()
            or (schema.database.lower(), schema.table.lower()) in folded
        )
        if is_same or (is_alike and folds_case()):
            named.append(schema)
    return named
