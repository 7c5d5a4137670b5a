"""Batches that are small enough for the driver, and types whose values Arrow compares as Spark does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    TimestampNTZType,
    TimestampType,
)

from backlog_spark.common.sql_names import quoted
from backlog_spark.spark.jvm.session import heap_bytes
from backlog_spark.spark.plan.batch_frames import kept, nullable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from backlog_spark.sinks.base import SinkContext

__all__ = [
    "COMPARABLE",
    "MERGED_BATCH_BYTES",
    "MERGED_BATCH_ROWS",
    "SMALL_BATCH_BYTES",
    "SMALL_BATCH_ROWS",
    "RowBudget",
    "is_comparable",
    "is_shared",
    "shared",
]

# Default limits of a batch that the driver appends. Spark's tasks write a larger one as fast.
SMALL_BATCH_ROWS: Final = 100_000
SMALL_BATCH_BYTES: Final = 64 << 20
# Of a batch that the driver merges. 500,000 changes of a Delta or Iceberg table of 1,000,000 rows take the driver about
# 2 s, and Spark 5 to 6 s.
MERGED_BATCH_ROWS: Final = 1_000_000
MERGED_BATCH_BYTES: Final = 256 << 20

COMPARABLE: Final = (
    BinaryType, BooleanType, ByteType, DateType, DecimalType, IntegerType, LongType, ShortType, TimestampNTZType,
    TimestampType,
)  # fmt: skip
# Share of the driver's heap that a batch may have. It is there twice, in a task's result and on its way to Python. With
# a heap of 1 GiB 60 MB were collected, and 240 MB ended the JVM.
_OF_HEAP: Final = 1 / 8
# Rows of the first look at the first batch. They say how wide rows are.
_FIRST_LOOK: Final = 1_000
# Bytes of a value of variable size, assumed for the first look.
_UNKNOWN_SIZE: Final = 1024
# How many times wider a batch may be than earlier ones.
_SLACK: Final = 4


def is_comparable(type: DataType) -> bool:
    """Whether Spark and Arrow compare keys and sequences of a type in the same way."""
    # isinstance would not do: a string with a collation is a subclass. Floats have NaN and two zeros.
    return isinstance(type, COMPARABLE) or type == StringType()


# Batches that several targets get: the limit in rows and the rows, once a target has collected them. Without this, a
# live batch of 1,000 changes for two tables takes 0.41 s in place of 0.32 s.
_SHARED: Final[dict[DataFrame, list[tuple[int, pa.Table]]]] = {}


@contextmanager
def shared(batch: DataFrame) -> Iterator[DataFrame]:
    """The same rows, `kept`. Targets that take all they need from this DataFrame bring it to the driver once."""
    with kept(batch) as rows:
        _SHARED[rows] = []
        try:
            yield rows
        finally:
            del _SHARED[rows]


def is_shared(rows: DataFrame) -> bool:
    """Whether it is kept for several targets."""
    return rows in _SHARED


class RowBudget:
    """How many rows of a batch may come to the driver.

    Spark can limit the number of rows but not of bytes. So the limit in bytes is converted to rows, by the width of
    the rows seen so far.

    Parameters
    ----------
    most_rows, most_bytes : int
        Maximum size of a small batch; 0 rows: no batch is small.
    fields : sequence of StructField
        Columns of a batch.
    """

    def __init__(self, most_rows: int, most_bytes: int, fields: Iterable[StructField]) -> None:
        self.most_rows = most_rows
        self.most_bytes = most_bytes
        self._width = sum(_width(field.dataType) for field in fields) or 1
        self._is_assumed = True

    @classmethod
    def of_driver(cls, context: SinkContext, most_rows: int, most_bytes: int) -> RowBudget:
        """A budget that the driver's heap has room for."""
        room = int(heap_bytes(context.spark) * _OF_HEAP)
        return cls(most_rows, min(most_bytes, room), context.schema.fields)

    @property
    def rows(self) -> int:
        """Maximum number of rows of the next batch."""
        return min(self.most_rows, self.most_bytes // self._width)

    def collected(self, rows: DataFrame, columns: Collection[str]) -> tuple[pa.Table | None, str]:
        """A batch's columns in the driver; or None, and why it is not small.

        Executes the batch. If that fails, the next batch may have fewer rows: these may have been too large.
        """
        most = min(_FIRST_LOOK, self.rows) if self._is_assumed else self.rows
        found = self._first(rows, columns, most + 1)
        while most < found.num_rows and most < self.rows >= 2 * most:  # the rows are narrower than those before
            most = self.rows
            found = self._first(rows, columns, most + 1)
        if found.num_rows > most:
            return None, f"it has more than {most} rows"
        if found.nbytes > self.most_bytes:
            return None, f"it has {found.nbytes} bytes"
        return found, ""

    def _first(self, rows: DataFrame, columns: Collection[str], number: int) -> pa.Table:
        """So many rows of a batch, or all that it has. Notes their size."""
        known = _SHARED.get(rows)
        if known and (number <= known[0][0] or known[0][1].num_rows < known[0][0]):
            found = known[0][1].slice(0, number)
        else:
            needed = rows.select(*map(quoted, columns)) if known is None else rows
            # Spark's Arrow has NULL in all fields of a NULL struct, and rejects that for a field that is not nullable.
            try:
                found = needed.limit(number).to(nullable(needed.schema)).toArrow()
            except Exception:
                self.shrink()
                raise
            if known is not None:
                known[:] = [(number, found)]
        found = found.select(list(columns))
        self.take(found.num_rows, found.nbytes)
        return found

    def shrink(self) -> None:
        """Allow fewer rows from now on, as the driver could not collect a batch."""
        self.most_rows //= 2

    def take(self, rows: int, nbytes: int) -> None:
        """Note the size of a batch in Arrow."""
        if rows:
            self._is_assumed = False
            self._width = max(1, _SLACK * nbytes // rows)


def _width(type: DataType) -> int:
    return 16 if isinstance(type, COMPARABLE) and not isinstance(type, BinaryType) else _UNKNOWN_SIZE
