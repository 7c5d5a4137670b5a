"""Joins two streams by key if the right row's time is in an interval around the left row's time.

A row is kept while a row that is not late may still match it. Let L and U be the inclusive bounds. A left row of time t
matches right rows from t + L to t + U, so it can be dropped at watermark t + U. A right row can be dropped at t - L.
Times and bounds are in microseconds, like Spark's timestamps. Watermarks are in milliseconds.

Source: Flink's ``IntervalJoinOperator`` (``KeyedStream.intervalJoin``) and, for outer joins, ``TimeIntervalJoin``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.changes import identity_of, refuse_changes
from backlog_spark.model.watermarks import END_OF_TIME, MIN_WATERMARK
from backlog_spark.operators.fold import Arrived, Clock, Step
from backlog_spark.operators.joins.matches import Matches, shifted
from backlog_spark.operators.joins.pairs import OUTER, Output, check_kind, output_columns, paired
from backlog_spark.operators.joins.pending_rows import DONE, TURN, advance_in_turn, rows_of_key
from backlog_spark.operators.joins.span import AT, KEY, SPAN, SpanJoin, over_until
from backlog_spark.operators.multiset import ROW
from backlog_spark.operators.rows import SIDE_OF, TIME, RowsFold
from backlog_spark.operators.sides import LEFT, RIGHT, SIDE, quoted, side_schema
from backlog_spark.operators.waiting_fold import Gathered, StayEnd
from backlog_spark.state.keys import normalised
from backlog_spark.state.store import NEVER
from backlog_spark.state.tables import HASH, arrow_schema, combine

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["MATCHED", "PIECE_ROWS", "IntervalJoinFold"]

MATCHED: Final = "matched"
"""Column of an outer join's state: whether the row has had a match. NULL in rows of backlog: not known yet."""

PIECE_ROWS: Final = 200_000
"""Largest number of pairs combined at a time. Bounds the memory for a key with many rows: 5 MB of indices."""


# 31,000 years. Event times are within 292,000 years of 1970, so their sum with it never overflows 64 bits.
_LONGEST_MS: Final = 10**15


