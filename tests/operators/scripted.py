"""A source that follows a script: Parquet files as micro-batches, each with a backlog flag."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from backlog_spark.common.durations import parse_duration
from backlog_spark.spi import SourceInfo, WatermarkCharacteristic
from backlog_spark.spi.pacing import Pacer, QueryBacklog

__all__ = ["ScriptedDataSource", "append", "append_all", "finish", "inspect"]


def append(path: Path, table: pa.Table, *, backlog: bool) -> None:
    """Add a micro-batch; visible to a running query at once and as a whole."""
    append_all(path, [table], backlog=[backlog])


def append_all(path: Path, tables: Sequence[pa.Table], *, backlog: Sequence[bool]) -> None:
    """Add several micro-batches; visible at once and together."""
    path.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables, len(flags(path))):
        pq.write_table(table, path / f"{number:04}.parquet")
    hidden = path / "script.tmp"
    hidden.write_text(json.dumps([*flags(path), *backlog]))
    hidden.rename(path / "script.json")


def finish(path: Path) -> None:
    """The last micro-batch has been added; before a query reads it."""
    (path / "finished").touch()


def flags(path: Path) -> list[bool]:
    """Whether each micro-batch is backlog."""
    script = path / "script.json"
    found: list[bool] = json.loads(script.read_text()) if script.exists() else []
    return found


def inspect(options: Mapping[str, str]) -> SourceInfo:
    """As a connector's."""
    return SourceInfo(
        starts_in_backlog=flags(Path(options["path"]))[:1] == [True],
        watermark_characteristic=WatermarkCharacteristic(options.get("characteristic", "ANY_WATERMARK")),
        use_processing_time=options.get("byClock") == "true",
    )


class ScriptedDataSource(DataSource):
    """Options: path, partitions, bits (each micro-batch by itself, also at an interval of 0), what `inspect` reads, and
    what the runner gives.
    """

    @classmethod
    def name(cls) -> str:
        return "scripted"

    def schema(self) -> StructType:
        return from_arrow_schema(pq.read_schema(Path(self.options["path"]) / "0000.parquet"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ScriptedReader(dict(self.options))


class Piece(InputPartition):
    """Every ``of``-th row of a batch, from ``index`` on."""

    def __init__(self, file: str, index: int, of: int) -> None:
        self.file, self.index, self.of = file, index, of


class ScriptedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str]) -> None:
        self._path = Path(options["path"])
        self._partitions = int(options.get("partitions", "2"))
        self._whole = options.get("intervalduringbacklog") == "0 ms" and options.get("bits") != "true"
        self._end = options.get("availablenowtarget", "latest")
        self._target: int | None = None
        interval, during = (options.get(name) for name in ("interval", "intervalduringbacklog"))
        self._pacer = Pacer(
            parse_duration(interval, "interval") if interval else 0,
            parse_duration(during, "intervalDuringBacklog") if during else None,
            QueryBacklog(options.get("querytoken", "")),
        )

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(0, False)

    def _offset(self, n: int, was_backlog: bool) -> dict[str, Any]:
        script = flags(self._path)
        # Behind its last batch the source is in whatever state that was, until it knows more.
        flag = script[min(n, len(script) - 1)] if script else False
        if (self._path / "finished").exists() and n == len(script):
            return {"n": n, "isProcessingBacklog": False, "isBacklog": was_backlog, "isFinished": True}
        silent = not any(pq.read_metadata(self._path / f"{i:04}.parquet").num_rows for i in range(n))
        found = {"n": n, "isProcessingBacklog": flag, "isBacklog": was_backlog}
        return found | {"noRowsYet": True} if silent else found

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = len(flags(self._path))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        script = flags(self._path)
        n, available = start["n"], len(script) if self._target is None else self._target
        if n >= available or (self._target is not None and self._end == "none"):
            return start
        if n and script[n] != start["isProcessingBacklog"]:
            return self._offset(n, start["isProcessingBacklog"])  # told by a batch of its own, without rows
        if self._target is not None and self._end == "backlogEnd" and not script[n]:
            return start
        now = time.time() * 1000
        if not script[n] and self._target is None and not self._pacer.due(now):
            return start
        self._pacer.released(now)
        end = n + 1
        if self._whole and script[n]:
            while end < available and script[end]:
                end += 1
        return self._offset(end, script[n])

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        files = [str(self._path / f"{n:04}.parquet") for n in range(start["n"], end["n"])]
        return [Piece(file, i, self._partitions) for file in files for i in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        table = pq.read_table(partition.file)
        rows = list(range(partition.index, table.num_rows, partition.of))
        yield from table.take(pa.array(rows, pa.int64())).to_batches(max_chunksize=1_000)
