"""Snapshots that are read again on the same checkpoint: ``snapshot.mode=when_needed``.

The log after the stream's position no longer exists, so its changes cannot be read. Rows of the target may be old ones.
The stream goes back to the snapshot phase, in two batches:

1. A batch without rows, in which ``isProcessingBacklog`` becomes true. Its end offset names the tables to empty.
2. The first batch of the new snapshot. It also has a row of type ``truncate`` for each of these tables, before all its
   other rows. A sink empties the table and writes the first rows in one commit.

Further batches are those of any snapshot. `Offset.shift` grows, so ``_commit_seq`` does too: the rows of the new
snapshot come after everything that the stream had before.

A batch that was planned before the log was lost can no longer be read. It stays empty if the log after its end is gone
too: then the next batch begins the snapshot, whoever plans it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ..binlog.positions import sequence_at
from ..binlog.records import TableEmptied
from ..offsets import Offset
from ..options import MySqlOptions
from ..output.rows import ChangeRows, output_of
from ..schema.ddl.statements import TRUNCATE
from ..schema.ddl.timeline import TableName
from ..schema.declared import DeclaredTables
from ..schema.table import SchemaChanged, TableSchema

__all__ = ["EmptiedPartition", "begun_again", "check_same_keys", "emptied_partition", "emptied_rows", "row_sequence"]


@dataclass
class EmptiedPartition(InputPartition):
    """Tables whose rows a target has to remove. Their rows have this ``_commit_seq`` and time.

    ``unknown``: tables that were dropped. Nobody knows their columns any more; they have those of another table.
    """

    tables: tuple[TableSchema, ...]
    unknown: tuple[TableSchema, ...]
    sequence: int
    at_ms: int


def begun_again(start: Offset, server: str, tables: Sequence[TableSchema]) -> Offset:
    """The offset from which the snapshot is read again.

    Parameters
    ----------
    start : Offset
        Where the stream was. It may be in a snapshot, too.
    server : str
        The server that the stream reads now.
    tables : sequence of TableSchema
        The definitions that the offset's tables have now.
    """
    names: list[TableName] = [*start.to_empty, *((t.database, t.table) for t in start.tables), *start.gone]
    files = 0 if start.position is None else start.position.file_number + 1
    return replace(
        start,
        server=server,
        tables=tuple(tables),
        forms=(),
        ranges=(),
        complete=False,
        joining=(),
        rejoining=(),
        start="",
        position=None,
        gtid="",
        gtid_until=None,
        filter_until=None,
        shift=start.shift + files + 1,
        rows=0,
        total=0,
        is_backlog=start.is_processing_backlog,
        is_lagging=False,
        table_events=frozenset(),
        # A snapshot is read of all tables anyway.
        requests=replace(start.requests, queue=(), reads=()),
        emptied=(),
        fills=(),
        to_empty=tuple(dict.fromkeys(names)),
        committed_ms=None,
    )


def check_same_keys(start: Offset, tables: DeclaredTables) -> None:
    """Refuse to read tables again that have got another primary key: a target has the old one.

    Raises
    ------
    SchemaChanged
        Names the table and both keys.
    """
    for known in start.tables:
        now = tables.of(known)
        if now.key != known.key:
            raise SchemaChanged(
                f"The binary log that the query needs is gone, and meanwhile the primary key of {now.name} was changed "
                f"from ({', '.join(known.key)}) to ({', '.join(now.key)}).",
                "Start the query with a new checkpoint and a new target.",
            )


def row_sequence(first: Offset, last: Offset) -> int:
    """``_commit_seq`` of the snapshot rows of a batch.

    0 in the first snapshot; greater than all before in one that is read again. Rows of a table that joins the stream
    later have the position up to which the log was read: before their own changes, and after the changes of another
    table that had the name.
    """
    if first.position is not None:
        at = sequence_at(first.position.file_number, first.position.pos)
        return sequence_at(first.shift, 0) + first.excess + at
    return _base(last) + 1 if _base(last) else 0


def _base(offset: Offset) -> int:
    """Greater than each ``_commit_seq`` before the snapshot, and smaller than those of the log after it."""
    return sequence_at(offset.shift, 0) + offset.excess if offset.shift else 0


def emptied_partition(first: Offset, last: Offset, tables: DeclaredTables) -> EmptiedPartition:
    """The tables to empty, in the batch from ``first`` to ``last``."""
    there = {(t.database, t.table): tables.of(t) for t in last.tables}
    form = tables.every()[0]  # that of all tables with format=row; no envelope has columns of such a row
    unknown = [TableSchema(*name, form.columns, form.key) for name in first.to_empty if name not in there]
    found = [there[name] for name in first.to_empty if name in there]
    added = last.added_since(first)
    return EmptiedPartition(tuple(found), tuple(unknown), _base(last), added[0].at_ms if added else 0)


def emptied_rows(options: MySqlOptions, of: EmptiedPartition) -> Iterator[pa.RecordBatch]:
    """One row of type ``truncate`` for each table. ``_columns`` is NULL if they are unknown."""
    output = output_of(options.format, options.metadata, options.columns.salt)
    for schema in (*of.tables, *of.unknown):
        why = TableEmptied(schema, TRUNCATE, "", of.sequence, "", 0, of.at_ms // 1000)
        row: list[object] = [None] * len(schema.columns)
        for batch in output.changes(schema, ChangeRows([row], [TRUNCATE], [of.sequence], [0], [why], [None])):
            yield batch if schema in of.tables else _without_columns(batch)


def _without_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    at = batch.schema.get_field_index("_columns")
    return batch if at < 0 else batch.set_column(at, batch.schema.field(at), pa.nulls(batch.num_rows, pa.string()))
