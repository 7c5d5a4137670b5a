"""Declared aggregates over a change stream: rows are retracted, and a key's result goes with its last row.

Counts, and sums and averages of integers or decimals, can retract rows from their accumulators. Others, such as a
minimum, need the rows. These are kept, and a key's result is computed again when they change.

Source: Flink's ``GroupAggFunction`` and the ``…WithRetract`` aggregate functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import ASKED, CHANGE_TYPE, METADATA, identity_of, is_change_stream, sign
from backlog_spark.operators.aggregates.aggregate import Aggregate
from backlog_spark.operators.aggregates.counted import counted
from backlog_spark.operators.aggregates.signed import SIGN, Signed, signed
from backlog_spark.operators.aggregates.sums import Count
from backlog_spark.operators.fold import Clock, Fold
from backlog_spark.operators.merge import CODE, AggregateFold, change_type_of, codes_of, equal_rows
from backlog_spark.operators.multiset import ROW, SIGN_OF, MultisetFold, netted_rows
from backlog_spark.operators.rows import SIDE_OF, TIME
from backlog_spark.operators.sides import quoted
from backlog_spark.operators.waiting_fold import StayEnd
from backlog_spark.state.keys import equal_runs
from backlog_spark.state.tables import GROUP, HASH, arrow_schema, combine

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["RowsAggregateFold", "SignedAggregateFold", "aggregate_fold", "window_aggregate_fold"]

_ROWS: Final = "__backlog_rows"


def aggregate_fold(
    keys: Sequence[str], aggregates: Sequence[Aggregate], schema: StructType, key_groups: int, changes: str
) -> Fold:
    """The fold for declared aggregates over rows of ``schema``.

    Parameters
    ----------
    keys, aggregates, schema, key_groups
        As `AggregateFold` takes them.
    changes : str
        See `MergeFold.changes`. Over a change stream the results are changes in any case.
    """
    if not is_change_stream(schema, keys):
        return AggregateFold(keys, aggregates, schema, key_groups, changes=changes)
    mark = changes or ASKED
    found = [signed(aggregate, schema) for aggregate in aggregates]
    if None in found:
        return RowsAggregateFold(keys, aggregates, schema, key_groups, mark)
    return SignedAggregateFold(keys, [each for each in found if each], schema, key_groups, mark)


def window_aggregate_fold(
    keys: Sequence[str], aggregates: Sequence[Aggregate], schema: StructType, key_groups: int, hidden: Sequence[str]
) -> AggregateFold:
    """The fold for declared aggregates within windows, whose rows are not kept; parameters as for `AggregateFold`.

    Over a change stream, aggregates that are not exact sums keep a count of each value.

    Raises
    ------
    BacklogError
        Over a change stream, for an aggregate that needs more than the counts of its values.
    """
    from pyspark.sql.types import StructType

    if not is_change_stream(schema, keys):
        return AggregateFold(keys, aggregates, schema, key_groups, hidden)
    own = StructType([field for field in schema if field.name not in hidden])
    found: list[Aggregate] = []
    for aggregate in aggregates:
        taking_back = signed(aggregate, own) or counted(aggregate)
        if taking_back is None:
            raise BacklogError(
                f"window: the stream retracts rows, and {aggregate} cannot do so in a window.",
                "Use counts, sums, averages, minima and maxima; or keep only inserts: "
                f".filter(\"{CHANGE_TYPE} = 'insert'\").transform(lambda f: f.drop({CHANGE_TYPE!r})).",
            )
        found.append(taking_back)
    return SignedAggregateFold(keys, found, schema, key_groups, "", hidden)


class SignedAggregateFold(AggregateFold):
    """Aggregates whose accumulators can retract rows; parameters as for `AggregateFold`."""

    def __init__(
        self,
        keys: Sequence[str],
        aggregates: Sequence[Aggregate],
        schema: StructType,
        key_groups: int,
        changes: str,
        hidden: Sequence[str] = (),
    ) -> None:
        from pyspark.sql.types import IntegerType, StructType

        rows = StructType(list(schema.fields)).add(SIGN, IntegerType())
        counted = Signed(_ROWS, Count(name="_"))
        super().__init__(keys, [counted, *aggregates], rows, key_groups, hidden, changes)

    def describe(self) -> dict[str, Any]:
        said = super().describe()
        # A new aggregate would retract rows that it never counted.
        return {**said, "meaning": f"{said['meaning']}: of changes", "grows": False}

    def _with_sign(self, rows: DataFrame) -> DataFrame:
        return rows.withColumn(SIGN, sign(quoted(CHANGE_TYPE)))

    def lift(self, rows: DataFrame, *more: Column) -> DataFrame:
        return super().lift(self._with_sign(rows), *more)

    def merge_rows(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        return super().merge_rows(self._with_sign(rows), base)

    def has_result(self, prefix: str) -> Column:
        from pyspark.sql import functions as F

        return F.col(f"{prefix}{self.state.slot_names[0]}") > 0

    def results(self, state: pa.RecordBatch) -> np.ndarray:
        found: np.ndarray = state.column(self.state.slot_names[0]).to_numpy() > 0
        return found

    def is_needed(self, state: pa.RecordBatch) -> np.ndarray:
        # A negative count waits for rows that were retracted before they came.
        found: np.ndarray = state.column(self.state.slot_names[0]).to_numpy() != 0
        return found

    def finish(self, state: DataFrame, *more: Column) -> DataFrame:
        return super().finish(state.where(self.has_result("")), *more).drop(_ROWS)


class RowsAggregateFold(MultisetFold):
    """Aggregates that need the rows. The rows' arguments are kept.

    Parameters
    ----------
    keys, aggregates, schema, key_groups
        As `AggregateFold` takes them.
    changes : str
        See `MergeFold.changes`.
    """

    takes_back = True
    timed = False

    def __init__(
        self, keys: Sequence[str], aggregates: Sequence[Aggregate], schema: StructType, key_groups: int, changes: str
    ) -> None:
        from pyspark.sql import SparkSession
        from pyspark.sql.types import StructType

        self.changes = changes
        self._aggregates = tuple(aggregates)
        self._rows = schema
        self.inner = AggregateFold(keys, aggregates, schema, key_groups)
        empty = SparkSession.active().createDataFrame([], schema)
        names = [name for name in self.inner.lift(empty).columns if name not in (GROUP, HASH)]
        self._lifted = names[len(keys) :]
        lifted = self.inner.lift(empty).select(*self._lifted).schema
        kept = StructType([*(schema[key] for key in keys), *lifted.fields])
        super().__init__("aggregate", kept, keys, None, key_groups, own=self.own_columns())
        self._out = self._coded_schema()

    def describe(self) -> dict[str, Any]:
        return self.described(f"rows of changes for {', '.join(map(str, self._aggregates))}")

    # -- rows -----------------------------------------------------------------------------------------------

    def version_schema(self) -> StructType:
        return self._rows

    def placed(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        change = [self._identity().alias(ROW), sign(quoted(CHANGE_TYPE)).alias(SIGN_OF)]
        lifted = self.inner.lift(rows, *change)
        names = iter(self._lifted)
        side, time = F.lit(0).cast("int").alias(SIDE_OF), F.lit(None).cast("long").alias(TIME)
        keys = dict(zip(self.keys, self.state.key_names, strict=True))
        values = [
            F.col(keys[name] if i < len(self.keys) else next(names)).alias(f"r{i}")
            for i, name in enumerate(self.sides[0].schema.names)
        ]
        return lifted.select(HASH, *self.state.key_names, side, time, *values, ROW, SIGN_OF)

    def _identity(self) -> Column:
        return identity_of([(f, quoted(f.name)) for f in self._rows if f.name not in METADATA])

    # -- the sorted vehicle ---------------------------------------------------------------------------------

    def output_at_end(self, version: DataFrame, end: StayEnd) -> DataFrame:
        from pyspark.sql import functions as F

        # The user's columns as one struct, because their names may clash with ours.
        whole = F.struct(*map(quoted, version.columns)).alias("whole")
        given = version.select(whole, self._identity().alias(ROW), sign(quoted(CHANGE_TYPE)).alias(SIGN_OF))
        there = netted_rows(given, [ROW], SIGN_OF).select("whole.*")
        results = self.inner.merge_rows(there, None)
        return self.inner.finish(results, change_type_of(F.lit(1), self.changes))

    def still_needed(self, placed: DataFrame, end: StayEnd) -> DataFrame:
        return self.net(placed)

    # -- the stream vehicle ---------------------------------------------------------------------------------

    def advance(
        self, kept: pa.RecordBatch, fresh: pa.RecordBatch, clock: Clock
    ) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        rows = combine([kept, fresh], self.state.arrow())
        before, after = self.present(kept, rows)
        hashes = rows.column(HASH).to_numpy()
        chosen = np.flatnonzero(np.isin(hashes, hashes[before != after]))
        order, starts = equal_runs(hashes[chosen], [rows.column(k).take(chosen) for k in self.state.key_names])
        of = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(chosen))))
        indices = chosen[order]
        changed = np.bincount(of, weights=before[indices] != after[indices], minlength=len(starts)) > 0
        there = [np.bincount(of, weights=which[indices], minlength=len(starts)) > 0 for which in (before, after)]
        chosen_keys = [which & changed for which in there]
        results = []
        for which, keys in zip((before, after), chosen_keys, strict=True):
            mine = which[indices] & keys[of]
            results.append(self._results(rows, indices[mine], of[mine]))
        had, has = chosen_keys
        both = had & has
        ranks = [np.cumsum(keys)[both] - 1 for keys in chosen_keys]
        pair = [result.take(pa.array(rank)) for result, rank in zip(results, ranks, strict=True)]
        same = np.flatnonzero(both)[equal_rows(pair[0], pair[1], self.inner.state.slot_names)]
        codes = codes_of(had, has)
        codes[0][same] = codes[1][same] = 0
        out = []
        for result, keys, code in zip(results, chosen_keys, codes, strict=True):
            coded = result.append_column(CODE, pa.array(code[keys], pa.int32()))
            out.append(combine([coded.filter(pa.array(code[keys] > 0))], self._out))
        # Signs were applied when rows arrived; a row of state exists.
        return rows.filter(pa.array(after)), out

    def _results(self, rows: pa.RecordBatch, indices: np.ndarray, of: np.ndarray) -> pa.RecordBatch:
        """Keys and accumulators of some rows. ``indices`` is sorted by key."""
        out = self._out.remove(len(self._out) - 1)
        if not len(indices):
            return combine([], out)
        starts = np.flatnonzero(np.concatenate(([True], of[1:] != of[:-1])))
        at = pa.array(indices)
        width = len(self.keys)
        lifted = [rows.column(f"r{i}").take(at) for i in range(width, width + len(self._lifted))]
        slots = self.inner.pack_groups(lifted, starts)
        firsts = pa.array(indices[starts])
        keys = [rows.column(name).take(firsts) for name in self.state.key_names]
        return pa.RecordBatch.from_arrays([*keys, *slots], schema=out)

    # -- what comes out -------------------------------------------------------------------------------------

    def _coded_schema(self) -> pa.Schema:
        return arrow_schema(self.output_schema())

    def output_schema(self) -> StructType:
        """Keys, accumulators, code: the output of the workers. `unpack` finishes it."""
        from pyspark.sql.types import IntegerType, StructType

        return StructType(self.inner.state.spark().fields[1:]).add(CODE, IntegerType())

    def unpack(self, packed: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        rows = self._unpacked(packed, 0, self.output_schema())
        return self.inner.finish(rows, change_type_of(F.col(CODE), self.changes))

    def finish(self, state: DataFrame) -> DataFrame:
        """The rows of each key: the keys, and the arguments of the aggregates."""
        from pyspark.sql import functions as F

        keys = [F.col(n).alias(k) for n, k in zip(self.state.key_names, self.keys, strict=True)]
        width = len(self.keys)
        return state.select(*keys, *(F.col(f"r{width + i}").alias(name) for i, name in enumerate(self._lifted)))
