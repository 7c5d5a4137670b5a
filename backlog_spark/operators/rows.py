"""Operators whose state is rows: joins, windows with functions, over aggregation.

In backlog only the rows are kept. When the stay ends, Spark computes the result of all rows in a batch. Rows that later
rows may still match are handed over. In stream mode the rows of a key group are processed in Arrow.

Source: FLIP-327, "For keyed multi-input operators": inputs are buffered and sorted until all have left backlog.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.common.gc_tuning import keep_imports
from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import MIN_WATERMARK, event_time_of
from backlog_spark.operators.fold import Arrived, Clock, Step, describe_keys
from backlog_spark.operators.narrow import Narrow
from backlog_spark.operators.sides import SIDE, Side, quoted, two_sides
from backlog_spark.operators.waiting_fold import StayEnd, WaitingFold
from backlog_spark.state.keys import check_keys, equal_runs, group_of, hash_of, normalised
from backlog_spark.state.seeds import LIVE, Unpack, packed
from backlog_spark.state.store import NEVER
from backlog_spark.state.tables import GROUP, HASH, StateSchema, arrow_schema, combine

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["SIDE_OF", "TIME", "PackRowsUnchanged", "RowsFold"]

TIME: Final = "t"
"""Column of state and live rows: event time in milliseconds since 1970, NULL if the row has none."""
SIDE_OF: Final = "side"
"""Column of state and live rows: the row's input, 0 or 1."""


