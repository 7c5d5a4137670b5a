"""A listing as an Arrow table, and what is new in it compared with the files found before (pure).

Tables take some 100 bytes a file, a tenth of what objects of Python take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .listing import Listed

__all__ = ["FOUND", "SEEN", "Compared", "chunks", "compared", "gathered", "merged", "ordered", "release"]

FOUND = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("tag", pa.string()),
        ("below", pa.int32()),
        ("modified", pa.float64()),
    ]
)
"""A listing. The columns are those of `FileFound` and `Listed`."""

SEEN = pa.schema([FOUND.field(name) for name in ("path", "size", "tag")])
"""What is kept of each file that was found, for ever."""

# Files as objects of Python at a time, and as rows that are compared at a time, with as many of those found before: a
# hash table of all their paths would take more memory than the list. Each part of a listing makes all these tables.
_OBJECTS = 10_000
_ROWS = 100_000


def chunks(files: Iterable[Listed]) -> Iterator[pa.Table]:
    """A listing as tables. At least one, which may be empty."""
    rest = iter(files)
    while True:
        batches = list(islice(_batches(rest), _ROWS // _OBJECTS))
        yield pa.Table.from_batches(batches, FOUND)
        if len(batches) < _ROWS // _OBJECTS:
            return


def _batches(files: Iterator[Listed]) -> Iterator[pa.RecordBatch]:
    while some := list(islice(files, _OBJECTS)):
        columns = [
            [f.found.path for f in some],
            [f.found.size for f in some],
            [f.found.tag for f in some],
            [f.below for f in some],
            [f.found.modified for f in some],
        ]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, FOUND, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=FOUND)


def gathered(files: Iterable[Listed], order: Sequence[str]) -> pa.Table:
    """A listing in the order of some columns, each path once."""
    return ordered(pa.concat_tables(chunks(files)), order)


def ordered(table: pa.Table, order: Sequence[str]) -> pa.Table:
    """Rows in the order of some columns, each path once."""
    has_all_once = pc.count_distinct(table.column("path")).as_py() == len(table)
    release()
    if not has_all_once:
        table = _first_of_each_path(table)
    return table.sort_by([(name, "ascending") for name in order])


def release() -> None:
    """Give memory of earlier listings back to the operating system, which Arrow's pool would keep.

    With a million files the process then has 280 MB between two listings, and 450 MB without.
    """
    pa.default_memory_pool().release_unused()


def _first_of_each_path(table: pa.Table) -> pa.Table:
    """Sorted by path. Of equal paths only the first row stays."""
    if not len(table):
        return table
    table = table.take(pc.sort_indices(table.column("path"))).combine_chunks()
    path = table.column("path")
    is_other = np.append(True, pc.not_equal(path.slice(1), path.slice(0, len(path) - 1)).to_numpy())
    return table if is_other.all() else table.filter(pa.array(is_other))


@dataclass(frozen=True)
class Compared:
    """The files of a listing that were not found before.

    Parameters
    ----------
    new, late, rewritten : pyarrow.Table
        ``late``: new files whose paths are not greater than the last one.
        ``rewritten``: files whose path was found before, with another size or tag.
    """

    new: pa.Table
    late: pa.Table
    rewritten: pa.Table


def compared(listing: Iterable[pa.Table], seen: Sequence[pa.Table], last: str = "") -> Compared:
    """Compare a listing with what was found before.

    Parameters
    ----------
    listing : iterable of pyarrow.Table
        As from `chunks`. Only the files of the result are kept.
    seen : sequence of pyarrow.Table
        Newest first: the first table that has a path has its present size and tag.
    last : str
        The greatest path found before, if names grow; "" otherwise.
    """
    parts = [_compared(chunk, seen, last) for chunk in listing]
    return Compared(*(pa.concat_tables(each) for each in zip(*parts, strict=True)))


def _compared(listing: pa.Table, seen: Sequence[pa.Table], last: str) -> tuple[pa.Table, ...]:
    known = np.zeros(len(listing), bool)
    changed = np.zeros(len(listing), bool)
    for run in (table.slice(first, _ROWS) for table in seen for first in range(0, len(table), _ROWS)):
        at = pc.index_in(listing.column("path"), value_set=run.column("path"))
        rows = np.flatnonzero(~known & at.is_valid().to_numpy())
        if not len(rows):
            continue
        before, now = run.take(at.take(pa.array(rows))), listing.take(pa.array(rows))
        same_tag = pc.or_(pc.equal(before.column("tag"), now.column("tag")), pc.equal(before.column("tag"), ""))
        same = pc.and_(pc.equal(before.column("size"), now.column("size")), same_tag).to_numpy()
        known[rows] = True
        changed[rows] = ~same
    is_late = np.zeros(len(listing), bool)
    if last and len(listing):
        is_late = ~known & pc.less_equal(listing.column("path"), last).to_numpy()
    masks = (~known & ~is_late, is_late, known & changed)
    return tuple(listing.filter(pa.array(mask)) for mask in masks)


def merged(runs: Sequence[pa.Table]) -> pa.Table:
    """Some tables of seen files as one, sorted by path. Newest first, as in `compared`."""
    return _first_of_each_path(pa.concat_tables([run.select(SEEN.names) for run in runs]))
