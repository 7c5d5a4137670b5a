"""A source without rows that is backlog until its first batch. It gives a native source next to it the flag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from backlog_spark.spi import SourceInfo, WatermarkCharacteristic, add_connector

__all__ = ["FlagDataSource", "add_flag_connector", "inspect"]


def add_flag_connector() -> None:
    """Make ``bs.source("backlog_flag", ddl=…)`` work."""
    add_connector("backlog_flag", __name__, "FlagDataSource")


def inspect(options: Mapping[str, str]) -> SourceInfo:
    """As every connector's."""
    return SourceInfo(starts_in_backlog=True, watermark_characteristic=WatermarkCharacteristic.ANY_WATERMARK)


class FlagDataSource(DataSource):
    """Option ``ddl``: the columns of its rows (it has none)."""

    @classmethod
    def name(cls) -> str:
        return "backlog_flag"

    def schema(self) -> str:
        return str(self.options["ddl"])

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _Reader()


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def initialOffset(self) -> dict[str, Any]:
        return {"n": 0, "isProcessingBacklog": True, "isBacklog": False}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return start if start["n"] else {"n": 1, "isProcessingBacklog": False, "isBacklog": True}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return iter(())
