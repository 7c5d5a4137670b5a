"""DeltaUpsert on real Delta tables: rows, transactions, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks import BatchInfo, DeltaAppend, DeltaUpsert, SinkContext

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


def changes(spark: SparkSession, rows: Sequence[Change]) -> DataFrame:
    """A batch of (id, name, change type, sequence)."""
    return spark.createDataFrame([(key, name, kind, None, seq) for key, name, kind, seq in rows], SCHEMA)


def opened(spark: SparkSession, path: Path, app_id: str = "app", *, unique: bool = True, **options: Any) -> DeltaUpsert:
    """A sink that is open for batches of SCHEMA."""
    sink = DeltaUpsert(str(path), ["id"], **options)
    sink.open(SinkContext(spark, app_id, SCHEMA, unique))
    return sink


def rows_of(spark: SparkSession, path: Path | str) -> Counter[tuple[Any, ...]]:
    """The table as a multiset."""
    return Counter(tuple(row) for row in spark.read.format("delta").load(str(path)).collect())


def log_of(path: Path | str) -> list[tuple[str, list[tuple[str, int]]]]:
    """Each commit of the table: its operation and its (app id, version) transactions."""
    log = []
    for file in sorted(Path(path, "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        (operation,) = [action["commitInfo"]["operation"] for action in actions if "commitInfo" in action]
        log.append((operation, [(a["txn"]["appId"], a["txn"]["version"]) for a in actions if "txn" in a]))
    return log


BACKLOG: list[Change] = [(1, "a", "insert", 0), (2, "b", "insert", 0), (3, None, "insert", 0)]


@pytest.mark.slow
def test_append_then_merge(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t a b"
    sink = opened(spark, table)
    sink.write(changes(spark, BACKLOG), BatchInfo(0, True))
    sink.write(
        changes(
            spark,
            [
                (1, "a", "update_preimage", 10),
                (1, "a1", "update_postimage", 10),  # same sequence: the after-image wins
                (2, "b", "delete", 11),
                (4, "d", "insert", 12),
                (5, "e", "insert", 13),
                (5, "e", "delete", 14),  # came and went
                (9, None, "delete", 15),  # was never there
            ],
        ),
        BatchInfo(1, False),
    )
    assert rows_of(spark, table) == Counter([(1, "a1"), (3, None), (4, "d")])
    sink.write(
        changes(
            spark,
            [
                (3, "c3", "update_postimage", 23),
                (2, "b2", "insert", 20),  # a deleted key comes back
                (3, "c1", "update_postimage", 21),
                (3, "c2", "update_postimage", 22),
                (4, "d", "delete", 24),
                (4, "d2", "insert", 25),
                (1, "a1", "update_preimage", 26),  # the update moved key 1 to 7
                (7, "a1", "update_postimage", 26),
            ],
        ),
        BatchInfo(2, False),
    )
    assert rows_of(spark, table) == Counter([(2, "b2"), (3, "c3"), (4, "d2"), (7, "a1")])
    # An empty batch is one transaction as well, and so is a key that is NULL.
    sink.write(changes(spark, []), BatchInfo(3, False))
    for batch_id, name in ((4, "n1"), (5, "n2")):
        sink.write(changes(spark, [(None, name, "insert", 30)]), BatchInfo(batch_id, False))
    assert rows_of(spark, table) == Counter([(2, "b2"), (3, "c3"), (4, "d2"), (7, "a1"), (None, "n2")])
    assert log_of(table) == [
        ("CREATE TABLE", []),
        ("WRITE", [("app", 0)]),
        ("MERGE", [("app", 1)]),
        ("MERGE", [("app", 2)]),
        ("WRITE", [("app", 3)]),
        ("MERGE", [("app", 4)]),
        ("MERGE", [("app", 5)]),
    ]


def test_replayed_batch_changes_nothing_in_either_path(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path)
    sink.write(changes(spark, BACKLOG), BatchInfo(0, True))
    sink.write(changes(spark, [(1, "a1", "update_postimage", 1)]), BatchInfo(1, False))
    expected = Counter([(1, "a1"), (2, "b"), (3, None)])
    read: list[Any] = []
    restarted = DeltaUpsert(str(tmp_path), ["id"])
    restarted.open(SinkContext(spark, "app", SCHEMA, True, newest_planned=1, newest_committed=0))
    for again in (sink, restarted):
        for batch_id, is_backlog in ((0, True), (0, False), (1, True), (1, False)):
            rows = counted(spark, changes(spark, [(8, "other", "insert", 5)]), read)
            again.write(rows, BatchInfo(batch_id, is_backlog))
    assert rows_of(spark, tmp_path) == expected
    assert len(log_of(tmp_path)) == 3
    assert rows_read(read) == 0

    # Another checkpoint counts its batches on its own, and its backlog must not be appended to a table it did
    # not make.
    other = opened(spark, tmp_path, "other app")
    other.write(changes(spark, [(1, "z", "insert", 0), (8, "y", "insert", 0)]), BatchInfo(0, True))
    assert rows_of(spark, tmp_path) == Counter([(1, "z"), (2, "b"), (3, None), (8, "y")])
    assert log_of(tmp_path)[3:] == [("MERGE", [("other app", 0)])]


def counted(spark: SparkSession, rows: DataFrame, read: list[Any]) -> DataFrame:
    """The same rows, counted each time they are evaluated (also by a repeated evaluation)."""
    counter = spark.sparkContext.accumulator(0)
    read.append(counter)

    def count(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            counter.add(batch.num_rows)
            yield batch

    return rows.mapInArrow(count, rows.schema)


def rows_read(read: list[Any]) -> int:
    """Rows evaluated by all frames of `counted`."""
    return sum(counter.value for counter in read)


def test_rows_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    read: list[Any] = []
    sink = opened(spark, tmp_path)
    sink.write(counted(spark, changes(spark, BACKLOG), read), BatchInfo(0, True))
    assert rows_read(read) == 3
    sink.write(counted(spark, changes(spark, BACKLOG), read), BatchInfo(1, False))
    assert rows_read(read) == 6


@pytest.mark.parametrize(("is_backlog", "unique"), [(True, False), pytest.param(False, True, marks=pytest.mark.grid)])
def test_merge_without_the_promise(spark: SparkSession, tmp_path: Path, is_backlog: bool, unique: bool) -> None:
    sink = opened(spark, tmp_path, unique=unique)
    sink.write(changes(spark, [*BACKLOG, (1, "a1", "update_postimage", 1)]), BatchInfo(0, is_backlog))
    assert rows_of(spark, tmp_path) == Counter([(1, "a1"), (2, "b"), (3, None)])
    assert log_of(tmp_path)[1:] == [("MERGE", [("app", 0)])]


@pytest.mark.slow
def test_foreign_table(spark: SparkSession, tmp_path: Path) -> None:
    existing = [Row(NAME="old", id=1, note="kept"), Row(NAME="old", id=6, note=None)]
    spark.createDataFrame(existing, "NAME string, id bigint, note string").write.format("delta").save(str(tmp_path))
    sink = opened(spark, tmp_path)
    sink.write(changes(spark, BACKLOG), BatchInfo(0, True))
    # A table that exists is merged into even in backlog; its own columns and letter case stay.
    assert rows_of(spark, tmp_path) == Counter([("a", 1, "kept"), ("old", 6, None), ("b", 2, None), (None, 3, None)])
    assert log_of(tmp_path)[1:] == [("MERGE", [("app", 0)])]


def test_crash_between_creation_and_first_batch(spark: SparkSession, tmp_path: Path) -> None:
    opened(spark, tmp_path, partition_by=["name"], properties={"delta.enableDeletionVectors": "false"})
    opened(spark, tmp_path).write(changes(spark, BACKLOG), BatchInfo(0, True))
    assert rows_of(spark, tmp_path) == Counter([(1, "a"), (2, "b"), (3, None)])
    assert log_of(tmp_path) == [("CREATE TABLE", []), ("WRITE", [("app", 0)])]
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{tmp_path}`").collect()[0]
    assert detail.partitionColumns == ["name"]
    assert detail.properties == {
        "backlog_spark.createdBy": "app",
        "backlog_spark.keys": '["id"]',
        "delta.enableDeletionVectors": "false",
    }


def test_confs_are_restored(spark: SparkSession, tmp_path: Path) -> None:
    names = [
        "spark.databricks.delta.write.txnAppId",
        "spark.databricks.delta.write.txnVersion",
        "spark.databricks.delta.merge.materializeSource",
        "spark.databricks.delta.snapshotPartitions",
    ]
    sink = opened(spark, tmp_path)
    sink.write(changes(spark, BACKLOG), BatchInfo(0, False))
    before = [None, None, None, spark.conf.get(names[-1], None)]
    assert [spark.conf.get(name, None) for name in names] == before
    spark.conf.set(names[2], "auto")
    try:
        with pytest.raises(Exception, match="unknown _change_type = upsert"):
            sink.write(changes(spark, [(1, "a", "upsert", 0)]), BatchInfo(1, False))
        assert [spark.conf.get(name, None) for name in names] == [None, None, "auto", before[-1]]
    finally:
        spark.conf.unset(names[2])


def test_a_broken_promise_of_unique_inserts_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path)
    with pytest.raises(Exception, match="has a row with _change_type = delete"):
        sink.write(changes(spark, [(1, "a", "delete", 0)]), BatchInfo(0, True))
    assert len(log_of(tmp_path)) == 1


def test_rows_without_change_type(spark: SparkSession, tmp_path: Path) -> None:
    schema = StructType().add("id", LongType()).add("total", LongType())
    sink = DeltaUpsert(str(tmp_path), ["id"], change_type=None, sequence=None, metadata_columns=())
    sink.open(SinkContext(spark, "app", schema, True))
    sink.write(spark.createDataFrame([(1, 10), (2, 20)], schema), BatchInfo(0, True))
    sink.write(spark.createDataFrame([(2, 21), (3, 30)], schema), BatchInfo(1, False))
    assert rows_of(spark, tmp_path) == Counter([(1, 10), (2, 21), (3, 30)])
    with pytest.raises(Exception, match="two rows of one key in a batch"):
        sink.write(spark.createDataFrame([(4, 1), (4, 2)], schema), BatchInfo(2, False))
    assert rows_of(spark, tmp_path) == Counter([(1, 10), (2, 21), (3, 30)])


def test_results_of_a_keyed_operator_need_no_options_but_changes_without_their_columns_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = StructType().add("id", LongType()).add("total", LongType())
    sink = DeltaUpsert(str(tmp_path), ["id"])
    sink.open(SinkContext(spark, "app", schema, False, rows_are_results=True))
    sink.write(spark.createDataFrame([(1, 10), (2, 20)], schema), BatchInfo(0, True))
    sink.write(spark.createDataFrame([(2, 21)], schema), BatchInfo(1, False))
    assert rows_of(spark, tmp_path) == Counter([(1, 10), (2, 21)])
    with pytest.raises(SettingError, match="_change_type"):
        DeltaUpsert(str(tmp_path), ["id"]).open(SinkContext(spark, "app", schema, False))


@pytest.mark.parametrize(
    ("keys", "options", "parts"),
    [
        (["nr"], {}, ["keys", "'nr'", "id, name"]),
        (["id"], {"partition_by": ["day"]}, ["partition_by", "'day'"]),
        (["id"], {"change_type": "op"}, ["change_type = 'op'", "no such column", "change_type=None"]),
        (["id"], {"sequence": "lsn"}, ["sequence = 'lsn'", "no such column"]),
        (
            ["id"],
            {"metadata_columns": ["_seen"]},
            ["metadata_columns = '_seen'", "DeltaAppend(path)"],
        ),
    ],
)
def test_refused_columns(
    spark: SparkSession, tmp_path: Path, keys: list[str], options: dict[str, Any], parts: list[str]
) -> None:
    sink = DeltaUpsert(str(tmp_path / "t"), keys, **options)
    with pytest.raises(SettingError) as caught:
        sink.open(SinkContext(spark, "app", SCHEMA, True))
    for part in parts:
        assert part in str(caught.value)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(("keys", "problem"), [([], "at least one"), (["_commit_seq"], "metadata"), ("id", "list")])
def test_refused_keys(keys: Any, problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        DeltaUpsert("/nowhere", keys)


def test_refused_tables(spark: SparkSession, tmp_path: Path) -> None:
    missing, wrong, files = tmp_path / "missing", tmp_path / "wrong", tmp_path / "files"
    spark.createDataFrame([(1,)], "id bigint").write.format("delta").save(str(missing))
    spark.createDataFrame([(1, "a")], "id int, name string").write.format("delta").save(str(wrong))
    files.mkdir()
    (files / "data.csv").write_text("1,a")
    for path, problem in (
        (missing, "has no column 'name'; the stream's column 'name' is string"),
        (wrong, "has column 'id' of type int; the stream's key column 'id' is bigint"),
        (files, "is not a Delta table but holds 'data.csv'"),
    ):
        with pytest.raises(BacklogError, match=problem):
            opened(spark, path)


def test_write_needs_open(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BacklogError, match="not open"):
        DeltaUpsert(str(tmp_path), ["id"]).write(changes(spark, BACKLOG), BatchInfo(0, True))


def test_a_table_that_lost_batches_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table, kept = tmp_path / "t", tmp_path / "kept"
    sink = opened(spark, table)
    sink.write(changes(spark, BACKLOG), BatchInfo(0, True))
    shutil.copytree(table, kept)
    sink.write(changes(spark, []), BatchInfo(1, False))
    sink.open(SinkContext(spark, "app", SCHEMA, True, newest_planned=1, newest_committed=1))
    sink.open(SinkContext(spark, "app", SCHEMA, True, newest_planned=1, newest_committed=0))  # killed in between
    # While the query runs, the next batch notices; at a start, the checkpoint tells before any row is read.
    shutil.rmtree(table)
    with pytest.raises(BacklogError, match=r"committed up to 1, the table none of them"):
        sink.write(changes(spark, BACKLOG), BatchInfo(2, True))
    with pytest.raises(BacklogError, match=r"committed up to 1, the table none of them"):
        sink.open(SinkContext(spark, "app", SCHEMA, True, newest_planned=1, newest_committed=1))
    assert not table.exists()
    shutil.copytree(kept, table)
    with pytest.raises(BacklogError, match=r"committed up to 1, the table has them up to 0"):
        sink.write(changes(spark, BACKLOG), BatchInfo(2, True))
    with pytest.raises(BacklogError, match=r"committed up to 1, the table has them up to 0.*new checkpointLocation"):
        sink.open(SinkContext(spark, "app", SCHEMA, True, newest_planned=2, newest_committed=1))


@pytest.mark.slow
@pytest.mark.parametrize("reopens", [False, True])
@pytest.mark.parametrize("direct", [True, False])
def test_a_table_with_gaps_that_lost_batches_is_refused(
    spark: SparkSession, tmp_path: Path, direct: bool, reopens: bool
) -> None:
    """A table of DeltaTables gets only the batches with rows of it. Somebody removes it and makes it anew meanwhile."""
    table, kept = tmp_path / "t", tmp_path / "kept"
    sink = DeltaUpsert(str(table), ["id"], small_batch_rows=100 if direct else 0)

    def open_(newest_planned: int) -> None:
        sink.open(SinkContext(spark, "app", SCHEMA, True, newest_planned=newest_planned, has_gaps=True))

    open_(3)
    shutil.copytree(table, kept)
    sink.write(changes(spark, BACKLOG), BatchInfo(3, True))
    sink.write(changes(spark, []), BatchInfo(7, False))
    shutil.rmtree(table)
    shutil.copytree(kept, table)
    if reopens:
        open_(9)
    with pytest.raises(BacklogError, match=r"has committed up to 7, the table none of them"):
        sink.write(changes(spark, BACKLOG), BatchInfo(9, False))


def test_a_table_ahead_of_its_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, tmp_path)
    for batch in (0, 1):
        sink.write(changes(spark, []), BatchInfo(batch, True))
    for planned in (None, 0):
        with pytest.raises(BacklogError, match=rf"has batch 1 of this query.*is {planned}"):
            sink.open(SinkContext(spark, "app", SCHEMA, True, newest_planned=planned))


def with_names(names: Sequence[str]) -> StructType:
    """SCHEMA with more columns of text before its last three."""
    schema = StructType(SCHEMA.fields[:1])
    for name in names:
        schema = schema.add(name, StringType())
    return StructType([*schema.fields, *SCHEMA.fields[2:]])


@pytest.mark.parametrize(
    ("names", "keys", "vectors", "small_batch_rows"),
    [
        pytest.param(
            ["FilePath", "rowIndexCol", "_file_name_", "_condition_"],
            ["filePath", "id"],
            True,
            0,
            marks=pytest.mark.grid,
        ),
        pytest.param(
            ["_Metadata", "deletionVectorId", "dvFilePath", "_row_id_"],
            ["dvFilePath", "_Metadata"],
            False,
            0,
            marks=pytest.mark.grid,
        ),
        (["_Metadata", "deletionVectorId", "FilePath", "_row_id_"], ["FilePath", "_Metadata"], False, 100),
    ],
)
def test_names_that_delta_uses_inside_of_a_merge(
    spark: SparkSession, tmp_path: Path, names: list[str], keys: list[str], vectors: bool, small_batch_rows: int
) -> None:
    schema = with_names(names)
    keys = [next(name for name in schema.names if name.lower() == key.lower()) for key in keys]
    properties = {"delta.enableDeletionVectors": str(vectors).lower()}
    sink = DeltaUpsert(str(tmp_path), keys, properties=properties, small_batch_rows=small_batch_rows)
    sink.open(SinkContext(spark, "app", schema, True))

    def batch(number: int, *rows: tuple[int, str, str]) -> None:
        given = [(key, *[f"{value}{key}"] * len(names), kind, None, number) for key, value, kind in rows]
        sink.write(spark.createDataFrame(given, schema), BatchInfo(number, number == 0))

    batch(0, (1, "a", "insert"), (2, "a", "insert"), (3, "a", "insert"))
    batch(1, (1, "a", "update_postimage"), (2, "a", "delete"), (4, "a", "insert"))
    batch(2, (1, "a", "delete"), (3, "a", "update_postimage"))  # beside deletion vectors
    assert rows_of(spark, tmp_path) == Counter((key, *[f"a{key}"] * len(names)) for key in (3, 4))
    assert has_vectors(tmp_path) == vectors


def has_vectors(table: Path) -> bool:
    """Whether a commit of the table has marked rows of a file as deleted."""
    lines = [line for file in Path(table, "_delta_log").glob("*.json") for line in file.read_text().splitlines()]
    return any(json.loads(line).get("add", {}).get("deletionVector") for line in lines)


@pytest.mark.parametrize(
    ("name", "options", "next_step"),
    [
        ("_Row_Dropped_", {}, "`_Row_Dropped_` AS renamed'\\)\\.$"),
        ("_source_row_present_", {}, "another name"),
        ("_tmp_metadata_row_index", {}, "another name"),
        ("__backlog_spark_rank", {}, "another name"),
        ("__is_cdc", {"properties": {"delta.enableChangeDataFeed": "true"}}, "enableChangeDataFeed .* to false"),
        ("_Commit_version", {"properties": {"delta.enableChangeDataFeed": "true"}}, "enableChangeDataFeed .* to false"),
        ("price * 2", {}, "no space.* with AS"),
        ("_metadata", {"properties": {"delta.enableDeletionVectors": "true"}}, "enableDeletionVectors .* to false"),
    ],
)
def test_names_that_no_batch_could_be_written_with(
    spark: SparkSession, tmp_path: Path, name: str, options: dict[str, Any], next_step: str
) -> None:
    table = tmp_path / "t"
    context = SinkContext(spark, "app", with_names([name]), False)
    with pytest.raises(BacklogError, match=f"cannot have a column '{re.escape(name)}'.*{next_step}"):
        DeltaUpsert(str(table), ["id"], **options).open(context)
    assert not table.exists()
    if name == "_metadata":  # also a table that is there, and only the table
        spark.createDataFrame([(1, "a")], f"id BIGINT, {name} STRING").write.format("delta").option(
            "delta.enableDeletionVectors", "true"
        ).save(str(table))
        with pytest.raises(BacklogError, match=f"cannot have a column '{name}'.*{next_step}"):
            DeltaUpsert(str(table), ["id"]).open(SinkContext(spark, "app", with_names([]), False))
    elif name == "_Row_Dropped_":
        sink = DeltaAppend(str(table))  # which merges nothing
        sink.open(context)
        sink.write(spark.createDataFrame([(1, "a", "insert", None, 0)], context.schema), BatchInfo(0, False))
        assert spark.read.format("delta").load(str(table)).select(name).collect() == [("a",)]


@pytest.mark.slow
def test_a_wider_type(spark: SparkSession, tmp_path: Path) -> None:
    """A table follows a type that became wider, and keeps it when a batch from before the change is repeated."""

    def opened_with(kind: DataType, **context: Any) -> tuple[DeltaUpsert, StructType]:
        properties = {"delta.enableTypeWidening": "true"}
        sink = DeltaUpsert(str(tmp_path), ["id"], merge_schema=True, properties=properties)
        schema = StructType([StructField("n", kind) if f.name == "name" else f for f in SCHEMA])
        sink.open(SinkContext(spark, "app", schema, False, **context))
        return sink, schema

    def write(sink: DeltaUpsert, schema: StructType, batch: int, *rows: tuple[int, int]) -> None:
        given = [(key, n, "update_postimage", None, batch) for key, n in rows]
        sink.write(spark.createDataFrame(given, schema), BatchInfo(batch, False))

    write(*opened_with(IntegerType()), 0, (1, 1))
    opened_with(LongType(), newest_planned=1, newest_committed=0)  # and then the driver is killed
    write(*opened_with(IntegerType(), newest_planned=1, newest_committed=0), 1, (2, 2))
    write(*opened_with(LongType(), newest_planned=2, newest_committed=1), 2, (2, 1 << 40))
    assert rows_of(spark, tmp_path) == Counter([(1, 1), (2, 1 << 40)])
    with pytest.raises(BacklogError, match=r"column 'n' of type bigint; the stream's column 'n' is string"):
        opened_with(StringType(), newest_planned=3, newest_committed=2)
