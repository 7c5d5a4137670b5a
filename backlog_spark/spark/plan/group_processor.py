"""Worker side of the stream vehicle: folds the rows that arrive for a key group into its state.

Packed rows travel as Spark rows. The pandas form makes a DataFrame of each key group's input and output, which takes a
third of Python's time in small batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from backlog_spark.common.gc_tuning import collect_rarely, keep_imports
from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import MIN_WATERMARK
from backlog_spark.operators.fold import Arrived, Clock
from backlog_spark.operators.key_memory import check_largest_key, naming_largest_key
from backlog_spark.spark.plan.state_connection import leave_waiting
from backlog_spark.state.seeds import CONTROL, DATA_ROWS, LIVE, SEED_OUTPUT, SEED_SILENT, Control
from backlog_spark.state.store import GroupStore
from backlog_spark.state.tables import combine, cut, from_bytes, to_bytes
from backlog_spark.state.timer_reports import GroupReport

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.accumulators import Accumulator

    from backlog_spark.operators.fold import Fold

__all__ = ["GroupProcessor", "PandasProcessor", "frames_of", "pieces_of", "rows_of"]

# The largest packed value: an Arrow column of bytes ends at 2 GiB.
_MOST_BYTES: Final = (2 << 30) - 1
_FRAME_BYTES: Final = 256 << 20
_Packed: Final = Row("tag", "data")


class GroupProcessor(StatefulProcessor):
    """Folds the rows that arrive for a key group into its state, and returns the fold's output.

    Parameters
    ----------
    fold : Fold
    name : str
        Name of the operator.
    report : Accumulator, optional
        A `backlog_spark.state.timer_reports.GroupReports` accumulator. It gets the group's timers and late rows.
    watermark : int, optional
        The watermark of a group without state, in milliseconds since 1970: that of the stay whose results are out.
    """

    def __init__(
        self,
        fold: Fold,
        name: str = "",
        report: Accumulator[Any] | None = None,
        watermark: int | None = None,
    ) -> None:
        self._fold = fold
        self._name = name
        self._report = report
        self._watermark = MIN_WATERMARK if watermark is None else watermark
        self._handle: StatefulProcessorHandle | None = None  # until it is initialised

    def init(self, handle: StatefulProcessorHandle) -> None:
        collect_rarely()
        keep_imports()
        self._handle = handle
        self._schema = self._fold.state.arrow()
        self._live = self._fold.live_schema()
        self._store = GroupStore(handle, self._fold.state, self._fold.due if self._fold.timed else None)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        packed = ((row.origin, row.slots, row.data) for row in rows)
        yield from rows_of(self._outputs(key, packed), key[0], self._name)

    def _outputs(self, key: Any, rows: Iterable[tuple[int, int, Any]]) -> Iterator[tuple[int, bytes]]:
        """Folds a key group's packed rows (origin, slots, data). Yields packed output, with the output's number."""
        store, began = self._store, time.perf_counter()
        store.open(self._watermark)
        outputs = list[tuple[int, bytes]]()
        arrived, control = self._read(rows, outputs)
        yield from outputs
        clock = Clock(
            before=store.watermark,
            watermark=max(store.watermark, control.watermark),
            now=control.now,
            backlog=store.backlog if control.backlog is None else control.backlog,
            budget=control.budget,
            told_at=control.at,
        )
        store.watermark, store.backlog = clock.watermark, clock.backlog
        if self._fold.sees_no_time_in_backlog:
            clock = clock.timeless
        old = store.load(arrived.hashes(), clock.watermark, clock.now or MIN_WATERMARK, clock.budget)
        keys = self._fold.state.key_names[: len(self._fold.keys)]
        held = [old, *(batch for batch, _ in arrived.seeds), arrived.live]
        check_largest_key(self._name, keys, held)
        with naming_largest_key(self._name, keys, held):
            result = self._fold.step(old, arrived, clock)
        if result.state is not None:
            store.save(result.state)
        store.close()
        if self._report is not None:
            context = TaskContext.get()
            fired = result.fired or store.due_rows
            report = GroupReport(
                watermark=clock.watermark,
                next_event=store.next_event_timer,
                next_processing=store.next_processing_timer,
                partition=0 if context is None else context.partitionId(),
                late=result.late,
                fired=fired,
                seconds=(result.firing_seconds or time.perf_counter() - began) if fired else 0.0,
            )
            self._report.add({(self._name, int(key[0])): report})
        yield from pieces_of(result.outputs)

    def _read(self, rows: Iterable[tuple[int, int, Any]], outputs: list[tuple[int, bytes]]) -> tuple[Arrived, Control]:
        """Sorts the arrived rows. Outputs that are handed over packed are added to ``outputs``."""
        control = Control()
        seeds, live = [], []
        for origin, slots, data in rows:
            if origin == CONTROL:
                control = Control.from_bytes(bytes(data))
            elif origin == LIVE:
                live.append(from_bytes(bytes(data), self._live))
            elif origin == SEED_OUTPUT:
                outputs.append((int(slots), bytes(data)))
            else:
                state = self._fold.state
                batch = from_bytes(bytes(data), state.first(int(slots)).arrow())
                seeds.append((state.widened(batch), origin != SEED_SILENT))
        return Arrived(tuple(seeds), combine(live, self._live)), control

    def close(self) -> None:
        self._fold.close()
        leave_waiting(self._handle)


class PandasProcessor(GroupProcessor):
    """The form for ``transformWithStateInPandas``. A query keeps the form of its first start, as Spark demands."""

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        packed = (row for frame in rows for row in zip(frame["origin"], frame["slots"], frame["data"], strict=True))
        yield from frames_of(self._outputs(key, packed))


def pieces_of(outputs: Iterable[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, bytes]]:
    """A key group's output, packed."""
    for tag, batch in outputs:
        for piece in cut(batch, DATA_ROWS):
            yield tag, to_bytes(piece)


def rows_of(packed: Iterable[tuple[int, bytes]], group: int, operator: str) -> Iterator[Row]:
    """Packed output as Spark rows. Spark takes all rows of a key group in one piece."""
    size = 0
    for tag, data in packed:
        size += len(data)
        if size > _MOST_BYTES:
            raise BacklogError(
                f"Key group {group} of the operator {operator!r} emits more than 2 GiB in one batch.",
                "Limit batches at the sources, or raise spark.backlog.keyGroups on a new checkpointLocation.",
            )
        yield _Packed(tag, data)


def frames_of(packed: Iterable[tuple[int, bytes]]) -> Iterator[pd.DataFrame]:
    """Packed output as pandas frames: at least one frame, and none larger than Arrow's limit."""
    pieces, size = list[tuple[int, bytes]](), 0
    for tag, data in packed:
        pieces.append((tag, data))
        size += len(data)
        if size >= _FRAME_BYTES:
            yield _frame(pieces)
            pieces, size = [], 0
    yield _frame(pieces)


def _frame(pieces: list[tuple[int, bytes]]) -> pd.DataFrame:
    import pandas as pd

    tags = pd.Series([tag for tag, _ in pieces], dtype="int32")
    return pd.DataFrame({"tag": tags, "data": pd.Series([data for _, data in pieces], dtype=object)})
