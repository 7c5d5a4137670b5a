"""JdbcUpsert on real servers: rows, marks, and what is refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks import SinkContext
from backlog_spark.sinks.database.staging import stage_prefix

from .targets import LIVE, SCHEMA, STAGED, Change, Target, batch, changes, writer_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FIRST: tuple[Change, ...] = ((1, "a", "insert", 0), (2, "b", "insert", 0), (3, None, "insert", 0))
SECOND: tuple[Change, ...] = (
    (1, "a", "update_preimage", 10),
    (1, "a1", "update_postimage", 10),  # same sequence: the after-image wins
    (2, "b", "delete", 11),
    (4, "d", "insert", 12),
    (5, "e", "insert", 13),
    (5, "e", "delete", 14),  # came and went
    (9, None, "delete", 15),  # was never there
)
THIRD: tuple[Change, ...] = (
    (3, "c3", "update_postimage", 23),
    (2, "b2", "insert", 20),  # a deleted key comes back
    (3, "c1", "update_postimage", 21),
    (4, "d", "delete", 24),
    (4, "d2", "insert", 25),
    (1, "a1", "update_preimage", 26),  # the update moved key 1 to 7
    (7, "a1", "update_postimage", 26),
)
AFTER = Counter([(2, "b2"), (3, "c3"), (4, "d2"), (7, "a1")])


@pytest.mark.parametrize("roads", [(STAGED, LIVE, STAGED), (LIVE, STAGED, LIVE)], ids=["staged", "live"])
def test_changes_by_either_road(spark: SparkSession, target: Target, roads: tuple[bool, ...]) -> None:
    sink = target.opened(spark)
    for number, (rows, road) in enumerate(zip((FIRST, SECOND, THIRD), roads, strict=True)):
        sink.write(changes(spark, *rows), batch(number, road))
        assert writer_of(sink) == ("spark" if road else "direct")
        assert sink.written is not None
        assert sink.written.rows is not None
    assert target.rows() == AFTER
    for number, road in ((3, LIVE), (4, STAGED)):  # empty batches count too
        sink.write(changes(spark), batch(number, road))
    assert target.rows() == AFTER
    assert target.marks() == [("app", "t", 4)]
    assert target.tables() == {"t", "_backlog_spark_marks"}


def test_a_replayed_batch_changes_nothing_and_reads_nothing(spark: SparkSession, target: Target) -> None:
    sink = target.opened(spark)
    sink.write(changes(spark, *FIRST), batch(0, STAGED))
    sink.write(changes(spark, *SECOND), batch(1, LIVE))
    expected, read = target.rows(), spark.sparkContext.accumulator(0)

    def counted(rows: DataFrame) -> DataFrame:
        def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for each in batches:
                read.add(each.num_rows)
                yield each

        return rows.mapInArrow(count, rows.schema)

    again = target.opened(spark, context={"newest_planned": 1, "newest_committed": 0})
    for one in (sink, again):
        for number, road in ((0, STAGED), (0, LIVE), (1, STAGED), (1, LIVE)):
            one.write(counted(changes(spark, (8, "other", "insert", 99))), batch(number, road))
            assert writer_of(one) == "none"
    assert (target.rows(), read.value) == (expected, 0)
    # Another checkpoint counts its batches on its own.
    other = target.opened(spark, context={"txn_app_id": "other"})
    other.write(counted(changes(spark, (8, "o", "insert", 0))), batch(0, LIVE))
    assert target.rows() == expected + Counter([(8, "o")])
    assert (target.marks(), read.value) == ([("app", "t", 1), ("other", "t", 0)], 1)


def test_a_target_that_does_not_belong_to_the_checkpoint_is_refused(spark: SparkSession, target: Target) -> None:
    with pytest.raises(BacklogError, match="lacks batches of this query: the checkpoint has committed up to 3"):
        target.opened(spark, context={"newest_planned": 4, "newest_committed": 3})
    assert target.tables() == set()
    sink = target.opened(spark)
    sink.write(changes(spark, *FIRST), batch(0))
    with pytest.raises(BacklogError, match="lacks batches"):
        sink.write(changes(spark, *FIRST), batch(2))
    with pytest.raises(BacklogError, match="has batch 0 of this query, but the newest batch in its checkpoint is None"):
        target.opened(spark)
    known = {"newest_planned": 0, "newest_committed": 0}
    with pytest.raises(SettingError, match="the checkpoint's rows are in t"):
        target.opened(spark, "t2", context=known)
    target.run('DROP TABLE "t"')
    with pytest.raises(BacklogError, match=r"The table \S+\.t lacks batches"):
        target.opened(spark, context=known)
    assert target.tables() == {"_backlog_spark_marks"}


def test_whether_a_target_has_rows_of_a_query(spark: SparkSession, target: Target) -> None:
    assert not target.sink().has_rows_of(spark, "app")
    sink = target.opened(spark)
    assert not sink.has_rows_of(spark, "app")
    sink.write(changes(spark), batch(0))
    assert target.sink().has_rows_of(spark, "app")
    assert not target.sink("t2").has_rows_of(spark, "app")
    assert not target.sink().has_rows_of(spark, "other")


def test_a_large_live_batch_is_staged(spark: SparkSession, target: Target) -> None:
    sink = target.opened(spark, small_batch_rows=2)
    sink.write(changes(spark, *FIRST), batch(0, LIVE))
    assert sink.written is not None
    assert (sink.written.writer, sink.written.reason) == ("spark", "it has more than 2 rows")
    sink.write(changes(spark, (1, "x", "update_postimage", 5)), batch(1, LIVE))
    assert writer_of(sink) == "direct"
    never = target.opened(spark, small_batch_rows=0, context={"newest_planned": 1, "newest_committed": 1})
    never.write(changes(spark, (2, None, "delete", 6)), batch(2, LIVE))
    assert never.written is not None
    assert never.written.reason == "small_batch_rows is 0"
    assert target.rows() == Counter([(1, "x"), (3, None)])


def test_inserts_of_different_keys_are_not_sorted(spark: SparkSession, target: Target) -> None:
    sink = target.opened(spark, context={"key_is_unique_in_backlog": True})
    sink.write(changes(spark, *FIRST), batch(0, STAGED))
    with pytest.raises(Exception, match="a backlog batch of unique inserts has a row with _change_type = delete"):
        sink.write(changes(spark, *SECOND[2:]), batch(1, STAGED))
    sink.write(changes(spark, *SECOND), batch(1, STAGED, has_changes=True))
    assert target.rows() == Counter([(1, "a1"), (3, None), (4, "d")])


def test_wide_batches(spark: SparkSession, target: Target) -> None:
    """More keys and longer values than fit into one statement."""
    fields = [StructField(name, LongType()) for name in ("a", "b")]
    schema = StructType([*fields, StructField("v", StringType()), *SCHEMA.fields[2:]])
    sink = target.sink(keys=["a", "b"])
    sink.open(SinkContext(**{**target.context(spark), "schema": schema}))
    keys = [(n % 7, n) for n in range(5000)]

    def frame(kind: str, seq: int, long: int) -> DataFrame:
        return spark.createDataFrame([(a, b, "x" * (long if b < 6 else 3), kind, None, seq) for a, b in keys], schema)

    sink.write(frame("insert", 0, 700_000), batch(0, LIVE))
    assert writer_of(sink) == "direct"
    expected = Counter({(3,): 4994, (700_000,): 6})
    assert target.rows(columns="LENGTH(v)") == expected
    sink.write(frame("update_postimage", 1, 5), batch(1, STAGED))
    assert target.rows(columns="LENGTH(v)") == Counter({(3,): 4994, (5,): 6})
    sink.write(frame("delete", 2, 0).where("a < 6"), batch(2, LIVE))
    assert target.rows(columns="a") == Counter({(6,): 714})
    sink.write(frame("delete", 3, 0).where("b > 13"), batch(3, STAGED))
    assert target.rows(columns="a, b") == Counter([(6, 6), (6, 13)])


@pytest.mark.parametrize("road", [STAGED, LIVE], ids=["staged", "live"])
def test_odd_names_and_keys_only(spark: SparkSession, target: Target, road: bool) -> None:
    odd = 'it\'s 100 %s `a`; "b" \\ ä'
    table = f"my {odd}"
    quoted = odd.replace("`", "``")
    schema = StructType([StructField(odd, StringType()), *SCHEMA.fields[2:]])
    place = f"`{'public' if target.is_postgres else target.database}`.`my {quoted}`"
    sink = target.sink(place, keys=[odd])
    sink.open(SinkContext(**{**target.context(spark), "schema": schema}))
    values = ["'", '"', "\\", "%s", "a\nb\tc", "\\N", "'; DROP TABLE x; --", "😀", "", "a", "A", "\r", "\\."]
    rows = [(value, "insert", None, n) for n, value in enumerate(values)]
    sink.write(spark.createDataFrame(rows, schema), batch(0, road))
    name, column = table.replace('"', '""'), odd.replace('"', '""')
    assert target.rows(name, f'"{column}"'.replace("%", "%")) == Counter((value,) for value in values)
    deleted = [(value, "delete", None, 99) for value in values[:-4]]
    sink.write(spark.createDataFrame(deleted, schema), batch(1, road))
    again = [("a", "update_postimage", None, 100)]
    sink.write(spark.createDataFrame(again, schema), batch(2, road))
    assert target.rows(name, f'"{column}"') == Counter((value,) for value in values[-4:])


@pytest.mark.parametrize("road", [STAGED, LIVE], ids=["staged", "live"])
def test_truncated_tables(spark: SparkSession, target: Target, road: bool) -> None:
    schema = StructType([*(StructField(n, StringType()) for n in ("_database", "_table")), *SCHEMA.fields])
    sink = target.sink(keys=["_database", "_table", "id"])
    sink.open(SinkContext(**{**target.context(spark), "schema": schema}))

    def rows(*given: tuple[Any, ...]) -> DataFrame:
        return spark.createDataFrame([(d, t, i, None, kind, None, seq) for d, t, i, kind, seq in given], schema)

    tables = [("a", "t"), ("a", "T"), ("b", "t")]
    sink.write(rows(*((d, t, i, "insert", 0) for d, t in tables for i in (1, 2))), batch(0, road))
    event = [("a", "t", 3, "insert", 1), ("a", "t", None, "truncate", 2), ("a", "t", 4, "insert", 3)]
    sink.write(rows(*event, ("b", "t", 1, "delete", 4)), batch(1, road, has_table_events=True))
    left = [("a", "t", 4), ("a", "T", 1), ("a", "T", 2), ("b", "t", 2)]
    assert target.rows(columns='"_database", "_table", id') == Counter(left)
    # Without the names of the tables it must be known that all rows are of one.
    plain = target.opened(spark, "t2", context={"txn_app_id": "plain"})
    plain.write(changes(spark, *FIRST), batch(0, road))
    dropped = changes(spark, (None, None, "drop", 5), (9, "z", "insert", 6))
    with pytest.raises(BacklogError, match="the rows to remove are not known"):
        plain.write(dropped, batch(1, road, has_table_events=True))
    known = {"txn_app_id": "plain", "of_one_table": True, "newest_planned": 1, "newest_committed": 0}
    one = target.opened(spark, "t2", context=known)
    one.write(dropped, batch(1, road, has_table_events=True))
    assert target.rows("t2") == Counter([(9, "z")])


@pytest.mark.parametrize("road", [STAGED, LIVE], ids=["staged", "live"])
def test_rows_that_mean_nothing_fail_and_write_nothing(spark: SparkSession, target: Target, road: bool) -> None:
    sink = target.opened(spark)
    sink.write(changes(spark, *FIRST), batch(0, road))
    for rows, said in (
        ([(None, "x", "insert", 1)], "NULL in its key id"),
        ([(5, "x", "upsert", 1)], "unknown _change_type = upsert"),
    ):
        with pytest.raises(Exception, match=said):
            sink.write(changes(spark, (4, "d", "insert", 1), *rows), batch(1, road))
    unordered = target.opened(
        spark, "t2", context={"txn_app_id": "o"}, sequence=None, metadata_columns=["_change_type", "_commit_timestamp"]
    )
    with pytest.raises(Exception, match="two rows of one key in a batch"):
        unordered.write(changes(spark, (1, "a", "insert", 1), (1, "b", "insert", 2)), batch(0, road))
    assert target.rows() == Counter([(1, "a"), (2, "b"), (3, None)])
    assert target.rows("t2") == Counter()
    assert target.marks() == [("app", "t", 0)]
    assert not [name for name in target.tables() if name.startswith("_backlog_spark_stage")]


NAMES = [None, "", "a", "A", "ä", "it's", '"', "\\", "%s", "\\N", "a\tb\n", "😀", "x" * 300]
PARTS = ["a", "A", "b'", "ü", "\\", "%"]


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.grid) for n in range(2, 12))])
def test_random_changes(spark: SparkSession, target: Target, seed: int) -> None:
    rng = random.Random(seed)
    schema = StructType([StructField("id", LongType()), StructField("part", StringType()), *SCHEMA.fields[1:]])
    model: dict[tuple[int, str], str | None] = {}
    context = {**target.context(spark), "schema": schema, "of_one_table": True}
    seq = 0

    def drawn() -> tuple[list[tuple[Any, ...]], bool]:
        nonlocal seq
        rows: list[tuple[Any, ...]] = []
        has_events = False
        for _ in range(rng.choice([0, 1, 5, 60])):
            seq += 1
            key = (rng.randrange(-5, 15), rng.choice(PARTS))
            name, chance = rng.choice(NAMES), rng.random()
            if chance < 0.02:
                rows.append((None, None, None, "truncate", None, seq))
                model.clear()
                has_events = True
            elif key not in model:
                rows.append((*key, name, "insert", None, seq))
                model[key] = name
            elif chance < 0.3:
                rows.append((*key, model.pop(key), "delete", None, seq))
            else:
                new = key if chance < 0.7 else (rng.randrange(-5, 15), rng.choice(PARTS))
                if new != key and new in model:
                    continue
                rows.append((*key, model.pop(key), "update_preimage", None, seq))
                rows.append((*new, name, "update_postimage", None, seq))
                model[new] = name
        rng.shuffle(rows)
        return rows, has_events

    sink = target.sink(keys=["part", "id"])
    sink.open(SinkContext(**context))
    for number in range(12):
        rows, has_events = drawn()
        info = batch(number, rng.random() < 0.4, has_table_events=has_events)
        sink.write(spark.createDataFrame(rows, schema).repartition(3), info)
        assert target.rows(columns="id, part, name") == Counter((*key, name) for key, name in model.items())
        if rng.random() < 0.3:
            sink = target.sink(keys=["part", "id"], small_batch_rows=rng.choice([0, 30, 1000]))
            sink.open(SinkContext(**context, newest_planned=number, newest_committed=number - 1 if number else None))
            sink.write(spark.createDataFrame([(99, "z", "z", "insert", None, 0)], schema), info)
            assert writer_of(sink) == "none"
    assert target.marks() == [("app", "t", 11)]


def test_leftovers_of_a_killed_driver_are_dropped(spark: SparkSession, target: Target) -> None:
    mine, others = f"{stage_prefix('app')}dead", f"{stage_prefix('other')}live"
    for name in (mine, others):
        target.run(f'CREATE TABLE "{name}" (a INT)')
    target.opened(spark)
    assert target.tables() == {"t", "_backlog_spark_marks", others}
