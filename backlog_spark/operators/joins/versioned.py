"""The event-time temporal join: each row of the probe side with its key's version on the build side at its time.

A row is emitted when the watermark of both sides has reached its time. All versions up to it have arrived then. Of the
versions up to the watermark a key needs only the newest one.

Source: Flink's ``TemporalRowTimeJoinOperator``; Flink SQL's "Event Time Temporal Join".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import CHANGE_TYPE, METADATA, PREIMAGE, is_change_stream, refuse_changes, sign
from backlog_spark.model.watermarks import event_time_of
from backlog_spark.operators import frames
from backlog_spark.operators.aggregates import groups
from backlog_spark.operators.counted_rows import tie_of
from backlog_spark.operators.fold import Clock
from backlog_spark.operators.joins.pairs import TEMPORAL, Output, check_kind, output_columns, paired
from backlog_spark.operators.joins.regular import PIECE_ROWS
from backlog_spark.operators.over.results import is_ordered
from backlog_spark.operators.rows import SIDE_OF, TIME, RowsFold
from backlog_spark.operators.sides import LEFT, RIGHT, SIDE, Side, prefixed, quoted, side_schema
from backlog_spark.operators.waiting_fold import StayEnd
from backlog_spark.state.store import NEVER
from backlog_spark.state.tables import HASH, arrow_schema, combine

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["GONE", "MICROS", "SEQ", "VersionedJoinFold"]

MICROS: Final = "at"
"""Column of state and live rows: event time in microseconds since 1970. It identifies versions; `TIME` is coarser."""
GONE: Final = "gone"
"""Column of state and live rows, for a build side with changes: whether the version ends the one before it."""
SEQ: Final = "seq"
"""Column of state and live rows, if the build side has it: the commit of the version."""

_COMMIT_SEQ: Final = "_commit_seq"
_NEWEST: Final = "__backlog_newest"

Integers = npt.NDArray[np.int64]


class VersionedJoinFold(RowsFold):
    """Rows of the left stream, each once, with the newest version of their key at or before their time.

    A row of the right stream, the build side, is a version from its event time on. In a change stream ``insert`` and
    ``update_postimage`` are versions. A ``delete`` is a version that says: no row from this time on.
    ``update_preimage`` is ignored. Of versions with the same time, in microseconds, the one with the greatest
    ``_commit_seq`` counts if there is such a column (of an atomic type). Otherwise the one that came last counts,
    within a batch by the order in the worker. For a stay in backlog at an interval of 0 the order of arrival is
    unknown: one of them counts, the same in a replay.

    A left row is emitted when the watermark has reached its time. Emitted rows are never retracted. Late left rows are
    counted and dropped. A late version is kept and counts for rows that are not emitted yet, unless the key has a newer
    version at or before the watermark. A late end of a version may be lost when the watermark has passed it.

    The output has all columns of the left rows, then those of the right ones. A key with the same name on both sides
    appears once. `changes.METADATA` of a change stream is dropped, even if it is the event time. The left rows' event
    time is the output's event time: at a watermark all rows up to it have been emitted, and no later row is at or
    before it.

    As in SQL, a NULL key equals no key. A row without an event time fails the query.

    Parameters
    ----------
    schema : StructType
        Made by `backlog_spark.operators.sides.tagged`.
    left_keys, right_keys : sequence of str
        Key columns of each side, of equal types.
    key_groups : int
        ``spark.backlog.keyGroups``.
    as_of : str
        The left rows' event time.
    how : str
        ``"left"`` or ``"inner"``: whether a row without a version is emitted, with NULLs.
    control_first : bool
        Whether a batch's watermark comes before its rows, as for the first operator of a chain.

    Raises
    ------
    SettingError
        For another ``how``.
    BacklogError
        For keys that do not match. For a left stream that retracts rows or has another event time, and a right one
        without an event time. For columns with the same name.
    """

    name = "temporal_join"
    """In messages."""

    def __init__(
        self,
        schema: StructType,
        left_keys: Sequence[str],
        right_keys: Sequence[str],
        key_groups: int,
        *,
        as_of: str,
        how: str = "left",
        control_first: bool = True,
    ) -> None:
        from pyspark.sql.types import BooleanType, LongType, StructType

        check_kind(how, TEMPORAL, "temporal join")
        self._how = how
        probe, build = (side_schema(schema, side) for side in (LEFT, RIGHT))
        refuse_changes(self.name, probe, left_keys)
        self._times = self._event_times(probe, build, as_of)
        own: list[tuple[str, DataType]] = [(MICROS, LongType())]
        self._change_type: str | None = None
        change_columns: set[str] = set()
        if is_change_stream(build, right_keys):
            self._change_type = prefixed(RIGHT, CHANGE_TYPE)
            change_columns = {prefixed(RIGHT, name) for name in METADATA}
            own.append((GONE, BooleanType()))
        self._has_seq = _COMMIT_SEQ in build.names and is_ordered(build[_COMMIT_SEQ].dataType)
        if self._has_seq:
            own.append((SEQ, build[_COMMIT_SEQ].dataType))
        self._own = [name for name, _ in own]
        self._rows = schema
        # The change columns are used before they are dropped; one may be the event time.
        kept = StructType([field for field in schema if field.name not in change_columns])
        super().__init__(self.name, kept, left_keys, right_keys, key_groups, own=own, control_first=control_first)
        self._columns = [self._marked(column, probe, as_of) for column in output_columns(self)]
        self._arrow = arrow_schema(self.output_schema())

    def _event_times(self, probe: StructType, build: StructType, as_of: str) -> tuple[str, str]:
        """The event times of both sides, as column names of each side.

        Raises
        ------
        BacklogError
        """
        times = event_time_of(probe), event_time_of(build)
        if times[LEFT] is None:
            raise BacklogError(
                f"{self.name}: as_of={as_of!r}, but the probe side has no event time.",
                f'Add .with_watermark({as_of!r}, "<delay>") to it, next to its source.',
            )
        if times[LEFT] != as_of:
            raise BacklogError(
                f"{self.name}: as_of={as_of!r} is not the event time of the probe side, which is {times[LEFT]!r}.",
                f"Use as_of={times[LEFT]!r}, or name another column in with_watermark.",
            )
        if times[RIGHT] is None:
            raise BacklogError(
                f"{self.name}: the build side has no event time, which as_of needs to find versions.",
                'Add .with_watermark("<column>", "<delay>") to it, next to its source.',
            )
        for schema, time in ((probe, as_of), (build, times[RIGHT])):
            if type(schema[time].dataType).__name__ != "TimestampType":
                raise BacklogError(
                    f"{self.name}: the event time {time!r} has become {schema[time].dataType.simpleString()}.",
                    "Keep it a timestamp up to this operator.",
                )
        return as_of, times[RIGHT]

    @staticmethod
    def _marked(column: Output, probe: StructType, as_of: str) -> Output:
        from pyspark.sql.types import StructField

        if column.left is None or column.field.name != as_of:
            return column
        marked = StructField(column.field.name, column.field.dataType, True, probe[as_of].metadata)
        return replace(column, field=marked)

    def describe(self) -> dict[str, Any]:
        then = f", then {_COMMIT_SEQ}" if self._has_seq else ""
        return self.described(f"{self._how} join of versions by {self._times[RIGHT]}{then} as of {self._times[LEFT]}")

    def output_schema(self) -> StructType:
        from pyspark.sql.types import StructType

        return StructType([column.field for column in self._columns])

    # -- rows -----------------------------------------------------------------------------------------------

    def version_schema(self) -> StructType:
        return self._rows

    def live_schema(self) -> pa.Schema:
        schema = super().live_schema()
        for name in self._own:
            schema = schema.append(self.state.arrow().field(name))
        return schema

    def placed(self, rows: DataFrame) -> DataFrame:
        return super().placed(self._checked(rows))

    def _checked(self, rows: DataFrame) -> DataFrame:
        """The rows that count. Fails for a row without an event time."""
        from pyspark.sql import functions as F

        if self._change_type is not None:
            rows = rows.where(~quoted(self._change_type).eqNullSafe(PREIMAGE))
        for side in (LEFT, RIGHT):
            name = prefixed(side, self._times[side])
            missing = (quoted(SIDE) == side) & quoted(name).isNull()
            fails = F.raise_error(F.lit(str(self._without_time(side)))).cast("timestamp")
            time = F.when(missing, fails).otherwise(quoted(name))
            rows = rows.withColumn(name, time.alias(name, metadata=self._rows[name].metadata))
        return rows

    def _without_time(self, side: int) -> BacklogError:
        return BacklogError(
            f"{self.name}: column {self._times[side]!r} of a row of the {('probe', 'build')[side]} side is NULL, "
            "but the join needs an event time in each row.",
            f"Drop such rows with .filter('{self._times[side]} IS NOT NULL'), or give them a time.",
        )

    def _time_of(self, side: Side) -> Column:
        from pyspark.sql import functions as F

        number = LEFT if side is self.sides[LEFT] else RIGHT
        return F.unix_millis(quoted(prefixed(number, self._times[number])))

    def more_placed(self) -> list[Column]:
        from pyspark.sql import functions as F

        is_build = quoted(SIDE) == RIGHT
        left, right = (F.unix_micros(quoted(prefixed(side, self._times[side]))) for side in (LEFT, RIGHT))
        made = [F.when(is_build, right).otherwise(left).alias(MICROS)]
        if self._change_type is not None:
            made.append(F.when(is_build, sign(quoted(self._change_type)) < 0).otherwise(False).alias(GONE))
        if self._has_seq:
            made.append(quoted(prefixed(RIGHT, _COMMIT_SEQ)).alias(SEQ))
        return made

    # -- the sorted vehicle ---------------------------------------------------------------------------------

    def fold(self, rows: DataFrame, base: DataFrame | None) -> DataFrame:
        return super().fold(self._checked(rows), base)

    def output_at_end(self, version: DataFrame, end: StayEnd) -> DataFrame:
        """Uses Spark's window functions, which do not need memory for all rows of a key."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        is_due = F.lit(False) if end.watermark is None else F.col(TIME) <= end.watermark
        rows = self._useful(self.placed(version).where(is_due))
        # Rows without a key have no match. They are spread, so that no single task gets them all.
        partition = F.when(self._keyed(), F.col(HASH)).otherwise(F.xxhash64(F.col(MICROS)))
        first, *rest = self._order()
        by_age = [first.asc(), F.col(SIDE_OF).desc(), *(column.asc_nulls_first() for column in rest)]
        before = Window.partitionBy(partition, *self.state.key_names).orderBy(*by_age)
        before = before.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        needed = [
            *([GONE] if self._change_type else []),
            *(c.right for c in self._columns if c.left is None and c.right),
        ]
        # A struct needs at least one field.
        newest = F.when(F.col(SIDE_OF) == RIGHT, F.struct(F.col(MICROS), *needed))
        found = rows.withColumn(_NEWEST, F.last(newest, ignorenulls=True).over(before)).where(F.col(SIDE_OF) == LEFT)
        is_there = F.col(_NEWEST).isNotNull()
        if self._change_type is not None:
            is_there = is_there & ~F.col(_NEWEST).getField(GONE)
        if self._how == "inner":
            found = found.where(is_there)
        columns = []
        for output in self._columns:
            value = F.col(output.left) if output.left else F.when(is_there, F.col(_NEWEST).getField(output.right))
            columns.append(value.alias(output.field.name, metadata=output.field.metadata))
        return found.select(*columns)

    def still_needed(self, placed: DataFrame, end: StayEnd) -> DataFrame:
        """Rows after the watermark, and each key's newest version before it."""
        from pyspark.sql import functions as F

        rows = self._useful(placed)
        if end.watermark is None:
            return rows
        is_past = F.col(TIME) <= end.watermark
        keys = [HASH, *self.state.key_names]
        rest = [name for name in placed.columns if name not in keys]
        past = rows.where(is_past & (F.col(SIDE_OF) == RIGHT)).groupBy(*keys)
        newest = past.agg(F.max_by(F.struct(*rest), F.struct(*self._order())).alias("one")).select(*keys, "one.*")
        if self._change_type is not None:
            newest = newest.where(~F.col(GONE))
        return rows.where(~is_past).unionByName(newest)

    def _keyed(self) -> Column:
        from pyspark.sql import functions as F

        found = F.lit(True)
        for name in self.state.key_names:
            found = found & F.col(name).isNotNull()
        return found

    def _useful(self, rows: DataFrame) -> DataFrame:
        """Rows that can be emitted or matched."""
        from pyspark.sql import functions as F

        return rows.where(self._keyed() if self._how == "inner" else self._keyed() | (F.col(SIDE_OF) == LEFT))

    def _order(self) -> list[Column]:
        """The order of versions by age. More columns make it unique, so that it is always the same."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructField, StructType

        gone = [~F.col(GONE)] if self._change_type is not None else []
        names = zip(self.values(RIGHT), self.sides[RIGHT].schema, strict=True)
        build = [StructField(name, field.dataType) for name, field in names]
        ties = [F.col(field.name) for field in build if is_ordered(field.dataType)]
        others = StructType([field for field in build if not is_ordered(field.dataType)])
        ties += [tie_of(others)] if len(others) else []
        return [F.col(MICROS), *([F.col(SEQ)] if self._has_seq else []), *gone, *ties]

    # -- the stream vehicle ---------------------------------------------------------------------------------

    def is_late(self, live: pa.RecordBatch, watermark: int, kept: pa.RecordBatch) -> np.ndarray:
        found: np.ndarray = super().is_late(live, watermark, kept) & (live.column(SIDE_OF).to_numpy() == LEFT)
        return found

    def due(self, state: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        is_probe = state.column(SIDE_OF).to_numpy() == LEFT
        never = np.full(state.num_rows, NEVER, dtype=np.int64)
        return np.where(is_probe, state.column(TIME).to_numpy(), never), never

    def advance(
        self, kept: pa.RecordBatch, fresh: pa.RecordBatch, clock: Clock
    ) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        rows = combine([kept, fresh], self.state.arrow())
        side = rows.column(SIDE_OF).to_numpy()
        if rows.column(TIME).null_count:
            raise self._without_time(int(side[~groups.is_valid(rows.column(TIME))][0]))
        micros = rows.column(MICROS).to_numpy()
        reached = rows.column(TIME).to_numpy() <= clock.watermark
        keyed = self.keyed(rows)
        is_probe = side == LEFT
        code = self.codes(rows, np.flatnonzero(keyed & (reached | ~is_probe)))

        versions = self._versions(rows, np.flatnonzero(keyed & ~is_probe), code, micros)
        gone = np.zeros(len(versions), dtype=np.bool_)
        if self._change_type is not None:
            gone = groups.values(rows.column(GONE), False)[versions]
        probes = np.flatnonzero(is_probe & reached & keyed)
        met = _newest_before(versions, probes, code, micros)
        # Index -1 means no version: it reads the element appended at the end.
        matched = ~np.append(gone, True)[met]
        out = list(self._pieces(rows, probes[matched], versions[met[matched]]))
        if self._how == "left":
            alone = np.concatenate((probes[~matched], np.flatnonzero(is_probe & reached & ~keyed)))
            out += self._pieces(rows, alone, None)

        # If the key's next version is at or before the watermark too, no row will match this version.
        past = reached[versions]
        over = gone & past
        over[:-1] |= past[1:] & (code[versions[1:]] == code[versions[:-1]])
        stays = is_probe & ~reached & (keyed | (self._how == "left"))
        stays[versions[~over]] = True
        return rows.filter(pa.array(stays)), out

    def _versions(self, rows: pa.RecordBatch, build: Integers, code: Integers, micros: Integers) -> Integers:
        """Indices of the versions by key and time. Of versions with the same time only the one that counts."""
        ranks = frames.rank_keys(rows.column(SEQ).take(pa.array(build))) if self._has_seq else []
        # The sort is stable: later rows stay after earlier ones, and kept rows come first.
        ordered = build[np.lexsort((*reversed(ranks), micros[build], code[build]))]
        counts = np.ones(len(ordered), dtype=np.bool_)
        later, earlier = ordered[1:], ordered[:-1]
        counts[:-1] = (code[later] != code[earlier]) | (micros[later] != micros[earlier])
        found: Integers = ordered[counts]
        return found

    def _pieces(self, rows: pa.RecordBatch, left: Integers, right: Integers | None) -> Iterator[pa.RecordBatch]:
        """Rows of the output, at most `PIECE_ROWS` at a time."""
        for start in range(0, len(left), PIECE_ROWS):
            piece = slice(start, start + PIECE_ROWS)
            indices = left[piece], None if right is None else right[piece]
            for columns in paired(rows, self._columns, self._arrow, *indices):
                yield pa.RecordBatch.from_arrays(columns, schema=self._arrow)


def _newest_before(versions: Integers, probes: Integers, code: Integers, micros: Integers) -> Integers:
    """For each probe row the index of its key's last version at or before it, or -1. Versions are sorted by key and
    time.

    Combines key and time in one number. It uses the rank of the time: distant times would overflow.
    """
    if not len(versions):
        return np.full(len(probes), -1, dtype=np.int64)
    times, rank = np.unique(micros[versions], return_inverse=True)
    # One more than the number of ranks: so rows before a key's first version do not find another key's last version.
    width = len(times) + 1
    rank_of_probe = np.searchsorted(times, micros[probes], "right") - 1
    found = np.searchsorted(code[versions] * width + rank, code[probes] * width + rank_of_probe, "right") - 1
    is_other = (found < 0) | (code[versions[found]] != code[probes])
    found[is_other] = -1
    placed: Integers = found.astype(np.int64, copy=False)
    return placed
