"""Both writers into a Delta table store the same values: all types, keys, names, partitions, deletion vectors.

A table's reader leaves out files by the least and greatest values in its log. So each writer's rows are looked for by
value too: a wrong one loses rows that are there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from backlog_spark.sinks import BatchInfo, DeltaAppend, DeltaUpsert, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.sinks.delta.sink import DeltaSink

WRITERS = {"direct": 1000, "spark": 0}
"""`small_batch_rows` of each."""

# Every type of docs/mysql_cdc.md, and those that other sources have.
TYPES = {
    "id": "int",
    "tiny": "tinyint",
    "small": "smallint",
    "whole": "int",
    "long": "bigint",
    "unsigned": "decimal(20,0)",
    "d9": "decimal(9,2)",
    "d15": "decimal(15,5)",
    "d18": "decimal(18,4)",
    "d38": "decimal(38,0)",
    "d38_10": "decimal(38,10)",
    "d38_38": "decimal(38,38)",
    "single": "float",
    "double": "double",
    "flag": "boolean",
    "text": "string",
    "bytes": "binary",
    "day": "date",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "words": "array<string>",
    "inner": "struct<a: int, b: struct<at: timestamp, big: decimal(38,10), x: double>>",
    "by_name": "map<string, decimal(38,10)>",
    "times": "array<array<timestamp_ntz>>",
}
SCHEMA = ", ".join(f"{name} {type}" for name, type in TYPES.items())
NAN, INFINITY = float("nan"), float("inf")
NINES = "9" * 38
D38_10, D38_38 = Decimal(f"{NINES[:28]}.{NINES[:10]}"), Decimal(f"0.{NINES}")
LEAST, LEAST_38 = D38_10.copy_negate(), D38_38.copy_negate()  # "-" would round to 28 digits
LAST = datetime(9999, 12, 31, 23, 59, 59, 999999)
INT64_NANOS = datetime(2262, 4, 11, 23, 47, 16, 854776)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


# Least and greatest of each type, NULL, and what a writer may take for another.
# fmt: off
VALUES: list[tuple[Any, ...]] = [
    (1, -128, -2**15, -2**31, -2**63, Decimal(2**64 - 1), Decimal("-9999999.99"), Decimal("-9999999999.99999"),
     Decimal("-99999999999999.9999"), Decimal(f"-{NINES}"), LEAST, LEAST_38, -INFINITY, -INFINITY, False, "", b"",
     date(1, 1, 1), utc(1, 1, 1), datetime(1, 1, 1), [], (None, None), {}, []),
    (2, 127, 2**15 - 1, 2**31 - 1, 2**63 - 1, Decimal(2**63), Decimal("9999999.99"), Decimal("9999999999.99999"),
     Decimal("99999999999999.9999"), Decimal(NINES), D38_10, D38_38, INFINITY, INFINITY, True, "a" * 40 + "\U0001f600",
     b"\xff" * 40, date(9999, 12, 31), LAST.replace(tzinfo=UTC), LAST, [None, ""], (1, (utc(2500, 1, 1), D38_10, NAN)),
     {"": None, "k": Decimal("1.5")}, [None, [datetime(1, 1, 1), None]]),
    (3, *[None] * 23),
    (4, 0, 0, 0, 0, Decimal(0), Decimal("0.07"), Decimal("0.00001"), Decimal("0.0001"), Decimal(0), Decimal("1e-10"),
     Decimal("1e-38"), NAN, NAN, None, "\0", b"\0", date(1582, 10, 4), utc(1677, 9, 21, 0, 12, 43),
     datetime(1582, 10, 10), ["\0"], (None, (None, None, None)), {"a": LEAST}, [[]]),
    (5, 1, 1, 1, 1, Decimal(1), None, None, None, None, None, None, -0.0, -0.0, None, "\U0010ffff" * 33, b"\x80",
     date(1969, 12, 31), utc(1969, 12, 31, 23, 59, 59, 999999), datetime(1969, 12, 31, 23, 59, 59, 999999), None, None,
     None, None),
    (6, 1, 1, 1, 1, Decimal(1), None, None, None, None, None, None, 1.401298464324817e-45, 5e-324, None, "é" * 33, b"",
     date(2038, 1, 20), INT64_NANOS.replace(tzinfo=UTC), INT64_NANOS, None, (None, (utc(1, 1, 1), LEAST, INFINITY)),
     None, None),
]
# fmt: on


def same(value: Any) -> Any:
    """A comparable value: NaN equals itself and -0.0 differs from 0.0."""
    if isinstance(value, float):
        return "NaN" if value != value else struct.pack(">d", value)
    if isinstance(value, Mapping):
        return tuple((key, same(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(same, value))
    return value


def rows_of(frame: DataFrame) -> list[Any]:
    """Sorted rows, read with Arrow: Python's dates and local times cannot represent all values."""
    return sorted((same(list(row.values())) for row in frame.toArrow().to_pylist()), key=repr)


