"""Rows of an existing table that a new query's first snapshot does not have: which are removed, and when."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest
from pyspark.sql.types import StructType

from backlog_spark.errors import SettingError
from backlog_spark.sinks import BatchInfo, DeltaTables, DeltaUpsert, SinkContext
from backlog_spark.sinks.leftovers import KeyFiles, names_to_remove

from .test_delta_emptied import WITH_TABLE as SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORED = StructType(SCHEMA.fields[:4])
KEYS = ("_database", "_table", "id")
Row = tuple[Any, ...]
A, B = ("db", "a"), ("db", "b")


def context(spark: SparkSession, root: Path, app: str = "app", **more: Any) -> SinkContext:
    given = {"snapshot_of": (A,), "directory": str(root / app), "writer": "q", **more}
    return SinkContext(spark, app, given.pop("schema", SCHEMA), True, **given)


def upsert(path: Path, **more: Any) -> DeltaUpsert:
    return DeltaUpsert(str(path), KEYS, metadata_columns=("_change_type", "_commit_seq"), **more)


def fill(spark: SparkSession, path: Path, rows: list[Row]) -> None:
    spark.createDataFrame(rows, STORED).write.format("delta").mode("append").save(str(path))


def contents(spark: SparkSession, path: Path) -> list[Row]:
    return sorted((tuple(row) for row in spark.read.format("delta").load(str(path)).collect()), key=str)


def inserts(rows: list[Row], sequence: int = 0) -> list[Row]:
    return [(*row, "insert", sequence) for row in rows]


def info(batch: int, count: int, **more: Any) -> BatchInfo:
    of: Literal["", "part", "end"] = "" if batch >= count else "end" if batch == count - 1 else "part"
    return BatchInfo(batch, is_backlog=batch < count, snapshot=of, **more)


@pytest.mark.parametrize(
    ("columns", "of_one_table", "expected"),
    [
        (KEYS, False, (A, B)),
        (KEYS, True, (A, B)),  # another query may write rows of other tables
        (("id",), True, ((),)),
        (("id",), False, ()),
        (("_table", "id"), False, ()),
    ],
)
def test_the_tables_whose_rows_can_be_told(columns: tuple[str, ...], of_one_table: bool, expected: Any) -> None:
    given = SinkContext(cast("Any", None), "app", SCHEMA, True, of_one_table=of_one_table, snapshot_of=(A, B))
    assert names_to_remove(given, columns) == expected
    without = SinkContext(cast("Any", None), "app", SCHEMA, True, of_one_table=of_one_table)
    assert names_to_remove(without, columns) == ()


def test_another_choice_is_refused() -> None:
    for made in (upsert, DeltaTables):
        with pytest.raises(SettingError, match=r"on_existing_rows = 'drop': must be 'replace', 'keep' or 'refuse'"):
            made(cast("Any", "/t"), on_existing_rows="drop")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.grid) for seed in range(2, 12))])
def test_random_snapshots_over_random_rows(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Against a dictionary. Batches are written again, by new sinks, as after a kill."""
    chance = random.Random(seed)
    path = tmp_path / "t"

    def some(table: tuple[str, str], text: str) -> list[Row]:
        keys = [*chance.sample(range(12), chance.randrange(1, 12)), *([None] if chance.random() < 0.3 else [])]
        return [(*table, key, text) for key in keys]

    fill(spark, path, [*some(A, "old"), *some(B, "other")])
    expected = {row[:3]: row for row in contents(spark, path) if row[:2] == B}
    snapshot = some(A, "new") if chance.random() < 0.9 else []
    count = chance.choice([1, 1, 2, 3, 5])
    batches: list[list[Row]] = [[] for _ in range(count)]
    for row in snapshot:
        batches[chance.randrange(count)].append(row)
    sink = upsert(path)
    sink.open(context(spark, tmp_path))
    emptied = chance.randrange(count) if chance.random() < 0.3 else -1
    for number, rows in enumerate(batches):
        changes = inserts(rows)
        if number == emptied:  # of the binary log, in a batch of a union
            expected = {key: row for key, row in expected.items() if key[:2] != A}
            changes = [(*A, None, None, "truncate", 5), *inserts(rows, 6)]
        expected |= {row[:3]: row for row in rows}
        if rows and chance.random() < 0.3:
            changes.append((*rows[0], "delete", 9))
            del expected[rows[0][:3]]
        batch = info(number, count, has_table_events=number == emptied)
        for _ in range(chance.choice([1, 2])):
            sink.write(spark.createDataFrame(changes, SCHEMA), batch)
            if chance.random() < 0.5:
                planned = number if number else None
                sink = upsert(path)
                sink.open(context(spark, tmp_path, newest_planned=planned if planned is not None else 0))
    assert contents(spark, path) == sorted(expected.values(), key=str)
    assert not (tmp_path / "app" / "keys").exists()
    # Rows that others add later stay, also at the end of a later snapshot.
    fill(spark, path, [(*A, 99, "by hand")])
    sink.write(spark.createDataFrame(inserts([(*A, 1, "live")], 20), SCHEMA), info(count, count))
    sink.write(spark.createDataFrame([], SCHEMA), BatchInfo(count + 1, True, snapshot="end"))
    expected |= {(*A, 1): (*A, 1, "live"), (*A, 99): (*A, 99, "by hand")}
    assert contents(spark, path) == sorted(expected.values(), key=str)


