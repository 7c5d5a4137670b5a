"""Functions over the rows of a key in any order, and the first rows of a key in it. The rows may change.

A batch emits the changes of the result: a row that comes in front of others gives them another number, and a row beyond
the limit is retracted. Rows that are equal in the order follow a hash of all their columns.

Source: Flink SQL's "Top-N", and ``RetractableTopNFunction``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import ASKED, CHANGE_TYPE, DELETE, INSERT, MARK, METADATA, is_change_stream, sign
from backlog_spark.model.watermarks import EVENT_TIME
from backlog_spark.operators import frames
from backlog_spark.operators.aggregates import groups
from backlog_spark.operators.counted_rows import tie_of
from backlog_spark.operators.fold import Clock
from backlog_spark.operators.merge import equal_rows
from backlog_spark.operators.multiset import ROW, SIGN_OF, MultisetFold
from backlog_spark.operators.over.functions import RANKS, OverFunction
from backlog_spark.operators.over.results import bind, is_ordered
from backlog_spark.operators.sides import quoted
from backlog_spark.operators.waiting_fold import Gathered, StayEnd
from backlog_spark.state.tables import HASH, arrow_schema, combine

if TYPE_CHECKING:
    import numpy.typing as npt
    from pyspark.sql import Column, DataFrame, WindowSpec
    from pyspark.sql.types import StructType

    from backlog_spark.operators.over.rows import SortedRows

    Integers = npt.NDArray[np.int64]

__all__ = ["Frame", "Order", "RankedFold"]

Order = tuple[str, bool, bool]
"""An item of ORDER BY: a column, whether it is descending, and whether NULL comes first."""


@dataclass(frozen=True)
class Frame:
    """The rows that a function sees, up to the current row.

    Parameters
    ----------
    preceding : int or None
        The number of rows before it; None: all.
    peers : bool
        Whether rows that are equal in the order belong to it. With ``preceding=0`` these rows are the whole frame.
    """

    preceding: int | None = None
    peers: bool = True


class RankedFold(MultisetFold):
    """Functions over the rows of a key in an order, or its first rows.

    State: all rows of a key, or its first ones if no row is ever retracted. The output has the columns of the rows, the
    results, and the change type: ``insert`` or ``delete``.

    Parameters
    ----------
    keys : sequence of str
    functions : sequence of OverFunction
        Those of `parse_over`, and `RANKS`.
    schema : StructType
        Schema of the rows.
    key_groups : int
        ``spark.backlog.keyGroups``.
    order : sequence of Order
        Without an order all rows of a key are equal in it.
    frame : Frame
        Of functions other than `RANKS` and ``lag``.
    limit : (str, int), optional
        One of `RANKS` and its greatest value. Default: all rows.
    written : str, optional
        The window as the user wrote it, for `describe`: the names of computed columns do not tell their meaning.

    Raises
    ------
    BacklogError
        If a function or column does not fit the rows. The error has its name.
    """

    timed = False
    numbered = True

    def __init__(
        self,
        keys: Sequence[str],
        functions: Sequence[OverFunction],
        schema: StructType,
        key_groups: int,
        *,
        order: Sequence[Order],
        frame: Frame = Frame(),
        limit: tuple[str, int] | None = None,
        written: str = "",
    ) -> None:
        from pyspark.sql.types import StructType

        self.takes_back = is_change_stream(schema, keys)
        self._rows = schema
        kept = StructType([f for f in schema if not (self.takes_back and f.name in METADATA)])
        for column, _, _ in order:
            if not is_ordered(kept[column].dataType):
                raise BacklogError(
                    f"ORDER BY {column}: the type {kept[column].dataType.simpleString()} has no order.",
                    "Order by other columns.",
                )
        super().__init__("over", kept, keys, None, key_groups, own=self.own_columns())
        self._functions = tuple(bind(functions, kept, unbounded=False))
        self._order = tuple(order)
        self._frame = frame
        self._limit = limit
        self._written = written
        self._out = arrow_schema(self.output_schema())

    def describe(self) -> dict[str, Any]:
        said = ", ".join(f.text for f in self._functions)
        limit = "" if self._limit is None else f" up to {self._limit[0]} {self._limit[1]}"
        rows = " of rows that change" if self.takes_back else ""
        return self.described(f"{said} over {self._frame} by {self._order}{limit}: {self._written}{rows}")

    def output_schema(self) -> StructType:
        from pyspark.sql.types import StringType, StructField, StructType

        def unmarked(field: StructField) -> StructField:
            kept = {name: value for name, value in field.metadata.items() if name != EVENT_TIME}
            return StructField(field.name, field.dataType, True, kept)

        results = [StructField(f.name, f.result, True) for f in self._functions]
        change = StructField(CHANGE_TYPE, StringType(), True, {MARK: ASKED})
        return StructType([*map(unmarked, self.schema), *results, change])

    # -- rows -----------------------------------------------------------------------------------------------

    def version_schema(self) -> StructType:
        return self._rows

    def more_placed(self) -> list[Column]:
        from pyspark.sql import functions as F

        signs = sign(quoted(CHANGE_TYPE)) if self.takes_back else F.lit(1)
        return [tie_of(self.schema).alias(ROW), signs.alias(SIGN_OF)]

    def keyed(self, rows: pa.RecordBatch) -> np.ndarray:
        """All rows: NULL is a key like any other."""
        return np.ones(rows.num_rows, dtype=bool)

    # -- the sorted vehicle ---------------------------------------------------------------------------------

    def fold(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        every = super().fold(rows, base)
        if self.takes_back or self._limit is None:
            return every
        order = [_ordered(quoted(name), *rest) for name, *rest in self._order]
        return self._first(every, list(map(quoted, self.keys)), order, tie_of(self.schema))

    def output_at_end(self, version: DataFrame, end: StayEnd) -> DataFrame:
        return self._results(self.net(self.placed(version)).repartition(HASH, *self.state.key_names))

    def gathered(self, rows: DataFrame, base: DataFrame | None) -> Gathered | None:
        def left(together: DataFrame, end: StayEnd) -> DataFrame:
            return self.as_state(self.still_needed(together, end))

        def output(found: Gathered, end: StayEnd) -> DataFrame:
            return self._results(self.net(found.rows))

        return Gathered(self.placed(self.fold(rows, base)), (HASH, *self.state.key_names), left, output)

    def still_needed(self, placed: DataFrame, end: StayEnd) -> DataFrame:
        # If no row is ever retracted, the version has only rows within the limit.
        return self.net(placed)

    def _first(self, rows: DataFrame, keys: list[Column], order: list[Column], tie: Column) -> DataFrame:
        """The rows within the limit. Spark finds them before it shuffles."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        assert self._limit is not None
        kind, most = self._limit
        window = Window.partitionBy(*keys).orderBy(*order, *([tie] if kind == "row_number" else []))
        name = "__backlog_rank"
        return rows.withColumn(name, getattr(F, kind)().over(window)).where(quoted(name) <= most).drop(name)

    def _results(self, placed: DataFrame) -> DataFrame:
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        keys = [quoted(name) for name in (HASH, *self.state.key_names)]
        order = [_ordered(F.col(self.value(0, name)), *rest) for name, *rest in self._order]
        if self._limit is not None:
            placed = self._first(placed, keys, order, F.col(ROW))
        if any(function.kind not in RANKS for function in self._functions):
            # One sort for all windows, so that rows that are equal in the order have one order too.
            placed = placed.sortWithinPartitions(*keys, *order, ROW)
        rows = Window.partitionBy(*keys).orderBy(*order, ROW)
        peers = Window.partitionBy(*keys).orderBy(*order)
        first = Window.unboundedPreceding if self._frame.preceding is None else -self._frame.preceding
        frame = rows.rowsBetween(first, Window.currentRow)
        if not order:
            frame = Window.partitionBy(*keys).rowsBetween(first, Window.unboundedFollowing)
        elif self._frame.peers:
            frame = peers.rangeBetween(first, Window.currentRow)

        def result(number: int, peers: WindowSpec) -> Column:
            function = self._functions[number]
            if function.kind in RANKS[1:]:
                made: Column = getattr(F, function.kind)().over(peers)
            else:
                column = None if function.column is None else F.col(self.value(0, function.column))
                made = function.over(column, frame, rows)
            return made.cast(function.result).alias(function.name)

        columns = [
            F.col(name).alias(field.name, metadata=field.metadata)
            for name, field in zip(self.values(0), self.output_schema(), strict=False)
        ]
        results = [result(number, peers) for number in range(len(self._functions))]
        return placed.select(*columns, *results, F.lit(INSERT).alias(CHANGE_TYPE, metadata={MARK: ASKED}))

    # -- the stream vehicle ---------------------------------------------------------------------------------

    def advance(
        self, kept: pa.RecordBatch, fresh: pa.RecordBatch, clock: Clock
    ) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        rows = combine([kept, fresh], self.state.arrow())
        before, after = self.present(kept, rows)
        hashes = rows.column(HASH).to_numpy()
        touched = np.isin(hashes, hashes[before != after])
        code = self.codes(rows, np.flatnonzero(touched))
        were, had = self._ranked(rows, np.flatnonzero(before & touched), code)
        are, has = self._ranked(rows, np.flatnonzero(after & touched), code)
        _, old, new = np.intersect1d(were, are, assume_unique=True, return_indices=True)
        same = _equal(had, old, has, new)
        out = []
        for indices, results, unchanged, change in ((were, had, old[same], DELETE), (are, has, new[same], INSERT)):
            tells = np.delete(np.arange(len(indices)), unchanged)
            values = rows.take(pa.array(indices[tells]))
            columns = [values.column(name) for name in self.values(0)]
            columns += [column.take(pa.array(tells)) for column in results]
            columns.append(pa.array([change] * len(tells), pa.string()))
            out.append(pa.RecordBatch.from_arrays(columns, schema=self._out))
        stays = after
        if self._limit is not None and not self.takes_back:
            stays = after & ~touched
            stays[are] = True
        return rows.filter(pa.array(stays)), out

    def _ranked(self, rows: pa.RecordBatch, at: np.ndarray, code: np.ndarray) -> tuple[np.ndarray, list[pa.Array]]:
        """Indices of the rows within the limit, and their results.

        Parameters
        ----------
        at : numpy.ndarray of int64
            Indices of all rows of some keys.
        code : numpy.ndarray of int64
            For each row of ``rows`` the number of its key.
        """
        keys = [code[at], *self._order_keys(rows.take(pa.array(at)))]
        order = np.lexsort((rows.column(ROW).to_numpy()[at], *reversed(keys)))
        at = at[order]
        work = _Ordered(self, rows.take(pa.array(at)), [key[order] for key in keys], self._frame)
        if self._limit is None:
            inside = np.arange(work.size)
        else:
            inside = np.flatnonzero(work.ranks[self._limit[0]] <= self._limit[1])
        results = []
        for number, function in enumerate(self._functions):
            kind = self._out.field(function.name).type
            found = work.ranks.get(function.kind)
            values = pa.array(found) if found is not None else function.results(cast("SortedRows", work), number)[0]
            results.append(values.cast(kind).take(pa.array(inside)))
        return at[inside], results

    def _order_keys(self, rows: pa.RecordBatch) -> list[np.ndarray]:
        """Integers that sort the rows as ORDER BY does. Earlier arrays decide first."""
        found: list[np.ndarray] = []
        for name, descending, nulls_first in self._order:
            column = rows.column(self.value(0, name))
            is_null = ~groups.is_valid(column)
            if column.null_count:
                found.append(np.where(is_null, -1 if nulls_first else 1, 0))
            # The first key of a column with NULL tells which values are NULL.
            keys = frames.rank_keys(column)[1 if column.null_count else 0 :]
            found += [np.where(is_null, 0, ~key if descending else key) for key in keys]
        return found


