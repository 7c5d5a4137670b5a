"""Rows of a small batch that travel with its partition, because the planner has read them anyway (pure).

To choose a batch's end the planner reads the log and decodes its rows. If a task read them again, it would open its own
connection and dump: 20 ms for 500 rows, and as much processor time again. A batch that is planned again after a restart
has no such rows, so its task reads the log. Both ways make the rows with the same function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from .positions import BinlogPosition
from .records import RowsChange, TableEmptied

__all__ = ["KEPT_BYTES", "ReadAhead", "carried", "packed"]

KEPT_BYTES = 4 << 20
"""Bytes of events whose rows the planner keeps. Decoded rows take ten times as much memory in the source's process."""
# Spark warns of a task of more than 1,000 KiB, and the driver sends every task to its executor.
_MOST_CARRIED = 768 << 10
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


class ReadAhead(NamedTuple):
    """All changes after ``start`` up to ``end``. Throughout them the tables are as declared."""

    start: BinlogPosition
    end: BinlogPosition
    changes: list[RowsChange | TableEmptied]


def packed(batches: Iterable[pa.RecordBatch]) -> bytes | None:
    """Rows as a partition carries them; None if they are too many."""
    out = pa.BufferOutputStream()
    writer = None
    for batch in batches:
        writer = writer or pa.ipc.new_stream(out, batch.schema, options=_COMPRESSED)
        writer.write_batch(batch)
        if out.tell() > _MOST_CARRIED:
            return None
    if writer is None:
        return b""
    writer.close()
    return bytes(out.getvalue().to_pybytes())


def carried(rows: bytes) -> Iterator[pa.RecordBatch]:
    """Read back what `packed` wrote."""
    if rows:
        yield from pa.ipc.open_stream(rows)
