"""IcebergUpsert on real tables: rows by both writers, replays, other writers, and what is refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DecimalType, IntegerType, LongType, StringType, StructType, TimestampType

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks import BatchInfo, IcebergUpsert, SinkContext
from backlog_spark.sinks.iceberg import commits
from tests.sinks.iceberg.deletes import delete_keys
from tests.sinks.iceberg.places import TABLE, catalog_at, created, rows_of, table_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    StructType()
    .add("id", LongType())
    .add("name", StringType())
    .add("_change_type", StringType())
    .add("_commit_timestamp", TimestampType())
    .add("_commit_seq", LongType())
)
Change = tuple[int | None, str | None, str, int | None]
BACKLOG: list[Change] = [(1, "a", "insert", 0), (2, "b", "insert", 0), (3, None, "insert", 0)]


def changes(spark: SparkSession, rows: Sequence[Change]) -> DataFrame:
    """A batch of (id, name, change type, sequence)."""
    return spark.createDataFrame([(key, name, kind, None, seq) for key, name, kind, seq in rows], SCHEMA)


def opened(
    spark: SparkSession,
    lake: Path,
    *,
    schema: StructType = SCHEMA,
    planned: int | None = None,
    committed: int | None = None,
    unique: bool = True,
    context: dict[str, Any] | None = None,
    **options: Any,
) -> IcebergUpsert:
    """A sink that is open."""
    sink = IcebergUpsert(TABLE, options.pop("keys", ["id"]), catalog_at(lake), **options)
    sink.open(SinkContext(spark, "app", schema, unique, planned, committed, **(context or {})))
    return sink


def files_of(lake: Path) -> set[str]:
    return {task.file.file_path for task in table_at(lake).scan().plan_files()}


def random_changes(rng: random.Random, state: dict[int | None, str | None], first: int, count: int) -> list[Change]:
    """Changes as a source sends them, in random order; they are applied to the state."""
    keys: list[int | None] = [None, *range(60)]
    made: list[Change] = []
    for seq in range(first, first + count):
        key = rng.choice(keys)
        if key not in state:
            made.append((key, value := f"v{seq}", "insert", seq))
            state[key] = value
            continue
        old = state.pop(key)
        what = rng.choice(["delete", "update", "move"])
        if what == "delete":
            made.append((key, old, "delete", seq))
            continue
        free = [each for each in keys if each not in state]
        to = rng.choice(free) if what == "move" else key
        made += [
            (key, old, "update_preimage", seq),
            (to, value := rng.choice([None, f"w{seq}"]), "update_postimage", seq),
        ]
        state[to] = value
    rng.shuffle(made)
    return made


@pytest.mark.parametrize(
    ("road", "options"),
    [
        ("direct", {}),
        ("files", {"small_batch_rows": 0}),
        pytest.param("direct", {"partition_by": ["name"], "compact": True}, marks=pytest.mark.slow, id="direct-parts"),
        pytest.param(
            "files", {"partition_by": ["name"], "small_batch_rows": 0}, marks=pytest.mark.slow, id="files-parts"
        ),
    ],
)
def test_random_changes_in_random_batches(spark: SparkSession, tmp_path: Path, road: str, options: Any) -> None:
    rng = random.Random(11)
    state: dict[int | None, str | None] = {1: "a", 2: "b", 3: None}
    sink = opened(spark, tmp_path, **options)
    sink.write(changes(spark, BACKLOG), BatchInfo(0, True))
    assert rows_of(table_at(tmp_path)) == Counter(state.items())
    for batch in range(1, 8):
        made = random_changes(rng, state, 100 * batch, rng.choice([0, 1, 8, 90]))
        sink.write(changes(spark, made), BatchInfo(batch, False))
        assert sink.written is not None
        assert (sink.written.writer, sink.written.attempts) == (road, 1)
        assert rows_of(table_at(tmp_path)) == Counter(state.items()), batch


def test_a_batch_changes_only_files_with_its_keys(spark: SparkSession, tmp_path: Path) -> None:
    for number, rows in enumerate(([1, 2], [11, 12], [21, 22])):
        sink = opened(spark, tmp_path, planned=number - 1 if number else None, committed=number - 1 if number else None)
        sink.write(changes(spark, [(key, "x", "insert", 0) for key in rows]), BatchInfo(number, False))
    before = files_of(tmp_path)
    assert len(before) == 3
    sink.write(changes(spark, [(11, "y", "update_postimage", 1), (15, "z", "insert", 2)]), BatchInfo(3, False))
    assert len(before & files_of(tmp_path)) == 2
    by_spark = opened(spark, tmp_path, planned=3, committed=3, small_batch_rows=0)
    before = files_of(tmp_path)
    by_spark.write(changes(spark, [(1, "y", "update_postimage", 3), (99, None, "delete", 4)]), BatchInfo(4, False))
    assert len(before - files_of(tmp_path)) == 1
    assert rows_of(table_at(tmp_path)) == Counter(
        [(1, "y"), (2, "x"), (11, "y"), (12, "x"), (15, "z"), (21, "x"), (22, "x")]
    )


def test_a_replay_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path)
    sink.write(changes(spark, BACKLOG), BatchInfo(0, True))
    sink.write(changes(spark, [(1, "a1", "update_postimage", 1)]), BatchInfo(1, False))
    sink.write(changes(spark, []), BatchInfo(2, False))
    snapshots = len(table_at(tmp_path).snapshots())
    assert snapshots == 3, "an empty batch makes one too"
    restarted = opened(spark, tmp_path, planned=2, committed=1)
    for again in (sink, restarted):
        for batch in (0, 1, 2):
            again.write(changes(spark, [(8, "other", "insert", 5)]), BatchInfo(batch, False))
            assert again.written is not None
            assert again.written.writer == "none"
    assert len(table_at(tmp_path).snapshots()) == snapshots
    assert rows_of(table_at(tmp_path)) == Counter([(1, "a1"), (2, "b"), (3, None)])
    with pytest.raises(BacklogError, match="lacks batches of this query"):
        restarted.write(changes(spark, BACKLOG), BatchInfo(4, False))
    with pytest.raises(BacklogError, match="newest batch in its checkpoint is 1"):
        opened(spark, tmp_path, planned=1, committed=1)


def test_another_writer_in_between(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, foreign = commits.commit_batch, pa.table({"id": [2, 50], "name": ["foreign", "foreign"]})

    def after_another(*arguments: Any) -> None:
        monkeypatch.setattr(commits, "commit_batch", plain)
        table_at(tmp_path).append(foreign)
        plain(*arguments)

    sink = opened(spark, tmp_path)
    sink.write(changes(spark, BACKLOG), BatchInfo(0, True))
    for batch, options in ((1, {}), (2, {"small_batch_rows": 0})):
        monkeypatch.setattr(commits, "commit_batch", after_another)
        sink = opened(spark, tmp_path, planned=batch - 1, committed=batch - 1, **options)
        made: list[Change] = [(2, f"b{batch}", "update_postimage", batch), (50, None, "delete", batch)]
        sink.write(changes(spark, made), BatchInfo(batch, False))
        assert sink.written is not None
        assert sink.written.attempts == 2
        # The other one's rows of the keys came first.
        assert rows_of(table_at(tmp_path)) == Counter([(1, "a"), (2, f"b{batch}"), (3, None)])


def test_backlog_is_appended_until_another_writer_adds_rows(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path)
    sink.write(changes(spark, BACKLOG), BatchInfo(0, True))
    sink.write(changes(spark, [(4, "d", "insert", 1)]), BatchInfo(1, True))
    operations = [str(each.summary.operation.value) for each in table_at(tmp_path).snapshots() if each.summary]
    assert operations == ["append", "append"]
    with pytest.raises(Exception, match="unique inserts has a row with _change_type = delete"):
        sink.write(changes(spark, [(4, "d", "delete", 2)]), BatchInfo(2, True))
    table_at(tmp_path).append(pa.table({"id": [5], "name": ["foreign"]}))
    sink.write(changes(spark, [(5, "e", "insert", 3)]), BatchInfo(2, True))
    sink.write(changes(spark, [(5, "e2", "update_postimage", 4)]), BatchInfo(3, True, has_changes=True))
    assert rows_of(table_at(tmp_path)) == Counter([(1, "a"), (2, "b"), (3, None), (4, "d"), (5, "e2")])


EVENTS = StructType([*SCHEMA.fields]).add("_database", StringType()).add("_table", StringType())


@pytest.mark.parametrize("named", [False, True])
def test_truncated_tables_lose_older_rows(spark: SparkSession, tmp_path: Path, named: bool) -> None:
    def rows(*given: tuple[Any, ...]) -> DataFrame:
        made = [(key, name, kind, None, seq, "shop", table) for key, name, kind, seq, table in given]
        found = spark.createDataFrame(made, EVENTS)
        return found if named else found.drop("_database", "_table")

    schema = EVENTS if named else SCHEMA
    sink = opened(spark, tmp_path, schema=schema, context={"of_one_table": not named})
    sink.write(rows((1, "a", "insert", 0, "one"), (2, "b", "insert", 0, "two")), BatchInfo(0, False))
    events = BatchInfo(1, False, has_table_events=True)
    sink.write(
        rows((None, None, "truncate", 5, "one"), (3, "old", "insert", 4, "one"), (4, "new", "insert", 6, "one")), events
    )
    kept = {"two": 1} if named else {}
    assert rows_of(table_at(tmp_path), ["id", "name"]) == Counter([(4, "new"), *([(2, "b")] if kept else [])])
    sink.write(rows((None, None, "drop", 7, "one")), BatchInfo(2, False, has_table_events=True))
    assert rows_of(table_at(tmp_path), ["id", "name"]) == Counter([(2, "b")] if kept else [])


def test_columns_are_added_and_widened(spark: SparkSession, tmp_path: Path) -> None:
    plain = {"keys": ["id"], "change_type": None, "sequence": None, "metadata_columns": ()}
    narrow = StructType().add("id", IntegerType()).add("price", DecimalType(5, 2))
    wide = StructType().add("id", LongType()).add("price", DecimalType(9, 2)).add("new", StringType())
    sink = opened(spark, tmp_path, schema=narrow, **plain)
    sink.write(spark.createDataFrame([(1, None), (2, None)], narrow), BatchInfo(0, False))
    with pytest.raises(BacklogError, match=r"column 'id' of type int; the stream's key column 'id' is long.*merge_sch"):
        opened(spark, tmp_path, schema=wide, planned=0, committed=0, **plain)
    sink = opened(spark, tmp_path, schema=wide, planned=0, committed=0, merge_schema=True, **plain)
    sink.write(spark.createDataFrame([(2, None, "x"), (2**40, None, "y")], wide), BatchInfo(1, False))
    # The stream has its old columns again: rows of before the change may come after it, by both writers.
    for batch, rows in ((2, 100_000), (3, 0)):
        sink = opened(
            spark, tmp_path, schema=narrow, planned=batch - 1, committed=batch - 1, small_batch_rows=rows, **plain
        )
        sink.write(spark.createDataFrame([(2, None), (batch + 10, None)], narrow), BatchInfo(batch, False))
    found = rows_of(table_at(tmp_path), ["id", "new"])
    assert found == Counter([(1, None), (2, "x"), (2**40, "y"), (12, None), (13, None)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": ["nr"]}, r"IcebergUpsert keys = \['nr'\]: there is no column 'nr'"),
        ({"keys": ["_commit_seq"]}, "is a metadata column"),
        ({"keys": []}, "at least one key column"),
        ({"sequence": "nr"}, r"IcebergUpsert sequence = 'nr': the stream has no such column"),
        ({"partition_by": ["nr"]}, r"IcebergUpsert partition_by = \['nr'\]"),
        ({"expire_snapshots": "soon"}, r"expire_snapshots = 'soon'"),
        ({"small_batch_rows": -1}, "out of bounds"),
    ],
)
def test_refused_settings(spark: SparkSession, tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        opened(spark, tmp_path, **options)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([("id", pa.int64())], r"has no column 'name'.*merge_schema=True adds it"),
        ([("id", pa.int64()), ("NAME", pa.string())], r"has no column 'name', but 'NAME'.*Rename"),
        ([("id", pa.string()), ("name", pa.string())], r"column 'id' of type string; .*key column 'id' is long"),
        (
            [("id", pa.int64()), ("name", pa.string()), pa.field("must", pa.int64(), nullable=False)],
            "requires a value in",
        ),
    ],
)
def test_refused_tables(spark: SparkSession, tmp_path: Path, schema: Any, message: str) -> None:
    created(tmp_path, pa.schema(schema))
    with pytest.raises(BacklogError, match=message):
        opened(spark, tmp_path)


def test_tables_of_other_queries(spark: SparkSession, tmp_path: Path) -> None:
    opened(spark, tmp_path).write(changes(spark, BACKLOG), BatchInfo(0, True))
    other = IcebergUpsert(TABLE, ["name"], catalog_at(tmp_path))
    with pytest.raises(SettingError, match="made by a query of another checkpoint, with the keys id"):
        other.open(SinkContext(spark, "other", SCHEMA, True))
    sink = IcebergUpsert(TABLE, ["id"], catalog_at(tmp_path))
    assert sink.has_rows_of(spark, "app")
    assert not sink.has_rows_of(spark, "other")
    with pytest.raises(BacklogError, match=r"There is no Iceberg table.*committed batches up to 3"):
        IcebergUpsert("shop.gone", ["id"], catalog_at(tmp_path)).open(SinkContext(spark, "app", SCHEMA, True, 3, 3))
    with pytest.raises(BacklogError, match="is not open"):
        sink.write(changes(spark, BACKLOG), BatchInfo(0, True))


def test_a_wrong_change_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    for batch, options in ((0, {}), (0, {"small_batch_rows": 0})):
        sink = opened(spark, tmp_path, **options)
        with pytest.raises(Exception, match="unknown _change_type = upsert"):
            sink.write(changes(spark, [(1, "a", "upsert", 0)]), BatchInfo(batch, False))
    assert table_at(tmp_path).current_snapshot() is None


def test_equality_deletes_of_another_engine_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path)
    sink.write(changes(spark, BACKLOG), BatchInfo(0, True))
    delete_keys(table_at(tmp_path), "id", [1])
    refused = r"equality deletes in the Iceberg table sqlite.*shop\.orders, which pyiceberg cannot read: .*Let Spark"
    with pytest.raises(BacklogError, match=refused):
        sink.write(changes(spark, [(9, "x", "insert", 1)]), BatchInfo(1, False))
    with pytest.raises(BacklogError, match=refused):
        opened(spark, tmp_path, planned=0, committed=0)