def table(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("delta").load(str(path))


def opened(spark: SparkSession, sink: DeltaSink, schema: str, newest: int | None = None) -> DeltaSink:
    """An open sink, after a batch."""
    sink.open(SinkContext(spark, "app", StructType.fromDDL(schema), False, newest, newest))
    return sink


def write(sink: DeltaSink, batch_df: DataFrame, batch_id: int, writer: str) -> None:
    """Write a live batch, which must go by a writer."""
    sink.write(batch_df, BatchInfo(batch_id, False))
    assert sink.written is not None
    assert (sink.written.writer, sink.written.batch_id) == (writer, batch_id), sink.written


def upsert(path: Path, keys: Sequence[str], writer: str, **options: Any) -> DeltaUpsert:
    kinds = {"change_type": "_change_type", "sequence": None, "metadata_columns": ("_change_type",)}
    return DeltaUpsert(str(path), keys, small_batch_rows=WRITERS[writer], **kinds, **options)


def as_changes(frame: DataFrame, kind: str = "insert") -> DataFrame:
    return frame.withColumn("_change_type", F.lit(kind))


def lost(found: DataFrame, values: DataFrame, columns: Iterable[str]) -> list[str]:
    """Columns by whose value a filter does not find the row."""
    conditions = {
        f"{row['id']} {column}": f"{column} = CAST('{row['v']}' AS {type})"
        for column in columns
        for type in [values.select(column).schema[0].dataType.simpleString()]
        for row in values.select("id", F.col(column).cast("string").alias("v")).where("v IS NOT NULL").collect()
    }
    parts = [
        # Only files that may have the row are read, so the row is looked for in those alone.
        found.where(condition).where(F.col("id") == int(name.split()[0])).select(F.lit(name).alias("name"))
        for name, condition in conditions.items()
    ]
    rows = {row["name"] for row in reduce(lambda left, right: left.union(right), parts).collect()}
    return sorted(set(conditions) - rows)


@pytest.fixture(scope="module")
def values(spark: SparkSession) -> Iterator[DataFrame]:
    frame = spark.createDataFrame(VALUES, SCHEMA).coalesce(1).cache()
    yield frame
    frame.unpersist()


# Those of which a writer's least and greatest values may be wrong.
INEXACT = ("unsigned", "d15", "d18", "d38", "d38_10", "d38_38", "double", "text", "at", "local", "inner.b.x")


@pytest.mark.slow
def test_appended_values(spark: SparkSession, tmp_path: Path, values: DataFrame) -> None:
    sink = opened(spark, DeltaAppend(str(tmp_path)), SCHEMA)
    write(sink, values, 0, "direct")
    assert rows_of(table(spark, tmp_path)) == rows_of(values)
    # All rows in one file, so its values are not those of a single row.
    assert lost(table(spark, tmp_path), values.where("id IN (1, 2, 4)"), ("double", "inner.b.x")) == []
    # Then each extreme in a file of its own.
    write(sink, values.where("id = 1"), 1, "direct")
    write(sink, values.where("id = 2"), 2, "direct")
    singles = table(spark, tmp_path).where(F.input_file_name() != _file_with(table(spark, tmp_path), 3))
    assert rows_of(singles) == rows_of(values.where("id < 3"))
    assert lost(singles, values.where("id < 3"), INEXACT) == []


def _file_with(frame: DataFrame, key: int) -> str:
    return str(frame.where(F.col("id") == key).select(F.input_file_name()).first()[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"), [("spark", "direct"), pytest.param("direct", "spark", marks=pytest.mark.grid)]
)
def test_merged_values(spark: SparkSession, tmp_path: Path, values: DataFrame, first: str, second: str) -> None:
    schema = f"{SCHEMA}, _change_type string"
    sink = opened(spark, upsert(tmp_path, ["id"], first), schema)
    write(sink, as_changes(values), 0, first)
    # Two rows swap all their values, one goes, one comes; the others are written anew as they are.
    swapped = values.where("id IN (1, 2)").withColumn("id", 3 - F.col("id"))
    gone, come = values.where("id = 5"), values.where("id = 4").withColumn("id", F.lit(7))
    batch = as_changes(swapped, "update_postimage").union(as_changes(gone, "delete")).union(as_changes(come))
    sink = opened(spark, upsert(tmp_path, ["id"], second), schema, 0)
    write(sink, batch, 1, second)
    expected = values.where("id NOT IN (1, 2, 5)").union(swapped).union(come)
    assert rows_of(table(spark, tmp_path)) == rows_of(expected)
    if second == "direct":
        assert lost(table(spark, tmp_path), expected.where("id < 3"), ("unsigned", "d38_38", "inner.b.big")) == []


KEYS = {
    "Key": "bigint",
    "a.b": "boolean",
    "s": "decimal(20,0)",
    "t\"'": "timestamp",
    "select": "binary",
    "é": "string",
}
BIG, SOON = Decimal(2**64 - 1), utc(2020, 1, 1, 0, 0, 0, 999999)


@pytest.mark.slow
def test_keys_of_any_name_and_type_with_nulls(spark: SparkSession, tmp_path: Path) -> None:
    rows: list[tuple[Any, ...]] = [
        (1, True, BIG, SOON, b"\xff", "x" * 40),
        (1, False, BIG, SOON, b"\xff", "x" * 40),
        (1, None, BIG, SOON, b"\xff", "x" * 40),
        (None, None, None, None, None, None),
        (1, True, BIG, utc(9999, 1, 1), b"", ""),
        (1, True, Decimal(2**63), SOON, b"\xff", "\U0010ffff" * 33),
    ]
    schema = ", ".join(f"`{name}` {type}" for name, type in KEYS.items()) + ", v string, _change_type string"
    sink = opened(spark, upsert(tmp_path, list(KEYS), "spark"), schema)
    write(sink, spark.createDataFrame([(*row, f"old {n}", "insert") for n, row in enumerate(rows)], schema), 0, "spark")
    changes: list[tuple[Any, ...]] = [(*row, f"new {n}", "insert") for n, row in enumerate(rows[:4])]
    changes += [(*row, None, "delete") for row in rows[4:]]
    changes += [(2, *rows[0][1:], None, "delete"), (None, True, *rows[3][2:], "come", "insert")]
    sink = opened(spark, upsert(tmp_path, list(KEYS), "direct"), schema, 0)
    write(sink, spark.createDataFrame(changes, schema), 1, "direct")
    expected = [*(row[:-1] for row in changes if row[-1] == "insert")]
    assert rows_of(table(spark, tmp_path)) == sorted((same(row) for row in expected), key=repr)


@pytest.mark.slow
def test_batches_that_change_nothing_leave_their_numbers(spark: SparkSession, tmp_path: Path) -> None:
    schema = "id int, _change_type string"
    # With such a property Delta drops numbers without a time.
    properties = {"delta.setTransactionRetentionDuration": "interval 1 day"}
    sink = opened(spark, upsert(tmp_path, ["id"], "direct", properties=properties), schema)
    write(sink, spark.createDataFrame([(1, "delete")], schema), 0, "direct")
    write(sink, spark.createDataFrame([], schema), 1, "direct")
    # Spark's own view of the table decides.
    again = opened(spark, upsert(tmp_path, ["id"], "spark"), schema, 1)
    write(again, spark.createDataFrame([(2, "insert")], schema), 2, "spark")
    assert rows_of(table(spark, tmp_path)) == [(2,)]


PARTITIONS = "id int, p string, q date, r boolean, n bigint"
TEXTS = ["a/b", "a=b", "50%", "%20", "a b", "x:y", "é😀", "'\"\\", " lead ", "a\nb\x01", "..", "#?&+", "null"]


def test_appended_partitions(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "with space"
    sink = opened(spark, DeltaAppend(str(path), partition_by=["p", "q", "r", "n"]), PARTITIONS)
    rows: list[tuple[Any, ...]] = [
        (number, text, date(1, 1, 1) if number % 2 else date(9999, 12, 31), bool(number % 2), -(2**63) + number)
        for number, text in enumerate(TEXTS)
    ]
    rows.append((len(rows), None, None, None, None))
    write(sink, spark.createDataFrame(rows, PARTITIONS).coalesce(1), 0, "direct")
    # '' is NULL to Spark.
    write(sink, spark.createDataFrame([(99, "", None, True, 1)], PARTITIONS), 1, "files")
    found = table(spark, path)
    assert rows_of(found) == sorted((same(row) for row in [*rows, (99, None, None, True, 1)]), key=repr)
    pruned = found.where(F.col("p").isin(*TEXTS) & F.col("q").isNotNull() & (F.col("n") < 0))
    assert rows_of(pruned) == sorted(map(same, rows[:-1]), key=repr)


@pytest.mark.grid
def test_merged_partitions(spark: SparkSession, tmp_path: Path) -> None:
    schema = "id int, p date, q boolean, r int, v string, _change_type string"
    options = {"partition_by": ["p", "q", "r"]}
    old, new = date(1, 1, 1), date(9999, 12, 31)
    rows: list[tuple[Any, ...]] = [
        (1, old, True, -1, "stays"),
        (2, old, True, -1, "moves"),
        (3, old, False, None, "goes"),
        (4, None, None, None, "changes"),
    ]
    sink = opened(spark, upsert(tmp_path, ["id"], "spark", **options), schema)
    write(sink, spark.createDataFrame([(*row, "insert") for row in rows], schema), 0, "spark")
    second = opened(spark, upsert(tmp_path, ["id"], "direct"), schema, 0)
    after: list[tuple[Any, ...]] = [(2, new, None, 7, "moved"), (4, None, None, None, "changed"), (5, old, True, 0, "")]
    changes = [*((*row, "update_postimage") for row in after), (3, None, None, None, None, "delete")]
    write(second, spark.createDataFrame(changes, schema), 1, "direct")
    found = table(spark, tmp_path)
    assert rows_of(found) == sorted(map(same, [rows[0], *after]), key=repr)
    assert rows_of(found.where(F.col("p") == F.lit(new)).select("id")) == [(2,)]
    assert rows_of(found.where("p IS NULL").select("id")) == [(4,)]


@pytest.mark.slow
def test_rows_marked_as_deleted_stay_so(spark: SparkSession, tmp_path: Path) -> None:
    schema = "id bigint, side int, v string, _change_type string"
    name = f"delta.`{tmp_path}`"
    vectors = {"delta.enableDeletionVectors": "true"}
    sink = opened(spark, upsert(tmp_path, ["id"], "direct", properties=vectors, partition_by=["side"]), schema)
    numbers = spark.range(200).select("id", (F.col("id") % 2).cast("int").alias("side"), F.lit("old").alias("v"))
    sink.write(as_changes(numbers.coalesce(1)), BatchInfo(0, True))
    expected = {number: (number % 2, "old") for number in range(200)}

    def step(batch_id: int, changes: Sequence[tuple[int, str, str]]) -> None:
        batch = [(key, key % 2, v, kind) for key, v, kind in changes]
        write(sink, spark.createDataFrame(batch, schema), batch_id, "direct")
        for key, v, kind in changes:
            expected.pop(key, None)
            if kind != "delete":
                expected[key] = (key % 2, v)

    spark.sql(f"DELETE FROM {name} WHERE id % 10 = 3")
    for key in range(3, 200, 10):
        del expected[key]
    step(1, [(3, "back", "insert"), (13, "", "delete"), (4, "new", "update_postimage"), (5, "", "delete")])
    spark.sql(f"UPDATE {name} SET v = 'user' WHERE id IN (4, 3, 6)")
    expected.update({key: (key % 2, "user") for key in (4, 3, 6)})
    step(2, [(6, "newer", "insert"), (4, "", "delete"), (200, "come", "insert")])
    found = table(spark, tmp_path)
    assert rows_of(found) == sorted(((key, *rest) for key, rest in expected.items()), key=repr)
    assert found.count() == len(expected)  # from the log alone
