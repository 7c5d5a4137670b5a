"""Merges a batch of any size into the files of an Iceberg table that hold rows to change, in Spark's tasks."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from backlog_spark.common.sql_names import quoted
from backlog_spark.sinks.fills import filled_columns
from backlog_spark.sinks.iceberg.commits import Changes
from backlog_spark.sinks.iceberg.files import TableFiles, read_rows, rows_type, write_rows
from backlog_spark.sinks.iceberg.key_ranges import KeyRanges
from backlog_spark.sinks.newest_rows import SOURCE
from backlog_spark.sinks.versions import Versions

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table
    from pyspark.sql import Column, DataFrame

    from backlog_spark.sinks.leftovers import KeyFiles
    from backlog_spark.sinks.spark_merge import PreparedBatch, SparkMerge

__all__ = ["FileMerge", "merge_large"]

_PATH: Final = "__backlog_spark_path"
_OLD: Final = "__backlog_spark_is_old"
_NEW: Final = "__backlog_spark_is_new"
_CLAUSE: Final = "__backlog_spark_clause"
_PLACE: Final = "__backlog_spark_place"
_NAMES: Final = ("_database", "_table")


class _Clause(NamedTuple):
    condition: Column
    values: Mapping[str, str | Column] | None  # by quoted name; None: the row goes


class FileMerge:
    """A MERGE into an Iceberg table. It has the methods of Delta's ``DeltaMergeBuilder`` that the sinks use.

    A row is changed by the first clause of its kind whose condition holds, and stays as it is without one.

    Parameters
    ----------
    table : Table
        The version to change.
    source : DataFrame
        Its alias is s. Several jobs read it.
    on : str
        The condition on which a row of the table, whose alias is t, matches a row of the source.
    found_by : Column
        A wider condition, by which rows to change are found. It needs only the columns in `needed`.
    keys : mapping of str to str
        Columns of the source with the keys, by the table's key columns.
    needed : sequence of str
        Columns of the table that `found_by` and conditions of clauses have, beside the keys and the names of tables.
    all_go : bool
        Whether no old row stays.
    unites : bool
        Whether rows of one key that are changed, as another writer can leave them, become one.
    replaces : bool
        Whether no value of a changed row comes from the table. An anti join then does, in three quarters of the time of
        a full join.
    """

    def __init__(
        self,
        table: Table,
        source: DataFrame,
        on: str,
        found_by: Column,
        keys: Mapping[str, str],
        needed: Sequence[str] = (),
        *,
        all_go: bool = False,
        unites: bool = False,
        replaces: bool = False,
    ) -> None:
        self._table = table
        self._files = TableFiles.of(table)
        self._spark = source.sparkSession
        self._source = source.withColumn(_NEW, F.lit(True)).alias("s")
        self._on = F.expr(on)
        self._found_by = found_by
        self._keys = keys
        self._needed = needed
        self._all_go = all_go
        self._unites = unites
        self._replaces = replaces
        self._matched: list[_Clause] = []
        self._by_source: list[_Clause] = []
        self._inserts: list[_Clause] = []

    def whenMatchedUpdate(self, condition: Any, set: Mapping[str, str | Column]) -> FileMerge:
        self._matched.append(_Clause(_column(condition), set))
        return self

    def whenMatchedDelete(self, condition: Any) -> FileMerge:
        self._matched.append(_Clause(_column(condition), None))
        return self

    def whenNotMatchedInsert(self, condition: Any, values: Mapping[str, str | Column]) -> FileMerge:
        self._inserts.append(_Clause(_column(condition), values))
        return self

    def whenNotMatchedBySourceUpdate(self, condition: Any, set: Mapping[str, str | Column]) -> FileMerge:
        self._by_source.append(_Clause(_column(condition), set))
        return self

    def whenNotMatchedBySourceDelete(self, condition: Any) -> FileMerge:
        self._by_source.append(_Clause(_column(condition), None))
        return self

    def execute(self) -> Changes:
        """Write the files that replace those with rows to change."""
        touched = self._touched()
        if self._all_go or not touched:
            return Changes(write_rows(self._inserted(), self._files), [task.file for task in touched])
        old = read_rows(self._spark, self._files, touched, self._files.schema.names)
        if self._replaces and not self._by_source:
            stays = old.alias("t").join(self._source, self._on, "left_anti")
            rows = self._clustered(stays.unionByName(self._inserted()), len(touched))
            return Changes(write_rows(rows, self._files), [task.file for task in touched])
        joined = old.withColumn(_OLD, F.lit(True)).alias("t").join(self._source, self._on, "full_outer")
        is_old, is_new = F.col(f"t.{_OLD}").isNotNull(), F.col(f"s.{_NEW}").isNotNull()
        clauses = [
            *((is_old & is_new, each) for each in self._matched),
            *((is_old & ~is_new, each) for each in self._by_source),
            (is_old, _Clause(F.lit(True), {})),
            *((~is_old, each) for each in self._inserts),
        ]
        rows = self._clustered(self._rows(joined, clauses, is_old=True), len(touched), unites=self._unites)
        return Changes(write_rows(rows.drop(_CLAUSE), self._files), [task.file for task in touched])

    def _inserted(self) -> DataFrame:
        """The rows of the source as if none matched."""
        return self._rows(self._source, [(F.lit(True), each) for each in self._inserts], is_old=False).drop(_CLAUSE)

    def _rows(self, found: DataFrame, clauses: Sequence[tuple[Column, _Clause]], *, is_old: bool) -> DataFrame:
        """The rows that clauses leave, each with one more condition, and the clause's number. Other rows are dropped.

        ``is_old``: whether `found` has rows of the table.
        """
        number: Column = F.lit(None).cast("int")
        for place, (condition, clause) in reversed(list(enumerate(clauses))):
            chosen = F.lit(place if clause.values is not None else None).cast("int")
            number = F.when(condition & clause.condition, chosen).otherwise(number)
        found = found.select("*", number.alias(_CLAUSE)).where(F.col(_CLAUSE).isNotNull())
        columns = []
        # A column may be wider in the table.
        for field in rows_type(self._files, self._files.schema.names):
            value = F.col(f"t.{quoted(field.name)}") if is_old else F.lit(None).cast(field.dataType)
            for place, (_, clause) in enumerate(clauses):
                new = (clause.values or {}).get(quoted(field.name))
                if new is not None:
                    new = (F.expr(new) if isinstance(new, str) else new).cast(field.dataType)
                    value = F.when(F.col(_CLAUSE) == place, new).otherwise(value)
            columns.append(value.alias(field.name))
        return found.select(*columns, _CLAUSE)

    def _touched(self) -> list[FileScanTask]:
        """The files to replace."""
        if self._by_source:
            tasks = list(self._table.scan().plan_files())
        else:
            tasks = KeyRanges(self._table.schema(), self._ends(), only_ends=True).candidates(self._table)
        if self._all_go or not tasks:
            return tasks
        there = self._files.schema.names
        names = dict.fromkeys((*self._keys, *self._needed, *(_NAMES if set(_NAMES) <= set(there) else ())))
        rows = read_rows(self._spark, self._files, tasks, list(names), _PATH).alias("t")
        found = rows.join(self._source, self._found_by, "left" if self._by_source else "inner")
        is_changed = F.when(F.col(f"s.{_NEW}").isNotNull(), _any(self._matched)).otherwise(_any(self._by_source))
        paths = {row[0] for row in found.where(is_changed).select(_PATH).distinct().collect()}
        return [task for task in sorted(tasks, key=lambda each: each.file.file_path) if task.file.file_path in paths]

    def _ends(self) -> pa.Table:
        """The least and greatest value of each key column, and NULL if it occurs."""
        columns = [F.col(name) for name in self._keys.values()]
        wanted = [each for n, c in enumerate(columns) for each in (F.min(c).alias(f"l{n}"), F.max(c).alias(f"g{n}"))]
        nulls = [F.coalesce(F.bool_or(c.isNull()), F.lit(False)).alias(f"n{n}") for n, c in enumerate(columns)]
        row = self._source.agg(*wanted, *nulls).toArrow()
        found = {}
        for n, key in enumerate(self._keys):
            kind = self._files.schema.field(key).type
            low, high = (row[f"{end}{n}"].combine_chunks().cast(kind) for end in "lg")
            found[key] = pa.concat_arrays([low, high, pa.nulls(1, kind) if row[f"n{n}"][0].as_py() else high])
        return pa.table(found)

    def _clustered(self, rows: DataFrame, files: int, *, unites: bool = False) -> DataFrame:
        """Rows by ranges of keys, so that bounds skip files: a task for each replaced file, or for each core."""
        tasks, keys = max(files, self._spark.sparkContext.defaultParallelism), list(map(quoted, self._keys))
        rows = rows.repartitionByRange(tasks, *keys)
        if unites:
            # The rows are already where the window needs them.
            place = F.row_number().over(Window.partitionBy(*keys).orderBy(*keys))
            rows = rows.withColumn(_PLACE, place)
            rows = rows.where((F.col(_CLAUSE) >= len(self._matched)) | (F.col(_PLACE) == 1)).drop(_PLACE)
        return rows.sortWithinPartitions(*keys)


def merge_large(
    table: Table,
    merge: SparkMerge,
    batch: PreparedBatch,
    replaced: Sequence[tuple[str, ...]],
    earlier: KeyFiles | None,
) -> Changes:
    """Write the files that replace those with rows to change.

    Parameters
    ----------
    table : Table
        The version to change.
    merge : SparkMerge
    batch, replaced, earlier
        As of `SparkMerge.merge`. Several jobs read the batch.
    """

    def begin(source: DataFrame, on: str) -> FileMerge:
        found_by = F.expr(merge.same_key) & merge.form.is_matched("t.")
        keys = {key: f"{SOURCE}{merge.columns.index(key)}" for key in merge.keys}
        needed = (*merge.form.names, *filled_columns(batch.info.fills, merge.columns))
        all_go = () in batch.emptied and not merge.form.names
        unites = not isinstance(merge.form, Versions)
        replaces = not merge.form.names and set(merge.columns) >= set(TableFiles.of(table).schema.names)
        return FileMerge(
            table, source, on, found_by, keys, needed, all_go=all_go, unites=unites, replaces=replaces
        )  # fmt: skip

    made: FileMerge = merge.merge(batch, begin, replaced, earlier)
    return made.execute()


def _column(condition: str | Column | None) -> Column:
    if condition is None:
        return F.lit(True)
    return F.expr(condition) if isinstance(condition, str) else condition


def _any(clauses: Sequence[_Clause]) -> Column:
    return functools.reduce(operator.or_, (each.condition for each in clauses), F.lit(False))
