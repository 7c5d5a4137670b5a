"""Rows of a small batch that travel with its partition, as the planner has read them anyway (pure).

To choose a batch's end the planner reads the log and decodes its rows. A task that read them once more would open a
connection and a dump of its own: 20 ms for 500 rows, and as much processor time again. A batch that is planned once
more, after a restart, has no such rows, so its task reads the log; both ways make the rows by the same function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from ..offsets import BinlogPosition
from .records import RowsChange

__all__ = ["KEPT_BYTES", "ReadAhead", "carried", "packed"]

KEPT_BYTES = 4 << 20
"""Bytes of events whose rows the planner keeps. Decoded they take ten times as much, in the source's process."""
# Spark warns of a task of more than 1,000 KiB. Each is sent to its executor by the driver, which is no way for a lot.
_MOST_CARRIED = 768 << 10
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


class ReadAhead(NamedTuple):
    """All changes after a place, up to another one. Before and after them the tables are as declared."""

    start: BinlogPosition
    end: BinlogPosition
    changes: list[RowsChange]


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
    """What `packed` made bytes of."""
    if rows:
        yield from pa.ipc.open_stream(rows)
