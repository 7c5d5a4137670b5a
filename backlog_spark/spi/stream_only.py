"""Refuses batch reads of and writes to a source that is only a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

from backlog_spark.errors import BacklogError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["StreamOnly"]


class StreamOnly(DataSource):
    """A data source that cannot be read as a batch or written to."""

    def reader(self, schema: StructType) -> NoReturn:
        raise BacklogError(
            f"{self.name()} is a stream and cannot be read with spark.read.",
            f"Use spark.readStream.format({self.name()!r}); with .trigger(availableNow=True) its query reads what is "
            "there and ends.",
        )

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise self._no_sink()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise self._no_sink()

    def _no_sink(self) -> BacklogError:
        return BacklogError(f"{self.name()} is a source and cannot be written to.", "Write to another format.")
