"""The regular join: all pairs of rows with equal keys, whatever their times. Its streams may retract rows.

A batch emits its changes of the join's result. Whether a row of an outer side has a match depends on its key alone. So
no row stores its matches: the numbers of the other side's rows before and after the batch decide.

Source: Flink's ``StreamingJoinOperator``; its ``table.exec.state.ttl``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.model.changes import (
    ASKED,
    CHANGE_TYPE,
    DELETE,
    INSERT,
    MARK,
    METADATA,
    identity_of,
    is_change_stream,
    sign,
)
from backlog_spark.model.watermarks import MIN_WATERMARK
from backlog_spark.operators.fold import Arrived, Clock, Step
from backlog_spark.operators.joins.pairs import OUTER, check_kind, output_columns, paired
from backlog_spark.operators.joins.pending_rows import (
    DONE,
    TURN,
    advance_in_turn,
    in_one_order,
    matches_before,
    rows_of_key,
)
from backlog_spark.operators.multiset import ROW, SIGN_OF, MultisetFold
from backlog_spark.operators.rows import SIDE_OF, TIME
from backlog_spark.operators.sides import LEFT, RIGHT, SIDE, Side, prefixed, quoted, side_schema
from backlog_spark.operators.waiting_fold import Gathered, StayEnd
from backlog_spark.state.keys import order_of
from backlog_spark.state.store import NEVER
from backlog_spark.state.tables import HASH, arrow_schema, combine

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["PIECE_ROWS", "JoinFold", "pairs_of"]

PIECE_ROWS: Final = 200_000
"""Largest number of pairs combined at a time. Bounds the memory for a key with many rows: 5 MB of indices."""

_HOW: Final = {"inner": "inner", "left": "left_outer", "right": "right_outer", "full": "full_outer"}


class JoinFold(MultisetFold):
    """Pairs of rows with equal keys; NULL equals no key.

    The output has all columns of the left rows, then those of the right ones. A key with the same name on both sides
    appears once. `changes.METADATA` of the inputs is dropped. If an input retracts rows, or the join is an outer one,
    pairs can be retracted too. Then the output has the change type, ``insert`` or ``delete``.

    Parameters
    ----------
    schema : StructType
        Made by `backlog_spark.operators.sides.tagged`.
    left_keys, right_keys : sequence of str
        Key columns of each side, of equal types.
    key_groups : int
        ``spark.backlog.keyGroups``.
    how : str
        ``"inner"``, ``"left"``, ``"right"`` or ``"full"``. A row of an outer side without a match is emitted at once,
        with NULLs for the other side, and retracted when it finds one.
    ttl_ms : (int or None, int or None)
        How long a left row, and a right row, is kept after its arrival, by the clock. For rows of a stay in backlog the
        time counts from the end of the stay. Emitted results stay. Default None: for ever.
    cuts : bool
        Whether a batch stops between two pairs when its budget is used up (FLIP-443). The rest waits in the state, in
        order: rows whose turn has not come, and the number of pairs of the first one that were emitted.

    Raises
    ------
    SettingError
        For another ``how``.
    BacklogError
        For keys that do not match, and columns with the same name.
    """

    name = "join"
    """In messages."""

    def __init__(
        self,
        schema: StructType,
        left_keys: Sequence[str],
        right_keys: Sequence[str],
        key_groups: int,
        *,
        how: str = "inner",
        ttl_ms: tuple[int | None, int | None] = (None, None),
        cuts: bool = False,
    ) -> None:
        from pyspark.sql.types import LongType, StructType

        check_kind(how, OUTER)
        self._how = how
        self.outer: tuple[int, ...] = OUTER[how]
        """The sides whose rows are emitted without a match."""
        # A pair may also retract the result of an outer row without a match.
        self.rows_a_pair = 1 + bool(self.outer)
        self._ttl = ttl_ms
        self._expires = any(ttl is not None for ttl in ttl_ms)
        self.timed = self._expires or cuts
        self.interruptible = cuts
        given = [side_schema(schema, side) for side in (LEFT, RIGHT)]
        self._change_types = tuple(
            prefixed(side, CHANGE_TYPE) if is_change_stream(own, keys) else None
            for side, own, keys in zip((LEFT, RIGHT), given, (left_keys, right_keys), strict=True)
        )
        self.takes_back = any(self._change_types)
        self.numbered = cuts
        self._rows = schema
        change_columns = {
            prefixed(side, name)
            for side, changes in zip((LEFT, RIGHT), self._change_types, strict=True)
            for name in METADATA
            if changes
        }
        kept = StructType([field for field in schema if field.name not in change_columns])
        own = [*self.own_columns(), *([(TURN, LongType()), (DONE, LongType())] if cuts else [])]
        super().__init__(self.name, kept, left_keys, right_keys, key_groups, own=own)
        self._columns = output_columns(self, changes=self.changes)
        self._arrow = arrow_schema(self.output_schema())

    @property
    def changes(self) -> bool:
        """Whether pairs can be retracted."""
        return bool(self.takes_back or self.outer)

    def describe(self) -> dict[str, Any]:
        # The ttl may change. But a ttl at all changes the sources of the plan.
        return self.described(f"{self._how} join{' with a ttl' if self._expires else ''}")

    def output_schema(self) -> StructType:
        from pyspark.sql.types import StringType, StructField, StructType

        fields = [column.field for column in self._columns]
        if self.changes:
            fields.append(StructField(CHANGE_TYPE, StringType(), True, {MARK: ASKED}))
        return StructType(fields)

    # -- rows -----------------------------------------------------------------------------------------------

    def version_schema(self) -> StructType:
        return self._rows

    def _time_of(self, side: Side) -> Column:
        """When a row arrived, for its time to live. A stream's batch has one such time, which a replay repeats."""
        from pyspark.sql import functions as F

        return F.unix_millis(F.current_timestamp()) if self._expires else F.lit(None).cast("long")

    def more_placed(self) -> list[Column]:
        from pyspark.sql import functions as F

        if not (self.takes_back or self.numbered):
            return []
        signs = [F.lit(1) if name is None else sign(quoted(name)) for name in self._change_types]
        # Over the columns of both sides. The other side's columns are NULL.
        row = identity_of([(field, quoted(field.name)) for field in self.schema])
        return [row.alias(ROW), F.when(quoted(SIDE) == LEFT, signs[LEFT]).otherwise(signs[RIGHT]).alias(SIGN_OF)]

    # -- the sorted vehicle ---------------------------------------------------------------------------------

    def output_at_end(self, version: DataFrame, end: StayEnd) -> DataFrame:
        return self._results(self.placed(version))

    def gathered(self, rows: DataFrame, base: DataFrame | None) -> Gathered | None:
        placed = self.placed(self.fold(rows, base))
        narrow = self.narrow(placed)

        def left(together: DataFrame, end: StayEnd) -> DataFrame:
            return self.as_state(self.still_needed(self.with_hash(narrow.placed(together)), end))

        def output(found: Gathered, end: StayEnd) -> DataFrame:
            return self._results(self.with_hash(narrow.placed(found.rows)), found.sizes)

        # The hash depends only on the keys, and is computed again.
        return Gathered(narrow.of(placed).drop(HASH), tuple(self.state.key_names), left, output, sides=SIDE_OF)

    def net_of(self, placed: DataFrame, side: int) -> DataFrame:
        """The rows of one side that exist at the end of a stay. They are joined."""
        return self.net(placed).where(quoted(SIDE_OF) == side)

    def looked_up(self, right: DataFrame, size: int) -> DataFrame:
        """The right side of a stay's rows, as joined to the left side. ``size``: estimated bytes per partition."""
        return right

    def _results(self, placed: DataFrame, sizes: tuple[int, int] | None = None) -> DataFrame:
        """The join of a stay's rows. ``sizes``: as in `Gathered`."""
        from pyspark.sql import functions as F

        sides = []
        for side, name in ((LEFT, "l"), (RIGHT, "r")):
            keys = [F.col(k).alias(f"{name}_{k}") for k in self.state.key_names]
            there = F.lit(True).alias(f"{name}_there")
            sides.append(self.net_of(placed, side).select(*keys, there, *self.values(side)))
        on = F.lit(True)
        for key in self.state.key_names:
            on = on & (F.col(f"l_{key}") == F.col(f"r_{key}"))
        right = sides[RIGHT] if sizes is None else self.looked_up(sides[RIGHT], sizes[RIGHT])
        joined = sides[LEFT].join(right, on, _HOW[self._how])
        columns = []
        for output in self._columns:
            value = F.coalesce(*(F.col(name) for name in (output.left, output.right) if name))
            columns.append(value.alias(output.field.name, metadata=output.field.metadata))
        if self.changes:
            columns.append(F.lit(INSERT).alias(CHANGE_TYPE, metadata={MARK: ASKED}))
        return joined.select(*columns)

    def still_needed(self, placed: DataFrame, end: StayEnd) -> DataFrame:
        return self.net(self.with_key(placed))

    # -- the stream vehicle ---------------------------------------------------------------------------------

    def due(self, state: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        event = processing = np.full(state.num_rows, NEVER, dtype=np.int64)
        side = state.column(SIDE_OF).to_numpy()
        for number, ttl in enumerate(self._ttl):
            if ttl is not None:
                processing = np.where(side == number, state.column(TIME).to_numpy() + ttl, processing)
        if self.interruptible:
            # Due at once, before the watermark advances.
            waits = state.column(TURN).is_valid().to_numpy(zero_copy_only=False)
            event, processing = np.where(waits, MIN_WATERMARK, event), np.where(waits, NEVER, processing)
        return event, processing

    def step(self, old: pa.RecordBatch, arrived: Arrived, clock: Clock) -> Step:
        step = super().step(old, arrived, clock)
        return replace(step, fired=sum(rows.num_rows for _, rows in step.outputs)) if self.interruptible else step

    def advance(
        self, kept: pa.RecordBatch, fresh: pa.RecordBatch, clock: Clock
    ) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        in_progress = self.interruptible and bool(pc.max(kept.column(DONE)).as_py())
        # The pairs of an interrupted row are counted, so none of its matches may expire.
        if clock.now is not None and self._expires and not in_progress:
            kept = kept.filter(pa.array(self.due(kept)[1] > clock.now))
        if self.interruptible:
            return advance_in_turn(self, kept, fresh, clock.budget)
        return self.worked(kept, fresh)

    def worked(self, kept: pa.RecordBatch, fresh: pa.RecordBatch) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        """The rows kept after new rows, and their changes of the result."""
        rows = combine([kept, fresh], self.state.arrow())
        before, after = self.present(kept, rows)
        keyed, side = self.keyed(rows), rows.column(SIDE_OF).to_numpy()
        hashes = rows.column(HASH).to_numpy()
        # Some kept rows have other keys: the hash of a new row, or the same bucket.
        chosen = np.flatnonzero(keyed & np.isin(hashes, hashes[before != after]))
        code = self.codes(rows, chosen)
        left, right = chosen[side[chosen] == LEFT], chosen[side[chosen] == RIGHT]

        out: list[pa.RecordBatch] = []
        for these, others, change in ((before, after, DELETE), (after, before, INSERT)):
            lefts, rights = left[these[left]], right[these[right]]
            # Pairs with at least one row that is not in the other state.
            changed = others[lefts]
            for some, every in (
                (lefts[~changed], rights),
                (lefts[changed], rights[~others[rights]]),
            ):
                for indices in pairs_of(some, every, code):
                    out += self._paired(rows, *indices, change)
        for outer in self.outer:
            out += self._alone(rows, outer, keyed, side, code, before, after, chosen)
        return rows.filter(pa.array(after & keyed)), out

    def settled_order(self, handed_over: pa.RecordBatch) -> pa.RecordBatch:
        return in_one_order(handed_over) if self.interruptible else handed_over

    def in_one_order(self, fresh: pa.RecordBatch) -> pa.RecordBatch:
        return in_one_order(fresh)

    def most_matches(self, settled: pa.RecordBatch, work: pa.RecordBatch) -> np.ndarray:
        return matches_before(self, settled, work)

    def meets(self, settled: pa.RecordBatch, row: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """All other rows with its key. Rows of its own side decide whether a row of the other side has a match."""
        return rows_of_key(self, settled, row)

    def settled(self, kept: pa.RecordBatch, fresh: pa.RecordBatch) -> pa.RecordBatch:
        """The rows kept after new rows. Their changes have been emitted."""
        rows = combine([kept, fresh], self.state.arrow())
        return rows.filter(pa.array(self.present(kept, rows)[1] & self.keyed(rows)))

    def _alone(
        self,
        rows: pa.RecordBatch,
        outer: int,
        keyed: np.ndarray,
        side: np.ndarray,
        code: np.ndarray,
        before: np.ndarray,
        after: np.ndarray,
        chosen: np.ndarray,
    ) -> Iterator[pa.RecordBatch]:
        """Rows of an outer side that lose or gain a match, or that come or go without one."""
        mine = np.flatnonzero(side == outer)
        mine = mine[~keyed[mine] | np.isin(mine, chosen)]
        others = chosen[side[chosen] != outer]
        width = int(code.max(initial=0)) + 1
        alone = []
        for there in (before, after):
            count = np.bincount(code[others[there[others]]], minlength=width)
            alone.append(there[mine] & (~keyed[mine] | (count[code[mine]] == 0)))
        for which, change in ((alone[0] & ~alone[1], DELETE), (alone[1] & ~alone[0], INSERT)):
            indices = mine[which]
            left, right = (indices, None) if outer == LEFT else (None, indices)
            yield from self._paired(rows, left, right, change)

    def _paired(
        self, rows: pa.RecordBatch, left: np.ndarray | None, right: np.ndarray | None, change: str
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the output, with their change type; see `paired`."""
        for columns in paired(rows, self._columns, self._arrow, left, right):
            if self.changes:
                columns.append(pa.array([change] * len(columns[0]), pa.string()))
            yield pa.RecordBatch.from_arrays(columns, schema=self._arrow)


def pairs_of(lefts: np.ndarray, rights: np.ndarray, code: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Indices of left and right rows with the same key, at most `PIECE_ROWS` pairs at a time."""
    ordered = rights[order_of(code[rights])]
    first = np.searchsorted(code[ordered], code[lefts], "left")
    ends = np.cumsum(np.searchsorted(code[ordered], code[lefts], "right") - first)
    total = int(ends[-1]) if len(ends) else 0
    counts = np.diff(ends, prepend=0)
    offsets = first - (ends - counts)
    for start in range(0, total, PIECE_ROWS):
        numbers = np.arange(start, min(start + PIECE_ROWS, total))
        of = np.searchsorted(ends, numbers, "right")
        yield lefts[of], ordered[numbers + offsets[of]]
