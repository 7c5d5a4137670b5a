"""``datagen``: numbered rows at a rate, for tries and load tests. A row that is read again is the same.

Source: Flink's "DataGen SQL Connector", for the rate and the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from backlog_spark.common.stored_values import check_version
from backlog_spark.spi import SourceInfo, WatermarkCharacteristic
from backlog_spark.spi.options import Option, choice, duration, integer, options_of, text, values
from backlog_spark.spi.pacing import QUERY_TOKEN, Pacer, QueryBacklog
from backlog_spark.spi.read_limits import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from backlog_spark.spi.reduced_reader import for_this_spark
from backlog_spark.spi.stream_only import StreamOnly
from backlog_spark.spi.user_options import UserOptions, check_names

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["DatagenDataSource", "DatagenReader", "Options", "check_options", "documented_options", "inspect"]

_VERSION: Final = 1
# Enough rows that a task takes longer than its start.
_ROWS_OF_A_TASK: Final = 500_000
_ROWS_OF_AN_ARROW_BATCH: Final = 10_000


@dataclass(frozen=True)
class Options:
    """Parsed options."""

    rows_per_second: int = integer("rowsPerSecond", 10_000, 1, 1_000_000_000, flink="rows-per-second")
    """How many rows become due in a second."""
    number_of_rows: int | None = integer("numberOfRows", None, 1, flink="number-of-rows")
    """The source ends after so many rows. Unset: it has no end."""
    interval_ms: int | None = duration("interval", None)
    """Batches begin at multiples of it. A query's runner sets it."""
    during_backlog_ms: int | None = duration("intervalDuringBacklog", None)
    """The interval while another source of the query is in backlog. A query's runner sets it."""
    query_token: str = text(QUERY_TOKEN, shown="set by a query's runner", secret=True)
    """Lets the source ask the query whether other sources are in backlog."""
    target: str = choice("availableNowTarget", ("latest", "backlogEnd", "none"))
    """Where `trigger(availableNow=True)` ends. latest: with the rows that are due when the run starts."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Options:
        """Parse the options.

        Raises
        ------
        SettingError
        """
        check_names(options, [each.name for each in options_of(cls)], "datagen has no such option.")
        return cls(**values(cls, UserOptions(options)))


def check_options(options: Mapping[str, str]) -> None:
    """Check names and values of options. Raises `SettingError`."""
    Options.parse(options)


def documented_options() -> tuple[Option, ...]:
    """All options."""
    return options_of(Options, with_docs=True)


def inspect(options: Mapping[str, str]) -> SourceInfo:
    """Check the options. There is no backlog: the first row is due at the first start."""
    Options.parse(options)
    return SourceInfo(
        key=("value",),
        starts_in_backlog=False,
        unique_in_backlog=True,
        watermark_characteristic=WatermarkCharacteristic.ANY_WATERMARK,
    )


class DatagenDataSource(StreamOnly):
    """``value`` counts the rows from 0. ``timestamp`` is the time when the row became due."""

    @classmethod
    def name(cls) -> str:
        return "datagen"

    def schema(self) -> str:
        return "timestamp TIMESTAMP, value BIGINT"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return for_this_spark(DatagenReader(Options.parse(self.options)))


@dataclass
class Rows(InputPartition):
    """The rows of a task: from ``first`` (inclusive) to ``end`` (exclusive)."""

    first: int
    end: int
    began_ms: int


class DatagenReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets count rows. ``beganMs`` is the time of the first start, so each row keeps its time.

    Parameters
    ----------
    options : Options
    clock : callable
        Seconds since 1970.
    """

    def __init__(self, options: Options, clock: Callable[[], float] = time.time) -> None:
        self._options = options
        self._clock = clock
        self._pacer = Pacer(options.interval_ms or 0, options.during_backlog_ms, QueryBacklog(options.query_token))
        self._until_ms: float | None = None

    def _offset(self, row: int, began_ms: int) -> dict[str, Any]:
        ends = row == self._options.number_of_rows
        return {
            "version": _VERSION, "row": row, "beganMs": began_ms, "isProcessingBacklog": False, "isBacklog": False,
            **({"isFinished": True} if ends else {}),
        }  # fmt: skip

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(0, int(self._clock() * 1000))

    def prepareForTriggerAvailableNow(self) -> None:
        self._until_ms = self._clock() * 1000

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        check_version("The offset of datagen in the checkpoint", start.get("version"), _VERSION)
        now_ms, row, began_ms = self._clock() * 1000, start["row"], start["beganMs"]
        if self._until_ms is None:
            if not self._pacer.due(now_ms):
                return start
        elif self._options.target != "latest":
            return start
        else:
            now_ms = self._until_ms
        due = int((now_ms - began_ms) * self._options.rows_per_second / 1000)
        end = min(due, self._options.number_of_rows or due)
        if end <= row:
            return start
        self._pacer.released(now_ms)
        return self._offset(end, began_ms)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        check_version("The offset of datagen in the checkpoint", end.get("version"), _VERSION)
        # Spark may have asked for another initial offset as the start. The end is in its log.
        firsts = range(start["row"], end["row"], _ROWS_OF_A_TASK)
        return [Rows(first, min(first + _ROWS_OF_A_TASK, end["row"]), end["beganMs"]) for first in firsts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        assert isinstance(partition, Rows)
        for first in range(partition.first, partition.end, _ROWS_OF_AN_ARROW_BATCH):
            numbers = np.arange(first, min(first + _ROWS_OF_AN_ARROW_BATCH, partition.end), dtype=np.int64)
            whole, rest = np.divmod(numbers, self._options.rows_per_second)
            micros = partition.began_ms * 1000 + whole * 1_000_000 + rest * 1_000_000 // self._options.rows_per_second
            times = pa.array(micros, pa.timestamp("us", tz="UTC"))
            yield pa.record_batch([times, pa.array(numbers)], names=["timestamp", "value"])