class IntervalJoinFold(RowsFold):
    """Pairs of rows with equal keys for which left time + lower <= right time <= left time + upper.

    The output has all columns of the left rows, then all of the right ones. A key with the same name on both sides
    appears once. No column is marked as event time, because the output has those of both sides. A pair's event time is
    the later one.

    As in SQL, a NULL key equals no key. A row without an event time fails the query. Late rows are counted and dropped.

    Parameters
    ----------
    schema : StructType
        Made by `backlog_spark.operators.sides.tagged`.
    left_keys, right_keys : sequence of str
        Key columns of each side, of equal types.
    lower_ms, upper_ms : int
        The interval, in milliseconds, within 10^15 of 0.
    key_groups : int
        ``spark.backlog.keyGroups``.
    how : str
        ``"inner"``, ``"left"``, ``"right"`` or ``"full"``. A row of an outer side without a match is emitted once, with
        NULLs for the other side, when no matching row can come any more.
    lower_exclusive, upper_exclusive : bool
        Whether the bound itself is excluded.
    control_first : bool
        Whether a batch's watermark comes before its rows, as for the first operator of a chain.
    cuts : bool
        Whether a batch stops between two pairs when its budget is used up (FLIP-443). The rest waits in the state, as
        in `JoinFold`. Until then no row of its keys is dropped.

    Raises
    ------
    SettingError
        For another ``how``, and for an interval that is empty or too long.
    BacklogError
        For keys that do not match, a side without event time, and columns with the same name.
    """

    def __init__(
        self,
        schema: StructType,
        left_keys: Sequence[str],
        right_keys: Sequence[str],
        lower_ms: int,
        upper_ms: int,
        key_groups: int,
        *,
        how: str = "inner",
        lower_exclusive: bool = False,
        upper_exclusive: bool = False,
        control_first: bool = True,
        cuts: bool = False,
    ) -> None:
        from pyspark.sql.types import BooleanType, LongType

        check_kind(how, OUTER)
        self._how = how
        self._outer: tuple[int, ...] = OUTER[how]
        self._lower = lower_ms * 1_000 + int(lower_exclusive)
        self._upper = upper_ms * 1_000 - int(upper_exclusive)
        self._described = f"{lower_ms + int(lower_exclusive)} ms to {upper_ms - int(upper_exclusive)} ms"
        shown = f"{'(' if lower_exclusive else '['}{lower_ms} ms, {upper_ms} ms{')' if upper_exclusive else ']'}"
        if self._lower > self._upper:
            raise SettingError(
                "interval", shown, "is empty, so no rows would match.",
                "Use a lower bound below the upper one. Both are added to the left row's time.",
            )  # fmt: skip
        if max(abs(lower_ms), abs(upper_ms)) > _LONGEST_MS:
            raise SettingError("interval", shown, f"has a bound beyond {_LONGEST_MS} ms.", "Use shorter bounds.")
        self._cuts = cuts
        self.rows_a_pair = 1
        own: list[tuple[str, DataType]] = [(MATCHED, BooleanType())] if self._outer else []
        if cuts:
            own += [(ROW, LongType()), (TURN, LongType()), (DONE, LongType())]
        for side, keys in ((LEFT, left_keys), (RIGHT, right_keys)):
            refuse_changes("interval_join", side_schema(schema, side), keys)
        super().__init__(
            "interval_join", schema, left_keys, right_keys, key_groups, own=own, control_first=control_first
        )
        self._times = (self.event_time_needed(LEFT), self.event_time_needed(RIGHT))
        self._columns = self.pair_columns()
        self._spans = SpanJoin(how, self._lower, self._upper, len(self.keys), self._columns)
        self._arrow = arrow_schema(self.output_schema())
        self._state_arrow = self.state.arrow()

    def describe(self) -> dict[str, Any]:
        return self.described(f"{self._how} join of right rows from {self._described}")

    def pair_columns(self) -> list[Output]:
        """The columns of a pair."""
        return output_columns(self)

    def output_schema(self) -> StructType:
        from pyspark.sql.types import StructType

        return StructType([column.field for column in self._columns])

    # -- rows -----------------------------------------------------------------------------------------------

    def placed(self, rows: DataFrame) -> DataFrame:
        return super().placed(self._with_times(rows))

    def more_placed(self) -> list[Column]:
        # Defines the order in which rows are joined if pairs are counted.
        fields = [(field, quoted(field.name)) for field in self.schema]
        return [identity_of(fields).alias(ROW)] if self._cuts else []

    def live_schema(self) -> pa.Schema:
        schema = super().live_schema()
        return schema.append(self.state.arrow().field(ROW)) if self._cuts else schema

    def _with_times(self, rows: DataFrame) -> DataFrame:
        """The same rows. Fails for a row without an event time."""
        from pyspark.sql import functions as F

        columns = {name: quoted(name) for name in self.schema.names}
        for number, (side, time) in enumerate(zip(self.sides, self._times, strict=True)):
            name = side.columns[side.schema.names.index(time)]
            missing = (quoted(SIDE) == number) & columns[name].isNull()
            fails = F.raise_error(F.lit(str(self._without_time(number)))).cast(self.schema[name].dataType)
            columns[name] = F.when(missing, fails).otherwise(columns[name])
        return rows.select(*(c.alias(n, metadata=self.schema[n].metadata) for n, c in columns.items()))

    def _without_time(self, side: int) -> BacklogError:
        return BacklogError(
            f"interval_join: column {self._times[side]!r} of a row of the {('left', 'right')[side]} stream is NULL, "
            "but each row needs an event time.",
            f"Drop such rows with .filter('{self._times[side]} IS NOT NULL'), or give them a time.",
        )

    def _exact_time(self) -> Column:
        """The event time of placed rows in microseconds since 1970."""
        from pyspark.sql import functions as F

        columns = (F.col(self.value(side, name)) for side, name in enumerate(self._times))
        return F.coalesce(*map(F.unix_micros, columns))

    # -- the sorted vehicle ---------------------------------------------------------------------------------

    def fold(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        return super().fold(self._with_times(rows), base)

    def output_at_end(self, version: DataFrame, end: StayEnd) -> DataFrame:
        spans = self._spans

        def side(number: int, *, near: bool) -> DataFrame:
            return spans.spread(self._side_rows(version, number), number, near=near)

        out = spans.matched(side(spans.near, near=True), side(spans.far, near=False), end.watermark)
        if self._how == "full":
            # The right rows must be the near side here: as the far side, a row without a match would come several
            # times.
            out = out.unionByName(spans.alone(side(RIGHT, near=True), side(LEFT, near=False), end.watermark))
        return out

    def _side_rows(self, version: DataFrame, side: int) -> DataFrame:
        """One side's rows, with normalised keys and time."""
        from pyspark.sql import functions as F

        given = self.sides[side]
        names = dict(zip(given.schema.names, given.columns, strict=True))
        keys = [normalised(names[k], self.schema).alias(KEY.format(i, side)) for i, k in enumerate(given.keys)]
        time = F.unix_micros(quoted(names[self._times[side]])).alias(AT.format(side))
        values = [quoted(c).alias(v) for c, v in zip(given.columns, self.values(side), strict=True)]
        return version.where(quoted(SIDE) == side).select(*keys, time, *values)

    def gathered(self, rows: DataFrame, base: DataFrame | None) -> Gathered | None:
        from pyspark.sql import functions as F

        if self._how == "full":
            # A full join uses the rows of each side in both roles.
            return None
        spans, span, time = self._spans, SPAN.format("both"), F.col(TIME)
        placed = self.placed(self.fold(rows, base)).withColumn(TIME, self._exact_time())
        narrow = self.narrow(placed)
        is_near = F.col(SIDE_OF) == spans.near
        near, far = (spans.spans(side, time, near=side == spans.near) for side in (spans.near, spans.far))
        # The hash depends only on the keys, and is computed again.
        spread = narrow.of(placed).drop(HASH).withColumn(span, F.explode(F.when(is_near, near).otherwise(far)))

        def side_rows(together: DataFrame, side: int) -> DataFrame:
            keys = [F.col(k).alias(KEY.format(i, side)) for i, k in enumerate(self.state.key_names)]
            own = [F.col(span).alias(SPAN.format(side)), time.alias(AT.format(side))]
            return together.where(F.col(SIDE_OF) == side).select(*keys, *own, *narrow.columns(self.values(side)))

        def left(together: DataFrame, end: StayEnd) -> DataFrame:
            once = together.where(is_near | (F.col(span) == far[0]))
            in_millis = narrow.placed(once).withColumn(TIME, F.unix_millis(F.timestamp_micros(time)))
            return self.as_state(self.still_needed(self.with_hash(in_millis), end))

        def output(found: Gathered, end: StayEnd) -> DataFrame:
            return spans.matched(side_rows(found.rows, spans.near), side_rows(found.rows, spans.far), end.watermark)

        return Gathered(spread, (*self.state.key_names, span), left, output, sides=SIDE_OF)

    def still_needed(self, placed: DataFrame, end: StayEnd) -> DataFrame:
        """Rows that can still match. For outer joins also rows that show whether such a row has had a match.

        Nothing is joined here: `advance` finds the matches in the first batch with these rows.
        """
        from pyspark.sql import functions as F

        rows = self.with_key(placed)
        if end.watermark is None:
            return rows
        time, side = self._exact_time(), F.col(SIDE_OF)
        left, right = (over_until(side, end.watermark, self._lower, self._upper) for side in (LEFT, RIGHT))
        needed = time > F.when(side == LEFT, left).otherwise(right)
        if not self._outer:
            return rows.where(needed)
        # The earliest time of a row that can have matched a row which is still kept.
        earliest = max(left + self._lower, MIN_WATERMARK)
        tells = side.isin([RIGHT - side for side in self._outer]) & (time > min(earliest, END_OF_TIME))
        # These rows themselves must not be emitted any more.
        matched = F.when(needed, F.lit(None)).otherwise(True).cast("boolean")
        return rows.where(needed | tells).withColumn(MATCHED, matched)

    # -- the stream vehicle ---------------------------------------------------------------------------------

    def due(self, state: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        until = self._over_at(state)
        if self._cuts:
            # Due at once, before the watermark advances.
            until = np.where(_bits(state.column(TURN).is_valid()), MIN_WATERMARK, until)
        return until, np.full(state.num_rows, NEVER, dtype=np.int64)

    def _over_at(self, rows: pa.RecordBatch) -> np.ndarray:
        """The watermark at which each row can be dropped."""
        is_left, bounds = rows.column(SIDE_OF).to_numpy() == LEFT, (self._upper, -self._lower)
        found: np.ndarray
        if not any(bound % 1_000 for bound in bounds):
            time = rows.column(TIME).to_numpy()
            found = np.where(is_left, *(time + bound // 1_000 for bound in bounds))
        else:  # exclusive bounds
            exact = self.micros_of(rows)
            found = np.where(is_left, *(shifted(exact, bound) for bound in bounds)) // 1_000
        return found

    def step(self, old: pa.RecordBatch, arrived: Arrived, clock: Clock) -> Step:
        step = super().step(old, arrived, clock)
        return replace(step, fired=sum(rows.num_rows for _, rows in step.outputs)) if self._cuts else step

    def advance(
        self, kept: pa.RecordBatch, fresh: pa.RecordBatch, clock: Clock
    ) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        if fresh.column(TIME).null_count:
            side = fresh.column(SIDE_OF).to_numpy()
            raise self._without_time(int(side[_bits(fresh.column(TIME).is_null())][0]))
        if not self._cuts:
            rows, out = self.worked(kept, fresh)
            return self._kept_on(rows, np.zeros(rows.num_rows, dtype=bool), clock, out)
        waits = kept.column(TURN).is_valid()
        settled = self.settled(kept.filter(pc.invert(waits)), combine([], self._state_arrow))
        kept = combine([settled, kept.filter(waits)], self._state_arrow)
        rows, out = advance_in_turn(self, kept, fresh, clock.budget)
        # Rows that wait must find the same matches later, so these are kept whatever the time.
        hashes = rows.column(HASH).to_numpy()
        return self._kept_on(rows, np.isin(hashes, hashes[_bits(rows.column(TURN).is_valid())]), clock, out)

    def _kept_on(
        self, rows: pa.RecordBatch, held: np.ndarray, clock: Clock, out: list[pa.RecordBatch]
    ) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        """Rows that later rows may match, or that are ``held``. Emits outer rows that end without a match."""
        over = ~held & (~self.keyed(rows) | (self._over_at(rows) <= clock.watermark))
        if self._outer:
            side, matched = rows.column(SIDE_OF).to_numpy(), _bits(pc.fill_null(rows.column(MATCHED), False))
            for outer in self._outer:
                alone = np.flatnonzero(over & ~matched & (side == outer))
                out += self._paired(rows, alone, None) if outer == LEFT else self._paired(rows, None, alone)
        return rows.filter(pa.array(~over)), out

    def worked(self, kept: pa.RecordBatch, fresh: pa.RecordBatch) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        """All rows, with the matches that new rows reveal, and the pairs of the new rows."""
        rows, matches = self._matched(kept, fresh)
        indices = (each for found in matches for each in found.pieces(PIECE_ROWS))
        return rows, [batch for each in indices for batch in self._paired(rows, *each)]

    def settled(self, kept: pa.RecordBatch, fresh: pa.RecordBatch) -> pa.RecordBatch:
        """All rows, with the matches that new rows reveal. Their pairs have been emitted."""
        return self._matched(kept, fresh)[0]

    def _matched(self, kept: pa.RecordBatch, fresh: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Matches]]:
        rows = combine([kept, fresh], self._state_arrow)
        side, time = rows.column(SIDE_OF).to_numpy(), self.micros_of(rows)
        is_new = np.arange(len(side)) >= kept.num_rows
        matched = np.zeros(len(side), dtype=bool)
        unknown = np.zeros(len(side), dtype=bool)
        if self._outer:
            matched = _bits(pc.fill_null(rows.column(MATCHED), False))
            unknown = ~is_new & _bits(rows.column(MATCHED).is_null())
        hashes = rows.column(HASH).to_numpy()
        # Most kept rows have other keys: they only share a bucket with new rows.
        chosen = np.flatnonzero(self.keyed(rows) & np.isin(hashes, hashes[is_new | unknown]))
        code = self.codes(rows, chosen)
        left, right = chosen[side[chosen] == LEFT], chosen[side[chosen] == RIGHT]

        def match(lefts: np.ndarray, rights: np.ndarray) -> Matches:
            matches = Matches.of(lefts, rights, code, time, self._lower, self._upper)
            matches.mark(matched)
            return matches

        if unknown.any():
            match(left[~is_new[left]], right[~is_new[right]])
        found = [match(left[is_new[left]], right), match(left[~is_new[left]], right[is_new[right]])]
        if self._outer:
            rows = rows.set_column(rows.schema.get_field_index(MATCHED), MATCHED, pa.array(matched))
        return rows, found

    def settled_order(self, handed_over: pa.RecordBatch) -> pa.RecordBatch:
        return self.in_one_order(handed_over) if self._cuts else handed_over

    def in_one_order(self, fresh: pa.RecordBatch) -> pa.RecordBatch:
        # One side after the other: `most_matches` needs rows of one side.
        numbers = [fresh.column(name).to_numpy() for name in (ROW, HASH, SIDE_OF)]
        return fresh.take(pa.array(np.lexsort(numbers)))

    def most_matches(self, settled: pa.RecordBatch, work: pa.RecordBatch) -> np.ndarray:
        side = work.column(SIDE_OF).to_numpy()
        mine = int(side[0])
        # Rows of the same side do not match each other.
        count = int(np.argmax(side != mine)) or len(side)
        rows = combine([settled, work.slice(0, count)], self._state_arrow)
        hashes, side = rows.column(HASH).to_numpy(), rows.column(SIDE_OF).to_numpy()
        is_new = np.arange(len(side)) >= settled.num_rows
        chosen = np.flatnonzero(self.keyed(rows) & np.isin(hashes, hashes[is_new]) & (is_new | (side != mine)))
        sides = [chosen[is_new[chosen]], chosen[~is_new[chosen]]]
        lefts, rights = sides if mine == LEFT else sides[::-1]
        times = self.micros_of(rows)
        matches = Matches.of(lefts, rights, self.codes(rows, chosen), times, self._lower, self._upper)
        return matches.counts(mine, rows.num_rows)[settled.num_rows :]

    def meets(self, settled: pa.RecordBatch, row: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        others = rows_of_key(self, settled, row)[1]
        time, mine = self.micros_of(settled)[others], self.micros_of(row)
        left, right = (mine, time) if row.column(SIDE_OF)[0].as_py() == LEFT else (time, mine)
        matches = (right >= shifted(left, self._lower)) & (right <= shifted(left, self._upper))
        return others[:0], others[matches]

    def _paired(
        self, rows: pa.RecordBatch, left: np.ndarray | None, right: np.ndarray | None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the output; see `paired`."""
        for columns in paired(rows, self._columns, self._arrow, left, right):
            yield pa.RecordBatch.from_arrays(columns, schema=self._arrow)


def _bits(column: pa.Array) -> np.ndarray:
    found: np.ndarray = column.to_numpy(zero_copy_only=False)
    # Arrow's memory must not be written to.
    return found.astype(bool, copy=True)
