"""The versions of each key in a small batch, in Arrow (pure).

A batch's changes of a key, in their order, become rows for a MERGE. Each row of the table matches at most one of them:

* `FIRST`: the first version. It matches the key's current row if this has the same tracked values, and then continues
  it. Otherwise it is inserted.
* `CLOSING`: beside each `FIRST`. It matches the current row if this has other tracked values, and closes it.
* `DELETED`: instead of both, if the first change is a delete. It closes the current row.
* `LATER`: a later version. It matches nothing, and is inserted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.sinks.newest_changes import deletes_of

__all__ = ["CLOSING", "DELETED", "FIRST", "KIND", "LATER", "condition", "ended", "versions_of"]

FIRST: Final = 0
CLOSING: Final = 1
DELETED: Final = 2
LATER: Final = 3
KIND: Final = "__backlog_spark_kind"
"""Column of a MERGE's source."""

Flags = np.ndarray[Any, np.dtype[np.bool_]]


def versions_of(
    rows: pa.Table,
    keys: Sequence[str],
    change_type: str | None,
    sequence: str,
    columns: tuple[str, str, str],
    tracked: Sequence[str],
    sink: str,
) -> pa.Table:
    """The source of a MERGE: the columns of `rows`, and `KIND`.

    Parameters
    ----------
    rows : pyarrow.Table
        A batch; all column names are different.
    keys : sequence of str
        NULL is a value like any other.
    change_type : str or None
        None: each row is an upsert.
    sequence : str
        NULL is oldest; an upsert wins over a delete with an equal sequence.
    columns : tuple of str
        Names of the columns of `rows` with begin, end and flag of a version. The first has the time of the change.
    tracked : sequence of str
        A change of other columns is no new version.
    sink : str
        The sink's name for messages.

    Raises
    ------
    BacklogError
        For an unknown change type.
    """
    since, until, is_current = columns
    is_delete = deletes_of(rows, change_type, sink)
    by = {f"k{number}": rows[key] for number, key in enumerate(keys)}
    of_rows = pa.table({**by, "sequence": rows[sequence], "delete": is_delete})
    order: Any = [(name, "ascending", "at_end") for name in by]
    order += [("sequence", "ascending", "at_start"), ("delete", "descending", "at_end")]
    sorted_rows = pc.sort_indices(of_rows, order)
    found = rows.append_column(KIND, is_delete).take(sorted_rows).combine_chunks()
    is_repeated = _as_before(found, [*keys, sequence])  # the change before has the same sequence: this one wins
    found = found.filter(pa.array(np.append(~is_repeated[1:], True)[: len(found)]))

    of_key, deletes = _as_before(found, keys), _flags(found[KIND])
    continues = of_key & _as_before(found, [KIND]) & (deletes | _as_before(found, tracked))
    starts = np.flatnonzero(~continues)
    ends = np.append(starts[1:], len(found))[: len(starts)] - 1
    is_first, is_delete_run = ~of_key[starts], deletes[starts]
    has_next = np.append(~is_first[1:], False)[: len(starts)]
    begin = found[since].take(pa.array(starts))
    end = begin.take(pa.array(np.where(has_next, np.arange(1, len(starts) + 1), 0), mask=~has_next))
    runs = found.drop_columns([KIND]).take(pa.array(ends))
    for name, values in ((since, begin), (until, end), (is_current, pa.array(~has_next))):
        runs = runs.set_column(runs.column_names.index(name), name, values)
    parts = [
        (FIRST, is_first & ~is_delete_run),
        (CLOSING, is_first & ~is_delete_run),
        (DELETED, is_first & is_delete_run),
        (LATER, ~is_first & ~is_delete_run),
    ]
    made = [
        part.append_column(KIND, pa.repeat(pa.scalar(kind, pa.int32()), part.num_rows))
        for kind, which in parts
        if (part := runs.filter(pa.array(which))).num_rows or kind == FIRST
    ]
    return pa.concat_tables(made)


def condition(same: str, is_current: str, kind: str) -> str:
    """The part of a MERGE's condition beside the keys, in the SQL of Spark and of delta-rs.

    Parameters
    ----------
    same : str
        Whether the tracked values of source and table are the same.
    is_current, kind : str
        Columns of the table and of the source.
    """
    first, closing = f"WHEN {kind} = {FIRST} THEN ({same})", f"WHEN {kind} = {CLOSING} THEN NOT ({same})"
    return f"({is_current}) AND (CASE {first} {closing} WHEN {kind} = {LATER} THEN false ELSE true END)"


def ended(
    old: pa.Table, new: pa.Table, is_deleted: Flags, columns: tuple[str, str, str], tracked: Sequence[str]
) -> tuple[pa.Table, Flags]:
    """What becomes of current rows in a table without a MERGE.

    Parameters
    ----------
    old, new : pyarrow.Table
        Current rows, and for each the row of kind `FIRST` or `DELETED` with its key; of the same columns.
    is_deleted : numpy.ndarray of bool
        Whether the latter is `DELETED`.
    columns, tracked
        As of `versions_of`.

    Returns
    -------
    tuple of pyarrow.Table and numpy.ndarray of bool
        The rows as they become, in any order; and for each row of `old` whether its version goes on.
    """
    since, until, is_current = columns
    goes_on = ~is_deleted & _equal(old, new, tracked)
    closed = old.filter(pa.array(~goes_on))
    at = closed.schema.names.index
    closed = closed.set_column(at(until), closed.field(until), new[since].filter(pa.array(~goes_on)))
    closed = closed.set_column(at(is_current), closed.field(is_current), pa.repeat(False, closed.num_rows))
    continued = new.filter(pa.array(goes_on))
    begin = old[since].filter(pa.array(goes_on))
    continued = continued.set_column(continued.schema.names.index(since), continued.field(since), begin)
    return pa.concat_tables([closed, continued]), goes_on


def _as_before(rows: pa.Table, names: Sequence[str]) -> Flags:
    """Whether each row has the values of the row before. The first has not."""
    same = np.zeros(len(rows), np.bool_)
    same[1:] = _equal(rows.slice(1), rows.slice(0, max(0, len(rows) - 1)), names)
    return same


def _equal(one: pa.Table, other: pa.Table, names: Sequence[str]) -> Flags:
    """Whether each row has the values of the row at the same place, as Spark's ``<=>`` compares them."""
    same = np.ones(len(one), np.bool_)
    for name in names:
        left, right = one[name].combine_chunks(), other[name].combine_chunks()
        equal = pc.equal(left, right)
        both = pc.and_(pc.is_null(left), pc.is_null(right))
        if pa.types.is_floating(left.type):
            equal = pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
        same &= _flags(pc.coalesce(equal, both))
    return same


def _flags(values: Any) -> Flags:
    made: Flags = np.asarray(values.to_numpy(zero_copy_only=False), np.bool_)
    return made
