"""OVER aggregation by event time: functions of each row and the rows of its key before it.

A row is emitted once, when the watermark has reached its time. The rows of a key have one total order, the same in both
vehicles: event time in microseconds, then the order column if there is one, then all columns that can be ordered (for
structs their fields), NULL first. Rows that are equal in all of these may be in any order.

Source: Flink SQL's "Over Aggregation"; Spark's ``WindowExec`` for types, NULL and the order of additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import refuse_changes
from backlog_spark.operators import frames
from backlog_spark.operators.aggregates import groups
from backlog_spark.operators.by_key import ByKeyFold
from backlog_spark.operators.fold import Clock
from backlog_spark.operators.over.functions import OverFunction
from backlog_spark.operators.over.results import bind, is_ordered
from backlog_spark.operators.over.rows import NUMBER, UNTIL, SortedRows
from backlog_spark.operators.rows import TIME
from backlog_spark.operators.waiting_fold import Gathered, StayEnd
from backlog_spark.state.store import NEVER
from backlog_spark.state.tables import HASH, combine

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["OverFold", "OverFunction"]

_MICROS = "__backlog_micros"
# Greater than every real duration, and small enough that a time minus a duration does not overflow.
_LONGEST_MICROS = 2**61

Integers = npt.NDArray[np.int64]


class OverFold(ByKeyFold):
    """Functions over a row and the rows of its key before it.

    State: rows that wait for the watermark, and emitted rows that frames and ``lag`` still reach. Frames without a
    beginning keep accumulators with the last row of the key instead. Sums of doubles are added in the order of the
    rows, as in Spark. With ``spark.sql.window.segmentTree.enabled`` Spark's last digits may differ. A sum must not
    overflow at its end; in Spark intermediate sums must not either.

    Parameters
    ----------
    keys : sequence of str
        Key columns.
    functions : sequence of OverFunction
        As returned by `parse_over`.
    schema : StructType
        Schema of the rows.
    key_groups : int
        ``spark.backlog.keyGroups``.
    preceding : int or None
        Rows, or milliseconds, before the current row; None for all. ``row_number`` and ``lag`` see all rows.
    unit : str
        ``rows``, or ``range``. Frames of ``range`` end with the last row of the current row's time.
    order : str, optional
        Column that orders rows of the same time.
    control_first : bool
        See `RowsFold`.

    Raises
    ------
    BacklogError
        If a function or column does not fit the rows. The error has its name.
    """

    def __init__(
        self,
        keys: Sequence[str],
        functions: Sequence[OverFunction],
        schema: StructType,
        key_groups: int,
        *,
        preceding: int | None,
        unit: str,
        order: str | None = None,
        control_first: bool = True,
    ) -> None:
        from pyspark.sql.types import LongType

        if unit not in ("rows", "range"):
            raise BacklogError(f"over: unit {unit!r} is neither 'rows' nor 'range'.", "Use one of them.")
        if preceding is not None and preceding < 0:
            raise BacklogError(
                f"over: {preceding} preceding would begin after the current row.", "Use 0 or more, or None for all."
            )
        self.functions = tuple(bind(functions, schema, unbounded=preceding is None))
        self.preceding = preceding
        self.unit = unit
        self._expires = unit == "range" and preceding is not None
        self._micros = min((preceding or 0) * 1000, _LONGEST_MICROS)
        self.counts_rows = any(f.kind == "row_number" for f in self.functions)
        own: list[tuple[str, DataType]] = [(NUMBER, LongType())]
        if self._expires:
            own.append((UNTIL, LongType()))
        for at, function in enumerate(self.functions):
            own += [(f"{name}{at}", kind) for name, kind in function.accumulators]
        # The number of last rows of a key that are needed whatever their time.
        reaches = [f.offset for f in self.functions if f.kind == "lag"]
        if unit == "rows" and preceding is not None:
            reaches.append(preceding)
        if self.counts_rows or len(own) > 1 + self._expires:
            reaches.append(1)
        self._last = max(reaches, default=0)
        refuse_changes("over", schema, keys)
        super().__init__("over", schema, keys, None, key_groups, own=own, control_first=control_first)
        self._time = self.event_time_needed(0)
        self.order = order
        self._ties = _tie_paths(schema, self._time, order)

    def describe(self) -> dict[str, Any]:
        if self.preceding is None:
            reach = "unbounded"
        else:
            reach = str(self.preceding) if self.unit == "rows" else f"{self.preceding} ms"
        said = ", ".join(f.text for f in self.functions)
        order = "" if self.order is None else f", then {self.order}"
        return self.described(f"{said} over {self.unit} between {reach} preceding by {self._time}{order}")

    def output_schema(self) -> StructType:
        from pyspark.sql.types import StructField, StructType

        fields = [StructField(f.name, f.dataType, True, f.metadata) for f in self.schema]
        return StructType([*fields, *(StructField(f.name, f.result, True) for f in self.functions)])

    # -- the sorted vehicle ---------------------------------------------------------------------------------

    def placed(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        error = F.raise_error(str(self._no_time())).cast("long")
        return super().placed(rows).withColumn(TIME, F.coalesce(F.col(TIME), error))

    def _no_time(self) -> BacklogError:
        return BacklogError(
            f"over: a row has no event time: {self._time!r} is NULL.",
            f'Such a row has no position in the order. Drop it first: .filter("{self._time} IS NOT NULL").',
        )

    def output_at_end(self, version: DataFrame, end: StayEnd) -> DataFrame:
        return self._over(self._complete(self.placed(version), end).repartition(HASH, *self.state.key_names))

    def gathered(self, rows: DataFrame, base: DataFrame | None) -> Gathered | None:
        def left(together: DataFrame, end: StayEnd) -> DataFrame:
            return self.as_state(self.still_needed(together, end))

        def output(found: Gathered, end: StayEnd) -> DataFrame:
            return self._over(self._complete(found.rows, end))

        placed = self.placed(self.fold(rows, base))
        return Gathered(placed, (HASH, *self.state.key_names), left, output)

    def _complete(self, placed: DataFrame, end: StayEnd) -> DataFrame:
        from pyspark.sql import functions as F

        return placed.where(F.lit(False) if end.watermark is None else F.col(TIME) <= end.watermark)

    def _over(self, complete: DataFrame) -> DataFrame:
        """The results of rows up to the watermark, shuffled by hash and keys."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        timed = complete.withColumn(_MICROS, F.unix_micros(F.col(self.value(0, self._time))))
        keys = [HASH, *self.state.key_names]
        ordering = [F.col(_MICROS).asc(), *(self._tie(path).asc_nulls_first() for path in self._ties)]
        # One sort for all functions: a range frame may only be ordered by time, and Spark keeps rows that are sorted by
        # more columns. Without it the first of several rows with the same time would be arbitrary.
        placed = timed.sortWithinPartitions(*keys, *ordering)
        rows = Window.partitionBy(*keys).orderBy(*ordering)
        first = Window.unboundedPreceding
        if self.unit == "rows":
            frame = rows.rowsBetween(first if self.preceding is None else -self.preceding, Window.currentRow)
        else:
            begin = first if self.preceding is None else -self._micros
            frame = Window.partitionBy(*keys).orderBy(_MICROS).rangeBetween(begin, Window.currentRow)
        inputs = zip(self.values(0), self.output_schema(), strict=False)
        columns = [F.col(name).alias(field.name, metadata=field.metadata) for name, field in inputs]
        results = [
            f.over(None if f.column is None else F.col(self.value(0, f.column)), frame, rows)
            .cast(f.result)
            .alias(f.name)
            for f in self.functions
        ]
        return placed.select(*columns, *results)

    def _tie(self, path: tuple[str, ...]) -> Column:
        from pyspark.sql import functions as F

        found = F.col(self.value(0, path[0]))
        for name in path[1:]:
            found = found.getField(name)
        return found

    def still_needed(self, placed: DataFrame, end: StayEnd) -> DataFrame:
        from pyspark.sql import functions as F

        if end.watermark is None:
            return placed
        watermark = end.watermark
        if self._last == 0:
            # The row itself shows it.
            waits = F.col(TIME) > watermark
            if not self._expires:
                return placed.where(waits)
            assert self.preceding is not None
            end_of_row = F.col(TIME) + self.preceding
            until = end_of_row + F.pmod(-end_of_row, F.lit(max(self.preceding, 1)))
            found = placed.where(waits | (end_of_row > watermark))
            return found.withColumn(NUMBER, F.when(~waits, F.lit(0).cast("long"))).withColumn(
                UNTIL, F.when(~waits, until)
            )
        return super().still_needed(placed, end)

    # -- the stream vehicle ---------------------------------------------------------------------------------

    def due(self, state: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        _, never = super().due(state)
        waits = ~groups.is_valid(state.column(NUMBER))
        later = groups.values(state.column(UNTIL), NEVER) if self._expires else never
        return np.where(waits, groups.values(state.column(TIME)), later), never

    def advance(
        self, kept: pa.RecordBatch, fresh: pa.RecordBatch, clock: Clock
    ) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        state, out = self._advanced(combine([kept, fresh], self.state.arrow()), clock)
        return state, [] if out is None else [out]

    def _advanced(self, rows: pa.RecordBatch, clock: Clock) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        if rows.column(TIME).null_count:
            raise self._no_time()
        time = groups.values(rows.column(TIME))
        seen = groups.is_valid(rows.column(NUMBER))
        ready = ~seen & (time <= clock.watermark)
        stays = ~ready
        if self._expires:
            stays &= ~seen | (groups.values(rows.column(UNTIL), NEVER) > clock.watermark)
        if not ready.any():
            return rows.filter(pa.array(stays)), None
        hashes = rows.column(HASH).to_numpy()
        # Emitted rows count if new rows have their hash.
        works = ready | (seen & np.isin(hashes, np.unique(hashes[ready])))
        work = SortedRows(self, rows.filter(pa.array(works)))
        results = [function.results(work, at) for at, function in enumerate(self.functions)]
        state = combine(
            [rows.filter(pa.array(stays & ~works)), work.remembered(results, clock.watermark)], self.state.arrow()
        )
        return state, work.output([found for found, _ in results])

    def tie_columns(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """The columns that order rows of the same time. The first one has the highest priority."""
        found = []
        for path in self._ties:
            array = rows.column(self.value(0, path[0]))
            for name in path[1:]:
                array = array.flatten()[array.type.get_field_index(name)]
            found.append(array)
        return found

    def spans(self, work: SortedRows) -> tuple[Integers, Integers]:
        """The frames of the rows that are emitted now."""
        at = work.new
        high = work.peers[at] if self.unit == "range" else at + 1
        if self.preceding is None:
            return work.carries[at], high
        if self.unit == "rows":
            return np.maximum(at - self.preceding, work.begins[at]), high
        return frames.first_at_least(work.micros, work.begins[at], at, work.micros[at] - self._micros), high

    def kept_after(self, work: SortedRows, watermark: int) -> tuple[npt.NDArray[np.bool_], pa.Array]:
        """Which emitted rows are still needed, and up to which watermark."""
        from_end = work.ends - np.arange(work.size)
        last = from_end <= self._last
        if not self._expires:
            return last, pa.nulls(work.size, pa.int64())
        assert self.preceding is not None
        # Rounded up to a multiple of the range: otherwise each batch would read most of the state to drop a few rows.
        step = max(self.preceding, 1)
        until = -(-(work.times + self.preceding) // step) * step
        return last | (work.times + self.preceding > watermark), pa.array(until, mask=last)


def _tie_paths(schema: StructType, time: str, order: str | None) -> list[tuple[str, ...]]:
    """The atomic columns and fields that order rows of the same time, as paths of names."""
    from pyspark.sql.types import StructType

    def atoms(kind: DataType, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        if isinstance(kind, StructType):
            return [found for field in kind for found in atoms(field.dataType, (*path, field.name))]
        return [path] if is_ordered(kind) else []

    if order is not None and order not in schema.names:
        raise BacklogError(
            f"over: there is no column {order!r} to order by; there are {', '.join(schema.names)}.",
            "Check the name and its case.",
        )
    if order is not None and not is_ordered(schema[order].dataType):
        raise BacklogError(
            f"over: column {order!r} is {schema[order].dataType.simpleString()}, which does not order rows.",
            "Order by a number, a time or a text.",
        )
    rest = [name for name in schema.names if name not in (time, order)]
    return [
        path for name in ([] if order is None else [order]) + rest for path in atoms(schema[name].dataType, (name,))
    ]
