"""The table of a `JdbcUpsert`, for ``bs.verify``.

A database keeps no versions. So the table is read once, in one transaction that also reads the query's mark. Spark
keeps the rows on disk until the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F
from pyspark.sql import types as st

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.database.marks import Mark, Marks
from backlog_spark.sinks.database.reading import BATCH, IS_ROW, TableReader
from backlog_spark.sinks.database.staging import Stage
from backlog_spark.sinks.database.target import check_keys, located, stored_columns
from backlog_spark.verification.targets import TargetTable, TargetVersion, as_changes, no_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.sinks.database.address import Place
    from backlog_spark.sinks.database.columns import StoredColumn
    from backlog_spark.sinks.database.dialect import Run
    from backlog_spark.sinks.database.sink import JdbcUpsert

__all__ = ["DatabaseTarget"]

_INTEGERS = (st.ByteType, st.ShortType, st.IntegerType)


class _State(NamedTuple):
    place: Place
    mark: Mark


class DatabaseTarget(TargetTable):
    """A table of MySQL, MariaDB or PostgreSQL.

    Parameters
    ----------
    sink : JdbcUpsert
    app_id : str
        Of the query's mark.
    """

    kind = "table"

    def __init__(self, sink: JdbcUpsert, app_id: str) -> None:
        self._sink = sink
        self._app_id = app_id
        self._database = sink._database.copy()
        self.keys = sink.keys
        self._stored: dict[str, StoredColumn] = {}  # by the source's names
        self._names: tuple[str, ...] = ()
        self._kept: DataFrame | None = None

    def newest(self) -> TargetVersion:
        def look(run: Run) -> tuple[Place, Mark]:
            place = located(self._database.dialect, run, self._sink.table)
            marks = self._marks(place)
            return place, marks.read(run) if marks.exist(run) else Mark()

        place, mark = self._database.read(look)
        where = f"{self._database.address}/{place}"
        if mark.batch is None or mark.table != place.table:
            raise no_batch(self.kind, where, is_there=True)
        return TargetVersion(where, mark.batch, mark.batch, _State(place, mark))

    def held(self, spark: SparkSession, version: TargetVersion, columns: st.StructType) -> TargetVersion:
        from pyspark import StorageLevel

        place: Place = version.state.place
        dialect = self._database.dialect
        table = self._database.read(lambda run: dialect.columns(run, place))
        if not table:
            raise no_batch(self.kind, version.place, is_there=False)
        both = [(c, f) for c in table for f in columns if dialect.same_name(c.name, f.name)]
        fields = [f for f in columns if any(f is found for _, found in both)]
        stored = stored_columns(dialect, place, [column for column, _ in both], fields, self.keys)
        self._stored = {field.name: column for field, column in zip(fields, stored, strict=True)}
        others = [column.name for column in table if not any(column is found for found, _ in both)]
        self._names = (*self._stored, *others)
        read = [replace(column, kind=_read_as(column)) for column in stored]
        reader = TableReader(self._database, place, self._marks(place), read, tuple(self._stored))
        kept = spark.range(0, 1, 1, 1).mapInArrow(reader, reader.schema).persist(StorageLevel.DISK_ONLY)
        self._kept = kept
        (first,) = kept.where(~F.col(IS_ROW)).select(BATCH).collect()
        if first[0] is None:
            raise no_batch(self.kind, version.place, is_there=True)
        batch = int(first[0])
        return replace(version, version=batch, batch=batch, state=_State(place, Mark(batch, place.table)))

    def names(self, spark: SparkSession, version: TargetVersion, keys: Sequence[str]) -> Sequence[str]:
        return self._names

    def rows(self, spark: SparkSession, version: TargetVersion, names: Sequence[str], keys: Sequence[str]) -> DataFrame:
        assert self._kept is not None, "held comes first"
        # Spark reads the table again if it has lost the rows.
        lost = F.raise_error(F.lit("Spark lost the target's rows, and the query has written to it meanwhile."))
        is_same = F.when(F.col(BATCH) == version.batch, True).otherwise(lost.cast("boolean"))
        return self._kept.where(F.col(IS_ROW) & is_same)

    def widens(self, source: st.DataType, target: st.DataType) -> bool:
        if isinstance(source, _INTEGERS):
            return isinstance(target, st.LongType)
        return isinstance(source, st.FloatType) and isinstance(target, st.DoubleType)

    def refuse_repair(self) -> None:
        pass

    def check_repair(self, wrong: DataFrame, version: TargetVersion) -> None:
        for name, column in self._stored.items():
            if column.is_key and wrong.where(F.col("key").getField(name).isNull()).limit(1).count():
                raise BacklogError(
                    f"The table {version.state.place} has rows with NULL in its key {column.name}, which an upsert "
                    "does not find.",
                    f"Another writer has written them. Delete the rows in which {column.name} IS NULL, then verify "
                    "again.",
                )

    def repair(self, version: TargetVersion, steps: DataFrame, keys: Sequence[str]) -> None:
        database, place, mark = self._database, version.state.place, version.state.mark
        names = [name for name in self._stored if name in steps.columns]
        stored = [self._stored[name] for name in names]
        marks = self._marks(place)
        stage = Stage(database, place.schema, self._app_id, stored, repr(self._sink))
        try:
            stage.load(as_changes(steps, names, keys))
            with database.transaction(is_long=True) as session:
                marks.lock(session.run, mark)  # the query cannot write meanwhile
                check_keys(database.dialect, session.run, place, [each.name for each in stored if each.is_key])
                stage.merge(session.run, place)
        finally:
            stage.drop()

    def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.unpersist()
        self._database.close()

    def _marks(self, place: Place) -> Marks:
        return Marks(self._database.dialect, place, self._app_id)


def _read_as(column: StoredColumn) -> st.DataType:
    """A type with all values that the column may have, if Spark has one: other writers may have written them."""
    if isinstance(column.kind, _INTEGERS):
        return st.LongType()
    if isinstance(column.kind, st.FloatType) and column.column.base in ("double", "float8"):
        return st.DoubleType()
    return column.kind
