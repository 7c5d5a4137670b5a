"""A source for docs/sources.md: the lines of a growing text file. Lines present at the first start are backlog."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from backlog_spark.common.durations import parse_duration
from backlog_spark.errors import SettingError
from backlog_spark.spi import SourceInfo, WatermarkCharacteristic
from backlog_spark.spi.pacing import QUERY_TOKEN, Pacer, QueryBacklog

_LINES_OF_A_TASK = 10_000


def inspect(options: Mapping[str, str]) -> SourceInfo:
    """Check the options in the driver's own process, before Spark is involved."""
    given = {name.lower(): text for name, text in options.items()}
    path = Path(given.get("path", ""))
    if not path.is_file():
        raise SettingError("path", str(path), "there is no such file.", "Give the path of a text file.")
    return SourceInfo(
        key=("number",),
        starts_in_backlog=path.stat().st_size > 0,
        unique_in_backlog=True,
        watermark_characteristic=WatermarkCharacteristic.ANY_WATERMARK,
    )


class LinesDataSource(DataSource):
    """Options: ``path`` and ``maxRowsPerBatch``. The query sets the others."""

    @classmethod
    def name(cls) -> str:
        return "lines"

    def schema(self) -> str:
        return "number BIGINT, line STRING"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return LinesReader(dict(self.options))


@dataclass
class Lines(InputPartition):
    """The lines that one task reads: from ``first`` (inclusive) to ``end`` (exclusive)."""

    first: int
    end: int


class LinesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        # Tasks get a copy of this object, so it opens nothing.
        self._path = Path(options["path"])
        self._most = int(options.get("maxrowsperbatch", 0))
        interval, during = (
            parse_duration(options[name], name) if name in options else None
            for name in ("interval", "intervalduringbacklog")
        )
        self._pacer = Pacer(interval or 0, during, QueryBacklog(options.get(QUERY_TOKEN.lower(), "")))
        self._whole = during == 0  # the whole backlog in one batch
        self._ends_at = options.get("availablenowtarget", "latest")
        self._target: int | None = None

    def _there(self) -> int:
        with self._path.open(encoding="utf-8") as file:
            # A line that is still being written has no line end yet.
            return sum(line.endswith("\n") for line in file)

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(0, self._there(), was_backlog=False)

    def _offset(self, line: int, backlog: int, *, was_backlog: bool) -> dict[str, Any]:
        """A batch ends before this line. ``backlog``: number of lines at the first start."""
        return {"line": line, "backlog": backlog, "isProcessingBacklog": line < backlog, "isBacklog": was_backlog}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._there()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most) if self._most else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        line, backlog, in_backlog = start["line"], start["backlog"], start["isProcessingBacklog"]
        end = self._there() if self._target is None else self._target
        if in_backlog:
            end = min(end, backlog)  # no batch crosses the end of the backlog
        if self._target is not None:
            if self._ends_at == "none" or (self._ends_at == "backlogEnd" and not in_backlog):
                return start
        elif not in_backlog and not self._pacer.due(time.time() * 1000):
            return start
        if isinstance(limit, ReadMaxRows) and not (in_backlog and self._whole):
            end = min(end, line + limit.max_rows)
        if end <= line:
            return start  # Spark starts no batch
        self._pacer.released(time.time() * 1000)
        return self._offset(end, backlog, was_backlog=in_backlog)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        firsts = range(start["line"], end["line"], _LINES_OF_A_TASK)
        return [Lines(first, min(first + _LINES_OF_A_TASK, end["line"])) for first in firsts]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        assert isinstance(partition, Lines)
        with self._path.open(encoding="utf-8") as file:
            for number, line in enumerate(itertools.islice(file, partition.first, partition.end), partition.first):
                yield number, line.rstrip("\n")