@pytest.mark.slow
def test_a_batch_that_failed_after_it_wrote_its_keys(spark: SparkSession, tmp_path: Path) -> None:
    """Its replay has the same rows, and the keys are written over."""
    fill(spark, tmp_path / "t", [(*A, 1, "old"), (*A, 2, "old"), (*A, 3, "old")])
    sink = upsert(tmp_path / "t")
    sink.open(context(spark, tmp_path))
    unfit = [(*A, 1, "new", "insert", 0), (*A, 2, "new", "unknown", 0)]
    with pytest.raises(Exception, match="unknown _change_type"):
        sink.write(spark.createDataFrame(unfit, SCHEMA), info(0, 2))
    assert (tmp_path / "app" / "keys" / "batch-0").exists()
    again = upsert(tmp_path / "t")
    again.open(context(spark, tmp_path, newest_planned=0))
    again.write(spark.createDataFrame(inserts([(*A, 1, "new")]), SCHEMA), info(0, 2))
    again.write(spark.createDataFrame(inserts([(*A, 4, "new")]), SCHEMA), info(1, 2))
    assert contents(spark, tmp_path / "t") == [(*A, 1, "new"), (*A, 4, "new")]


def test_keys_with_a_type_that_became_wider_and_a_path_like_a_pattern(spark: SparkSession, tmp_path: Path) -> None:
    files = KeyFiles(spark, str(tmp_path / "c[1]{a}?*"))
    for number, (kind, keys) in enumerate((("int", [1, None]), ("bigint", [2**40]))):
        frame = spark.createDataFrame([(key, "a") for key in keys], f"id {kind}, `a.b` string")
        files.write(spark.createDataFrame([(5, "left from before")], "id int, `a.b` string"), number)
        files.write(frame, number)
    assert sorted(map(tuple, files.read(frame).collect()), key=str) == [(1, "a"), (2**40, "a"), (None, "a")]
    files.delete()
    assert not files.exist()


