"""Folds whose states merge: declared aggregates and reduce. They can emit changes.

A new result replaces the earlier result of its key. A sink that keeps the newest row of a key needs nothing more. A
later operator must be told which results are no longer valid. So, if asked, these folds emit changes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import CHANGE_TYPE, DELETE, INSERT, MARK, POSTIMAGE, PREIMAGE
from backlog_spark.operators.aggregates.aggregate import Aggregate
from backlog_spark.operators.fold import CHANGED, Arrived, Clock, EmittingFold, Step, describe_keys
from backlog_spark.state.keys import check_keys, group_of, hash_of, normalised
from backlog_spark.state.seeds import ChosenRows, PackRows, Unpack
from backlog_spark.state.tables import GROUP, HASH, StateSchema, arrow_schema, combine, merged

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["CODE", "AggregateFold", "MergeFold", "change_type_of", "codes_of", "equal_rows"]

CODE: Final = "__backlog_code"
"""Column of versions and output: the row's number in `CODES`; 0 for rows that are only state."""
CODES: Final = ("", INSERT, PREIMAGE, POSTIMAGE, DELETE)
_INSERT, _PREIMAGE, _POSTIMAGE, _DELETE = range(1, 5)


def change_type_of(code: Column, mark: str) -> Column:
    """The column of the change type, marked as made by an operator."""
    from pyspark.sql import functions as F

    chosen = F.element_at(F.array(*map(F.lit, CODES[1:])), code)
    return chosen.alias(CHANGE_TYPE, metadata={MARK: mark})