class _Ordered:
    """Rows of some keys in order, as `BoundFunction.results` reads them. All rows get a result."""

    def __init__(self, fold: RankedFold, rows: pa.RecordBatch, keys: Sequence[np.ndarray], frame: Frame) -> None:
        self._fold = fold
        self._rows = rows
        self.size = rows.num_rows
        self.seen = np.zeros(self.size, dtype=bool)
        self.new = every = np.arange(self.size)
        is_first = _differs(keys[:1], self.size)
        is_peak = _differs(keys, self.size)
        self.starts = firsts = np.flatnonzero(is_first)
        self.stops = np.append(firsts[1:], self.size)
        self.unbounded = frame.preceding is None
        self.begins = firsts[np.cumsum(is_first) - 1]
        peaks = np.flatnonzero(is_peak)
        group = np.cumsum(is_peak) - 1
        self.numbers = every - self.begins + 1
        dense = group - group[self.begins] + 1 if self.size else group
        self.ranks = {"row_number": self.numbers, "rank": peaks[group] - self.begins + 1, "dense_rank": dense}
        self.low = self.begins if frame.preceding is None else np.maximum(every - frame.preceding, self.begins)
        self.high = every + 1
        if frame.peers:
            self.high = np.append(peaks[1:], self.size)[group]
            self.low = self.begins if frame.preceding is None else peaks[group]

    def argument(self, column: str) -> pa.Array:
        """A column of the rows."""
        return self._rows.column(self._fold.value(0, column))


def _differs(keys: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Which rows differ from the row before."""
    found = np.zeros(size, dtype=bool)
    found[:1] = True
    for key in keys:
        found[1:] |= key[1:] != key[:-1]
    return found


def _equal(one: Sequence[pa.Array], at: np.ndarray, other: Sequence[pa.Array], at_other: np.ndarray) -> np.ndarray:
    if not one:
        return np.ones(len(at), dtype=bool)
    names = [str(number) for number in range(len(one))]
    tables = [
        pa.RecordBatch.from_arrays([column.take(pa.array(indices)) for column in columns], names=names)
        for columns, indices in ((one, at), (other, at_other))
    ]
    return equal_rows(tables[0], tables[1], names)


def _ordered(column: Column, descending: bool, nulls_first: bool) -> Column:
    if descending:
        return column.desc_nulls_first() if nulls_first else column.desc_nulls_last()
    return column.asc_nulls_first() if nulls_first else column.asc_nulls_last()
