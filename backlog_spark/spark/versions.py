"""The state of one operator while it runs as batch: a version a batch, and its publication at the end.

Version N is computed from the newest version before it of the same epoch, an epoch being one stay in backlog. It is
written under an attempt's own directory and becomes valid by one small file that points there: tasks of a driver that
was killed may still be writing. A replayed batch whose version is valid takes it as it is.

    <checkpoint>/backlog/state/<operator>/epoch=<e>/v<batch>-<attempt>/   the rows, Parquet
    <checkpoint>/backlog/state/<operator>/epoch=<e>/v<batch>.json         which attempt is version <batch>
    <checkpoint>/backlog/state/<operator>/epoch=<e>/h<batch>….            the same for what is left after a stay's last
                                                                          batch, when its results have been put out
    <checkpoint>/backlog/seed/<operator>/e<e>-part-….parquet              the same rows, for stream mode to start from
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.errors import BacklogError
from backlog_spark.operators.fold import Fold, Gathered
from backlog_spark.spark.batch_frames import arrow_batches
from backlog_spark.spark.cardinality import brought_together
from backlog_spark.spark.session import session_conf
from backlog_spark.spark.shuffle_once import exchanged
from backlog_spark.state.seeds import seed_prefix

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from backlog_spark.spark.checkpoint import Checkpoint

__all__ = ["ALL_OF_THEM", "BatchState", "seeds_of"]

_POINTER = re.compile(r"([vh])(\d+)\.json")
_PART = re.compile(r"part-.*\.parquet")
# Whatever the user has set for files of their own: a key cut to milliseconds is another key, and what Spark marks as
# written for the calendar of old versions other readers take for another date.
_AS_THEY_ARE = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.compression.codec": "snappy",
}
ALL_OF_THEM: Final = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
"""Options to read such files with, whatever the session's settings say of others."""
# What is handed over is read in whole files, if they are not too large for that: Spark copies one several times.
_FILE_ROWS, _WHOLE_FILE_BYTES = 2_000_000, 48 << 20