def codes_of(had: np.ndarray, has: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes of a key's row before and after; 0 if there is none."""
    return (
        np.where(had, np.where(has, _PREIMAGE, _DELETE), 0).astype(np.int32),
        np.where(has, np.where(had, _POSTIMAGE, _INSERT), 0).astype(np.int32),
    )


def _still_holds(codes: pa.Array) -> pa.Array:
    return pc.invert(pc.is_in(codes, pa.array([_PREIMAGE, _DELETE], codes.type)))


def equal_rows(one: pa.RecordBatch, other: pa.RecordBatch, names: Sequence[str]) -> np.ndarray:
    """Which rows of two tables have equal values. Nested values count as different."""
    same = np.ones(one.num_rows, dtype=bool)
    for name in names:
        columns = [one.column(name), other.column(name)]
        if pa.types.is_nested(columns[0].type):
            return np.zeros(one.num_rows, dtype=bool)
        codes = pc.dictionary_encode(pa.concat_arrays(columns), null_encoding="encode").indices.to_numpy()
        same &= codes[: len(same)] == codes[len(same) :]
    return same


class MergeFold(EmittingFold):
    """A fold whose states merge. It emits the state of each key that changed.

    With `changes` it emits changes instead. For each such key: the row that it emitted before (if any) as
    ``update_preimage`` or ``delete``, and the present one as ``insert`` or ``update_postimage``.
    """

    changes = ""
    """Value of `backlog_spark.model.changes.MARK` in the change type column. Empty: only newest results are emitted."""

    @property
    def described_changes(self) -> str:
        """For `Fold.describe`: versions with changes have rows that are no longer valid; versions without lack rows."""
        return ", with changes" if self.changes else ""

    @abstractmethod
    def lift(self, rows: DataFrame, *more: Column) -> DataFrame:
        """Like `Fold.lift`, with further columns at the end."""

    @abstractmethod
    def finish(self, state: DataFrame, *more: Column) -> DataFrame:
        """Like `Fold.finish`, with further columns of the state at the end."""

    @abstractmethod
    def pack_groups(self, lifted: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        """Accumulators from lifted rows: like `Aggregate.pack_groups`, over all slots. In a worker."""

    @abstractmethod
    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        """Accumulators from accumulators: like `Aggregate.merge_groups`, over all slots. In a worker."""

    @abstractmethod
    def merge_rows(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        """The state after a backlog batch: hash, keys, accumulators, and whether the batch had the key."""

    def has_result(self, prefix: str) -> Column:
        """Whether a row of state has a result. A row that only retracts has none. ``prefix``: of its column names."""
        from pyspark.sql import functions as F

        return F.lit(True)

    def results(self, state: pa.RecordBatch) -> np.ndarray:
        """The same in a worker."""
        return np.ones(state.num_rows, dtype=bool)

    def is_needed(self, state: pa.RecordBatch) -> np.ndarray | None:
        """Which rows of state are kept; None for all. In a worker, in stream mode."""
        return None

    def live_schema(self) -> pa.Schema:
        return self.state.arrow()

    def packer(self, lifted: pa.Schema) -> Callable[[Any], Any]:
        return PackRows(self, lifted)

    # -- the stream vehicle ---------------------------------------------------------------------------------

    def step(self, old: pa.RecordBatch, arrived: Arrived, clock: Clock) -> Step:
        schema = self.state.arrow()
        # State that is handed over is older than the rows that arrive with it.
        if self.changes:
            silent = [batch for batch, emit in arrived.seeds if not emit]
            before = combine([old, *silent], schema)
            if silent and old.num_rows:
                before = merged(before, self.state, self, lifted=False)[0]
            incoming = [*(batch for batch, emit in arrived.seeds if emit), arrived.live]
            loud = [True] * len(incoming)
        else:
            before = old
            incoming = [*(batch for batch, _ in arrived.seeds), arrived.live]
            loud = [*(emit for _, emit in arrived.seeds), True]
        flags = np.repeat([False, *loud], [before.num_rows, *(b.num_rows for b in incoming)])
        both = combine([before, *incoming], schema)
        if both.num_rows == old.num_rows:
            return Step(None)
        state, order, starts = merged(both, self.state, self, lifted=False)
        changed = np.logical_or.reduceat(flags[order], starts)
        out = self._changes(before, state, order[starts], changed) if self.changes else state.filter(pa.array(changed))
        needed = self.is_needed(state)
        return Step(state if needed is None else state.filter(pa.array(needed)), [(0, out)])

    def _changes(
        self, before: pa.RecordBatch, after: pa.RecordBatch, firsts: np.ndarray, changed: np.ndarray
    ) -> pa.RecordBatch:
        """Rows of state with their codes. ``firsts``: index of each key's oldest row, ``before`` first."""
        was = firsts < before.num_rows
        had = changed & was
        had[was] &= self.results(before)[firsts[was]]
        has = changed & self.results(after)
        both = np.flatnonzero(had & has)
        same = equal_rows(before.take(pa.array(firsts[both])), after.take(pa.array(both)), self.state.slot_names)
        had[both[same]] = has[both[same]] = False
        codes = codes_of(had, has)
        pieces = []
        for rows, indices, code in (
            (before, firsts[had], codes[0][had]),
            (after, np.flatnonzero(has), codes[1][has]),
        ):
            taken = rows.take(pa.array(indices, pa.int64()))
            pieces.append(taken.append_column(CODE, pa.array(code, pa.int32())))
        return combine(pieces, self._coded_schema())

    def _coded_schema(self) -> pa.Schema:
        return self.state.arrow().append(pa.field(CODE, pa.int32()))

    # -- the sorted vehicle ---------------------------------------------------------------------------------

    def version_schema(self) -> StructType:
        from pyspark.sql.types import BooleanType, IntegerType

        version = self.state.spark().add(CHANGED, BooleanType())
        return version.add(CODE, IntegerType()) if self.changes else version

    def fold(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        version = self.merge_rows(rows, base)
        if self.changes:
            version = self._with_codes(version, base)
        # A stay's first batch changes all keys. Without this column the version is written faster.
        return version.drop(CHANGED) if base is None else version

    def _with_codes(self, version: DataFrame, base: DataFrame | None) -> DataFrame:
        """The version with codes, and with the earlier rows whose results are no longer valid."""
        from pyspark.sql import functions as F

        names = [HASH, *self.state.key_names, *self.state.slot_names]
        if base is None:
            code = F.when(F.col(CHANGED) & self.has_result(""), _INSERT).otherwise(0)
            return version.select(*names, CHANGED, code.alias(CODE))
        new, old = version.alias("new"), base.alias("old")
        on = F.col(f"old.{HASH}") == F.col(f"new.{HASH}")
        for name in self.state.key_names:
            on = on & F.col(f"old.{name}").eqNullSafe(F.col(f"new.{name}"))
        had = F.col(f"old.{HASH}").isNotNull() & self.has_result("old.")
        has = self.has_result("new.")
        same = F.lit(True)
        for name in self.state.slot_names:
            same = same & F.col(f"old.{name}").eqNullSafe(F.col(f"new.{name}"))
        tells = F.col(CHANGED) & ~(had & has & same)
        after = F.when(~tells | ~has, 0).when(had, _POSTIMAGE).otherwise(_INSERT)
        before = F.when(has, _PREIMAGE).otherwise(_DELETE)

        def row(side: str, code: Column) -> Column:
            return F.struct(*(F.col(f"{side}.{n}").alias(n) for n in names), F.col(f"new.{CHANGED}"), code.alias(CODE))

        rows = F.array_compact(F.array(row("new", after), F.when(tells & had, row("old", before))))
        return new.join(old, on, "left").select(F.explode(rows).alias("row")).select("row.*")

    def state_of(self, version: DataFrame) -> DataFrame:
        if not self.changes:
            return version.drop(CHANGED)
        return version.where(f"{CODE} NOT IN ({_PREIMAGE}, {_DELETE})").drop(CHANGED, CODE)

    def chosen_rows(self) -> ChosenRows:
        return ChosenRows((CODE,), _still_holds) if self.changes else ChosenRows()

    def output_of(self, version: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        if not self.changes:
            return self.finish(version.where(F.coalesce(CHANGED, F.lit(True))))
        return self.finish(version.where(f"{CODE} > 0"), change_type_of(F.col(CODE), self.changes))

    def output_of_stay(self, version: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        state = self.state_of(version)
        if not self.changes:
            return self.finish(state)
        return self.finish(state.where(self.has_result("")), change_type_of(F.lit(_INSERT), self.changes))

    def unpack(self, packed: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.types import IntegerType, StructType

        schema = StructType(self.state.spark().fields[1:])
        if not self.changes:
            return self.finish(packed.mapInArrow(Unpack(self.state.arrow(), arrow_schema(schema), skip=1), schema))
        coded = schema.add(CODE, IntegerType())
        rows = packed.mapInArrow(Unpack(self._coded_schema(), arrow_schema(coded), skip=1), coded)
        return self.finish(rows, change_type_of(F.col(CODE), self.changes))


class AggregateFold(MergeFold):
    """Declared aggregates by key.

    Parameters
    ----------
    keys : sequence of str
        Columns of the rows.
    aggregates : sequence of Aggregate
        Their names become columns of the output, after the keys.
    schema : StructType
        Schema of the rows.
    key_groups : int
        ``spark.backlog.keyGroups``.
    hidden : sequence of str, optional
        Keys that the aggregates do not see as columns.
    changes : str, optional
        See `MergeFold.changes`.
    """

    def __init__(
        self,
        keys: Sequence[str],
        aggregates: Sequence[Aggregate],
        schema: StructType,
        key_groups: int,
        hidden: Sequence[str] = (),
        changes: str = "",
    ) -> None:
        from pyspark.sql.types import StructType

        check_keys(keys, schema)
        names = [*keys, *(a.name for a in aggregates)]
        twice = sorted({name for name in names if [n.lower() for n in names].count(name.lower()) > 1})
        if twice:
            raise BacklogError(
                f"The output would have two columns {twice[0]!r}.", "Give the aggregate another name: sum(x) AS total."
            )
        self.keys = tuple(keys)
        self.changes = changes
        self._aggregates = tuple(aggregates)
        self._key_schema = schema
        self._schema = schema = StructType([field for field in schema if field.name not in hidden])
        self._hidden = frozenset(hidden)
        self._key_groups = key_groups
        slots = [a.slots(schema) for a in aggregates]
        self._widths = [len(s) for s in slots]
        self.state = StateSchema(tuple(self._key_schema[k].dataType for k in keys), tuple(t for s in slots for t in s))

    def describe(self) -> dict[str, Any]:
        # Without the names of the results, which may change.
        said = [repr(replace(a, name="_")) if is_dataclass(a) else repr(a) for a in self._aggregates]
        slots = [f"{name} {i}" for name, width in zip(said, self._widths, strict=True) for i in range(width)]
        types = [kind.simpleString() for kind in self.state.slots]
        return {
            "meaning": describe_keys(self.keys, self.state) + self.described_changes,
            "slots": [f"{slot}: {kind}" for slot, kind in zip(slots, types, strict=True)],
        }

    def _key_columns(self) -> list[Column]:
        named = zip(self.keys, self.state.key_names, strict=True)
        return [normalised(k, self._key_schema).alias(n) for k, n in named]

    def lift(self, rows: DataFrame, *more: Column) -> DataFrame:
        keys = self._key_columns()
        lifted = [c for a in self._aggregates for c in a.lift(self._schema)]
        named = [c.alias(f"l{i}") for i, c in enumerate(lifted)]
        hashed = rows.select(hash_of(keys).alias(HASH), *keys, *named, *more)
        return hashed.select(group_of(hashed[HASH], self._key_groups).alias(GROUP), "*")

    def merge_rows(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        from pyspark.sql import functions as F

        reduced = [c for a in self._aggregates for c in a.reduce(self._schema)]
        slots = [c.cast(t).alias(n) for c, t, n in zip(reduced, self.state.slots, self.state.slot_names, strict=True)]
        # Hash after the aggregation: there are fewer keys than rows.
        new = rows.groupBy(*self._key_columns()).agg(*slots)
        new = new.select(hash_of([F.col(n) for n in self.state.key_names]).alias(HASH), "*")
        return new.withColumn(CHANGED, F.lit(True)) if base is None else self._onto(base, new)

    def _onto(self, base: DataFrame, new: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        old, add = base.alias("old"), new.alias("new")
        on = F.col(f"old.{HASH}") == F.col(f"new.{HASH}")
        for name in self.state.key_names:
            on = on & F.col(f"old.{name}").eqNullSafe(F.col(f"new.{name}"))
        is_new = F.col(f"new.{HASH}").isNotNull()
        columns = [
            F.when(is_new, F.col(f"new.{n}")).otherwise(F.col(f"old.{n}")).alias(n)
            for n in (HASH, *self.state.key_names)
        ]
        at = 0
        names = self.state.slot_names
        for aggregate, width in zip(self._aggregates, self._widths, strict=True):
            mine = names[at : at + width]
            # A key on one side only has NULLs for the other side. They merge like no row.
            both = aggregate.merge(self._schema, [F.col(f"old.{n}") for n in mine], [F.col(f"new.{n}") for n in mine])
            columns += [column.alias(n) for column, n in zip(both, mine, strict=True)]
            at += width
        return old.join(add, on, "full_outer").select(*columns, is_new.alias(CHANGED))

    def reduces_by(self) -> Sequence[Column]:
        # The rows of `fold` may lack hidden columns.
        return [normalised(key, self._key_schema) for key in self.keys if key not in self._hidden]

    def finish(self, state: DataFrame, *more: Column) -> DataFrame:
        from pyspark.sql import functions as F

        columns = [F.col(n).alias(k) for n, k in zip(self.state.key_names, self.keys, strict=True)]
        at = 0
        for aggregate, width in zip(self._aggregates, self._widths, strict=True):
            mine = self.state.slot_names[at : at + width]
            columns.append(aggregate.finish(self._schema, [F.col(n) for n in mine]).alias(aggregate.name))
            at += width
        return state.select(*columns, *more)

    def pack_groups(self, lifted: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        return self._each("pack_groups", lifted, starts)

    def merge_groups(self, slots: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        return self._each("merge_groups", slots, starts)

    def _each(self, what: str, columns: Sequence[pa.Array], starts: np.ndarray) -> list[pa.Array]:
        out: list[pa.Array] = []
        at = 0
        # An aggregate lifts to as many columns as it has slots.
        for aggregate, width in zip(self._aggregates, self._widths, strict=True):
            out += getattr(aggregate, what)(columns[at : at + width], starts)
            at += width
        return out
