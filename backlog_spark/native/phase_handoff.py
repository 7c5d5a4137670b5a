"""Hands over from earlier phases of Spark's own readers to the last one: the newest time of their rows, and recent
keys.

After its end a phase is read again, as a batch: exactly the files in Spark's log of the source, or the version of the
Delta table at the end of the offset log. So the result is the same at every restart, and later data does not count.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from backlog_spark.errors import BacklogError, SettingError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession

    from backlog_spark.spark.checkpoint.logs import Checkpoint

__all__ = ["FILES", "Handover", "Reread"]

# Formats of Spark's file source.
FILES = ("parquet", "orc", "json", "csv", "text", "xml", "avro")
_GLOB = "*?[{\\"
# Options of a Delta stream with which the table then has rows that the stream did not have.
_OTHER_ROWS = ("startingversion", "startingtimestamp", "readchangefeed", "readchangedata", "skipchangecommits")
_TIMES = ("timestamp", "timestamp_ntz")


@dataclass(frozen=True)
class Handover:
    """The hand-over from the bounded phases to the last phase.

    Parameters
    ----------
    column : str
        A row's time, of type timestamp or timestamp_ntz (then UTC). "": no hand-over.
    overlap_ms : int
        How far the last phase goes back before the newest time.
    keys : tuple of str
        Columns that match rows of the last phase to rows of earlier phases. A key that contains NULL is never
        de-duplicated.
    """

    column: str = ""
    overlap_ms: int = 0
    keys: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """The form in the checkpoint. A query must keep it."""
        return {"column": self.column, "overlapMs": self.overlap_ms, "keys": list(self.keys)} if self.column else {}

    def check(self, name: str, frame: DataFrame) -> None:
        """Check that a phase's DataFrame has the columns.

        Raises
        ------
        BacklogError
            If a column is missing, or the time is not a timestamp.
        """
        if not self.column:
            return
        types = {f.name: f.dataType.simpleString() for f in frame.schema}
        for column in (self.column, *self.keys):
            if column not in types:
                raise BacklogError(
                    f"The phase {name} has no column {column}; it has {', '.join(types)}.",
                    "Correct timestamp_column or dedup_key.",
                )
        if types[self.column] not in _TIMES:
            raise BacklogError(
                f"The timestamp_column {self.column} of the phase {name} is {types[self.column]}.",
                "Give a column of type timestamp or timestamp_ntz.",
            )

    def take(self, checkpoint: Checkpoint, phase: int, frame: DataFrame, reached_us: int | None) -> int | None:
        """Record the hand-over of a phase that has ended. Called before it is recorded that the next phase begins.

        Parameters
        ----------
        checkpoint : Checkpoint
        phase : int
        frame : DataFrame
            Rows of the phase, as a batch.
        reached_us : int or None
            Newest time of the earlier phases, in microseconds since 1970.

        Returns
        -------
        int or None
            Newest time up to now; None if no row had a time.
        """
        import pyspark.sql.functions as F

        row = frame.agg(F.max(_micros(frame, self.column))).first()
        newest = None if row is None else row[0]
        if self.keys:
            least = None if newest is None else newest - self.overlap_ms * 1000
            near = frame.where(F.lit(False) if least is None else _micros(frame, self.column) >= least)
            kept = near.select(*self.keys, _micros(near, self.column).alias(self._time))
            kept.distinct().write.mode("overwrite").parquet(self._kept(checkpoint, phase))
        return max((t for t in (newest, reached_us) if t is not None), default=None)

    def without_known(
        self, spark: SparkSession, checkpoint: Checkpoint, phases: int, frame: DataFrame, reached_us: int | None
    ) -> DataFrame:
        """The last phase's rows, without rows whose key and time are in an earlier phase."""
        import pyspark.sql.functions as F

        if not self.keys or reached_us is None:
            return frame
        exactly = spark.read.option("__globPaths__", "false")
        kept = exactly.parquet(*(self._kept(checkpoint, phase) for phase in range(phases)))
        near = kept.where(F.col(self._time) >= reached_us - self.overlap_ms * 1000)
        columns = [F.col(key).alias(f"_known_{i}") for i, key in enumerate(self.keys)]
        known = near.select(*columns, F.col(self._time).alias("_known_time")).distinct()
        same = [frame[key] == known[f"_known_{i}"] for i, key in enumerate(self.keys)]
        # A row with another time is another version of the key, even if it is older.
        same.append(_micros(frame, self.column) == known["_known_time"])
        return frame.join(known, reduce(lambda a, b: a & b, same), "left_anti")

    def starting_ms(self, reached_us: int | None) -> int | None:
        """Where the last phase begins, in milliseconds since 1970; None if no row had a time."""
        return None if reached_us is None else max(0, reached_us // 1000 - self.overlap_ms)

    @property
    def _time(self) -> str:
        """Name of the time column among the key columns. It differs from all of them."""
        return "_time" + "_" * max((len(key) for key in self.keys), default=0)

    def _kept(self, checkpoint: Checkpoint, phase: int) -> str:
        return checkpoint.location_of(f"backlog/keys-{phase}")


def _micros(frame: DataFrame, column: str) -> Column:
    """A time as microseconds since 1970."""
    import pyspark.sql.functions as F

    if frame.schema[column].dataType.simpleString() == "timestamp":
        return F.unix_micros(frame[column])
    return F.timestamp_diff("MICROSECOND", F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'"), frame[column])


class Reread:
    """Replaces the ``DataStreamReader`` of a phase that has ended. Gives the rows that the phase has read, as a batch.

    Parameters
    ----------
    spark : SparkSession
    checkpoint : Checkpoint
    source : str
        Name of the source.
    phase : str
        Name of the phase, for errors.
    """

    def __init__(self, spark: SparkSession, checkpoint: Checkpoint, source: str, phase: str) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._source = source
        self._phase = phase
        self._format = str(spark.conf.get("spark.sql.sources.default"))
        self._options: dict[str, Any] = {}
        self._schema: Any = None

    def name(self, source_name: str) -> Reread:
        """Like the method of ``DataStreamReader``, as are the methods below."""
        return self

    def format(self, source: str) -> Reread:
        self._format = source.lower()
        return self

    def schema(self, schema: Any) -> Reread:
        self._schema = schema
        return self

    def option(self, key: str, value: Any) -> Reread:
        self._options[key] = value
        return self

    def options(self, **options: Any) -> Reread:
        self._options.update(options)
        return self

    def load(self, path: str | None = None, format: str | None = None, schema: Any = None, **options: Any) -> DataFrame:
        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        self.options(**options)
        path = path or self._options.pop("path", None)
        if self._format == "delta":
            return self._delta(lambda reader: reader.load(path))
        if self._format not in FILES:
            raise BacklogError(
                f"The phase {self._phase} uses the format {self._format}, whose rows cannot be read again.",
                f"timestamp_column works for phases of Delta and of files ({', '.join(FILES)}). Leave it out, or "
                "export the phase to files.",
            )
        return self._of_files(str(path))

    def table(self, tableName: str) -> DataFrame:
        return self._delta(lambda reader: reader.table(tableName))

    def __getattr__(self, name: str) -> Callable[..., DataFrame]:
        """``parquet``, ``orc``, ``json``, ``csv``, ``text`` and ``xml``, each a `load`."""
        if name not in FILES:
            raise AttributeError(name)

        def load(path: str, **options: Any) -> DataFrame:
            return self.load(path, name, **{key: value for key, value in options.items() if value is not None})

        return load

    def _reader(self) -> DataFrameReader:
        reader = self._spark.read.format(self._format).options(**self._options)
        return reader if self._schema is None else reader.schema(self._schema)

    def _of_files(self, path: str) -> DataFrame:
        files = self.files()
        if not files:
            return self._spark.createDataFrame([], self._schema or self._reader().load(path).schema)
        reader = self._reader().option("__globPaths__", "false")  # as Spark's own source of files does
        if not any(sign in path for sign in _GLOB) and "basePath" not in self._options:
            reader = reader.option("basePath", path)
        return reader.load(files)

    def files(self) -> list[str]:
        """Paths of the files in the source's log."""
        folder = f"sources/{self._source}"
        found: dict[str, None] = {}
        for name in self._checkpoint.names_in(folder):
            if not name.removesuffix(".compact").isdecimal():
                continue
            version, *entries = (self._checkpoint.read_file(f"{folder}/{name}") or "v1").split("\n")
            if version != "v1":
                raise BacklogError(
                    f"Spark's log of the files of {self._source} has the version {version!r}.",
                    "This version of Spark is not supported: leave out timestamp_column.",
                )
            found.update((urllib.parse.unquote(json.loads(entry)["path"]), None) for entry in entries if entry)
        return list(found)

    def _delta(self, load: Callable[[DataFrameReader], DataFrame]) -> DataFrame:
        for option, value in self._options.items():
            if option.lower() in _OTHER_ROWS:
                raise SettingError(
                    option, value, f"with it the phase {self._phase} has not read all rows of the table.",
                    "Leave out timestamp_column, or read the table without this option.",
                )  # fmt: skip
        newest = self._checkpoint.latest_committed()
        offsets = (None if newest is None else self._checkpoint.offsets(newest)) or []
        ends = [offset for offset in offsets if offset is not None and "reservoirVersion" in offset]
        if len(ends) != 1:
            raise BacklogError(
                f"The newest batch of the phase {self._phase} has no version of a Delta table.",
                "Give the phase one Delta table, read with the reader that the function gets.",
            )
        version, index = ends[0]["reservoirVersion"], ends[0]["index"]
        # An index before the first one means "nothing of this version yet".
        return load(self._reader().option("versionAsOf", version if index >= 0 else version - 1))
