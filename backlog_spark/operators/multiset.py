"""Operators whose state is rows that may be retracted: finds the rows that exist before a batch and after it.

A row is identified by its side, its key and a hash of its columns. Equal rows are kept several times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from backlog_spark.operators.rows import SIDE_OF, RowsFold
from backlog_spark.operators.sides import quoted
from backlog_spark.state.tables import HASH

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["OWN", "ROW", "SIGN_OF", "MultisetFold", "netted_rows", "present"]

ROW: Final = "row"
"""Column of state and live rows: the hash that finds equal rows."""
SIGN_OF: Final = "sign"
"""Column of live rows: 1 if the row is added, -1 if it is retracted. In rows of state always 1."""
OWN: Final = (ROW, SIGN_OF)


class MultisetFold(RowsFold):
    """A `RowsFold` with an input that may retract rows.

    With ``takes_back`` its rows have the columns `OWN`, which `placed` must make. Retracting a row that does not exist
    has no effect: it has no results.
    """

    takes_back = False
    numbered = False
    """Whether rows have the columns `OWN` although none is retracted."""

    def own_columns(self) -> Sequence[tuple[str, DataType]]:
        """For the constructor of `RowsFold`."""
        from pyspark.sql.types import IntegerType, LongType

        return [(ROW, LongType()), (SIGN_OF, IntegerType())] if self.takes_back or self.numbered else []

    def live_schema(self) -> pa.Schema:
        schema = super().live_schema()
        for name in OWN if self.takes_back or self.numbered else ():
            schema = schema.append(self.state.arrow().field(name))
        return schema

    def is_late(self, live: pa.RecordBatch, watermark: int, kept: pa.RecordBatch) -> np.ndarray:
        """None is: what such an operator emits, it can retract."""
        return np.zeros(live.num_rows, dtype=bool)

    def net(self, lifted: DataFrame) -> DataFrame:
        """The placed rows that exist after all rows have been counted."""
        if not self.takes_back:
            return lifted
        return netted_rows(lifted, [HASH, *self.state.key_names, SIDE_OF, ROW], SIGN_OF)

    def present(self, kept: pa.RecordBatch, rows: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """Which of ``rows`` (kept ones first) exist before the batch and after it.

        A row without a key is never state. If it is retracted, it counts as one that existed.
        """
        old = np.arange(rows.num_rows) < kept.num_rows
        if not self.takes_back:
            return old, np.ones(rows.num_rows, dtype=bool)
        numbers = [rows.column(name).to_numpy() for name in (HASH, SIDE_OF, ROW)]
        return present(numbers, rows.column(SIGN_OF).to_numpy(), old, ~self.keyed(rows))


def present(
    numbers: Sequence[np.ndarray], signs: np.ndarray, old: np.ndarray, stateless: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows exist before a batch, and after it.

    Parameters
    ----------
    numbers : sequence of numpy.ndarray
        Equal rows have equal numbers.
    signs : numpy.ndarray
        1 if a row is added, -1 if it is retracted.
    old : numpy.ndarray of bool
        Flag of kept rows; the others are from the batch.
    stateless : numpy.ndarray of bool
        Flag of rows that are never kept. If such a row is retracted, it counts as one that existed.

    Returns
    -------
    (numpy.ndarray, numpy.ndarray)
        Flags of each row, before and after. Of a group of equal rows as many exist afterwards as were kept and added,
        minus the retracted ones: first the kept rows, then added rows for the rest.
    """
    before, after = old.copy(), np.zeros(len(old), dtype=bool)
    if not len(old):
        return before, after
    order = np.lexsort((np.arange(len(old)), *reversed(numbers)))
    differs = np.zeros(len(old), dtype=bool)
    differs[0] = True
    for column in numbers:
        taken = column[order]
        differs[1:] |= taken[1:] != taken[:-1]
    starts = np.flatnonzero(differs)
    of = np.cumsum(differs) - 1

    kind_old, sign = old[order], signs[order]
    added, gone = ~kind_old & (sign > 0), ~kind_old & (sign < 0)

    def counted(which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The number of such rows in each group, and for each row the number of such rows before it."""
        running = np.cumsum(which)
        sums = np.add.reduceat(which.astype(np.int64), starts)
        return sums, running - which - (running[starts] - which[starts])[of]

    kept_count, kept_rank = counted(kind_old)
    added_count, added_rank = counted(added)
    gone_count, gone_rank = counted(gone)
    final = np.maximum(kept_count + added_count - gone_count, 0)
    after[order] = (kind_old & (kept_rank < final[of])) | (added & (added_rank < (final - kept_count)[of]))
    # More retractions than rows: stateless rows existed for them.
    missing = np.maximum(gone_count - kept_count - added_count, 0)
    before[order] |= gone & stateless[order] & (gone_rank < missing[of])
    return before, after


def netted_rows(rows: DataFrame, by: Sequence[str], sign: str) -> DataFrame:
    """The rows of a batch that exist after all have been counted.

    Parameters
    ----------
    rows : DataFrame
    by : sequence of str
        Columns that are equal in equal rows, of types that Spark can group by.
    sign : str
        Column that is 1 for an added row and -1 for a retracted one. It is 1 in the result.
    """
    from pyspark.sql import functions as F

    rest: list[Any] = [quoted(name) for name in rows.columns if name not in (*by, sign)]
    # Equal rows may differ in the other columns: take them from one added row.
    one = F.max_by(F.struct(*rest), F.col(sign)) if rest else F.lit(None)
    grouped = rows.groupBy(*map(quoted, by)).agg(F.sum(sign).alias("__n"), one.alias("__one"))
    there = grouped.where("__n > 0").withColumn("__copy", F.explode(F.sequence(F.lit(1), F.col("__n").cast("int"))))

    def value(name: str) -> Column:
        if name == sign:
            return F.lit(1).alias(name)
        return quoted(name) if name in by else F.col("__one").getField(name).alias(name)

    return there.select(*(value(name).alias(name, metadata=rows.schema[name].metadata) for name in rows.columns))
