"""Marked rows, archives and versions on real Iceberg tables, written by both roads, against a replay of the log."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks import BatchInfo, IcebergUpsert, SinkContext
from tests.sinks.iceberg.places import TABLE, catalog_at, created, table_at
from tests.sinks.keeping_rows import EVENTS, Change, cut, kept, marked, plain_rows, random_log, versions
from tests.sinks.kept_batches import FORMS, MARKS, SCD2, SCHEMA, SOFT, VERSIONS, at, batch_of, change, info_of
from tests.sinks.test_fills import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def opened(spark: SparkSession, lake: Path, newest: int | None = None, **more: Any) -> IcebergUpsert:
    context = {name: more.pop(name) for name in ("snapshot_of", "directory", "schema", "unique", "app") if name in more}
    sink = IcebergUpsert(TABLE, ["id"], catalog_at(lake), **more)
    given = context.pop("schema", SCHEMA), context.pop("unique", False), newest, newest
    sink.open(SinkContext(spark, context.pop("app", "app"), *given, of_one_table=True, **context))
    return sink


def write(spark: SparkSession, sink: IcebergUpsert, number: int, changes: list[Change], **more: Any) -> str:
    sink.write(batch_of(spark, changes), info_of(number, changes, **more))
    assert sink.written is not None
    return sink.written.writer


def rows_of(lake: Path, columns: tuple[str, ...]) -> Counter[tuple[object, ...]]:
    rows = table_at(lake).scan().to_arrow().select(columns)
    naive = [c.cast(pa.timestamp("us")) if pa.types.is_timestamp(c.type) else c for c in rows.columns]
    return plain_rows(zip(*(column.to_pylist() for column in naive), strict=True))


@pytest.mark.parametrize(
    ("road", "form", "seed"),
    [
        ("both", "scd2", 1),
        *(
            pytest.param(road, form, 2, marks=pytest.mark.slow)
            for road, form in (("direct", "scd2"), ("files", "scd2"), ("both", "soft"), ("both", "ignore"))
        ),
        *(
            pytest.param(road, form, seed, marks=pytest.mark.grid)
            for road in ("direct", "files", "both")
            for form in FORMS
            for seed in range(3, 6)
        ),
    ],
)
def test_random_logs(spark: SparkSession, tmp_path: Path, road: str, form: str, seed: int) -> None:
    chance = random.Random(f"{seed}")
    tracked = chance.choice([["a", "b"], ["a"], ["b"], []])
    arguments = dict(FORMS[form])
    if form == "scd2":
        arguments["track_history_columns"] = tracked
    log = random_log(chance, 60, snapshot=chance.choice([0, 3, 7]))
    snapshot = [each for each in log if not each.sequence]
    batches = [snapshot, *cut(chance, log[len(snapshot) :], 3)]
    done: list[Change] = []
    for number, batch in enumerate(batches):
        chosen = ("direct", "files")[number % 2] if road == "both" else road
        newest, small = number - 1 if number else None, 1000 if chosen == "direct" else 0
        sink = opened(spark, tmp_path, newest, unique=True, small_batch_rows=small, **arguments)
        found = write(spark, sink, number, batch, is_backlog=number == 0)
        is_large = number == 0 or (any(each.kind in EVENTS for each in batch) and form != "ignore")
        assert found == ("files" if is_large else chosen), sink.written
        done += batch
        if chance.random() < 0.4:  # the same again, after a kill
            sink = opened(spark, tmp_path, number, unique=True, small_batch_rows=small, **arguments)
            assert write(spark, sink, number, batch) == "none"
        if form == "scd2":
            assert rows_of(tmp_path, VERSIONS) == versions(done, tracked), number
        elif form == "soft":
            assert rows_of(tmp_path, MARKS) == marked(done), number
        else:
            assert rows_of(tmp_path, VERSIONS[:3]) == kept(done), number
    first = table_at(tmp_path).snapshots()[0].summary
    assert first is not None
    assert first.operation.value == "append"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["scd2", "soft"])
def test_rows_that_a_new_snapshot_lacks_end(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """In several batches."""
    arguments = FORMS[form]
    old = [change(key, "old", "insert", 0) for key in range(4)]
    write(spark, opened(spark, tmp_path, app="first", **arguments), 0, old)
    more = {**arguments, "snapshot_of": ((),), "directory": str(tmp_path / "files")}
    sink = opened(spark, tmp_path, **more)
    write(spark, sink, 0, [change(1, "old", "insert", 1)], is_backlog=True, snapshot="part")
    write(spark, sink, 1, [change(2, "new", "insert", 1)], is_backlog=True, snapshot="end")
    if form == "scd2":
        rows = table_at(tmp_path).scan().to_arrow().to_pylist()
        current = {(row["id"], row["a"], row["valid_from"].replace(tzinfo=None)) for row in rows if row["is_current"]}
        assert current == {(1, "old", at(0)), (2, "new", at(1))}
        assert Counter(row["id"] for row in rows) == Counter([0, 1, 2, 2, 3])
        assert all(row["valid_to"] is not None for row in rows if not row["is_current"])
    else:
        rows = table_at(tmp_path).scan().to_arrow().to_pylist()
        assert {row["id"]: row["_is_deleted"] for row in rows} == {0: True, 1: False, 2: False, 3: True}
        assert all((row["gone_at"] is not None) == row["_is_deleted"] for row in rows)
        assert len(rows) == 4


@pytest.mark.slow
@pytest.mark.parametrize("form", ["scd2", "soft"])
def test_a_table_emptied_at_the_end_of_a_snapshot(spark: SparkSession, tmp_path: Path, form: str) -> None:
    arguments = FORMS[form]
    write(spark, opened(spark, tmp_path, app="first", **arguments), 0, [change(9, "old", "insert", 0)])
    more = {**arguments, "snapshot_of": ((),), "directory": str(tmp_path / "files")}
    sink = opened(spark, tmp_path, **more)
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
        assert rows_of(tmp_path, VERSIONS) == Counter(expected)
    else:
        expected = [(9, "old", 1.0, True, at(5)), (1, "x", 1.0, True, at(5)), (2, "x", 1.0, False, None)]
        assert rows_of(tmp_path, MARKS) == Counter([*expected, (3, "x", 1.0, True, at(5))])


@pytest.mark.slow
def test_only_files_with_rows_to_change_are_replaced(spark: SparkSession, tmp_path: Path) -> None:
    """A file with closed versions alone stays, also if the batch has their keys."""
    for road in (1000, 0):
        lake = tmp_path / str(road)
        sink = opened(spark, lake, small_batch_rows=road, **SCD2)
        write(spark, sink, 0, [change(key, "x", "insert", 1) for key in (1, 2)])
        write(spark, sink, 1, [change(key, "x", "delete", 2) for key in (1, 2)])
        write(spark, sink, 2, [change(9, "x", "insert", 3)])
        before = files_of(lake)
        write(spark, sink, 3, [change(1, "back", "insert", 4), change(9, "y", "update_postimage", 5)])
        assert len(before - files_of(lake)) == 1, road
        expected = [(1, "back", 1.0, at(4), None, True), (9, "y", 1.0, at(5), None, True)]
        assert {row for row in rows_of(lake, VERSIONS) if row[-1]} == set(expected)


def files_of(lake: Path) -> set[str]:
    return {task.file.file_path for task in table_at(lake).scan().plan_files()}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["scd2", "soft", "plain"])
def test_a_new_column_gets_its_value(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """In marked rows too, but not in old versions."""
    arguments = FORMS.get(form, {})
    sink = opened(spark, tmp_path, **arguments)
    first = [change(1, "x", "insert", 1), change(2, "x", "insert", 2), change(3, "x", "insert", 3)]
    write(spark, sink, 0, [*first, change(3, "x", "delete", 4)])
    wider = StructType([*SCHEMA.fields[:3], StructField("c", StringType()), *SCHEMA.fields[3:]])
    sink = opened(spark, tmp_path, 0, schema=wider, merge_schema=True, **arguments)
    assert sink.fills(of_one_table=True)
    rows = spark.createDataFrame([(2, "y", 1.0, None, "update_postimage", at(5), 5)], wider)
    sink.write(rows, BatchInfo(1, False, fills=(fill("t", c=(pa.string(), "new")),)))
    flag = {"scd2": ("is_current",), "soft": ("_is_deleted",), "plain": ()}[form]
    expected: dict[str, list[tuple[Any, ...]]] = {
        "scd2": [(1, "x", "new", True), (2, "y", "new", True), (2, "x", None, False), (3, "x", None, False)],
        "soft": [(1, "x", "new", False), (2, "y", "new", False), (3, "x", "new", True)],
        "plain": [(1, "x", "new"), (2, "y", "new")],
    }
    assert rows_of(tmp_path, ("id", "a", "c", *flag)) == Counter(expected[form])
    # The same value again is no new version.
    again = spark.createDataFrame([(2, "y", 1.0, "new", "update_postimage", at(6), 6)], wider)
    sink.write(again, BatchInfo(2, False))
    assert rows_of(tmp_path, ("id", "a", "c", *flag)) == Counter(expected[form])


@pytest.mark.slow
def test_a_table_from_before_gets_the_marks(spark: SparkSession, tmp_path: Path) -> None:
    write(spark, opened(spark, tmp_path, app="first"), 0, [change(1, "x", "insert", 1), change(2, "x", "insert", 2)])
    with pytest.raises(BacklogError, match=r"no column '_is_deleted'.*merge_schema=True"):
        opened(spark, tmp_path, deletes="soft")
    with pytest.raises(SettingError, match=r"IcebergUpsert history = 'scd2': the rows .* were written with None"):
        opened(spark, tmp_path, merge_schema=True, **SCD2)
    sink = opened(spark, tmp_path, merge_schema=True, **SOFT)
    write(spark, sink, 0, [change(2, "x", "delete", 3), change(3, "z", "insert", 4)])
    expected: list[tuple[Any, ...]] = [
        (1, "x", 1.0, None, None), (2, "x", 1.0, True, at(3)), (3, "z", 1.0, False, None),
    ]  # fmt: skip
    assert rows_of(tmp_path, MARKS) == Counter(expected)


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
    time = pa.timestamp("us", "UTC")
    own = [("id", pa.int64()), ("a", pa.string()), ("b", pa.float64()), ("valid_from", time), ("valid_to", time)]
    created(tmp_path / "own", pa.schema([*own, ("is_current", pa.bool_())]))
    sink = opened(spark, tmp_path / "own", **SCD2)
    log = [change(1, "x", "insert", 1), change(1, "y", "update_postimage", 2)]
    for number, each in enumerate(log):
        assert write(spark, sink, number, [each]) == "direct"
    assert rows_of(tmp_path / "own", VERSIONS) == versions(log)
    opened(spark, tmp_path / "own", 1, **SCD2)
    opened(spark, tmp_path / "scd2", app="other", **SCD2)


@pytest.mark.slow
def test_columns_that_the_stream_lacks_keep_their_values(spark: SparkSession, tmp_path: Path) -> None:
    """In versions that go on; a new version has NULL there, by both roads."""
    for road in (1000, 0):
        lake = tmp_path / str(road)
        sink = opened(spark, lake, small_batch_rows=road, track_history_columns=["a"], **SCD2)
        write(spark, sink, 0, [change(key, "x", "insert", key) for key in (1, 2)])
        table = table_at(lake)
        with table.update_schema() as update:
            update.add_column("other", table.schema().find_type("a"))
        rows = table.refresh().scan().to_arrow()
        table.overwrite(rows.drop_columns(["other"]).append_column("other", pa.array(["o"] * 2, pa.large_string())))
        sink = opened(spark, lake, 0, small_batch_rows=road, track_history_columns=["a"], **SCD2)
        made = [change(1, "x", "update_postimage", 3, 7.0), change(2, "y", "update_postimage", 4)]
        write(spark, sink, 1, made)
        assert rows_of(lake, ("id", "a", "b", "other", "is_current")) == Counter(
            [(1, "x", 7.0, "o", True), (2, "x", 1.0, "o", False), (2, "y", 1.0, None, True)]
        )


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"deletes": "hide"}, r"deletes = 'hide': must be 'remove', 'soft' or 'ignore'"),
        ({"history": "scd1"}, r"history = 'scd1': must be 'scd2' or None"),
        ({**SCD2, "deletes": "soft"}, "has no marks"),
        ({"deletes": "ignore", "change_type": None}, "no effect with change_type=None"),
        ({"deleted_at_column": "gone"}, "deleted_at_column = 'gone': has no effect with deletes='remove'"),
        ({"track_history_columns": ["a"]}, "no effect without history"),
    ],
)
def test_refused_arguments(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        IcebergUpsert(TABLE, ["id"], catalog_at("/t"), **more)


def test_what_the_checkpoint_records() -> None:
    sink = IcebergUpsert(TABLE, ["id"], catalog_at("/t"), deletes="soft", deleted_column="gone")
    assert sink.described().items() >= {"deletes": "soft", "history": None, "deleted_column": "gone"}.items()
    sink = IcebergUpsert(TABLE, ["id"], catalog_at("/t"), **SCD2)
    assert sink.described()["version_columns"] == "valid_from, valid_to, is_current"


def test_refused_for_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    odd = StructType([*SCHEMA.fields, StructField("m", MapType(StringType(), ArrayType(LongType())))])
    text = StructType([*SCHEMA.fields[:4], StructField("_commit_timestamp", StringType()), SCHEMA.fields[5]])
    results = StructType(SCHEMA.fields[:4])
    for more, problem in [
        ({**SOFT, "deleted_column": "A"}, "IcebergUpsert deleted_column = 'A': the stream, or another setting"),
        ({**SOFT, "schema": text}, "'_commit_timestamp', which must be timestamp and is string"),
        ({**SCD2, "valid_to": "b"}, "IcebergUpsert valid_to = 'b'"),
        ({**SCD2, "schema": odd}, "'m': the column is map<string,array<bigint>>, whose values cannot be compared"),
        ({**SCD2, "track_history_columns": ["c"]}, "IcebergUpsert track_history_columns = 'c': the column is not"),
    ]:
        with pytest.raises(SettingError, match=problem):
            opened(spark, tmp_path, **more)
    sink = IcebergUpsert(TABLE, ["id"], catalog_at(tmp_path), **SCD2)
    with pytest.raises(SettingError, match=r"IcebergUpsert history = 'scd2': a sequence column .* IcebergAppend"):
        sink.open(SinkContext(spark, "app", results, False, rows_are_results=True))


@pytest.mark.slow
def test_results_that_are_retracted_are_marked(spark: SparkSession, tmp_path: Path) -> None:
    schema = StructType(SCHEMA.fields[:4])
    sink = IcebergUpsert(TABLE, ["id"], catalog_at(tmp_path), deletes="soft")
    sink.open(SinkContext(spark, "app", schema, False, rows_are_results=True))
    for number, rows in enumerate([[(1, "x", 1.0, "insert"), (2, "x", 1.0, "insert")], [(1, "x", 1.0, "delete")]]):
        sink.write(spark.createDataFrame(rows, schema), BatchInfo(number, False))
    assert rows_of(tmp_path, MARKS[:4]) == Counter([(1, "x", 1.0, True), (2, "x", 1.0, False)])
