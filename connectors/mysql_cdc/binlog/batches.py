"""Reads a binary log batch: changes after the snapshot's watermarks, as Arrow batches."""

from __future__ import annotations

import bisect
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from backlog_spark.common.gc_tuning import collect_rarely

from ..offsets import Offset, SnapshotRange
from ..options import MySqlOptions
from ..output.rows import UPDATE_AFTER, UPDATE_BEFORE, ChangeRows, output_of
from ..schema.ddl.history import Layout
from ..schema.ddl.timeline import Fixed, TableName
from ..schema.key_order import OrderBytes
from ..schema.keys import Key
from ..schema.table import TableSchema
from ..server.bounded import PIECE_BYTES
from ..server.gtid import GtidSet
from ..server.mysql import query
from ..server.watermark import gtids_at, origin, watermark
from ..server.worker_connection import worker_connection
from .positions import BinlogPosition, byte_at, bytes_at, sequence_at
from .reading import DELETE, INSERT, RowsChange, TableAltered, TableEmptied, TransactionEnd, read_changes
from .records import Change, emptied_by
from .truncated_tables import effect

__all__ = ["read_batch", "rows_of"]

_BATCH_ROWS = 10_000
_AS_DECLARED: Mapping[TableName, Layout] = {}
_watermark = functools.lru_cache(maxsize=64)(watermark)


class _SnapshotFilter:
    """Finds changes that a table's snapshot holds already: the low watermark of their key includes the transaction."""

    def __init__(self, options: MySqlOptions, schema: TableSchema, ranges: Sequence[SnapshotRange]) -> None:
        self._options = options
        self._lows = [r.low for r in ranges]
        # Ranges that are still to be read will be read at a watermark that includes all these transactions.
        self._has_rest = not ranges or ranges[-1].end is not None
        self._ends = [r.end for r in ranges if r.end is not None]
        self._order = OrderBytes(schema.chunk_columns)
        self._chunk_indexes = schema.indexes(schema.chunk_key)
        self._end_orders: list[bytes] | None = None
        self._first: int | None = None

    def covered(self, change: RowsChange) -> bool | int:
        """Which ranges' low watermarks include the transaction: True for all, False for none, else the first range.

        Low watermarks grow from range to range. So those of all later ranges include it too.
        """
        if self._first is None:  # looked up once for each transaction, at its first change with rows
            told = change.uuid, change.number, change.at
            self._first = bisect.bisect_left(self._lows, True, key=lambda low: _watermark(low).includes(*told))
        if self._first == len(self._lows) and not self._has_rest:
            return False
        return self._first or True

    def end(self) -> None:
        """End the transaction."""
        self._first = None

    def unheld(self, found: ChangeRows) -> ChangeRows:
        """The changes, without those that the snapshot holds."""
        undecided = [i for i, covered in enumerate(found.covered) if covered is not None]
        if not undecided:
            return found
        keys: list[Key] = [tuple([found.rows[i][k] for k in self._chunk_indexes]) for i in undecided]
        held = self._held(keys, [c for c in found.covered if c is not None])
        gone = {i for i, h in zip(undecided, held, strict=True) if h}
        return found.take([i for i in range(len(found.rows)) if i not in gone])

    def _held(self, keys: list[Key], covered: list[int]) -> list[bool]:
        """Whether the snapshot holds each key's change, given the first range that covers the transaction."""

        def ask(statement: str) -> list[tuple[Any, ...]]:
            with worker_connection(self._options) as connection:
                return query(connection, statement)

        if self._end_orders is None:
            self._end_orders = self._order.of(ask, self._ends)
        ends = self._end_orders
        # A range includes its end. The last range is open, so it has no end here.
        return [
            bisect.bisect_left(ends, order) >= first
            for order, first in zip(self._order.of(ask, keys), covered, strict=True)
        ]


