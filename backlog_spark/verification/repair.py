"""Repairs the keys that differ, in one commit, for ``bs.verify``.

The keys get their rows at the compared position. A stopped query continues from there. A running query has written more
rows since then:

1. While the query runs, the rows at the compared position are read, from the chunks with wrong keys.
2. The query's batches wait. The target is now at a later position. The source's log shows which wrong keys were changed
   between the two positions. A change gives a key its whole row or removes it, so these keys are already correct. The
   source still has the other keys' rows of the compared position. The target gets these rows, and extra rows are
   deleted.
3. The query continues. If the driver dies, the commit exists or not, and the query can continue in both cases.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from backlog_spark.common.sql_names import quoted
from backlog_spark.spark.plan.batch_frames import persisted
from backlog_spark.spi.tables_at import TablesAt
from backlog_spark.verification import targets as steps
from backlog_spark.verification.reading import ChangedKeys
from backlog_spark.verification.row_comparison import DOUBLED, EXTRA, is_same
from backlog_spark.verification.targets import TargetTable, TargetVersion

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from backlog_spark.runner.query import BacklogQuery

__all__ = ["BothSides", "Repair"]


@dataclass(frozen=True)
class BothSides:
    """Both sides at one position of the source's log.

    Parameters
    ----------
    spark : SparkSession
    table : TargetTable
    target : TargetVersion
    tables : TablesAt
    offset : mapping
        The position: the source's offset in Spark's log.
    newest : callable
        Returns the target's newest version now, and its offset.
    """

    spark: SparkSession
    table: TargetTable
    target: TargetVersion
    tables: TablesAt
    offset: Mapping[str, Any]
    newest: Callable[[], tuple[TargetVersion, Mapping[str, Any]]]


class Repair:
    """Writes the source's rows of some keys into the target.

    Parameters
    ----------
    at : BothSides
        The compared sides.
    keys, values : sequence of StructField
        The compared columns.
    source : callable
        Returns the source's rows of some chunks, at the position.
    """

    def __init__(
        self,
        at: BothSides,
        keys: Sequence[StructField],
        values: Sequence[StructField],
        source: Callable[[Sequence[int]], DataFrame],
    ) -> None:
        self._at = at
        self._fields, self._values, self._source = tuple(keys), tuple(values), source
        self._keys = [field.name for field in keys]
        self._names = [field.name for field in (*keys, *values)]

    def stopped(self, wrong: DataFrame) -> None:
        """Repair the keys in ``wrong``, which are rows of `compared`, while nobody writes to the target."""
        self._at.table.check_repair(wrong, self._at.target)
        self._at.table.repair(self._at.target, self._steps(wrong), self._keys)

    def between_batches(self, wrong: DataFrame, query: BacklogQuery, *, doubles: bool) -> None:
        """Repair them while the query runs. ``doubles``: the target has some of them more than once."""
        self._at.table.check_repair(wrong, self._at.target)
        made = self._steps(wrong)
        with persisted(made):
            made.count()
            # The log since the compared position is read here. So the query only waits for the rest of it.
            _, reached = self._at.newest()
            before = self._changed(wrong, self._at.offset, reached)
            with persisted(before):
                before.count()
                with query._batches.between_batches:
                    target, offset = self._at.newest()
                    changed = before.unionAll(self._changed(wrong, reached, offset)).distinct()
                    with persisted(changed):
                        left = made.join(F.broadcast(changed), self._same(made, changed), "left_anti")
                        if doubles:
                            left = left.unionAll(self._single(wrong, changed, target))
                        self._at.table.repair(target, left, self._keys)

    def _steps(self, wrong: DataFrame) -> DataFrame:
        """The steps that give the keys their rows at the compared position."""
        there = F.broadcast(wrong.where(F.col("source") > 0))
        parts = sorted(row["part"] for row in there.select("part").distinct().collect())
        source = self._source(parts)
        step = F.when(there["kind"] == DOUBLED, steps.INSERT).otherwise(steps.UPDATE).alias(steps.STEP)
        rows = source.join(there, is_same(there, source, self._keys), "inner")
        made = rows.select(*(source[quoted(name)].alias(name) for name in self._names), step)
        for kind, how in ((EXTRA, steps.REMOVE), (DOUBLED, steps.DELETE)):
            keys = wrong.where(F.col("kind") == kind).select(*(F.col("key").getField(n).alias(n) for n in self._keys))
            made = made.unionAll(self._gone(keys, how))
        return made

    def _gone(self, keys: DataFrame, step: str) -> DataFrame:
        """A step without values for each of these keys."""
        empty = [F.lit(None).cast(f.dataType).alias(f.name) for f in self._values]
        return keys.select("*", *empty, F.lit(step).alias(steps.STEP))

    def _changed(self, wrong: DataFrame, since: Mapping[str, Any], until: Mapping[str, Any]) -> DataFrame:
        """The wrong keys with rows of the stream between two offsets."""
        step = ChangedKeys(self._at.tables, since, until)
        rows = self._at.spark.range(0, 1, 1, 1).mapInArrow(step, StructType(list(self._fields)))
        return rows.join(F.broadcast(wrong), is_same(wrong, rows, self._keys), "left_semi").distinct()

    def _single(self, wrong: DataFrame, changed: DataFrame, target: TargetVersion) -> DataFrame:
        """Steps for doubled keys that were changed. The change gave all their rows the same values. One row stays."""
        doubled = wrong.where(F.col("kind") == DOUBLED)
        again = changed.join(F.broadcast(doubled), is_same(doubled, changed, self._keys), "left_semi")
        rows = self._at.table.rows(self._at.spark, target, self._names, self._at.tables.key)
        rows = rows.join(F.broadcast(again), self._same(rows, again), "left_semi").dropDuplicates(self._keys)
        made = rows.select(
            *(F.col(quoted(name)).alias(name) for name in self._names), F.lit(steps.INSERT).alias(steps.STEP)
        )
        keys = again.select(*(F.col(quoted(name)).alias(name) for name in self._keys))
        return made.unionAll(self._gone(keys, steps.DELETE))

    def _same(self, one: DataFrame, other: DataFrame) -> Column:
        return functools.reduce(operator.and_, [one[quoted(k)].eqNullSafe(other[quoted(k)]) for k in self._keys])
