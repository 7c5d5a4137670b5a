"""Merges a small batch into the files of an Iceberg table that hold rows to change, in the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.sinks.iceberg.columns import conformed
from backlog_spark.sinks.iceberg.commits import Changes
from backlog_spark.sinks.iceberg.files import TableFiles
from backlog_spark.sinks.iceberg.key_matching import positions_of
from backlog_spark.sinks.iceberg.key_ranges import KeyRanges
from backlog_spark.sinks.row_versions import DELETED, FIRST, KIND, LATER, ended

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["NewVersions", "NewestRows", "SmallBatch", "merge_small"]

# Keys of so many rows are read in about two seconds, if their ranges skip no file.
_MOST_KEYS: Final = 20_000_000
# Files of so many bytes are rewritten in a few seconds. Spark's tasks do it faster from there on.
_MOST_BYTES: Final = 128 << 20

Flags = np.ndarray[Any, np.dtype[np.bool_]]


class SmallBatch(Protocol):
    """What a batch does to the rows of a table."""

    rows: pa.Table
    """One row for each key, of columns of the table."""
    keys: Sequence[str]
    """Columns of types whose values Arrow compares."""
    flag: str | None
    """Column that is true in rows of the table that a change of their key may change; None: in all."""

    def changed(self, old: pa.Table, new: pa.Table, positions: np.ndarray[Any, Any]) -> tuple[pa.Table, Flags]:
        """The rows that replace rows of the table; and for each of these whether its row in `rows` is done.

        Parameters
        ----------
        old : pyarrow.Table
            Rows of the table.
        new : pyarrow.Table
            For each the row of `rows` with its key, with all columns of the table.
        positions : numpy.ndarray
            Its place in `rows`.
        """

    def added(self, rows: pa.Table, is_done: Flags) -> list[pa.Table]:
        """The new rows. ``rows``: those of the batch, in the table's types."""


class NewestRows:
    """The newest change of each key. Rows of one key, as another writer can leave them, become one.

    Parameters
    ----------
    rows : pyarrow.Table
        At most one row for each key, of columns of the table. Other columns keep their values.
    deletes : pyarrow.ChunkedArray
        Whether each row removes its key.
    keys : sequence of str
    """

    flag: str | None = None

    def __init__(self, rows: pa.Table, deletes: pa.ChunkedArray, keys: Sequence[str]) -> None:
        self.rows = rows
        self.keys = keys
        self._deletes = np.asarray(deletes.to_numpy(), bool)
        self._has_row = self._deletes.copy()  # whether it has replaced a row, or has none

    def changed(self, old: pa.Table, new: pa.Table, positions: np.ndarray[Any, Any]) -> tuple[pa.Table, Flags]:
        is_first = np.zeros(len(positions), bool)
        is_first[np.unique(positions, return_index=True)[1]] = True
        is_first &= ~self._has_row[positions]
        self._has_row[positions] = True
        return new.filter(pa.array(is_first)), np.ones(len(positions), bool)

    def added(self, rows: pa.Table, is_done: Flags) -> list[pa.Table]:
        return [rows.filter(pa.array(~is_done & ~self._deletes))]


class NewVersions:
    """Versions of rows.

    Parameters
    ----------
    versions : pyarrow.Table
        As of `versions_of`.
    columns : sequence of str
        The stored ones.
    keys : sequence of str
    own : tuple of str
        Names of the columns with begin, end and flag of a version.
    tracked : sequence of str
        As of `versions_of`.
    """

    def __init__(
        self,
        versions: pa.Table,
        columns: Sequence[str],
        keys: Sequence[str],
        own: tuple[str, str, str],
        tracked: Sequence[str],
    ) -> None:
        kinds = versions[KIND]
        first = versions.filter(pc.is_in(kinds, value_set=pa.array([FIRST, DELETED], kinds.type)))
        self.rows = first.select(columns)
        self.keys = keys
        self.flag: str | None = own[2]
        self._is_deleted = np.asarray(pc.equal(first[KIND], DELETED).to_numpy(), bool)
        self._later = versions.filter(pc.equal(kinds, LATER)).select(columns)
        self._own = own
        self._tracked = tracked

    def changed(self, old: pa.Table, new: pa.Table, positions: np.ndarray[Any, Any]) -> tuple[pa.Table, Flags]:
        return ended(old, new, self._is_deleted[positions], self._own, self._tracked)

    def added(self, rows: pa.Table, is_done: Flags) -> list[pa.Table]:
        return [rows.filter(pa.array(~is_done & ~self._is_deleted)), self._later]


def merge_small(table: Table, batch: SmallBatch) -> Changes | str:
    """Write the files that replace those which hold rows to change.

    Parameters
    ----------
    table : Table
        The version to change.
    batch : SmallBatch

    Returns
    -------
    Changes or str
        Or why Spark should do it: nothing was written.
    """
    files = TableFiles.of(table)
    schema = files.schema
    columns = batch.rows.column_names
    rows = conformed(batch.rows, pa.schema([schema.field(name) for name in columns]))
    wanted = rows.select(batch.keys)
    candidates = KeyRanges(table.schema(), wanted).candidates(table)
    count = sum(task.file.record_count for task in candidates)
    if count > _MOST_KEYS:
        return f"its keys may be in files with {count:,} rows"
    needed = [*batch.keys, *([] if batch.flag is None else [batch.flag])]
    found = [(task, _positions(files.read(task, needed), wanted, batch.flag)) for task in candidates]
    touched = [(task, positions) for task, positions in found if (positions >= 0).any()]
    size = sum(task.file.file_size_in_bytes for task, _ in touched)
    if size > _MOST_BYTES:
        return f"its keys are in files with {size:,} bytes"
    is_done = np.zeros(rows.num_rows, bool)
    added = []
    for task, positions in touched:
        old = files.read(task)
        is_found = positions >= 0
        its_rows, places = old.filter(pa.array(is_found)), positions[is_found]
        new = rows.take(pa.array(places))
        for name in schema.names:
            if name not in columns:
                new = new.append_column(name, its_rows[name])
        changed, done = batch.changed(its_rows, conformed(new, schema), places)
        is_done[places[done]] = True
        added += files.write(pa.concat_tables([old.filter(pa.array(~is_found)), changed]))
    fresh = pa.concat_tables([conformed(each, schema) for each in batch.added(rows, is_done)])
    added += files.write(fresh)
    return Changes(added, [task.file for task, _ in touched])


def _positions(keys: pa.Table, wanted: pa.Table, flag: str | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    found = positions_of(keys.select(wanted.column_names), wanted)
    if flag is not None:
        found[~np.asarray(pc.fill_null(keys[flag], False).to_numpy(), bool)] = -1
    return found