class _Changes:
    """Collects the changes of one table, to emit them in batches."""

    def __init__(
        self, options: MySqlOptions, schema: TableSchema, ranges: Sequence[SnapshotRange] | None, shift: int
    ) -> None:
        self._schema = schema
        self._shift = shift
        self._skipped = options.skipped
        self._known = _SnapshotFilter(options, schema, ranges) if ranges is not None else None
        self._key = _key_of(schema.indexes(schema.key))
        self._output = output_of(options.format, options.metadata, options.columns.salt)
        self._found = ChangeRows()

    def add(self, change: RowsChange) -> int:
        """Add the changes of an event, unless they are to be skipped; returns the number of rows."""
        if change.kind in self._skipped:
            return 0
        covered = self._known.covered(change) if self._known is not None else False
        if covered is True:
            return 0
        found = self._found
        kinds, rows, sequences = _images(change, self._key)
        count = len(rows)
        found.rows += rows
        found.kinds += kinds
        found.sequences += [sequence + self._shift for sequence in sequences] if self._shift else sequences
        found.positions += [byte_at(change.at)] * count if change.is_compressed else bytes_at(sequences)
        found.origins += [change] * count
        found.covered += [covered or None] * count
        return count

    def empty(self, found: TableEmptied) -> None:
        """Add a row for a statement that removed all rows."""
        self._found.rows.append([None] * len(self._schema.columns))
        self._found.kinds.append(found.kind)
        self._found.sequences.append(found.sequence + self._shift)
        self._found.positions.append(byte_at(found.sequence))
        self._found.origins.append(found)
        self._found.covered.append(None)

    def end(self, excess: int) -> None:
        """End the transaction. ``excess`` raises all later sequences."""
        self._shift += excess
        if self._known is not None:
            self._known.end()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Emit what was collected."""
        found = self._found if self._known is None else self._known.unheld(self._found)
        self._found = ChangeRows()
        if found.rows:
            yield from self._output.changes(self._schema, found)


def read_batch(
    options: MySqlOptions,
    tables: Sequence[TableSchema],
    start: Offset,
    until: BinlogPosition,
    layouts: Mapping[TableName, Layout] = _AS_DECLARED,
    only: str = "",
) -> Iterator[pa.RecordBatch]:
    """Changes of transactions after ``start`` up to ``until``, without those that the snapshot holds.

    An update becomes two rows, ``update_preimage`` and ``update_postimage``; with ``format=debezium`` one row. An
    update that changes the primary key becomes a ``delete`` of the old key and an ``insert`` of the new one. The
    watermark of each key decides separately.

    Parameters
    ----------
    layouts : mapping
        Layouts of the tables whose rows in the log have other columns than declared.
    only : str
        A GTID set. Only these transactions are read, wherever they are before ``until``; "" for all.

    Yields
    ------
    pyarrow.RecordBatch
        In the form of the option ``format``; for each table in log order.
    """
    changes = read_changes(options, tables, origin(start), until, timeline=Fixed(layouts, until))
    return rows_of(options, tables, start, _only(changes, start, only) if only else changes)


def rows_of(
    options: MySqlOptions, tables: Sequence[TableSchema], start: Offset, changes: Iterable[Change]
) -> Iterator[pa.RecordBatch]:
    """The rows that `read_batch` yields for these changes, which come after ``start`` and belong to these tables.

    ``start`` also has the ranges, `Offset.table_events` and `Offset.emptied` of the batch's end.
    """
    collect_rarely()
    number = {(t.database, t.table): i for i, t in enumerate(start.tables)}
    collectors = {}
    for schema in tables:
        table = number[schema.database, schema.table]
        ranges = start.ranges_of(table)
        known = ranges if ranges or table in start.joining else None
        collectors[id(schema)] = _Changes(options, schema, known, sequence_at(start.shift, 0) + start.excess)
    collected = size = 0
    left: set[int] = set()
    for change in changes:
        if isinstance(change, TransactionEnd):
            for collector in collectors.values() if start.ranges or start.joining or change.excess else ():
                collector.end(change.excess)
            continue
        if isinstance(change, TableAltered):
            if change.name in start.emptied:
                collectors[id(change.schema)].empty(emptied_by(change))
                collected += 1
                left.add(id(change.schema))
            continue
        if id(change.schema) in left:
            continue
        if isinstance(change, TableEmptied):
            # As the batch was planned, whatever the options say now.
            does = effect(change, start, "emit" if change.kind in start.table_events else "skip")
            if does.is_told:
                collectors[id(change.schema)].empty(change)
                collected += 1
            if does.leaves:
                left.add(id(change.schema))
            continue
        if added := collectors[id(change.schema)].add(change):
            collected += added
            size += change.size
        if collected >= _BATCH_ROWS or size >= PIECE_BYTES:
            for collector in collectors.values():
                yield from collector.flush()
            collected = size = 0
    for collector in collectors.values():
        yield from collector.flush()


def _only(changes: Iterable[Change], start: Offset, only: str) -> Iterator[Change]:
    """The changes of the transactions in a GTID set, until all of them were seen."""
    wanted, done = GtidSet(only), gtids_at(start)
    for change in changes:
        if isinstance(change, TransactionEnd):
            if isinstance(done, GtidSet):
                done.passed(change.uuid, change.number)
                if done.issuperset(wanted):
                    return
            yield change
        elif isinstance(change, TableAltered) or wanted.contains(change.uuid, change.number):
            yield change


def _key_of(indexes: Sequence[int]) -> Callable[[Any], Any]:
    """A function from a row to something that is equal for rows with the same key."""
    return operator.itemgetter(*indexes) if indexes else lambda row: None


def _images(change: RowsChange, key_of: Callable[[Any], Any]) -> tuple[list[str], list[Any], list[int]]:
    """Kind, values and sequence of each image."""
    sequences, befores, afters = zip(*change.rows, strict=True) if change.rows else ((), (), ())
    if change.kind == INSERT:
        return [INSERT] * len(afters), [*afters], [*sequences]
    if change.kind == DELETE:
        return [DELETE] * len(befores), [*befores], [*sequences]
    kinds: list[str] = []
    for before, after in zip(befores, afters, strict=True):
        kinds += (UPDATE_BEFORE, UPDATE_AFTER) if key_of(before) == key_of(after) else (DELETE, INSERT)
    rows = [row for pair in zip(befores, afters, strict=True) for row in pair]
    return kinds, rows, [number for sequence in sequences for number in (sequence, sequence + 1)]
