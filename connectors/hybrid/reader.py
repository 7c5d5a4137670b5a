"""The stream reader of ``hybrid``: plans batches next to the driver, reads their partitions in the workers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from backlog_spark.common.fault_points import reached
from backlog_spark.common.gc_tuning import collect_rarely, keep_imports
from backlog_spark.errors import SettingError
from backlog_spark.spi.pacing import BacklogSizer, Pacer, QueryBacklog
from backlog_spark.spi.read_limits import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from .needed import narrowed
from .offsets import HybridOffset
from .options import HybridOptions
from .phases import Columns, Limit, Phase
from .planner import HybridPlanner

__all__ = ["HybridPartition", "HybridStreamReader"]


@dataclass
class HybridPartition(InputPartition):
    """A partition of one phase."""

    phase: int
    inner: InputPartition


class HybridStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches next to the driver; reads partitions in the workers.

    Parameters
    ----------
    options : HybridOptions
    phases : sequence of Phase
        Opened with the stream's columns.
    columns : Columns
    declaring : int or None
        The phase whose data declared the columns; None: the user declared them.
    read : pyarrow.Schema, optional
        The columns, and fields of structs, that the query reads. Default: all.
    """

    def __init__(
        self,
        options: HybridOptions,
        phases: Sequence[Phase],
        columns: Columns,
        declaring: int | None = None,
        read: pa.Schema | None = None,
    ) -> None:
        self._options = options
        self._phases = tuple(phases)
        self._columns = columns
        self._declaring = declaring
        self._read = read
        query = QueryBacklog(options.query_token)
        self._planner = HybridPlanner(self._phases, options.kinds, query.by_rules)
        self._checked = False
        during = options.during_backlog_ms
        self._sizer = BacklogSizer(during, options.max_rows if options.max_rows_given else None) if during else None
        self._pacer = Pacer(options.interval_ms or 0, during, query)
        self._available_now = False
        self._given_ms: float | None = None

    # -- planning, next to the driver ------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return self._planner.first().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        reached("plan")
        offset = HybridOffset.from_json(start)
        if not self._checked:
            self._planner.check(offset)
            if self._available_now:
                self._planner.until_now(offset)
            self._check_columns(offset)
            self._checked = True
        # Spark plans the next batch only when the one before is committed. It calls `commit` later still, and never for
        # the last batch.
        self._planner.committed(offset)
        if self._is_over(offset):
            return start
        now = time.time() * 1000
        in_backlog = offset.is_processing_backlog
        if not in_backlog and not self._available_now and not self._pacer.due(now):
            # For records that arrive now the present time counts, even if they have to wait.
            return start if offset.position is not None else self._planner.begun(offset).to_json()
        if self._planner.finds_out(offset):
            return self._planner.begun(offset).to_json()
        whole = self._options.during_backlog_ms == 0
        rows = self._rows(in_backlog, limit, now)
        least = 0 if in_backlog or self._available_now else self._least(now)
        end = self._planner.next(offset, Limit(rows, least), now, whole_backlog=whole)
        if end == offset:
            return start
        reached("planned")
        self._given_ms = now
        if in_backlog and self._sizer is not None:
            self._sizer.started(end.rows - offset.rows, now)
        if not in_backlog:
            self._pacer.released(now)
        return end.to_json()

    def _is_over(self, at: HybridOffset) -> bool:
        """Whether a run that ends by itself, or the source, has reached its end."""
        if at.is_finished:
            return True
        if not self._available_now or self._options.target == "latest":
            return False
        return self._options.target == "none" or (at.position is not None and not at.is_processing_backlog)

    def _rows(self, in_backlog: bool, limit: ReadLimit, now_ms: float) -> int | None:
        given = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._sizer is None:
            return given
        if in_backlog:
            return self._sizer.next_rows(now_ms)
        self._sizer.paused()
        return given

    def _least(self, now_ms: float) -> int:
        """For how many rows a live batch waits. The time is not in the offset, so the first batch never waits."""
        if self._given_ms is None or not 0 <= now_ms - self._given_ms < self._options.max_delay_ms:
            return 0
        return self._options.min_rows or 0

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = HybridOffset.from_json(start), HybridOffset.from_json(end)
        self._check_columns(last)
        return [
            HybridPartition(span.phase, inner)
            for span in self._planner.spans(first, last)
            for inner in self._phases[span.phase].partitions(span.start, span.end)
        ]

    def _check_columns(self, at: HybridOffset) -> None:
        """Refuse columns that differ from those of the checkpoint. Checked once."""
        index = self._declaring
        if index is None or index > at.phase or at.position is None:
            return
        self._declaring = None
        phase = self._phases[index]
        declared = phase.schema_at(at.last_of(index))
        if declared is None:
            return
        was, now = from_arrow_schema(declared), from_arrow_schema(self._columns.data)
        # Nullability does not count, because Spark does not keep it.
        if [(f.name, f.dataType.simpleString()) for f in was] != [(f.name, f.dataType.simpleString()) for f in now]:
            ddl = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in was)
            raise SettingError(
                "schema", None, f"the phase {phase.name} now declares the columns {', '.join(now.names)}, but the "
                f"checkpoint has {', '.join(was.names)} of an earlier version.",
                f"Set it to the earlier columns: {ddl}. Or start again with a new checkpoint.",
            )  # fmt: skip

    def commit(self, end: dict[str, Any]) -> None:
        self._planner.committed(HybridOffset.from_json(end))

    def stop(self) -> None:
        for phase in self._phases:
            phase.close()

    # -- reading, in the workers ----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, HybridPartition)
        collect_rarely()  # records are many small objects
        keep_imports()
        batches = self._phases[partition.phase].read(partition.inner)
        return batches if self._read is None else (narrowed(batch, self._read) for batch in batches)

    def __getstate__(self) -> dict[str, Any]:
        # Connections stay with the planner; workers get none.
        return {**self.__dict__, "_planner": None}
