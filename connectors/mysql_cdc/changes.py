"""Reading a binary log batch: changes after the snapshot's watermarks, as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from .binlog import DELETE, INSERT, RowsChange, TransactionEnd, read_changes
from .offsets import BinlogPosition, KeyRanges, Offset
from .options import MySqlOptions
from .schema import TableSchema
from .snapshot import rows_to_table, with_metadata
from .watermark import resume_after, watermark

__all__ = ["read_batch"]

_BATCH_ROWS = 10_000
UPDATE_BEFORE, UPDATE_AFTER = "update_preimage", "update_postimage"


class _SnapshotFilter:
    """Which changes the snapshot holds already: those of a transaction that its key's low watermark includes."""

    def __init__(self, offset: Offset) -> None:
        self._ranges = KeyRanges(offset.batches)
        self._lows = [watermark(b.low) for b in offset.batches]
        self._covered: list[bool] = []

    def begin(self, change: RowsChange) -> None:
        """Look the transaction up once for all its changes: at the first one, which has rows."""
        if not self._covered:
            sequence = change.rows[0][0]
            self._covered = [low.includes(change.uuid, change.number, sequence) for low in self._lows]

    def end(self) -> None:
        """The transaction is over."""
        self._covered = []

    def holds(self, key: int) -> bool:
        """Whether the current transaction's change of ``key`` is in the snapshot."""
        return self._covered[self._ranges.index(key)]


def read_batch(
    options: MySqlOptions, schema: TableSchema, start: Offset, until: BinlogPosition
) -> Iterator[pa.RecordBatch]:
    """Changes of transactions after ``start`` up to ``until``, less what the snapshot holds.

    An update is two rows, ``update_preimage`` and ``update_postimage``; an update that changes the key is a
    ``delete`` of the old and an ``insert`` of the new one, each judged by its own key's watermark.

    Yields
    ------
    pyarrow.RecordBatch
        With the schema of `TableSchema.arrow_schema`, in log order.
    """
    known = _SnapshotFilter(start) if start.batches else None
    key = schema.key_index
    rows: list[list[Any]] = []
    kinds: list[str] = []
    micros: list[int] = []
    sequences: list[int] = []

    def flush() -> Iterator[pa.RecordBatch]:
        yield from with_metadata(schema, rows_to_table(schema, rows), kinds, micros, sequences)
        for column in (rows, kinds, micros, sequences):
            column.clear()

    for change in read_changes(options, schema, start.position or resume_after(start.start), until):
        if isinstance(change, TransactionEnd):
            if known is not None:
                known.end()
            continue
        if known is not None:
            known.begin(change)
        at = change.timestamp * 1_000_000
        for kind, row, sequence in _output(change, key):
            if known is None or not known.holds(row[key]):
                rows.append(row)
                kinds.append(kind)
                micros.append(at)
                sequences.append(sequence)
        if len(rows) >= _BATCH_ROWS:
            yield from flush()
    if rows:
        yield from flush()


def _output(change: RowsChange, key: int) -> Iterator[tuple[str, list[Any], int]]:
    for sequence, before, after in change.rows:
        if before is None:
            assert after is not None
            yield INSERT, after, sequence
        elif after is None:
            yield DELETE, before, sequence
        elif before[key] == after[key]:
            yield UPDATE_BEFORE, before, sequence
            yield UPDATE_AFTER, after, sequence + 1
        else:
            yield DELETE, before, sequence
            yield INSERT, after, sequence + 1
