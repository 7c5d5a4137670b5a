"""Reads an operator's present state as a DataFrame."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from backlog_spark.decide.ledger import Ledger, Run, Vehicle
from backlog_spark.errors import BacklogError
from backlog_spark.handover.versions import BatchState
from backlog_spark.model.nodes import Node
from backlog_spark.model.trees import keyed_from_output
from backlog_spark.operators.sides import quoted
from backlog_spark.operators.waiting_fold import WaitingFold
from backlog_spark.state.seeds import seeds_of
from backlog_spark.state.state_codec import UnpackHashes, UnpackRows
from backlog_spark.state.tables import HASH, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.handover.stay_ends import StayEnds
    from backlog_spark.operators.fold import Fold
    from backlog_spark.spark.checkpoint.logs import Checkpoint

__all__ = ["StateReader"]

# How long a reader waits for a hand-over, and how often it looks.
_HAND_OVER_S, _LOOK_S = 60, 0.2
# Prefix of our own columns.
_OURS = "__backlog_"


class StateReader:
    """Reads the state of one query's keyed operators, while it runs or afterwards.

    Parameters
    ----------
    spark : SparkSession
    checkpoint : Checkpoint
    root : Node
        The query's tree.
    stays : StayEnds
        The ends of stays in the same checkpoint.
    ledger : callable
        Reads the checkpoint's ledger. Returns None if there is none yet.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Checkpoint,
        root: Node,
        stays: StayEnds,
        ledger: Callable[[], Ledger | None],
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._stays = stays
        self._ledger = ledger
        self._operators = keyed_from_output(root)

    def read(self, name: str, fold: Fold, run: Callable[[], Run]) -> DataFrame:
        """An operator's state as rows of its output, as of the last committed batch, without internal columns.

        In a later stay in backlog it is the state that the stay has collected so far. Waits during a hand-over.

        Parameters
        ----------
        name : str
            The operator's name.
        fold : Fold
            The operator's fold.
        run : callable
            Returns the query's present run.

        Raises
        ------
        BacklogError
            If the hand-over takes longer than a minute.
        """
        limit = time.monotonic() + _HAND_OVER_S
        while True:
            present = run()
            if not self._handing_over(present):
                if present.vehicle is Vehicle.STREAM:
                    return _shown(self._of_stream(name, fold))
                found = self._of_batch(name, fold, present, run)
                if found is not None:
                    return _shown(found)
            if time.monotonic() > limit:
                raise BacklogError(
                    f"The hand-over of the state of {name!r} to stream mode has taken {_HAND_OVER_S} s so far.",
                    "Ask again after the next commit.",
                )
            time.sleep(_LOOK_S)

    def _handing_over(self, run: Run) -> bool:
        """Whether the state has left the sorted vehicle and is not yet in a committed batch of the stream vehicle."""
        if run.vehicle is Vehicle.SORTED:
            ledger = self._ledger()
            return ledger is not None and ledger.publishing >= run.epoch
        committed = self._checkpoint.latest_committed()
        taken_in = committed is not None and committed >= run.first_batch
        return not taken_in and any(self._checkpoint.names_in(seeds_of(name)) for name in self._operators)

    def _of_batch(self, name: str, fold: Fold, present: Run, run: Callable[[], Run]) -> DataFrame | None:
        """Read at once, because the files may soon move. None if they moved meanwhile."""
        versions = BatchState(self._checkpoint, name, present.epoch)
        # Read the stay's end first: once it is there, the handed-over state is there too.
        end = self._stays.newest_committed()
        newest, left = versions.newest(), versions.handed_over()
        try:
            if end is not None and left is not None:
                state = versions.read_handed_over(self._spark, fold.state.spark(), left)
            elif newest is not None:
                version = versions.read(self._spark, fold, newest)
                state = fold.handed_over(version, end) if isinstance(fold, WaitingFold) else fold.state_of(version)
            else:
                state = self._spark.createDataFrame([], fold.state.spark())
            found = fold.finish(state).localCheckpoint()
        except Exception:
            if run() == present and not self._handing_over(present):
                raise
            return None
        return None if self._handing_over(present) else found

    def _of_stream(self, name: str, fold: Fold) -> DataFrame:
        from pyspark.sql.types import LongType, StructType

        committed = self._checkpoint.latest_committed()
        buckets = self._variable(name, "buckets", committed).select("user_map_value.rows", "user_map_value.slots")
        schema = fold.state.spark()
        unpack = UnpackRows(fold.state, arrow_schema(schema))
        rows = buckets.mapInArrow(unpack, schema)
        if not fold.timed:  # changed rows may be in the overlay
            heads = self._variable(name, "head", committed).where("value.recent IS NOT NULL")
            recent = heads.select("value.recent", "value.slots").mapInArrow(unpack, schema)
            listed = heads.select("value.gone").mapInArrow(UnpackHashes(), StructType().add(HASH, LongType()))
            # Hashes without rows are listed, and those whose rows are added.
            replaced = recent.select(HASH).distinct().union(listed).groupBy(HASH).count().where("count = 1")
            rows = rows.join(replaced, HASH, "left_anti").union(recent)
        return fold.finish(rows.drop(HASH))

    def _variable(self, name: str, variable: str, batch: int | None) -> DataFrame:
        reader = self._spark.read.format("statestore").option("operatorId", self._operators.index(name))
        # One row per map entry, not one row per key group with the whole map.
        reader = reader.option("stateVarName", variable).option("flattenCollectionTypes", "true")
        if batch is not None:  # read both variables as of the same batch
            reader = reader.option("batchId", batch)
        return reader.load(self._checkpoint.location)


def _shown(state: DataFrame) -> DataFrame:
    """The state without internal columns. The fields of a row that is kept whole become columns."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    columns = []
    for field in state.schema:
        if not field.name.startswith(_OURS):
            columns.append(quoted(field.name))
        elif isinstance(field.dataType, StructType):
            new = [name for name in field.dataType.names if name not in state.columns]
            columns += [F.col(field.name).getField(name).alias(name) for name in new]
    return state.select(*columns)
