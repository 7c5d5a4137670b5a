"""Marked rows, archives and versions on real Delta tables, written by both roads, against a replay of the log."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks import BatchInfo, DeltaTables, DeltaUpsert, SinkContext

from .keeping_rows import Change, cut, kept, marked, plain_rows, random_log, versions
from .kept_batches import MARKS, SCD2, SCHEMA, SOFT, VERSIONS, at, batch_of, change, info_of
from .test_fills import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def opened(spark: SparkSession, path: Path, newest: int | None = None, **more: Any) -> DeltaUpsert:
    context = {name: more.pop(name) for name in ("snapshot_of", "directory", "schema", "unique", "app") if name in more}
    sink = DeltaUpsert(str(path), ["id"], **more)
    given = context.pop("schema", SCHEMA), context.pop("unique", False), newest, newest
    sink.open(SinkContext(spark, context.pop("app", "app"), *given, of_one_table=True, **context))
    return sink


def write(spark: SparkSession, sink: DeltaUpsert, number: int, changes: list[Change], **more: Any) -> str:
    sink.write(batch_of(spark, changes), info_of(number, changes, **more))
    assert sink.written is not None
    return sink.written.writer


def rows_of(spark: SparkSession, path: Path, columns: tuple[str, ...]) -> Counter[tuple[object, ...]]:
    return plain_rows(spark.read.format("delta").load(str(path)).select(*columns).collect())


@pytest.mark.slow
@pytest.mark.parametrize("road", ["direct", "spark"])
@pytest.mark.parametrize("form", ["scd2", "soft", "ignore"])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.grid) for seed in range(2, 12))])
def test_random_logs(spark: SparkSession, tmp_path: Path, road: str, form: str, seed: int) -> None:
    chance = random.Random(f"{seed}")
    tracked = chance.choice([["a", "b"], ["a"], ["b"], []])
    arguments: dict[str, Any] = {
        "scd2": {**SCD2, "track_history_columns": tracked}, "soft": SOFT, "ignore": {"deletes": "ignore"},
    }[form]  # fmt: skip
    arguments["small_batch_rows"] = 1000 if road == "direct" else 0
    log = random_log(chance, 70)
    sink = opened(spark, tmp_path, **arguments)
    batches, roads = cut(chance, log, 5), set()
    for number, batch in enumerate(batches):
        roads.add(write(spark, sink, number, batch))
        if chance.random() < 0.4:  # the same again, after a kill
            sink = opened(spark, tmp_path, number, **arguments)
            assert write(spark, sink, number, batch) == "none"
    assert ("direct" in roads) == (road == "direct"), sink.written
    if form == "scd2":
        assert rows_of(spark, tmp_path, VERSIONS) == versions(log, tracked)
    elif form == "soft":
        assert rows_of(spark, tmp_path, MARKS) == marked(log)
    else:
        assert rows_of(spark, tmp_path, VERSIONS[:3]) == kept(log)


@pytest.mark.parametrize("arguments", [SCD2, SOFT])
def test_a_backlog_of_unique_keys_is_appended(spark: SparkSession, tmp_path: Path, arguments: dict[str, Any]) -> None:
    sink = opened(spark, tmp_path, unique=True, **arguments)
    first = [change(1, "x", "insert", 0), change(2, "y", "insert", 0), change(None, "z", "insert", 0)]
    assert write(spark, sink, 0, first, is_backlog=True) == "files", vars(sink)
    later = [change(1, "x", "delete", 5), change(2, "y2", "update_postimage", 6), change(1, "back", "insert", 7)]
    assert write(spark, sink, 1, later) == "direct"
    if arguments is SCD2:
        assert rows_of(spark, tmp_path, VERSIONS) == versions([*first, *later])
    else:
        assert rows_of(spark, tmp_path, MARKS) == marked([*first, *later])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["scd2", "soft"])
def test_rows_that_a_new_snapshot_lacks_end(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """In several batches, with a TRUNCATE in the last, as of a union."""
    table, arguments = tmp_path / "t", SCD2 if form == "scd2" else SOFT
    old = [change(key, "old", "insert", 0) for key in range(4)]
    write(spark, opened(spark, table, app="first", **arguments), 0, old)
    more = {**arguments, "snapshot_of": ((),), "directory": str(tmp_path / "files")}
    sink = opened(spark, table, **more)
    write(spark, sink, 0, [change(1, "old", "insert", 1)], is_backlog=True, snapshot="part")
    write(spark, sink, 1, [change(2, "new", "insert", 1)], is_backlog=True, snapshot="end")
    rows = spark.read.format("delta").load(str(table)).collect()
    if form == "scd2":
        current = {(row["id"], row["a"], row["valid_from"]) for row in rows if row["is_current"]}
        assert current == {(1, "old", at(0)), (2, "new", at(1))}
        assert Counter(row["id"] for row in rows) == Counter([0, 1, 2, 2, 3])
        assert all(row["valid_to"] is not None for row in rows if not row["is_current"])
    else:
        assert {row["id"]: row["_is_deleted"] for row in rows} == {0: True, 1: False, 2: False, 3: True}
        assert all((row["gone_at"] is not None) == row["_is_deleted"] for row in rows)
        assert len(rows) == 4


@pytest.mark.slow
@pytest.mark.parametrize("form", ["scd2", "soft"])
def test_a_table_emptied_at_the_end_of_a_snapshot(spark: SparkSession, tmp_path: Path, form: str) -> None:
    table, arguments = tmp_path / "t", SCD2 if form == "scd2" else SOFT
    write(spark, opened(spark, table, app="first", **arguments), 0, [change(9, "old", "insert", 0)])
    more = {**arguments, "snapshot_of": ((),), "directory": str(tmp_path / "files")}
    sink = opened(spark, table, **more)
    write(spark, sink, 0, [change(1, "x", "insert", 1), change(2, "x", "insert", 1)], is_backlog=True, snapshot="part")
    last = [change(None, None, "truncate", 5, None), change(2, "x", "insert", 6), change(3, "x", "insert", 2)]
    write(spark, sink, 1, last, is_backlog=True, snapshot="end")
    if form == "scd2":
        expected: list[tuple[Any, ...]] = [
            (9, "old", 1.0, at(0), at(5), False),
            (1, "x", 1.0, at(1), at(5), False),
            (2, "x", 1.0, at(1), at(5), False),
            (3, "x", 1.0, at(2), at(5), False),
            (2, "x", 1.0, at(6), None, True),
        ]
        assert rows_of(spark, table, VERSIONS) == Counter(expected)
    else:
        expected = [(9, "old", 1.0, True, at(5)), (1, "x", 1.0, True, at(5)), (2, "x", 1.0, False, None)]
        assert rows_of(spark, table, MARKS) == Counter([*expected, (3, "x", 1.0, True, at(5))])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["scd2", "soft"])
def test_a_new_column_gets_its_value(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """In marked rows too, but not in old versions."""
    import pyarrow as pa

    arguments = SCD2 if form == "scd2" else SOFT
    sink = opened(spark, tmp_path, **arguments)
    first = [change(1, "x", "insert", 1), change(2, "x", "insert", 2), change(3, "x", "insert", 3)]
    write(spark, sink, 0, [*first, change(3, "x", "delete", 4)])
    wider = StructType([*SCHEMA.fields[:3], StructField("c", StringType()), *SCHEMA.fields[3:]])
    sink = opened(spark, tmp_path, 0, schema=wider, merge_schema=True, **arguments)
    rows = spark.createDataFrame([(2, "y", 1.0, None, "update_postimage", at(5), 5)], wider)
    sink.write(rows, BatchInfo(1, False, fills=(fill("t", c=(pa.string(), "new")),)))
    found = spark.read.format("delta").load(str(tmp_path))
    if form == "scd2":
        values = Counter(tuple(row) for row in found.select("id", "a", "c", "is_current").collect())
        expected = [(1, "x", "new", True), (2, "y", "new", True), (2, "x", None, False), (3, "x", None, False)]
        assert values == Counter(expected)
    else:
        values = Counter(tuple(row) for row in found.select("id", "a", "c", "_is_deleted").collect())
        assert values == Counter([(1, "x", "new", False), (2, "y", "new", False), (3, "x", "new", True)])
    # The same value again is no new version.
    again = spark.createDataFrame([(2, "y", 1.0, "new", "update_postimage", at(6), 6)], wider)
    sink.write(again, BatchInfo(2, False))
    assert spark.read.format("delta").load(str(tmp_path)).count() == found.count()


@pytest.mark.slow
def test_a_table_from_before_gets_the_marks(spark: SparkSession, tmp_path: Path) -> None:
    write(spark, opened(spark, tmp_path, app="first"), 0, [change(1, "x", "insert", 1), change(2, "x", "insert", 2)])
    with pytest.raises(BacklogError, match=r"no column '_is_deleted'.*merge_schema=True"):
        opened(spark, tmp_path, deletes="soft")
    with pytest.raises(SettingError, match=r"DeltaUpsert history = 'scd2': the rows .* were written with None"):
        opened(spark, tmp_path, merge_schema=True, **SCD2)
    sink = opened(spark, tmp_path, merge_schema=True, **SOFT)
    write(spark, sink, 0, [change(2, "x", "delete", 3), change(3, "z", "insert", 4)])
    expected: list[tuple[Any, ...]] = [
        (1, "x", 1.0, None, None), (2, "x", 1.0, True, at(3)), (3, "z", 1.0, False, None),
    ]  # fmt: skip
    assert rows_of(spark, tmp_path, MARKS) == Counter(expected)


@pytest.mark.slow
def test_another_form_of_a_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write(spark, opened(spark, tmp_path / "scd2", **SCD2), 0, [change(1, "x", "insert", 1)])
    write(spark, opened(spark, tmp_path / "soft", **SOFT), 0, [change(1, "x", "insert", 1)])
    for path, arguments, setting in [
        ("scd2", {}, r"history = None: .*'scd2'"),
        ("scd2", SOFT, r"history = None: .*'scd2'"),
        ("scd2", {**SCD2, "valid_from": "since"}, r"version_columns = 'since, valid_to, is_current'"),
        ("soft", {}, r"deletes = 'remove': .*'soft'"),
        ("soft", SCD2, r"deletes = 'remove': .*'soft'"),
        ("soft", {"deletes": "soft", "deleted_column": "gone"}, r"deleted_column = 'gone': .*'_is_deleted'"),
    ]:
        with pytest.raises(SettingError, match=setting):
            opened(spark, tmp_path / path, app="other", merge_schema=True, **arguments)
    # A table that is made by hand may be used, and the same form again.
    spark.sql(
        f"CREATE TABLE delta.`{tmp_path}/own` (id BIGINT, a STRING, b DOUBLE, valid_from TIMESTAMP, "
        "valid_to TIMESTAMP, is_current BOOLEAN) USING delta PARTITIONED BY (is_current)"
    )
    sink = opened(spark, tmp_path / "own", **SCD2)
    log = [change(1, "x", "insert", 1), change(1, "y", "update_postimage", 2)]
    for number, each in enumerate(log):
        assert write(spark, sink, number, [each]) == "direct"
    assert rows_of(spark, tmp_path / "own", VERSIONS) == versions(log)
    opened(spark, tmp_path / "own", 1, **SCD2)
    opened(spark, tmp_path / "scd2", app="other", **SCD2)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"deletes": "hide"}, r"deletes = 'hide': must be 'remove', 'soft' or 'ignore'"),
        ({"history": "scd1"}, r"history = 'scd1': must be 'scd2' or None"),
        ({**SCD2, "deletes": "soft"}, "has no marks"),
        ({"deletes": "soft", "change_type": None}, "no effect with change_type=None"),
        ({"deletes": "ignore", "change_type": None}, "no effect with change_type=None"),
        ({"deleted_at_column": "gone"}, "deleted_at_column = 'gone': has no effect with deletes='remove'"),
        ({"track_history_columns": ["a"]}, "no effect without history"),
    ],
)
def test_refused_arguments(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        DeltaUpsert("/t", ["id"], **more)


def test_refused_for_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    odd = StructType([*SCHEMA.fields, StructField("m", MapType(StringType(), ArrayType(LongType())))])
    text = StructType([*SCHEMA.fields[:4], StructField("_commit_timestamp", StringType()), SCHEMA.fields[5]])
    results = StructType(SCHEMA.fields[:4])
    for more, problem in [
        ({**SOFT, "deleted_column": "A"}, "DeltaUpsert deleted_column = 'A': the stream, or another setting"),
        ({**SOFT, "deleted_column": "gone_at"}, "DeltaUpsert deleted_at_column = 'gone_at'"),
        ({**SOFT, "schema": text}, "'_commit_timestamp', which must be timestamp and is string"),
        ({**SCD2, "schema": text}, "'_commit_timestamp', which must be timestamp and is string"),
        ({**SCD2, "commit_time": "at"}, "'at', which must be timestamp and is missing"),
        ({**SCD2, "valid_to": "b"}, "DeltaUpsert valid_to = 'b'"),
        ({**SCD2, "schema": odd}, "'m': the column is map<string,array<bigint>>, whose values cannot be compared"),
        ({**SCD2, "track_history_columns": ["c"]}, "'c': the column is not stored"),
        ({**SCD2, "track_history_columns": ["id"]}, "'id': the column is a key"),
    ]:
        with pytest.raises(SettingError, match=problem):
            opened(spark, tmp_path / "t", **more)
    sink = DeltaUpsert(str(tmp_path / "t"), ["id"], **SCD2)
    with pytest.raises(SettingError, match=r"history = 'scd2': a sequence column orders .* DeltaAppend"):
        sink.open(SinkContext(spark, "app", results, False, rows_are_results=True))


def test_the_directory_of_tables_takes_the_same_arguments() -> None:
    with pytest.raises(SettingError, match="has no marks"):
        DeltaTables("/t", history="scd2", deletes="soft")
    made = DeltaTables("/t", deletes="soft", deleted_column="gone").for_output()
    form = {"deletes": "soft", "history": None, "deleted_column": "gone"}
    assert made.described() == {"kind": "DeltaTables", "path": "/t", **form}


@pytest.mark.slow
def test_results_that_are_retracted_are_marked(spark: SparkSession, tmp_path: Path) -> None:
    schema = StructType(SCHEMA.fields[:4])
    sink = DeltaUpsert(str(tmp_path), ["id"], deletes="soft")
    sink.open(SinkContext(spark, "app", schema, False, rows_are_results=True))
    for number, rows in enumerate([[(1, "x", 1.0, "insert"), (2, "x", 1.0, "insert")], [(1, "x", 1.0, "delete")]]):
        sink.write(spark.createDataFrame(rows, schema), BatchInfo(number, False))
    assert rows_of(spark, tmp_path, MARKS[:4]) == Counter([(1, "x", 1.0, True), (2, "x", 1.0, False)])
