"""Keeps one operator's batch state: one version per batch, and the publication of the last version.

Version N is computed from the newest earlier version of the same epoch. An epoch is one stay in backlog. A version is
written to a directory of its attempt. It becomes valid by one small file that points to the attempt, because tasks of a
killed driver may still be writing. If a replayed batch finds a valid version, it uses that version.

    <checkpoint>/backlog/state/<operator>/epoch=<e>/v<batch>-<attempt>/   the rows, Parquet
    <checkpoint>/backlog/state/<operator>/epoch=<e>/v<batch>.json         the attempt of version <batch>
    <checkpoint>/backlog/state/<operator>/epoch=<e>/h<batch>….            the same for the state handed over after the
                                                                          last batch of a stay
    <checkpoint>/backlog/seed/<operator>/e<e>-part-….parquet              the same rows, where stream mode reads them
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from backlog_spark.common.fault_points import reached
from backlog_spark.common.stored_values import reading_stored
from backlog_spark.errors import BacklogError
from backlog_spark.operators.fold import EmittingFold, Fold
from backlog_spark.operators.waiting_fold import Gathered, WaitingFold
from backlog_spark.spark.jvm.session import session_conf
from backlog_spark.spark.jvm.shuffle_once import exchanged
from backlog_spark.spark.plan.batch_frames import arrow_batches
from backlog_spark.spark.plan.cardinality import shuffled_by_key
from backlog_spark.state.seeds import ALL_OF_THEM, seed_prefix, seeds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from backlog_spark.spark.checkpoint.logs import Checkpoint

__all__ = ["BatchState"]

_POINTER = re.compile(r"([vh])(\d+)\.json")
_PART = re.compile(r"part-.*\.parquet")
# Fixed whatever the user has set for other files: a key cut to milliseconds is another key, and other readers would
# change dates that Spark marks as written in the old calendar.
_AS_THEY_ARE = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.compression.codec": "snappy",
}
# Handed-over state is read in whole files, if these are not too large: Spark copies each file several times.
_FILE_ROWS, _WHOLE_FILE_BYTES = 2_000_000, 48 << 20


class BatchState:
    """Versions of one operator's state in one epoch.

    Parameters
    ----------
    checkpoint : Checkpoint
    operator : str
        The operator's name, the same at every start.
    epoch : int
        Number of the stay in backlog, from 0.
    """

    def __init__(self, checkpoint: Checkpoint, operator: str, epoch: int) -> None:
        self._checkpoint = checkpoint
        self._operator = operator
        self._epoch = epoch
        self._directory = f"backlog/state/{operator}/epoch={epoch}"
        self.has_read = False
        """Whether `write` or `gather` has executed the given rows."""

    def write(
        self,
        fold: Fold,
        rows: DataFrame,
        batch_id: int,
        sample: Callable[[], DataFrame | None] = lambda: None,
        *,
        collects: bool = False,
    ) -> DataFrame:
        """Fold a batch into version ``batch_id``. Returns the result of `Fold.fold`, read back.

        Executes ``rows`` once, or not at all if the version exists. ``sample`` gives some of the rows, read separately;
        None if that is expensive. ``collects``: nothing has been emitted from earlier versions.
        """
        spark = rows.sparkSession
        if self._pointer(batch_id) is not None:
            # A replayed batch has the same rows. Their output may already be in one of several sinks.
            return self.read(spark, fold, batch_id)
        base, by = self._base(spark, fold, batch_id), fold.reduces_by()
        found = shuffled_by_key(rows, sample(), by) if by else None
        if found is None:
            version = fold.fold(rows, base)
        else:
            together, pieces = found
            version = fold.fold(together, base).coalesce(pieces)
        before = self.newest(below=batch_id) if collects else None
        held = None
        if before is not None and isinstance(fold, EmittingFold):
            held = fold.held_rows(self.read(spark, fold, before))
        self._save(version if held is None else version.unionByName(held), f"v{batch_id}")
        self.has_read = True
        return self.read(spark, fold, batch_id)

    def gather(self, fold: WaitingFold, rows: DataFrame, batch_id: int) -> Gathered | None:
        """For a stay's last batch: the result of `WaitingFold.gathered`, with its rows shuffled; None: use `write`.

        Executes ``rows`` once, unless it returns None.
        """
        spark = rows.sparkSession
        if self._pointer(batch_id) is not None:
            return None
        found = fold.gathered(rows, self._base(spark, fold, batch_id))
        there = None if found is None else exchanged(found.rows, found.by, sides=found.sides)
        self.has_read = there is not None
        return None if found is None or there is None else replace(found, rows=there.rows, sizes=there.sizes)

    def _base(self, spark: SparkSession, fold: Fold, batch_id: int) -> DataFrame | None:
        before = self.newest(below=batch_id)
        return None if before is None else fold.state_of(self.read(spark, fold, before))

    def write_handed_over(self, state: Callable[[], DataFrame], batch_id: int) -> None:
        """Save the state that is handed over after a stay's last batch. The results have been written already.

        ``state`` is not called if it is saved already.
        """
        if self._pointer(batch_id, "h") is None:
            self._save(state(), f"h{batch_id}")

    def read_handed_over(self, spark: SparkSession, schema: StructType, batch_id: int) -> DataFrame:
        """What `write_handed_over` kept."""
        return self._read(spark, schema, self._valid(batch_id, "h"))

    def _save(self, frame: DataFrame, name: str) -> None:
        reached("state.write")
        attempt = f"{name}-{uuid.uuid4().hex[:12]}"
        with session_conf(frame.sparkSession, {**_AS_THEY_ARE, **arrow_batches(frame)}):
            frame.write.option("maxRecordsPerFile", _FILE_ROWS).parquet(self._location(attempt))
        reached("state.written")
        pointer = f"{self._directory}/{name}.json"
        # A newer driver may have completed this version, and handed it over, while this one was paused.
        if self._checkpoint.read_file(pointer) is None:
            self._checkpoint.write_file(pointer, json.dumps({"attempt": attempt}))

    def read(self, spark: SparkSession, fold: Fold, batch_id: int) -> DataFrame:
        """A version: the result of `Fold.fold`."""
        return self._read(spark, fold.version_schema(), self._valid(batch_id, "v"))

    def _read(self, spark: SparkSession, schema: StructType, attempt: str) -> DataFrame:
        return spark.read.schema(schema).options(**ALL_OF_THEM).parquet(self._location(attempt))

    def newest(self, below: int | None = None) -> int | None:
        """The newest version, or the newest before ``below``; None if there is none."""
        return max((n for kind, n in self._there() if kind == "v" and (below is None or n < below)), default=None)

    def handed_over(self) -> int | None:
        """The batch after which state was handed over; None before that."""
        return max((n for kind, n in self._there() if kind == "h"), default=None)

    def _there(self) -> list[tuple[str, int]]:
        names = self._checkpoint.names_in(self._directory)
        return [(m[1], int(m[2])) for name in names if (m := _POINTER.fullmatch(name))]

    def _newest_left(self) -> tuple[int, str] | None:
        """Batch and kind of the newest state to hand over."""
        # At the same batch handed-over state counts before the version.
        newest = max(((n, kind == "h") for kind, n in self._there()), default=None)
        return None if newest is None else (newest[0], "h" if newest[1] else "v")

    def drop_below(self, batch_id: int) -> None:
        """Remove versions and attempts of batches before ``batch_id``. That batch has committed."""
        for name in self._checkpoint.names_in(self._directory):
            number = re.match(r"v(\d+)[.-]", name)
            if number and int(number[1]) < batch_id:
                self._checkpoint.delete(f"{self._directory}/{name}")

    def drop(self) -> None:
        """Remove the epoch's versions, after stream mode has committed the batch that read the seeds."""
        self._checkpoint.delete(self._directory)

    def publish(self) -> None:
        """Move the state to hand over, or else the newest version, to the seed directory that stream mode reads.

        Called while no run of the query is active. After a crash it is called again and moves the remaining files.
        """
        newest = self._newest_left()
        if newest is None:
            return
        attempt, target = f"{self._directory}/{self._valid(*newest)}", seeds_of(self._operator)
        there = set(self._checkpoint.names_in(target))
        for name in self._checkpoint.names_in(attempt):
            seed = f"{seed_prefix(self._epoch)}{name}"
            # If a rename is a copy, the driver may have died before it deleted the original.
            if _PART.fullmatch(name) and seed not in there:
                self._checkpoint.rename(f"{attempt}/{name}", f"{target}/{seed}")

    def whole_files(self, most: int = _WHOLE_FILE_BYTES) -> list[int] | None:
        """Bytes of each file that `publish` has moved or would move; None if one is too large to be read as a whole.

        ``most``: the session's limit for a whole file, in bytes.
        """
        most = min(most, _WHOLE_FILE_BYTES)
        newest = self._newest_left()
        paths = [seeds_of(self._operator), *([] if newest is None else [f"{self._directory}/{self._valid(*newest)}"])]
        sizes = [size for path in paths for size in self._checkpoint.sizes_in(path)]
        return sizes if all(size <= most for size in sizes) else None

    def drop_seeds(self) -> None:
        """Remove the epoch's seeds, after their batch has committed."""
        target = seeds_of(self._operator)
        for name in self._checkpoint.names_in(target):
            if name.startswith(seed_prefix(self._epoch)):
                self._checkpoint.delete(f"{target}/{name}")

    def _location(self, attempt: str) -> str:
        return self._checkpoint.location_of(f"{self._directory}/{attempt}")

    def _valid(self, batch_id: int, kind: str) -> str:
        """The valid attempt of version ``batch_id``, or of the state handed over after it."""
        attempt = self._pointer(batch_id, kind)
        if attempt is None:
            raise BacklogError(
                f"The state of operator {self._operator!r} has no version {batch_id} under {self._directory}.",
                "Restore the checkpoint's directory backlog, or start with a new checkpointLocation.",
            )
        return attempt

    def _pointer(self, batch_id: int, kind: str = "v") -> str | None:
        text = self._checkpoint.read_file(f"{self._directory}/{kind}{batch_id}.json")
        if text is None:
            return None
        with reading_stored(f"{self._directory}/{kind}{batch_id}.json of the checkpoint"):
            found: dict[str, Any] = json.loads(text)
            return str(found["attempt"])
