"""What becomes of a table's rows in a batch of any size: the source of a MERGE, and its clauses.

A table's format carries the MERGE out. Delta has one of its own. `backlog_spark.sinks.iceberg.large_merge` has one that
replaces files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from backlog_spark.common.sql_names import quoted
from backlog_spark.sinks.fills import filled_columns, is_other, names_of
from backlog_spark.sinks.forms import TableForm
from backlog_spark.sinks.leftovers import SEEN, KeyFiles, with_seen
from backlog_spark.sinks.newest_rows import IS_DELETE, SOURCE, newest_rows
from backlog_spark.sinks.truncate import Emptied, Statement, emptied_tables, rows_of, since_emptied, statements_of
from backlog_spark.sinks.versions import Versions, versions_in

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from backlog_spark.sinks.base import BatchInfo

__all__ = ["PreparedBatch", "SparkMerge"]


@dataclass(frozen=True)
class PreparedBatch:
    """A batch, before it is compared with the table's rows.

    Parameters
    ----------
    newest : DataFrame
        The source of the MERGE: as of `newest_rows`, or of `versions_in`.
    info : BatchInfo
    emptied, statements
        As of `emptied_tables` and `statements_of`.
    """

    newest: DataFrame
    info: BatchInfo
    emptied: Emptied
    statements: Sequence[Statement]


@dataclass(frozen=True)
class SparkMerge:
    """How batches are merged.

    Parameters
    ----------
    sink : str
        The sink, for messages.
    columns : sequence of str
        The stored columns.
    keys, change_type, sequence
        As of `DeltaUpsert`.
    form : TableForm
    computed : collection of str
        Columns that the sink has added to the rows.
    of_one_table : bool
        As of `SinkContext`.
    """

    sink: str
    columns: Sequence[str]
    keys: Sequence[str]
    change_type: str | None
    sequence: str | None
    form: TableForm
    computed: Collection[str]
    _: KW_ONLY
    of_one_table: bool

    def prepared(self, rows: DataFrame, batch: BatchInfo) -> PreparedBatch:
        """The source of the MERGE. With statements that emptied tables, the plan of the rows runs."""
        statements = list[Statement]()
        emptied = self._emptied(rows) if batch.has_table_events else {}
        if emptied and self.change_type is not None and self.sequence is not None:
            if self.form.names:
                statements = statements_of(rows, emptied, self.change_type, self.sequence, self.form.time_of_changes)
                rows = self.form.since(rows, statements, self.keys, self.change_type, self.sequence)
            else:
                rows = since_emptied(rows, emptied, self.change_type, self.sequence)
        return PreparedBatch(self._newest(rows), batch, emptied, statements)

    @property
    def same_key(self) -> str:
        """The condition that a row of the source has the key of a row of the table."""
        # NULL-safe: with a plain "=" a NULL key would be inserted again by each batch.
        return " AND ".join(f"t.{quoted(key)} <=> s.{SOURCE}{self.columns.index(key)}" for key in self.keys)

    def merge(
        self,
        batch: PreparedBatch,
        begin: Callable[[DataFrame, str], Any],
        replaced: Sequence[tuple[str, ...]],
        earlier: KeyFiles | None,
    ) -> Any:
        """A MERGE with all clauses.

        Parameters
        ----------
        begin : callable
            Begins it, for a source without an alias and a condition on which rows match. There the source is s, and the
            table t. Returns what has the methods of Delta's ``DeltaMergeBuilder``.
        replaced : sequence of tuple of str
            Tables whose rows go unless the batch, or an earlier one, has their keys.
        earlier : KeyFiles or None
            The keys of earlier batches.
        """
        form, emptied, fills = self.form, batch.emptied, batch.info.fills
        newest, is_delete = batch.newest, F.col(f"s.{IS_DELETE}")
        is_row: Column | None = None  # of the batch; else its key was in an earlier one
        removes = is_delete
        if earlier is not None and earlier.exist():
            keys = [f"{SOURCE}{self.columns.index(key)}" for key in self.keys]
            newest = with_seen(newest, earlier.read(newest.select(*keys)), keys, IS_DELETE)
            is_row = ~F.col(f"s.{SEEN}")
            if emptied:
                removes = is_delete | (~is_row & rows_of(emptied, "t"))
        source = {name: f"s.{SOURCE}{number}" for number, name in enumerate(self.columns)}
        values: dict[str, Any] = {quoted(name): source[name] for name in self.columns}
        filled = filled_columns(fills, self.columns)
        values |= {quoted(name): form.filled(value, source, name) for name, value in filled.items()}
        of_filled = rows_of(names_of(fills, self.columns), "t") if filled else F.lit(False)
        if isinstance(form, Versions):
            merge = begin(newest, f"{self.same_key} AND {form.condition(source, self.keys)}")
            merge = form.merged(merge, values)
        else:
            merge = begin(newest, self.same_key)
            if not form.names:
                merge = merge.whenMatchedDelete(removes)
            merge = merge.whenMatchedUpdate(is_row, values)
            merge = merge.whenNotMatchedInsert(~is_delete if is_row is None else ~is_delete & is_row, values)
        if form.names and emptied and is_row is not None:
            merge = merge.whenMatchedUpdate(removes & form.is_there("t."), form.gone(batch.statements))
        if emptied or replaced:
            of_tables = rows_of({**dict.fromkeys(replaced), **emptied}, "t")
            if form.names:
                gone = form.gone(batch.statements)
                for name, value in filled.items() if not isinstance(form, Versions) else ():
                    gone[quoted(name)] = F.when(of_filled, value).otherwise(F.col(f"t.{quoted(name)}"))
                merge = merge.whenNotMatchedBySourceUpdate(of_tables & form.is_there("t."), gone)
            else:
                merge = merge.whenNotMatchedBySourceDelete(of_tables)
        if filled:
            columns: dict[str, str | Column] = {quoted(name): value for name, value in filled.items()}
            merge = merge.whenNotMatchedBySourceUpdate(of_filled & form.is_filled & is_other(filled, "t"), columns)
        return merge

    def _newest(self, rows: DataFrame) -> DataFrame:
        columns, keys, change_type = self.columns, self.keys, self.change_type
        if isinstance(self.form, Versions) and self.sequence is not None:
            return versions_in(rows, columns, keys, change_type, self.sequence, self.form, self.sink)
        newest = newest_rows(rows, columns, keys, change_type, self.sequence, self.sink)
        return newest.withColumn(IS_DELETE, F.lit(False)) if self.form.names else newest

    def _emptied(self, rows: DataFrame) -> Emptied:
        return emptied_tables(
            rows,
            [name for name in self.columns if name not in (*self.form.names, *self.computed)],
            self.change_type,
            self.sequence,
            of_one_table=self.of_one_table,
            sink=self.sink,
        )
