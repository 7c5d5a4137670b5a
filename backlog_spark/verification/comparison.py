"""Compares the rows of a source and a target, which were fixed at one position, and repairs the target."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from backlog_spark.common.sql_names import quoted
from backlog_spark.common.table_names import TableName
from backlog_spark.errors import BacklogError
from backlog_spark.spark.jvm.quiet import end_console_progress, filter_messages
from backlog_spark.spark.plan.batch_frames import empty_frame
from backlog_spark.verification.reading import ChunkReader, ReadingLine
from backlog_spark.verification.repair import BothSides, Repair
from backlog_spark.verification.result import Difference, Verification
from backlog_spark.verification.row_comparison import (
    DIFFERENT,
    DOUBLED,
    EXTRA,
    MISSING,
    PART,
    SAME,
    compared,
    differing_columns,
    is_same,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backlog_spark.runner.query import BacklogQuery

__all__ = ["Comparison"]


class Comparison:
    """The data frames of both sides, and their comparison.

    Parameters
    ----------
    at : BothSides
    table : str
        One of the source's tables; "" for all.
    rate : int or None
        Most rows per second to read from the source.
    """

    def __init__(self, at: BothSides, table: str, rate: int | None) -> None:
        spark, tables = at.spark, at.tables
        self._at = at
        context = spark.sparkContext
        tasks = max(1, min(tables.chunks, context.defaultParallelism))
        self._reader = ChunkReader(
            tables, None if rate is None else rate / tasks, context.accumulator(0), context.accumulator(0)
        )
        begun = at.target.version >= 0
        there = at.table.names(spark, at.target, tables.key) if begun else tables.columns.names
        known = {name.lower() for name in there}
        both = [f for f in tables.columns if f.name.lower() in known]
        keys = {key.lower() for key in tables.key}
        self._key_fields = [f for f in tables.columns if f.name.lower() in keys]
        names = [f.name for f in (*self._key_fields, *(f for f in both if f.name.lower() not in keys))]
        target = at.table.rows(spark, at.target, names, tables.key) if begun else empty_frame(spark, tables.columns)
        fields = {field.name.lower(): field for field in _stored(at, target.schema, names)}
        self._keys = [fields[f.name.lower()] for f in self._key_fields]
        self._values = [fields[name.lower()] for name in names if name.lower() not in keys]
        # Metadata columns of the source are not columns of its table.
        others = [n for n in there if n.lower() not in fields and n not in tables.added]
        self._left_out = (*(n for n in tables.columns.names if n.lower() not in fields), *others)
        target = target.select(*(F.col(quoted(name)).alias(name) for name in names))
        if table:
            database, name = TableName.parse(table)
            if {"_database", "_table"} <= set(names):
                target = target.where((F.col("_database") == database) & (F.col("_table") == name))
        self._target = target

    def _source(self, chunks: Sequence[int] | None = None) -> DataFrame:
        """The rows of some chunks, by default all, with the column `PART`."""
        spark, tables = self._at.spark, self._at.tables
        schema = StructType([*tables.columns, StructField(PART, IntegerType())])
        count = tables.chunks if chunks is None else len(chunks)
        numbers = spark.range(0, count, 1, max(1, count))
        if chunks:
            numbers = numbers.select(F.element_at(F.array(*map(F.lit, chunks)), (F.col("id") + 1).cast("int")))
        rows = numbers.mapInArrow(self._reader, schema)
        stored = {field.name: field.dataType for field in (*self._keys, *self._values)}
        return rows.select(*(F.col(quoted(f.name)).cast(stored.get(f.name, f.dataType)).alias(f.name) for f in schema))

    def result(
        self, began: float, most: int, *, values: bool, repair: bool, running: BacklogQuery | None
    ) -> Verification:
        """Compare, and repair if asked. Parameters as in `verify`; ``began``: the time when it started."""
        at = self._at
        keys = [f.name for f in self._keys]
        from pyspark import StorageLevel

        found = compared(self._source(), self._target, keys, self._values)
        if at.table.keeps_removed:
            found = found.where(F.col("source") > 0)
        found = found.persist(StorageLevel.DISK_ONLY)
        try:
            filter_messages(at.spark)
            end_console_progress(at.spark)
            with ReadingLine(self._reader, _named(at.tables.tables)):
                counts = found.groupBy("kind").agg(
                    F.count("*").alias("keys"),
                    F.sum("source").alias("source"),
                    F.sum("target").alias("target"),
                    F.collect_set("part").alias("parts"),
                ).collect()  # fmt: skip
            kinds = {row["kind"]: int(row["keys"]) for row in counts}
            differences: tuple[Difference, ...] = ()
            if most and set(kinds) - {SAME}:
                differences = self._first(found, most, values=values)
            if repair and set(kinds) - {SAME}:
                wrong = found.where(F.col("kind") != SAME)
                mending = Repair(at, self._key_fields, self._values, self._source)
                if running is None:
                    mending.stopped(wrong)
                else:
                    mending.between_batches(wrong, running, doubles=DOUBLED in kinds)
        finally:
            found.unpersist()
        return Verification(
            tables=at.tables.tables,
            target=at.target.place,
            version=at.target.version,
            batch_id=at.target.batch,
            position=at.tables.position,
            source_rows=sum(int(row["source"]) for row in counts),
            target_rows=sum(int(row["target"]) for row in counts),
            missing=kinds.get(MISSING, 0),
            extra=kinds.get(EXTRA, 0),
            different=kinds.get(DIFFERENT, 0),
            doubled=kinds.get(DOUBLED, 0),
            differences=differences,
            columns=tuple(f.name for f in (*self._keys, *self._values)),
            left_out=self._left_out,
            chunks=at.tables.chunks,
            differing_chunks=len({part for row in counts for part in row["parts"]}),
            repaired=sum(kinds.values()) - kinds.get(SAME, 0) if repair else 0,
            seconds=time.monotonic() - began,
        )

    def _first(self, found: DataFrame, most: int, *, values: bool) -> tuple[Difference, ...]:
        """The first differing keys. Their rows are read again if names of columns or values are needed."""
        keys = [f.name for f in self._keys]
        first = found.where(F.col("kind") != SAME).orderBy("key").limit(most).select("kind", "key", "part")
        wanted = first.where(F.col("kind") == DIFFERENT)
        if values:
            wanted = first.where(F.col("kind") != DOUBLED)
        listed = first.orderBy("key").collect()
        again = [r for r in listed if r["kind"] == DIFFERENT or (values and r["kind"] != DOUBLED)]
        if not again:
            return tuple(Difference(row["kind"], row["key"].asDict()) for row in listed)
        parts = sorted({row["part"] for row in again if row["part"] is not None})
        rows = [f.name for f in self._values]

        def side(frame: DataFrame, name: str) -> DataFrame:
            small = F.broadcast(wanted)
            found = frame.join(small, is_same(small, frame, keys), "inner")
            struct = F.struct(*(frame[quoted(c)].alias(c) for c in rows)) if rows else F.struct(F.lit(0).alias("_"))
            return found.select(small["key"], struct.alias(name))

        source = side(self._source(parts), "source")
        both = first.alias("f")
        for frame, name in ((source, "source"), (side(self._target, "target"), "target")):
            there = frame.withColumnRenamed("key", f"{name}_key")
            both = both.join(there, both["key"].eqNullSafe(there[f"{name}_key"]), "left")
        columns = F.when(F.col("kind") == DIFFERENT, differing_columns(self._values, "source", "target"))
        row_values = [F.col("source"), F.col("target")] if values else []
        listed = both.select("kind", "key", columns.alias("columns"), *row_values).orderBy("key").collect()
        return tuple(
            Difference(
                row["kind"],
                row["key"].asDict(),
                tuple(row["columns"] or ()),
                _values_of(row["source"], rows) if values else None,
                _values_of(row["target"], rows) if values else None,
            )
            for row in listed
        )


def _stored(at: BothSides, target: StructType, names: Sequence[str]) -> list[StructField]:
    """The source's columns with the types that they have in the target. Refuse other types, and missing keys."""
    source = {field.name: field for field in at.tables.columns}
    types = {field.name.lower(): field.dataType for field in target.fields}
    found = []
    for name in names:
        wanted, there = source[name].dataType, types.get(name.lower())
        if there is None or (wanted.simpleString() != there.simpleString() and not at.table.widens(wanted, there)):
            raise BacklogError(
                f"The column {name!r} is {wanted.simpleString()} in the source, and "
                f"{'missing' if there is None else there.simpleString()} in the {at.table.kind} at {at.target.place}.",
                "If the source was altered, verify again after the query has read the statement.",
            )
        found.append(StructField(name, there))
    return found


def _named(tables: Sequence[str]) -> str:
    return tables[0] if len(tables) == 1 else f"{len(tables)} tables"


def _values_of(row: Any, names: Sequence[str]) -> dict[str, Any] | None:
    return None if row is None else {name: row[name] for name in names}
