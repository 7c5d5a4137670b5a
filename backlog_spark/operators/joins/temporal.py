"""The processing-time temporal join: each row of the probe side with the present build rows of its key.

While the build side is processing backlog, for example a snapshot, rows of the probe side wait: at an interval of 0 as
files, otherwise in the state. Emitted rows are never retracted: a change of the build side counts for later probe rows.

Source: FLIP-326; Flink's ``TemporalProcessTimeJoinOperator``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import INSERT, refuse_changes
from backlog_spark.operators.counted_rows import tie_of
from backlog_spark.operators.fold import Clock
from backlog_spark.operators.frames import ascending
from backlog_spark.operators.joins.pairs import TEMPORAL, check_kind
from backlog_spark.operators.joins.regular import JoinFold, pairs_of
from backlog_spark.operators.over.results import is_ordered
from backlog_spark.operators.rows import SIDE_OF
from backlog_spark.operators.sides import LEFT, RIGHT, quoted, side_schema
from backlog_spark.operators.waiting_fold import StayEnd
from backlog_spark.state.keys import equal_runs
from backlog_spark.state.store import AT_EVERY_TICK, NEVER
from backlog_spark.state.tables import HASH, combine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["TemporalJoinFold"]

# Bit of `Clock.backlog`.
_BUILD_IN_BACKLOG: Final = 2
# Largest build side of a partition, in bytes, for a hash table. The table takes some times as much. With 1 GB of memory
# Spark has 50 MB for each of eight tasks, and a table that does not fit fails the query.
_HASHED_BYTES: Final = 16 << 20
# Column of build rows: rank within the key, 1 for the newest row.
_RANK: Final = "__backlog_rank"


class TemporalJoinFold(JoinFold):
    """Rows of the left stream, each once, with the present rows of the right stream for their key.

    Parameters
    ----------
    schema, left_keys, right_keys, key_groups
        As for `JoinFold`.
    how : str
        ``"left"`` or ``"inner"``: whether a row without a match is emitted.
    order : str, optional
        For a build side without changes: the column that orders the rows of a key. Required then.
    wait : bool
        Whether rows wait while the build side is in backlog.

    Raises
    ------
    SettingError
        For another ``how``.
    BacklogError
        For a probe side that retracts rows, and for a build side without an order of its rows.
    """

    name = "temporal_join"

    def __init__(
        self,
        schema: StructType,
        left_keys: Sequence[str],
        right_keys: Sequence[str],
        key_groups: int,
        *,
        how: str = "left",
        order: str | None = None,
        wait: bool = True,
    ) -> None:
        check_kind(how, TEMPORAL, "temporal join")
        refuse_changes(self.name, side_schema(schema, LEFT), left_keys)
        super().__init__(schema, left_keys, right_keys, key_groups, how=how)
        # The control source says whether the build side is processing backlog.
        self.timed = True
        self._wait = wait
        build = self.sides[RIGHT].schema
        self._newest_by: str | None = None
        if self.takes_back:
            return
        if order is None:
            raise BacklogError(
                f"{self.name}: the build side has no '_change_type', and no column that orders the rows of a key.",
                "Name such a column: temporal_join(…, order='updated_at').",
            )
        if order not in build.names or not is_ordered(build[order].dataType):
            raise BacklogError(
                f"{self.name}: the build side cannot be ordered by {order!r}; it has {', '.join(build.names)}.",
                "Name a column that is a number, a time or a text.",
            )
        self._newest_by = self.value(RIGHT, order)

    @property
    def changes(self) -> bool:
        """Never: emitted rows stay."""
        return False

    def describe(self) -> dict[str, Any]:
        newest = "" if self._newest_by is None else f", the newest by {self._newest_by}"
        return self.described(f"{self._how} temporal join{newest}")

    # -- the sorted vehicle ---------------------------------------------------------------------------------

    def net_of(self, placed: DataFrame, side: int) -> DataFrame:
        rows = placed.where(quoted(SIDE_OF) == side)
        if side == LEFT:
            return rows
        return self.net(rows) if self._newest_by is None else self._newest_of(rows, self._newest_by)

    def _newest_of(self, build: DataFrame, order: str) -> DataFrame:
        """The newest row of each key. Always the same row."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructField, StructType

        values = self.values(RIGHT)
        named = zip(values, self.sides[RIGHT].schema, strict=True)
        tie = tie_of(StructType([StructField(name, field.dataType) for name, field in named]))
        # A row without the value counts as oldest. The window keeps one row per key, in half the time of max_by over
        # structs. Its result is sorted by the keys, so a merge join can use it directly.
        newest_first = Window.partitionBy(*self.state.key_names).orderBy(F.desc_nulls_last(order), tie.desc())
        numbered = build.withColumn(_RANK, F.row_number().over(newest_first))
        found = numbered.where(f"{_RANK} = 1").select(*self.state.key_names, *values)
        return self.with_hash(found).withColumn(SIDE_OF, F.lit(RIGHT))

    def looked_up(self, right: DataFrame, size: int) -> DataFrame:
        # A hash table, because the rows of the left side come in any order.
        return right.hint("shuffle_hash") if size <= _HASHED_BYTES else right

    def still_needed(self, placed: DataFrame, end: StayEnd) -> DataFrame:
        return self.net_of(self.with_key(placed), RIGHT)

    # -- the stream vehicle ---------------------------------------------------------------------------------

    def due(self, state: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        # Waiting rows are checked at each tick. The control source ticks as long as there are such rows.
        never = np.full(state.num_rows, NEVER, dtype=np.int64)
        return never, np.where(state.column(SIDE_OF).to_numpy() == LEFT, AT_EVERY_TICK, NEVER)

    def advance(
        self, kept: pa.RecordBatch, fresh: pa.RecordBatch, clock: Clock
    ) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        rows = combine([kept, fresh], self.state.arrow())
        side, keyed = rows.column(SIDE_OF).to_numpy(), self.keyed(rows)
        _, there = self.present(kept, rows)
        probe = np.flatnonzero(side == LEFT)
        build = np.flatnonzero((side == RIGHT) & there & keyed)
        if self._newest_by is not None:
            build = self._newest(rows, build)
        held = np.zeros(rows.num_rows, dtype=bool)
        held[build] = True
        if self._wait and clock.backlog & _BUILD_IN_BACKLOG:
            held[probe] = True
            return rows.filter(pa.array(held)), []
        hashes = rows.column(HASH).to_numpy()
        chosen = np.concatenate([probe[keyed[probe]], build[np.isin(hashes[build], hashes[probe])]])
        code = self.codes(rows, chosen)
        lefts, rights = chosen[side[chosen] == LEFT], chosen[side[chosen] == RIGHT]
        out = [batch for indices in pairs_of(lefts, rights, code) for batch in self._paired(rows, *indices, INSERT)]
        if self.outer:
            alone = probe[~keyed[probe] | ~np.isin(code[probe], code[rights])]
            out += self._paired(rows, alone, None, INSERT)
        return rows.filter(pa.array(held)), out

    def _newest(self, rows: pa.RecordBatch, build: np.ndarray) -> np.ndarray:
        """The last row of each key by the order. Of equal rows the one that came last."""
        if not len(build):
            return build
        values = rows.column(self._newest_by).take(pa.array(build))
        ordered = build[ascending(values)]
        hashes = rows.column(HASH).to_numpy()
        by_key, starts = equal_runs(hashes[ordered], [rows.column(k).take(ordered) for k in self.state.key_names])
        found: np.ndarray = ordered[by_key[np.append(starts[1:], len(ordered)) - 1]]
        return found
