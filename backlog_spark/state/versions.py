"""The state of one operator while it runs as batch: a version a batch, and its publication at the end.

Version N is computed from the newest version before it of the same epoch, an epoch being one stay in backlog. It is
written under an attempt's own directory and becomes valid by one small file that points there: tasks of a driver that
was killed may still be writing. A replayed batch whose version is valid takes it as it is.

    <checkpoint>/backlog/state/<operator>/epoch=<e>/v<batch>-<attempt>/   the rows, Parquet
    <checkpoint>/backlog/state/<operator>/epoch=<e>/v<batch>.json         which attempt is version <batch>
    <checkpoint>/backlog/seed/<operator>/e<e>-p<part>.parquet             what stream mode starts from
"""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Any

from backlog_spark.errors import BacklogError
from backlog_spark.operators.fold import Fold
from backlog_spark.session import session_conf
from backlog_spark.state.seeds import SEED_SCHEMA, PackState
from backlog_spark.state.tables import GROUP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.checkpoint import Checkpoint

__all__ = ["BatchState"]

_POINTER = re.compile(r"v(\d+)\.json")
_PART = re.compile(r"part-(\d+)-.*\.parquet")


class BatchState:
    """Versions of one operator's state in one epoch.

    Parameters
    ----------
    checkpoint : Checkpoint
    operator : str
        Its name, the same at every start.
    epoch : int
        Which stay in backlog, from 0.
    """

    def __init__(self, checkpoint: Checkpoint, operator: str, epoch: int) -> None:
        self._checkpoint = checkpoint
        self._operator = operator
        self._epoch = epoch
        self._directory = f"backlog/state/{operator}/epoch={epoch}"

    def write(self, fold: Fold, rows: DataFrame, batch_id: int) -> DataFrame:
        """Fold a batch into version ``batch_id``; what `Fold.fold` gave, read back.

        Executes ``rows`` once, or not at all if the version is there.
        """
        spark = rows.sparkSession
        if self._pointer(batch_id) is not None:
            # The batch is replayed: the same rows, whose output may have reached one sink of several.
            return self.read(spark, fold, batch_id)
        before = self.newest(below=batch_id)
        base = None if before is None else fold.state_of(self.read(spark, fold, before))
        attempt = f"v{batch_id}-{uuid.uuid4().hex[:12]}"
        # As they are, whatever the user has set for files of their own: a key cut to milliseconds is another key.
        with session_conf(spark, {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}):
            fold.fold(rows, base).write.parquet(self._location(attempt))
        self._checkpoint.write_file(f"{self._directory}/v{batch_id}.json", json.dumps({"attempt": attempt}))
        return self.read(spark, fold, batch_id)

    def read(self, spark: SparkSession, fold: Fold, batch_id: int) -> DataFrame:
        """A version, as `Fold.fold` gave it."""
        attempt = self._pointer(batch_id)
        if attempt is None:
            raise BacklogError(
                f"The state of operator {self._operator!r} has no version {batch_id} under {self._directory}.",
                "Restore the checkpoint's directory backlog, or start with a new checkpointLocation.",
            )
        return spark.read.schema(fold.version_schema()).parquet(self._location(attempt))

    def newest(self, below: int | None = None) -> int | None:
        """The newest version, or the newest before ``below``; None if there is none."""
        found = [int(m[1]) for n in self._checkpoint.names_in(self._directory) if (m := _POINTER.fullmatch(n))]
        return max((n for n in found if below is None or n < below), default=None)

    def drop_below(self, batch_id: int) -> None:
        """Remove versions and left-over attempts of batches before ``batch_id``, whose batch has committed."""
        for name in self._checkpoint.names_in(self._directory):
            number = re.match(r"v(\d+)[.-]", name)
            if number and int(number[1]) < batch_id:
                self._checkpoint.delete(f"{self._directory}/{name}")

    def drop(self) -> None:
        """Remove the epoch's versions, once stream mode has committed what it started from."""
        self._checkpoint.delete(self._directory)

    def publish(self, spark: SparkSession, fold: Fold, partitions: int, *, emit: bool) -> None:
        """Put the newest version where stream mode reads it, one row a key group or more.

        Called while no run of the query is active. Doing it again after a crash changes nothing: a part is a fixed
        set of key groups, and one that is there already stays.

        Parameters
        ----------
        partitions : int
            Number of parts; the same at every call.
        emit : bool
            Whether stream mode shall put out the keys that this epoch changed.
        """
        newest = self.newest()
        if newest is None:
            return
        # A session of its own: a part is a partition, so partitions must stay as they are.
        own = type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession(), {})
        own.conf.set("spark.sql.adaptive.enabled", "false")
        state = fold.state_of(self.read(own, fold, newest))
        packed = (
            state.repartition(partitions, GROUP)
            .sortWithinPartitions(GROUP)
            .mapInArrow(PackState(fold.state, emit=emit), SEED_SCHEMA)
        )
        attempt = f"backlog/seed-attempt/{self._operator}-{uuid.uuid4().hex[:12]}"
        packed.write.parquet(self._checkpoint.location_of(attempt))
        target = f"backlog/seed/{self._operator}"
        there = set(self._checkpoint.names_in(target))
        for name in self._checkpoint.names_in(attempt):
            part = _PART.fullmatch(name)
            seed = f"e{self._epoch}-p{part[1]}.parquet" if part else ""
            if seed and seed not in there:
                self._checkpoint.rename(f"{attempt}/{name}", f"{target}/{seed}")
        self._checkpoint.delete(attempt)

    def drop_seeds(self) -> None:
        """Remove the epoch's seeds, once their batch has committed."""
        target = f"backlog/seed/{self._operator}"
        for name in self._checkpoint.names_in(target):
            if name.startswith(f"e{self._epoch}-"):
                self._checkpoint.delete(f"{target}/{name}")

    def _location(self, attempt: str) -> str:
        return self._checkpoint.location_of(f"{self._directory}/{attempt}")

    def _pointer(self, batch_id: int) -> str | None:
        text = self._checkpoint.read_file(f"{self._directory}/v{batch_id}.json")
        if text is None:
            return None
        found: dict[str, Any] = json.loads(text)
        return str(found["attempt"])
