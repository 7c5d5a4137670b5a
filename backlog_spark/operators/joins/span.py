"""An interval join of a whole backlog in Spark. Rows are joined by key and time span, not by key alone.

Each row of the near side is in the span of its time. Each row of the far side is copied to the one or two spans in
which it can have matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from backlog_spark.model.watermarks import END_OF_TIME, MIN_WATERMARK, micros_until
from backlog_spark.operators.sides import LEFT, RIGHT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from backlog_spark.operators.joins.pairs import Output

__all__ = ["AT", "KEY", "SPAN", "SpanJoin", "over_until"]

# A span is n intervals long. A row is compared with the rows of one span instead of all rows of its key: n + 1 rows for
# each match. Every n-th row of the far side is in two spans. With 4 and with 16 a join of 200,000 rows a side took as
# long, within the noise.
_SPAN_INTERVALS: Final = 8
# A shorter span has few rows of a key anyway.
_SHORTEST_SPAN: Final = 1_000_000

KEY: Final = "key{}_{}"
"""Names in one side's rows: the normalised n-th key. The event time in microseconds is `AT`, the start of the span
`SPAN`."""
AT, SPAN = "at_{}", "span_{}"


def over_until(side: int, watermark: int, lower: int, upper: int) -> int:
    """The last time, in microseconds, of a side's rows that no later row can match at the watermark."""
    bound = -upper if side == LEFT else lower
    return min(max(micros_until(watermark) + bound, MIN_WATERMARK), END_OF_TIME)


class SpanJoin:
    """Pairs for which left time + lower <= right time <= left time + upper.

    Parameters
    ----------
    how : str
        ``"inner"``, ``"left"``, ``"right"`` or ``"full"``.
    lower, upper : int
        The interval in microseconds, inclusive.
    keys : int
        Number of key columns.
    columns : sequence of Output
    """

    def __init__(self, how: str, lower: int, upper: int, keys: int, columns: Sequence[Output]) -> None:
        self._how = how
        self._lower, self._upper = lower, upper
        self._keys = keys
        self._columns = columns
        self._span = min(max(_SHORTEST_SPAN, _SPAN_INTERVALS * (upper - lower + 1)), 2**62)
        self.near, self.far = (RIGHT, LEFT) if how == "right" else (LEFT, RIGHT)
        """The side whose rows stay in one span. The other side's rows are copied to its spans."""

    def spans(self, side: int, time: Column, *, near: bool) -> Column:
        """The starts of the spans of a row with this time, as a sorted array."""
        from pyspark.sql import functions as F

        if near:
            return F.array(self._span_of(time))
        bounds = (self._lower, self._upper) if side == LEFT else (-self._upper, -self._lower)
        first, last = (_shifted(time, bound) for bound in bounds)
        one, two = self._span_of(first), self._span_of(last)
        return F.when(one == two, F.array(one)).otherwise(F.array(one, two))

    def _span_of(self, time: Column) -> Column:
        from pyspark.sql import functions as F

        return time - F.pmod(time, F.lit(self._span))

    def spread(self, rows: DataFrame, side: int, *, near: bool) -> DataFrame:
        """A side's rows, with their spans."""
        from pyspark.sql import functions as F

        return rows.withColumn(SPAN.format(side), F.explode(self.spans(side, F.col(AT.format(side)), near=near)))

    def matched(self, nears: DataFrame, fars: DataFrame, watermark: int | None) -> DataFrame:
        """The pairs. For an outer join also the rows of the near side that end without a match."""
        from pyspark.sql import functions as F

        rows = nears.join(fars, self._condition(self.near, self.far), "inner" if self._how == "inner" else "left")
        if self._how != "inner":
            rows = rows.where(F.col(AT.format(self.far)).isNotNull() | self._is_over(self.near, watermark))
        return self._put(rows, (LEFT, RIGHT))

    def alone(self, rights: DataFrame, lefts: DataFrame, watermark: int | None) -> DataFrame:
        """The right rows that end without a match. The right side must be the near side."""
        rows = rights.join(lefts, self._condition(RIGHT, LEFT), "left_anti")
        return self._put(rows.where(self._is_over(RIGHT, watermark)), (RIGHT,))

    def _condition(self, near: int, far: int) -> Column:
        from pyspark.sql import functions as F

        left, right = F.col(AT.format(LEFT)), F.col(AT.format(RIGHT))
        found = F.col(SPAN.format(near)) == F.col(SPAN.format(far))
        for i in range(self._keys):
            found = found & (F.col(KEY.format(i, near)) == F.col(KEY.format(i, far)))
        return found & (right >= _shifted(left, self._lower)) & (right <= _shifted(left, self._upper))

    def _is_over(self, side: int, watermark: int | None) -> Column:
        """Whether no later row can match this row."""
        from pyspark.sql import functions as F

        over = F.lit(False)
        if watermark is not None:
            over = F.col(AT.format(side)) <= over_until(side, watermark, self._lower, self._upper)
        for i in range(self._keys):
            over = over | F.col(KEY.format(i, side)).isNull()
        return over

    def _put(self, rows: DataFrame, sides: Sequence[int]) -> DataFrame:
        """Rows of the output, from rows with the columns of these sides."""
        from pyspark.sql import functions as F

        columns = []
        for output in self._columns:
            names = [name for side, name in ((LEFT, output.left), (RIGHT, output.right)) if name and side in sides]
            value = F.coalesce(*map(F.col, names)) if names else F.lit(None).cast(output.field.dataType)
            columns.append(value.alias(output.field.name, metadata=output.field.metadata))
        return rows.select(*columns)


def _shifted(time: Column, more: int) -> Column:
    """A sum that stops at the first and last microsecond of 64 bits; see `backlog_spark.operators.joins.matches`."""
    from pyspark.sql import functions as F

    if more > 0:
        return F.least(time, F.lit(2**63 - 1 - more)) + more
    return F.greatest(time, F.lit(-(2**63) - more)) + more
