"""A key group's state in Spark's state store: Arrow rows in bounded buckets, and when each bucket's timers are due.

A batch reads and writes the buckets of the keys that it changes, so its cost follows those and not the size of the
state. Rows are kept with the number of accumulators that they were written with: ones that were added since are NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming import StatefulProcessorHandle

from .tables import StateSchema, bucket_bits, buckets_of, combine, from_bytes, split_by, to_bytes

__all__ = ["AT_EVERY_TICK", "NEVER", "GroupStore"]

NEVER: Final = 2**63 - 1
"""When a key without timers is due."""
AT_EVERY_TICK: Final = 1
"""When a key is due that waits for something else than a time: whenever the control source tells the time."""

# From this share of a group's buckets on, reading all of them in one go is cheaper than asking for each.
_READ_ALL = 0.5

Due = Callable[[pa.RecordBatch], tuple[np.ndarray, np.ndarray]]


class GroupStore:
    """The state of the key group that is worked on.

    Parameters
    ----------
    handle : StatefulProcessorHandle
    schema : StateSchema
    due : callable, optional
        For operators with timers: from rows of state to when the first event-time and the first processing-time timer
        of each is due.
    """

    def __init__(self, handle: StatefulProcessorHandle, schema: StateSchema, due: Due | None) -> None:
        self._schema = schema
        self._due_of = due
        self._head = handle.getValueState("head", "keys long, bits int, watermark long, backlog int, due binary")
        self._buckets = handle.getMapState("buckets", "bucket int", "rows binary, slots int")
        self._arrow = {len(schema.slots): schema.arrow()}
        self.watermark = 0
        self.backlog = 0
        self.due_rows = 0
        """Of the rows that were loaded, those with something due, if `load` was given a limit."""

    def open(self, watermark: int) -> None:
        """Read what is known of the group; ``watermark`` is that of a group without state."""
        # Asked first: for a missing value the store answers with a line in the log, one for every key group.
        found = self._head.get() if self._head.exists() else None
        self._keys, self._bits, self.watermark, self.backlog, due = found or (0, 0, watermark, 0, None)
        self._touched: set[int] = set()
        self._old = 0
        self._due = np.full((2, 1 << self._bits), NEVER, dtype=np.int64)
        if due is not None:
            self._due = np.frombuffer(bytes(due), dtype=np.int64).reshape(2, -1).copy()

    @property
    def next_event_timer(self) -> int:
        """When the first event-time timer of the group is due, or `NEVER`."""
        return int(self._due[0].min())

    @property
    def next_processing_timer(self) -> int:
        """When the first processing-time timer of the group is due, or `NEVER`."""
        return int(self._due[1].min())

    def load(self, hashes: np.ndarray, watermark: int, now: int, most: int | None = None) -> pa.RecordBatch:
        """The rows of the buckets that hold these keys, or timers that are due.

        Parameters
        ----------
        hashes : numpy.ndarray
        watermark, now : int
            Event-time and processing-time timers up to then are due.
        most : int, optional
            Of buckets that are wanted for their timers only, those first due are read until so many rows have some.
            Default: all of them.
        """
        watermark = min(watermark, NEVER - 1)  # the end of time is not before never
        self.due_rows = 0
        loaded: dict[int, pa.RecordBatch] = {}
        if self._keys:
            is_due = (self._due[0] <= watermark) | (self._due[1] <= now)
            wanted = set(np.unique(buckets_of(hashes, self._bits)).tolist())
            if most is None:
                wanted.update(np.flatnonzero(is_due).tolist())
            loaded = self._read(wanted) if wanted else {}
            if most is not None and is_due.any():
                self.due_rows = sum(self._count_due(batch, watermark, now) for batch in loaded.values())
                for number in np.argsort(self._due.min(axis=0), kind="stable").tolist():
                    if self.due_rows >= most:
                        break
                    if is_due[number] and number not in wanted:
                        wanted.add(number)
                        loaded.update(self._read({number}))
                        self.due_rows += self._count_due(loaded[number], watermark, now)
            self._touched = wanted
        rows = combine(loaded.values(), self._schema.arrow())
        self._old = rows.num_rows
        return rows

    def _count_due(self, rows: pa.RecordBatch, watermark: int, now: int) -> int:
        assert self._due_of is not None, "only operators with timers have any that are due"
        event, processing = self._due_of(rows)
        return int(((event <= watermark) | (processing <= now)).sum())

    def save(self, rows: pa.RecordBatch) -> None:
        """Put the rows in the place of those that `load` gave. Called once after it."""
        self._keys += rows.num_rows - self._old
        wanted = max(self._bits, bucket_bits(self._keys))
        if wanted > self._bits:
            rest = self._read(set(range(1 << self._bits)) - self._touched) if self._keys > rows.num_rows else {}
            rows = combine([rows, *rest.values()], self._schema.arrow())
            self._touched = set(range(1 << self._bits))
            self._due = np.full((2, 1 << wanted), NEVER, dtype=np.int64)
        written = set()
        slots = len(self._schema.slots)
        for number in self._touched:
            self._due[:, number] = NEVER
        for number, batch in split_by(buckets_of(rows.column(0).to_numpy(), wanted), rows):
            self._buckets.updateValue((number,), (to_bytes(batch), slots))
            written.add(number)
            if self._due_of is not None:
                event, processing = self._due_of(batch)
                self._due[:, number] = event.min(), processing.min()
        for number in self._touched - written:
            self._buckets.removeKey((number,))
        self._bits = wanted

    def close(self) -> None:
        """Write what is known of the group."""
        due = self._due.tobytes() if self._due_of is not None else None
        self._head.update((self._keys, self._bits, self.watermark, self.backlog, due))

    def _read(self, numbers: set[int]) -> dict[int, pa.RecordBatch]:
        if len(numbers) > _READ_ALL * (1 << self._bits):
            every = {int(k[0]): v for k, v in self._buckets.iterator()}
            return {n: self._rows(*value) for n, value in every.items() if n in numbers}
        out = {}
        for number in numbers:
            value = self._buckets.getValue((number,))
            if value is not None:
                out[number] = self._rows(*value)
        return out

    def _rows(self, data: Any, slots: int) -> pa.RecordBatch:
        if slots not in self._arrow:
            self._arrow[slots] = self._schema.first(slots).arrow()
        return self._schema.widened(from_bytes(bytes(data), self._arrow[slots]))
