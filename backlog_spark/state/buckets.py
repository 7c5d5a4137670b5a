"""A key group's rows in Spark's state store. Rows are in buckets by hash; a bucket is read and written as a whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import pyarrow as pa
from pyspark.sql.streaming import StatefulProcessorHandle
from pyspark.sql.types import StructType

from backlog_spark.state.state_codec import packed_rows, unpacked_rows

from .tables import StateSchema

__all__ = ["Buckets"]

# If at least this share of a group's buckets is needed, one read of all buckets is cheaper than single reads.
_READ_ALL: Final = 0.5
_KEY: Final = StructType().add("bucket", "integer")
_VALUE: Final = StructType().add("rows", "string").add("slots", "integer")


class Buckets:
    """The buckets of the key group that is being processed.

    Parameters
    ----------
    handle : StatefulProcessorHandle
    schema : StateSchema
    """

    def __init__(self, handle: StatefulProcessorHandle, schema: StateSchema) -> None:
        self._schema = schema
        self._map = handle.getMapState("buckets", _KEY, _VALUE)

    def read(self, numbers: Collection[int], count: int) -> dict[int, pa.RecordBatch]:
        """The rows of these buckets; empty buckets are missing. ``count`` is the group's number of buckets."""
        if len(numbers) > _READ_ALL * count:
            every = {int(key[0]): value for key, value in self._map.iterator()}
            return {n: self._rows(every[n]) for n in numbers if n in every}
        asked = ((number, self._map.getValue((number,))) for number in numbers)
        return {number: self._rows(value) for number, value in asked if value is not None}

    def write(self, number: int, rows: pa.RecordBatch) -> None:
        """Replace the rows of a bucket."""
        self._map.updateValue((number,), packed_rows(rows, self._schema))

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove all rows of these buckets."""
        for number in numbers:
            self._map.removeKey((number,))

    def _rows(self, value: tuple[str, int]) -> pa.RecordBatch:
        return unpacked_rows(*value, self._schema)
