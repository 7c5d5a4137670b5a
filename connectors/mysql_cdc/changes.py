"""Reading a binary log batch: changes after the snapshot's watermarks, as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from .binlog import DELETE, INSERT, RowsChange, TransactionEnd, read_changes
from .keys import Key
from .offsets import BinlogPosition, KeyRanges, Offset
from .options import MySqlOptions
from .places import Places
from .schema import TableSchema
from .server import query
from .snapshot import rows_to_table, with_metadata
from .watermark import resume_after, watermark
from .workers import worker_connection

__all__ = ["read_batch"]

_BATCH_ROWS = 10_000
UPDATE_BEFORE, UPDATE_AFTER = "update_preimage", "update_postimage"


class _SnapshotFilter:
    """Which changes the snapshot holds already: those of a transaction that its key's low watermark includes."""

    def __init__(self, options: MySqlOptions, schema: TableSchema, offset: Offset) -> None:
        self._options = options
        self._lows = [watermark(b.low) for b in offset.batches]
        self._ends = [b.end for b in offset.batches if b.end is not None]
        self._places = Places(schema.chunk_columns)
        self._ranges: KeyRanges | None = None
        self._covered: list[bool] = []

    def covered(self, change: RowsChange) -> bool | list[bool]:
        """Whether the change's transaction is in the low watermark of all batches, of none, or of which."""
        if not self._covered:  # looked up once for the transaction, at its first change, which has rows
            sequence = change.rows[0][0]
            self._covered = [low.includes(change.uuid, change.number, sequence) for low in self._lows]
        some = any(self._covered)
        return some if some == all(self._covered) else self._covered

    def end(self) -> None:
        """The transaction is over."""
        self._covered = []

    def held(self, keys: list[Key], covered: list[list[bool]]) -> list[bool]:
        """Whether the snapshot has each key's change, given which batches cover the transaction."""

        def ask(statement: str) -> list[tuple[Any, ...]]:
            with worker_connection(self._options) as connection:
                return query(connection, statement)

        if self._ranges is None:
            self._ranges = KeyRanges(self._places.of(ask, self._ends))
        found = self._ranges
        return [c[found.index(p)] for p, c in zip(self._places.of(ask, keys), covered, strict=True)]


@dataclass
class _Rows:
    """Output rows, column by column, with what decides whether the snapshot has them already."""

    rows: list[list[Any]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    micros: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    gtids: list[str] = field(default_factory=list)
    covered: list[list[bool] | None] = field(default_factory=list)

    def undecided(self) -> list[int]:
        return [i for i, covered in enumerate(self.covered) if covered is not None]

    def without(self, gone: set[int]) -> _Rows:
        columns: tuple[list[Any], ...] = (self.rows, self.kinds, self.micros, self.sequences, self.gtids, self.covered)
        return _Rows(*([v for i, v in enumerate(c) if i not in gone] for c in columns))


def read_batch(
    options: MySqlOptions, schema: TableSchema, start: Offset, until: BinlogPosition
) -> Iterator[pa.RecordBatch]:
    """Changes of transactions after ``start`` up to ``until``, less what the snapshot holds.

    An update is two rows, ``update_preimage`` and ``update_postimage``; an update that changes the primary key is a
    ``delete`` of the old and an ``insert`` of the new one, each judged by its own key's watermark.

    Yields
    ------
    pyarrow.RecordBatch
        With the schema of `TableSchema.arrow_schema`, in log order.
    """
    known = _SnapshotFilter(options, schema, start) if start.batches else None
    chunk_indexes = schema.indexes(schema.chunk_key)
    key_indexes = schema.indexes(schema.key)
    out = _Rows()

    def flush() -> Iterator[pa.RecordBatch]:
        nonlocal out
        if known is not None and (at := out.undecided()):
            keys: list[Key] = [tuple([out.rows[i][k] for k in chunk_indexes]) for i in at]
            held = known.held(keys, [c for c in out.covered if c is not None])
            out = out.without({i for i, h in zip(at, held, strict=True) if h})
        if out.rows:
            told: dict[str, list[Any]] = {
                "_change_type": out.kinds,
                "_commit_timestamp": out.micros,
                "_commit_seq": out.sequences,
                "_gtid": [gtid or None for gtid in out.gtids],
                "_is_snapshot": [False],
            }
            yield from with_metadata(schema, rows_to_table(schema, out.rows), told)
        out = _Rows()

    for change in read_changes(options, schema, start.position or resume_after(start.start), until):
        if isinstance(change, TransactionEnd):
            if known is not None:
                known.end()
            continue
        covered = known.covered(change) if known is not None else False
        if covered is True:
            continue
        at, gtid = change.timestamp * 1_000_000, change.gtid
        for kind, row, sequence in _output(change, key_indexes):
            out.rows.append(row)
            out.kinds.append(kind)
            out.micros.append(at)
            out.sequences.append(sequence)
            out.gtids.append(gtid)
            out.covered.append(covered or None)
        if len(out.rows) >= _BATCH_ROWS:
            yield from flush()
    yield from flush()


def _output(change: RowsChange, key: tuple[int, ...]) -> Iterator[tuple[str, list[Any], int]]:
    for sequence, before, after in change.rows:
        if before is None:
            assert after is not None
            yield INSERT, after, sequence
        elif after is None:
            yield DELETE, before, sequence
        elif all(before[i] == after[i] for i in key):
            yield UPDATE_BEFORE, before, sequence
            yield UPDATE_AFTER, after, sequence + 1
        else:
            yield DELETE, before, sequence
            yield INSERT, after, sequence + 1