def seeds_of(operator: str) -> str:
    """Where stream mode reads what is handed over to an operator, within the checkpoint."""
    return f"backlog/seed/{operator}"


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
        self.has_read = False
        """Whether `write` or `gather` has executed the rows that it was given."""

    def write(
        self,
        fold: Fold,
        rows: DataFrame,
        batch_id: int,
        sample: Callable[[], DataFrame | None] = lambda: None,
        *,
        collects: bool = False,
    ) -> DataFrame:
        """Fold a batch into version ``batch_id``; what `Fold.fold` gave, read back.

        Executes ``rows`` once, or not at all if the version is there. ``sample`` gives some of them, read apart from
        these, if that is cheap. With ``collects`` nothing has been put out of the versions before.
        """
        spark = rows.sparkSession
        if self._pointer(batch_id) is not None:
            # The batch is replayed: the same rows, whose output may have reached one sink of several.
            return self.read(spark, fold, batch_id)
        base, by = self._base(spark, fold, batch_id), fold.reduces_by()
        found = brought_together(rows, sample(), by) if by else None
        if found is None:
            version = fold.fold(rows, base)
        else:
            together, pieces = found
            version = fold.fold(together, base).coalesce(pieces)
        before = self.newest(below=batch_id) if collects else None
        held = None if before is None else fold.held_rows(self.read(spark, fold, before))
        self._save(version if held is None else version.unionByName(held), f"v{batch_id}")
        self.has_read = True
        return self.read(spark, fold, batch_id)

    def gather(self, fold: Fold, rows: DataFrame, batch_id: int) -> Gathered | None:
        """For a stay's last batch: what `Fold.gathered` gives, its rows brought together; None if `write` has to do.

        Executes ``rows`` once, if it does not give None.
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
        """Keep what is handed over to stream mode after a stay's last batch, whose results have been put out.

        Not asked for if it is there.
        """
        if self._pointer(batch_id, "h") is None:
            self._save(state(), f"h{batch_id}")

    def read_handed_over(self, spark: SparkSession, schema: StructType, batch_id: int) -> DataFrame:
        """What `write_handed_over` kept."""
        return self._read(spark, schema, self._valid(batch_id, "h"))

    def _save(self, frame: DataFrame, name: str) -> str:
        attempt = f"{name}-{uuid.uuid4().hex[:12]}"
        with session_conf(frame.sparkSession, {**_AS_THEY_ARE, **arrow_batches(frame)}):
            frame.write.option("maxRecordsPerFile", _FILE_ROWS).parquet(self._location(attempt))
        self._checkpoint.write_file(f"{self._directory}/{name}.json", json.dumps({"attempt": attempt}))
        return attempt

    def read(self, spark: SparkSession, fold: Fold, batch_id: int) -> DataFrame:
        """A version, as `Fold.fold` gave it."""
        return self._read(spark, fold.version_schema(), self._valid(batch_id, "v"))

    def _read(self, spark: SparkSession, schema: StructType, attempt: str) -> DataFrame:
        return spark.read.schema(schema).options(**ALL_OF_THEM).parquet(self._location(attempt))

    def newest(self, below: int | None = None) -> int | None:
        """The newest version, or the newest before ``below``; None if there is none."""
        return max((n for kind, n in self._there() if kind == "v" and (below is None or n < below)), default=None)

    def handed_over(self) -> int | None:
        """The batch after which something is handed over whose results are put out; None before."""
        return max((n for kind, n in self._there() if kind == "h"), default=None)

    def _there(self) -> list[tuple[str, int]]:
        names = self._checkpoint.names_in(self._directory)
        return [(m[1], int(m[2])) for name in names if (m := _POINTER.fullmatch(name))]

    def _newest_left(self) -> tuple[int, str] | None:
        """Batch and kind of what is handed over."""
        # At the same batch what is handed over comes after the version.
        newest = max(((n, kind == "h") for kind, n in self._there()), default=None)
        return None if newest is None else (newest[0], "h" if newest[1] else "v")

    def drop_below(self, batch_id: int) -> None:
        """Remove versions and left-over attempts of batches before ``batch_id``, whose batch has committed."""
        for name in self._checkpoint.names_in(self._directory):
            number = re.match(r"v(\d+)[.-]", name)
            if number and int(number[1]) < batch_id:
                self._checkpoint.delete(f"{self._directory}/{name}")

    def drop(self) -> None:
        """Remove the epoch's versions, once stream mode has committed what it started from."""
        self._checkpoint.delete(self._directory)

    def publish(self) -> None:
        """Move the files of what is handed over, or else of the newest version, to where stream mode reads them.

        Called while no run of the query is active. After a crash it is called again and moves what was left.
        """
        newest = self._newest_left()
        if newest is None:
            return
        attempt, target = f"{self._directory}/{self._valid(*newest)}", seeds_of(self._operator)
        there = set(self._checkpoint.names_in(target))
        for name in self._checkpoint.names_in(attempt):
            seed = f"{seed_prefix(self._epoch)}{name}"
            # Where a rename is a copy, the driver may have died before the original was deleted.
            if _PART.fullmatch(name) and seed not in there:
                self._checkpoint.rename(f"{attempt}/{name}", f"{target}/{seed}")

    def whole_files(self, most: int = _WHOLE_FILE_BYTES) -> list[int] | None:
        """Bytes of each file that `publish` has moved or would move; None if one is too large to be read as a whole.

        ``most`` are the bytes that the session lets a whole file have.
        """
        most = min(most, _WHOLE_FILE_BYTES)
        newest = self._newest_left()
        paths = [seeds_of(self._operator), *([] if newest is None else [f"{self._directory}/{self._valid(*newest)}"])]
        sizes = [size for path in paths for size in self._checkpoint.sizes_in(path)]
        return sizes if all(size <= most for size in sizes) else None

    def drop_seeds(self) -> None:
        """Remove the epoch's seeds, once their batch has committed."""
        target = seeds_of(self._operator)
        for name in self._checkpoint.names_in(target):
            if name.startswith(seed_prefix(self._epoch)):
                self._checkpoint.delete(f"{target}/{name}")

    def _location(self, attempt: str) -> str:
        return self._checkpoint.location_of(f"{self._directory}/{attempt}")

    def _valid(self, batch_id: int, kind: str) -> str:
        """The attempt that is version ``batch_id``, or what is handed over after it."""
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
        found: dict[str, Any] = json.loads(text)
        return str(found["attempt"])