class RowsFold(WaitingFold):
    """A keyed operator of one or two inputs that keeps rows.

    Rows of state and live rows have these columns: hash, keys ``k0`` …, for state the operator's own columns, then
    ``side``, ``t``, and all columns of the input ``r0`` … (with two inputs, of both; NULL in the other side's rows).

    Parameters
    ----------
    what : str
        The operator's name in messages.
    schema : StructType
        The rows' schema: that of one input, or of `backlog_spark.operators.sides.tagged`.
    keys : sequence of str
        Key columns; with two inputs, of the left one.
    right_keys : sequence of str, optional
        Key columns of the right input; None for an operator with one input.
    key_groups : int
        ``spark.backlog.keyGroups``.
    own : sequence of (str, DataType), optional
        The operator's own columns of state.
    late_output : str, optional
        Name of a side output for late rows, if the operator has one input.
    control_first : bool
        Whether a batch's watermark comes before its rows, as for the first operator of a chain.
    """

    timed = True
    mergeable = False
    # Its output does not depend on when timers fire.
    interruptible = True

    def __init__(
        self,
        what: str,
        schema: StructType,
        keys: Sequence[str],
        right_keys: Sequence[str] | None,
        key_groups: int,
        *,
        own: Sequence[tuple[str, DataType]] = (),
        late_output: str | None = None,
        control_first: bool = True,
    ) -> None:
        from pyspark.sql.types import IntegerType, LongType

        if right_keys is None:
            check_keys(keys, schema)
            sides = [Side(schema, tuple(schema.names), tuple(keys), event_time_of(schema))]
            types = tuple(schema[k].dataType for k in keys)
        else:
            left, right, types = two_sides(what, schema, keys, right_keys)
            sides = [left, right]
        self.what = what
        self.keys = tuple(keys)
        self.sides: tuple[Side, ...] = tuple(sides)
        self.schema = schema
        self.key_groups = key_groups
        self.late_output = late_output
        self.control_first = control_first
        self._values = [name for side in self.sides for name in side.columns]
        values = [(f"r{i}", schema[name].dataType) for i, name in enumerate(self._values)]
        slots = [*own, (SIDE_OF, IntegerType()), (TIME, LongType()), *values]
        self.state = StateSchema(types, tuple(kind for _, kind in slots), tuple(name for name, _ in slots))

    # -- columns --------------------------------------------------------------------------------------------

    def value(self, side: int, column: str) -> str:
        """Name of a side's column in rows of state and live rows, such as ``r3``."""
        given = self.sides[side]
        return f"r{self._values.index(given.columns[given.schema.names.index(column)])}"

    def values(self, side: int) -> list[str]:
        """Names of all columns of a side, in their order."""
        return [f"r{self._values.index(name)}" for name in self.sides[side].columns]

    def live_schema(self) -> pa.Schema:
        """Hash, keys, side, time and values."""
        wanted = [HASH, *self.state.key_names, SIDE_OF, TIME, *(f"r{i}" for i in range(len(self._values)))]
        return pa.schema([self.state.arrow().field(name) for name in wanted])

    def event_time_needed(self, side: int) -> str:
        """A side's event-time column.

        Raises
        ------
        BacklogError
            If the side has none, or if it is no timestamp any more.
        """
        found = self.sides[side].event_time
        if found is None:
            where = f" {'left' if side == 0 else 'right'}" if len(self.sides) == 2 else ""
            raise BacklogError(
                f"{self.what}: the{where} stream has no event time.",
                'Add .with_watermark("<column>", "<delay>") before key_by.',
            )
        kind = self.sides[side].schema[found].dataType
        if type(kind).__name__ != "TimestampType":
            raise BacklogError(
                f"{self.what}: the event time {found!r} has become {kind.simpleString()}.",
                "Keep it a timestamp up to this operator.",
            )
        return found

    def micros_of(self, rows: pa.RecordBatch) -> np.ndarray:
        """Event times in microseconds since 1970, of rows that have one; `TIME` is rounded down."""
        names = [self.value(side, self.event_time_needed(side)) for side in range(len(self.sides))]
        # Without the NULLs of the other side's rows nothing is copied: five times as fast as filling them.
        columns = [rows.column(name) for name in names]
        raw = [pa.Array.from_buffers(pa.int64(), len(c), [None, c.buffers()[1]], offset=c.offset) for c in columns]
        times = [each.to_numpy() for each in raw]
        found: np.ndarray = times[0] if len(times) == 1 else np.where(rows.column(SIDE_OF).to_numpy() == 0, *times)
        return found

    # -- rows -----------------------------------------------------------------------------------------------

    def lift(self, rows: DataFrame) -> DataFrame:
        placed = self.placed(rows)
        return placed.select(group_of(placed[HASH], self.key_groups).alias(GROUP), "*")

    def placed(self, rows: DataFrame) -> DataFrame:
        """Rows in the form of state, without the operator's own columns: hash, keys, side, time, values."""
        from pyspark.sql import functions as F

        side = F.lit(0).cast("int") if len(self.sides) == 1 else quoted(SIDE)

        def of_side(make: Callable[[Side], Column]) -> Column:
            if len(self.sides) == 1:
                return make(self.sides[0])
            return F.when(side == 0, make(self.sides[0])).otherwise(make(self.sides[1]))

        keys = [
            of_side(lambda s, i=i: normalised(s.columns[s.schema.names.index(s.keys[i])], self.schema)).alias(name)  # type: ignore[misc]
            for i, name in enumerate(self.state.key_names)
        ]
        time = of_side(self._time_of).alias(TIME)
        values = [quoted(name).alias(f"r{i}") for i, name in enumerate(self._values)]
        return rows.select(hash_of(keys).alias(HASH), *keys, side.alias(SIDE_OF), time, *values, *self.more_placed())

    def more_placed(self) -> Sequence[Column]:
        """More columns for `placed`, derived from the input's."""
        return ()

    def _time_of(self, side: Side) -> Column:
        from pyspark.sql import functions as F

        if side.event_time is None:
            return F.lit(None).cast("long")
        return F.unix_millis(quoted(side.columns[side.schema.names.index(side.event_time)]))

    def packer(self, lifted: pa.Schema) -> Callable[[Any], Any]:
        return PackRowsUnchanged(lifted, self.live_schema())

    # -- the sorted vehicle ---------------------------------------------------------------------------------

    def version_schema(self) -> StructType:
        return self.schema

    def fold(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        # Rows stay as they came. Only the few that are handed over need hashes.
        return rows if base is None else base.unionByName(rows)

    def state_of(self, version: DataFrame) -> DataFrame:
        return version

    @abstractmethod
    def output_at_end(self, version: DataFrame, end: StayEnd) -> DataFrame:
        """The result of all rows of the stay, with columns `output_schema`."""

    def handed_over(self, version: DataFrame, end: StayEnd | None) -> DataFrame:
        """All rows while nothing has been emitted; later only those of `still_needed`, which may set ``own``."""
        placed = self.placed(version)
        return self.as_state(placed if end is None else self.still_needed(placed, end))

    def narrow(self, placed: DataFrame) -> Narrow:
        """The narrow form of placed rows, for their way to the workers."""
        sides = [(side, self.values(number)) for number, side in enumerate(self.sides)]
        return Narrow(placed, self.state.key_names, SIDE_OF, sides)

    def with_key(self, rows: DataFrame) -> DataFrame:
        """Placed rows without those that have a NULL in their key: such a key equals no other."""
        return rows.where(" AND ".join(f"{name} IS NOT NULL" for name in self.state.key_names))

    def with_hash(self, rows: DataFrame) -> DataFrame:
        """Add the hash again to placed rows without it."""
        return rows.select(hash_of([quoted(name) for name in self.state.key_names]).alias(HASH), "*")

    def as_state(self, rows: DataFrame) -> DataFrame:
        """Hash, keys, and the columns of state; columns that the rows lack are NULL."""
        from pyspark.sql import functions as F

        columns = [
            F.col(name) if name in rows.columns else F.lit(None).cast(kind).alias(name)
            for name, kind in zip(self.state.slot_names, self.state.slots, strict=True)
        ]
        return rows.select(HASH, *self.state.key_names, *columns)

    @abstractmethod
    def still_needed(self, placed: DataFrame, end: StayEnd) -> DataFrame:
        """Rows of the stay that the stream vehicle still needs after the stay's results.

        ``placed`` has hash, keys, side, time and values. The operator's own columns are added if they are not NULL.
        """

    # -- the stream vehicle ---------------------------------------------------------------------------------

    def step(self, old: pa.RecordBatch, arrived: Arrived, clock: Clock) -> Step:
        """Separates state, input and late rows; `advance` does the operator's work."""
        schema = self.state.arrow()
        silent = [batch for batch, emit in arrived.seeds if not emit]
        loud = [batch for batch, emit in arrived.seeds if emit]
        kept = combine([old, self.settled_order(combine(silent, schema))], schema)
        live = self.widened(arrived.live)
        late, outputs, before = 0, [], list[pa.RecordBatch]()
        older, there = combine(loud, schema), kept.num_rows
        watermark = clock.watermark if self.control_first else clock.before
        if live.num_rows and watermark > MIN_WATERMARK:
            kept, older, before = self.before_rows(kept, older, replace(clock, watermark=watermark))
            is_late = self.is_late(live, watermark, kept)
            if is_late.any():
                gone = live.filter(pa.array(is_late))
                live = live.filter(pa.array(~is_late))
                if self.late_output is None:
                    late = gone.num_rows
                else:
                    outputs.append((1, self._plain(gone)))
        # Rows that a stay in backlog only collected are older than the batch's own rows.
        fresh = combine([older, live], schema)
        due = bool(before) or kept.num_rows != there
        if kept.num_rows:
            event, processing = self.due(kept)
            due |= bool((event <= clock.watermark).any())
            due |= clock.now is not None and bool((processing <= clock.now).any())
        if not fresh.num_rows and not due and not silent:
            return Step(None, outputs, late)
        state, out = self.advance(kept, fresh, clock)
        return Step(state, [(0, batch) for batch in [*before, *out] if batch.num_rows] + outputs, late)

    def before_rows(
        self, kept: pa.RecordBatch, older: pa.RecordBatch, clock: Clock
    ) -> tuple[pa.RecordBatch, pa.RecordBatch, list[pa.RecordBatch]]:
        """What the watermark before a batch's rows does, if it matters that it comes first. By default it does not.

        Parameters
        ----------
        kept : pyarrow.RecordBatch
            Rows of the old state.
        older : pyarrow.RecordBatch
            Rows that a stay in backlog only collected.
        clock : Clock
            With the watermark before the rows.

        Returns
        -------
        (pyarrow.RecordBatch, pyarrow.RecordBatch, list of pyarrow.RecordBatch)
            The rows of state and the older rows that are left, and the output.
        """
        return kept, older, []

    @abstractmethod
    def advance(
        self, kept: pa.RecordBatch, fresh: pa.RecordBatch, clock: Clock
    ) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        """The state after a batch and the batch's output, in a worker. Both inputs are rows of state.

        Parameters
        ----------
        kept : pyarrow.RecordBatch
            Rows of the old state. Keys in it may have no new row and nothing due.
        fresh : pyarrow.RecordBatch
            New rows, in any order, none of them late; the operator's own columns are NULL.
        clock : Clock
            Rows up to ``clock.watermark`` are complete after this batch.

        Returns
        -------
        (pyarrow.RecordBatch, list of pyarrow.RecordBatch)
            Rows of state that replace ``kept``, and rows of `output_schema` in Arrow.
        """

    def settled_order(self, handed_over: pa.RecordBatch) -> pa.RecordBatch:
        """Sort rows that were handed over, which come in any order, so that a repeated batch has the same order.

        For operators that depend on the order. By default rows stay as they come.
        """
        return handed_over

    def left_by(self, fresh: pa.RecordBatch, clock: Clock) -> pa.RecordBatch:
        """The state that `advance` makes of new rows whose output was made already."""
        return self.advance(combine([], fresh.schema), fresh, clock)[0]

    def is_late(self, live: pa.RecordBatch, watermark: int, kept: pa.RecordBatch) -> np.ndarray:
        """Which rows come too late, given the kept rows. By default: rows with a time up to the watermark."""
        found: np.ndarray = pc.fill_null(pc.less_equal(live.column(TIME), watermark), False).to_numpy(
            zero_copy_only=False
        )
        return found

    def keyed(self, rows: pa.RecordBatch) -> np.ndarray:
        """Which rows have no NULL in their keys. Joins match only those."""
        found = np.ones(rows.num_rows, dtype=bool)
        for name in self.state.key_names:
            found &= pc.is_valid(rows.column(name)).to_numpy(zero_copy_only=False)
        return found

    def codes(self, rows: pa.RecordBatch, chosen: np.ndarray) -> np.ndarray:
        """A number above 0 for each key of the chosen rows; 0 for other rows."""
        hashes = rows.column(HASH).to_numpy()
        order, starts = equal_runs(hashes[chosen], [rows.column(k).take(chosen) for k in self.state.key_names])
        code = np.zeros(rows.num_rows, dtype=np.int64)
        code[chosen[order]] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(chosen)))) + 1
        return code

    def widened(self, live: pa.RecordBatch) -> pa.RecordBatch:
        """Live rows as rows of state."""
        columns = [
            live.column(field.name) if field.name in live.schema.names else pa.nulls(live.num_rows, field.type)
            for field in self.state.arrow()
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.state.arrow())

    def _plain(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The input's columns of rows of state."""
        columns = [rows.column(name) for name in self.values(0)]
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(self.sides[0].schema))

    def due(self, state: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """When to process each row again; by default never."""
        nothing = np.full(state.num_rows, NEVER, dtype=np.int64)
        return nothing, nothing

    # -- output ---------------------------------------------------------------------------------------------

    @abstractmethod
    def output_schema(self) -> StructType:
        """Columns of the main output."""

    @property
    def side_outputs(self) -> Mapping[str, StructType]:
        return {} if self.late_output is None else {self.late_output: self.sides[0].schema}

    def side_output_of(self, version: DataFrame, name: str) -> DataFrame:
        # There is no watermark in backlog, and so nothing late.
        return version.where("false")

    def unpack(self, packed: DataFrame) -> DataFrame:
        return self._unpacked(packed, 0, self.output_schema())

    def unpack_side_output(self, packed: DataFrame, name: str) -> DataFrame:
        return self._unpacked(packed, 1, self.side_outputs[name])

    @staticmethod
    def _unpacked(packed: DataFrame, number: int, schema: StructType) -> DataFrame:
        arrow = arrow_schema(schema)
        return packed.where(f"tag = {number}").select("data").mapInArrow(Unpack(arrow, arrow), schema)

    def finish(self, state: DataFrame) -> DataFrame:
        """Keys, side, and the columns of the inputs; of two inputs as ``left`` and ``right``."""
        from pyspark.sql import functions as F

        keys = [F.col(n).alias(k) for n, k in zip(self.state.key_names, self.keys, strict=True)]
        if len(self.sides) == 1:
            own = self.sides[0].schema.names
            return state.select(*(F.col(n).alias(k) for n, k in zip(self.values(0), own, strict=True)))
        structs = [
            F.when(
                F.col(SIDE_OF) == number,
                F.struct(*(F.col(self.value(number, name)).alias(name) for name in side.schema.names)),
            ).alias(label)
            for number, (side, label) in enumerate(zip(self.sides, ("left", "right"), strict=True))
        ]
        return state.select(*keys, *structs)

    def described(self, meaning: str) -> dict[str, Any]:
        """For `Fold.describe`: the keys, the operator's own description, and its columns."""
        columns = zip(self.state.slot_names, self.state.slots, strict=True)
        return {
            "meaning": f"{describe_keys(self.keys, self.state)}: {meaning}",
            "slots": [f"{name}: {kind.simpleString()}" for name, kind in columns],
        }


class PackRowsUnchanged:
    """For ``mapInArrow``: lifted rows packed by key group."""

    def __init__(self, lifted: pa.Schema, live: pa.Schema) -> None:
        self._lifted = lifted
        self._live = live

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_imports()
        for batch in batches:
            if batch.num_rows:
                yield from packed(batch.column(0), combine([batch.remove_column(0)], self._live), LIVE)
