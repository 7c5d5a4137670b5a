"""Runs a stream reader on Spark 4.0 and 4.1, which call ``latestOffset()`` without a start and without a limit.

The wrapper keeps the position itself. It learns it from Spark:

* A new query asks for the latest offset first, and for the initial offset later. Both get the same initial offset.
* A restarted query first calls ``partitions(offset, offset)`` with the newest offset that Spark knows. Spark means it
  for another kind of reader (``PythonMicroBatchStream.setLatestSeenOffset``, seen in Spark 4.0.1 and 4.1.1).
* A batch that is repeated calls ``partitions(start, end)`` before the latest offset is asked for.

If Spark plans another batch than the one that it was given, the wrapper fails before the batch is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from backlog_spark.errors import BacklogError
from backlog_spark.spi.read_limits import HAS_LIMITS

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ReducedReader", "for_this_spark"]

Offset = dict[str, Any]


def for_this_spark(reader: DataSourceStreamReader) -> DataSourceStreamReader:
    """The reader in the form that this version of Spark can call."""
    return reader if HAS_LIMITS else ReducedReader(reader)


class ReducedReader(DataSourceStreamReader):
    """Calls a reader that needs a start and a limit. The limit is always the reader's default, from its options.

    Parameters
    ----------
    reader : DataSourceStreamReader
        Its methods are those of Spark 4.2.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._first: Offset | None = None
        self._position: Offset | None = None
        self._given: tuple[Offset, Offset] | None = None  # the batch that Spark has to plan next

    def initialOffset(self) -> Offset:
        if self._first is None:
            self._first = _as_logged(self._reader.initialOffset())
        return self._first

    def latestOffset(self) -> Offset:  # type: ignore[override]
        start = self.initialOffset() if self._position is None else self._position
        end: Offset = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        if end is start:
            return start
        if self._given is not None:
            raise _unplanned()
        self._given = start, _as_logged(end)
        return end

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if self._given not in (None, (start, end)):
            raise _unplanned()
        self._position, self._given = end, None
        if start == end:
            return []
        found: Sequence[InputPartition] = self._reader.partitions(start, end)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows: Iterator[pa.RecordBatch] = self._reader.read(partition)
        return rows

    def commit(self, end: Offset) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()


def _as_logged(offset: Offset) -> Offset:
    """As Spark gives it back."""
    found: Offset = json.loads(json.dumps(offset))
    return found


def _unplanned() -> BacklogError:
    return BacklogError(
        "Spark did not plan the batch that the source gave it, so the position of the source is unknown.",
        "Unset spark.sql.streaming.triggerAvailableNowWrapper.enabled, which Spark 4.0 and 4.1 must not have here, and "
        "start the query again; or use Spark 4.2, which tells a source its position.",
    )
