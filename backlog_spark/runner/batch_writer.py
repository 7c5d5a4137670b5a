"""Gives each batch of a query to its keyed operators and its sinks, inside ``foreachBatch``."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Literal

from backlog_spark.common.fault_points import reached
from backlog_spark.runner.identity import writer_of
from backlog_spark.sinks.base import BatchInfo, SinkContext
from backlog_spark.sinks.outputs import DIRECTORY
from backlog_spark.sinks.small_batches import shared
from backlog_spark.spark.jvm.session import session_conf
from backlog_spark.spark.plan.batch_frames import arrow_batches, persisted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from backlog_spark.decide.steps import Boundary
    from backlog_spark.runner.assembly import QueryParts
    from backlog_spark.runner.keyed_query import KeyedPlan
    from backlog_spark.runner.query_progress import QueryTracker
    from backlog_spark.spi.offset_flags import BatchFlags

__all__ = ["BatchWriter"]

_SNAPSHOTS = "snapshots"  # in the checkpoint


class BatchWriter:
    """Writes the batches of one query.

    Parameters
    ----------
    parts : QueryParts
    tracker : QueryTracker
        Is told how a batch was written.
    """

    def __init__(self, parts: QueryParts, tracker: QueryTracker) -> None:
        self._parts = parts
        self._tracker = tracker
        self._snapshot_of: tuple[tuple[str, str], ...] = ()
        self.between_batches = threading.Lock()
        """While it is held, no batch is written to the sinks. For steps of seconds: the query waits."""

    def open(self, schema: StructType) -> None:
        """Open the sinks for a run. ``schema``: the main output's."""
        parts, checkpoint, promises = self._parts, self._parts.checkpoint, self._parts.promises
        self._snapshot_of = self._find_snapshots()
        parts.outputs.open(
            SinkContext(
                parts.spark,
                checkpoint.identity(),
                schema,
                False,
                checkpoint.latest_batch(),
                checkpoint.latest_committed(),
                rows_are_results=parts.keyed is not None,
                of_one_table=promises.is_of_one_table,
                snapshot_of=self._snapshot_of,
                directory=checkpoint.location_of(DIRECTORY),
                writer=writer_of(parts.name, parts.node, parts.infos),
            ),
            {} if parts.keyed is None else parts.keyed.side_outputs,
            promises.is_unique_in_backlog,
        )

    def _find_snapshots(self) -> tuple[tuple[str, str], ...]:
        """The tables whose snapshots the query begins with. The first start decides, for ever."""
        checkpoint = self._parts.checkpoint
        if checkpoint.latest_batch() is not None:
            noted = checkpoint.newest_metadata(_SNAPSHOTS) or {"tables": []}
            return tuple((database, table) for database, table in noted["tables"])
        found = self._parts.promises.snapshots
        if found or checkpoint.newest_metadata(_SNAPSHOTS):
            checkpoint.replace_metadata(_SNAPSHOTS, {"tables": list(found)})
        return found

    def write(self, batch: DataFrame, batch_id: int) -> Boundary:
        """Write a batch. Returns what follows when it has committed."""
        parts = self._parts
        flags = parts.declared.flags_at(batch_id)
        info = BatchInfo(
            batch_id,
            flags.is_backlog,
            flags.has_table_events,
            flags.has_changes,
            () if parts.node.is_keyed else flags.fills,
            flags.snapshot if self._snapshot_of else "",
        )
        reached(self._phase(flags))
        # For Spark's UI. Its own description of the job comes back with the next batch.
        mode = "backlog" if info.is_backlog else "live rows"
        with self.between_batches:
            batch.sparkSession.sparkContext.setJobDescription(f"{parts.name}: batch {batch_id}, {mode}")
            if parts.keyed is None:
                with shared(batch) if parts.outputs.several else contextlib.nullcontext(batch) as rows:
                    parts.outputs.write(rows, {}, info)
                self._tracker.wrote(batch_id, parts.outputs.written)
                return parts.coordinator.at_batch_end(flags.in_backlog)
            self._write_keyed(parts.keyed, batch, info, flags)
        return parts.coordinator.at_batch_end(
            flags.in_backlog,
            ends_stay=parts.keyed.stay_ended,
            is_firing=parts.keyed.is_firing,
            no_rows_yet=flags.no_rows_yet,
        )

    def _phase(self, flags: BatchFlags) -> Literal["backlog", "switch", "live"]:
        """What the batch is for a fault point. For streaming DataFrames the rules say so."""
        by_rules = self._parts.coordinator.rules.is_backlog
        if not (flags.is_backlog or by_rules):
            return "live"
        return "backlog" if by_rules or any(flags.in_backlog) else "switch"

    def _write_keyed(self, keyed: KeyedPlan, batch: DataFrame, info: BatchInfo, flags: BatchFlags) -> None:
        name, outputs = self._parts.name, self._parts.outputs
        taken = keyed.take(batch, name)
        # Each sink or operator that reads the batch would run its plan again.
        several = keyed.reads_several_times(several_outputs=outputs.several)
        spark, settings = batch.sparkSession, keyed.batch_settings
        with persisted(taken.raw) if several else contextlib.nullcontext(), session_conf(spark, settings):
            output, sides = keyed.output(taken, info.batch_id, name, flags)
            # Else each target would run the operators again.
            one = shared(output) if settings and len(outputs.main) > 1 else contextlib.nullcontext(output)
            with session_conf(spark, arrow_batches(output) if settings else {}), one as rows:
                outputs.write(rows, sides, info)
            self._tracker.wrote(info.batch_id, outputs.written)
            keyed.written(taken, info.batch_id, name, flags)