@pytest.mark.slow
def test_keep_and_refuse(spark: SparkSession, tmp_path: Path) -> None:
    fill(spark, tmp_path / "t", [(*A, 1, "old"), (*A, 2, "old")])
    refusing = upsert(tmp_path / "t", on_existing_rows="refuse")
    with pytest.raises(SettingError, match=r"on_existing_rows = 'refuse'.* has rows that this query did not write"):
        refusing.open(context(spark, tmp_path))
    keeping = upsert(tmp_path / "t", on_existing_rows="keep")
    keeping.open(context(spark, tmp_path))
    keeping.write(spark.createDataFrame(inserts([(*A, 1, "new")]), SCHEMA), info(0, 1))
    assert contents(spark, tmp_path / "t") == [(*A, 1, "new"), (*A, 2, "old")]
    refusing.open(context(spark, tmp_path, newest_planned=0))  # the query has written some
    # A table without rows, and one that the sink creates.
    fill(spark, tmp_path / "empty", [])
    for name in ("empty", "none"):
        fitting = upsert(tmp_path / name, on_existing_rows="refuse")
        fitting.open(context(spark, tmp_path))
        fitting.write(spark.createDataFrame(inserts([(*A, 1, "new")]), SCHEMA), info(0, 1))
        assert contents(spark, tmp_path / name) == [(*A, 1, "new")]


@pytest.mark.slow
def test_another_choice_in_the_middle_keeps_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    """The keys of the batch in between are missing, so nobody knows which rows to remove."""
    fill(spark, tmp_path / "t", [(*A, 1, "old"), (*A, 2, "old"), (*A, 3, "old")])
    for number, choice in enumerate(("replace", "keep", "replace")):
        sink = upsert(tmp_path / "t", on_existing_rows=choice)
        sink.open(context(spark, tmp_path, newest_planned=number - 1 if number else None))
        sink.write(spark.createDataFrame(inserts([(*A, number, "new")]), SCHEMA), info(number, 3))
    assert contents(spark, tmp_path / "t") == [(*A, 0, "new"), (*A, 1, "new"), (*A, 2, "new"), (*A, 3, "old")]


@pytest.mark.slow
def test_rows_that_cannot_be_told_apart_stay(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schema = StructType(SCHEMA.fields[2:])
    spark.createDataFrame([(1, "old"), (2, "old")], StructType(STORED.fields[2:])).write.format("delta").save(
        str(tmp_path / "t")
    )
    sink = DeltaUpsert(str(tmp_path / "t"), ["id"], metadata_columns=("_change_type", "_commit_seq"))
    sink.open(context(spark, tmp_path, schema=schema, snapshot_of=(A, B)))
    with caplog.at_level(logging.WARNING):
        sink.write(spark.createDataFrame([(1, "a", "insert", 0)], schema), info(0, 2))
        sink.write(spark.createDataFrame([(3, "b", "insert", 0)], schema), info(1, 2))
    assert contents(spark, tmp_path / "t") == [(1, "a"), (2, "old"), (3, "b")]
    assert ["without the columns _database and _table" in each.message for each in caplog.records] == [True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("others", "is_shared"),
    [
        ({"writer": "r", "snapshot_of": (B,)}, False),
        ({"writer": "r", "snapshot_of": (B, A)}, True),
        ({"writer": "r", "snapshot_of": ()}, True),
        ({"writer": "q"}, False),  # an earlier checkpoint of the same query
    ],
)
def test_rows_of_other_queries_stay(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, others: dict[str, Any], is_shared: bool
) -> None:
    other = upsert(tmp_path / "t")
    other.open(context(spark, tmp_path, "other", **others))
    other.write(spark.createDataFrame(inserts([(*A, 1, "o"), (*A, 2, "o"), (*B, 1, "o")]), SCHEMA), info(0, 1))
    sink = upsert(tmp_path / "t")
    sink.open(context(spark, tmp_path))
    with caplog.at_level(logging.WARNING):
        for number, key in enumerate((1, 3)):
            sink.write(spark.createDataFrame(inserts([(*A, key, "new")]), SCHEMA), info(number, 2))
    stay = [(*A, 2, "o")] if is_shared else []
    assert contents(spark, tmp_path / "t") == [(*A, 1, "new"), *stay, (*A, 3, "new"), (*B, 1, "o")]
    assert ["other queries write there too (r)" in each.message for each in caplog.records] == [True] * is_shared
