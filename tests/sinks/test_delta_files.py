"""Large batches whose files Spark writes and delta-rs commits: the same result as Delta's own append."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable as RustTable
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from backlog_spark.errors import BacklogError
from backlog_spark.sinks import BatchInfo, DeltaAppend, DeltaUpsert, SinkContext
from backlog_spark.spark.jvm import delta_log
from tests.sinks.test_direct_types import PARTITIONS, SCHEMA, TEXTS, VALUES, lost, rows_of, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.sinks.delta.sink import DeltaSink

WRITERS = {"files": 1000, "spark": 0}
"""`small_batch_rows` of each."""


def opened(spark: SparkSession, sink: DeltaSink, schema: str, newest: int | None = None) -> DeltaSink:
    sink.open(SinkContext(spark, "app", StructType.fromDDL(schema), True, newest, newest))
    return sink


def write(sink: DeltaSink, rows: DataFrame, batch_id: int, writer: str = "files") -> None:
    """Write a batch of backlog, which must go by a writer."""
    sink.write(rows, BatchInfo(batch_id, True))
    assert sink.written is not None
    assert (sink.written.writer, sink.written.reason) == (
        writer,
        sink.written.reason if writer == "spark" else "it is backlog",
    )


def actions(path: Path, version: int) -> dict[str, list[dict[str, Any]]]:
    """What a commit has, by kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (path / "_delta_log" / f"{version:020}.json").read_text().splitlines():
        for kind, action in json.loads(line).items():
            found.setdefault(kind, []).append(action)
    return found


def declared(path: Path) -> Any:
    """The table's declaration but for what is new in every table."""
    made = actions(path, 0)
    (metadata,), (protocol,) = made["metaData"], made["protocol"]
    kept = {name: metadata.get(name) for name in ("name", "description", "format", "partitionColumns", "configuration")}
    features = {name: sorted(value) if isinstance(value, list) else value for name, value in protocol.items()}
    return kept, json.loads(metadata["schemaString"]), features


def added(path: Path, version: int) -> list[Any]:
    """The files of a commit but for their names and times."""
    kept = ("partitionValues", "dataChange", "tags", "deletionVector", "baseRowId")
    return sorted(
        json.dumps(
            [unquote(add["path"]).rpartition("/")[0], add["stats"], {name: add.get(name) for name in kept}],
            sort_keys=True,
        )
        for add in actions(path, version).get("add", [])
    )


@pytest.mark.grid
@pytest.mark.parametrize("partitioned", [pytest.param(False, marks=pytest.mark.grid), True])
def test_the_log_says_what_it_would_say_of_deltas_own_append(
    spark: SparkSession, tmp_path: Path, partitioned: bool
) -> None:
    schema, columns = (PARTITIONS, ["p", "q", "r", "n"]) if partitioned else (SCHEMA, [])
    rows = values(spark, schema, partitioned)
    paths = {writer: tmp_path / f"{writer} é" for writer in WRITERS}
    for writer, path in paths.items():
        sink = opened(spark, DeltaAppend(str(path), partition_by=columns, small_batch_rows=WRITERS[writer]), schema)
        write(sink, rows, 0, writer)
        write(sink, rows.limit(0), 1, writer)
        write(opened(spark, sink, schema, 1), rows, 2, writer)
        assert rows_of(table(spark, path)) == sorted(rows_of(nulled(rows)) * 2, key=repr)
    (*ours, protocol), (*deltas, expected) = declared(paths["files"]), declared(paths["spark"])
    assert ours == deltas
    if not partitioned:
        # Delta lists what every table of its old protocol has; it is added when a property needs it.
        protocol["writerFeatures"] = sorted([*protocol["writerFeatures"], "appendOnly", "invariants"])
    assert protocol == expected
    for version in (1, 2, 3):
        assert added(paths["files"], version) == added(paths["spark"], version)
        (transaction,) = actions(paths["files"], version)["txn"]
        assert (transaction["appId"], transaction["version"]) == ("app", version - 1)
        for add in actions(paths["files"], version).get("add", []):
            assert (paths["files"] / unquote(add["path"])).stat().st_size == add["size"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths.values())
    found = table(spark, paths["files"])
    if partitioned:
        pruned = found.where(F.col("p").isin(*TEXTS) & (F.col("n") < 0))
        assert pruned.count() == 2 * len(TEXTS)
        # Spark and delta-rs know the files by the same paths.
        spark.sql(f"DELETE FROM delta.`{paths['files']}` WHERE id % 2 = 0")
        left = rows_of(nulled(rows).where("id % 2 = 1"))
        assert rows_of(table(spark, paths["files"])) == sorted(left * 2, key=repr)
        assert len(RustTable(str(paths["files"])).get_add_actions()) == 2 * len(left)
    else:
        # Each extreme in a file of its own, found by its value.
        columns = ["unsigned", "d38_38", "double", "text", "at", "local", "inner.b.x"]
        assert lost(found, rows.where("id < 3"), columns) == []
        spark.sql(f"ALTER TABLE delta.`{paths['files']}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
        with pytest.raises(Exception, match="append"):
            spark.sql(f"DELETE FROM delta.`{paths['files']}`")


def values(spark: SparkSession, schema: str, partitioned: bool) -> DataFrame:
    """Rows of every type, or of partitions with every character; one file each, or one a partition."""
    if not partitioned:
        return spark.createDataFrame(VALUES, schema).coalesce(1)
    rows: list[tuple[Any, ...]] = [
        (number, text, None, bool(number % 2), -(2**63)) for number, text in enumerate(TEXTS)
    ]
    return spark.createDataFrame([*rows, (98, None, None, None, None), (99, "", None, True, 1)], schema).coalesce(1)


def nulled(rows: DataFrame) -> DataFrame:
    """'' is NULL in a partition column."""
    return rows.withColumn("p", F.expr("nullif(p, '')")) if "p" in rows.columns else rows


def test_timestamps_are_no_int96(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    sink = opened(spark, DeltaAppend(str(tmp_path)), "at timestamp")
    write(sink, spark.sql("SELECT timestamp'9999-12-31 23:59:59.999999' AS at"), 0)
    (file,) = tmp_path.glob("*.parquet")
    assert pq.read_schema(file).field("at").type.unit == "us"
    assert pq.ParquetFile(file).schema.column(0).physical_type == "INT64"


def test_columns_of_the_table_that_the_rows_lack(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE delta.`{tmp_path}` (extra INT, NAME STRING, Id LONG) USING delta")
    sink = opened(spark, DeltaAppend(str(tmp_path)), "id bigint, name string")
    write(sink, spark.sql("SELECT 1L AS id, 'a' AS name"), 0)
    assert table(spark, tmp_path).collect() == [(None, "a", 1)]
    assert table(spark, tmp_path).where("id = 1 AND name = 'a' AND extra IS NULL").count() == 1


@pytest.mark.parametrize(
    "change",
    [
        "ADD CONSTRAINT small CHECK (id < 100)",
        pytest.param("SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')", marks=pytest.mark.grid),
        pytest.param("SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", marks=pytest.mark.grid),
        pytest.param("SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')", marks=pytest.mark.grid),
    ],
)
def test_tables_that_spark_commits_to(spark: SparkSession, tmp_path: Path, change: str) -> None:
    sink = opened(spark, DeltaAppend(str(tmp_path)), "id bigint")
    write(sink, spark.range(3), 0)
    spark.sql(f"ALTER TABLE delta.`{tmp_path}` {change}")
    write(sink, spark.range(3, 6), 1, "spark")
    assert rows_of(table(spark, tmp_path)) == [(number,) for number in range(6)]


def test_backlog_of_unique_keys_is_added_and_other_batches_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(
        spark, DeltaUpsert(str(tmp_path), ["id"], sequence=None, metadata_columns=["_change_type"]),
        "id bigint, _change_type string",
    )  # fmt: skip
    write(sink, spark.range(3).withColumn("_change_type", F.lit("insert")), 0)
    assert sink.written is not None
    assert sink.written.rows == 3
    with pytest.raises(Exception, match="has a row with _change_type = delete"):
        write(sink, spark.range(9).withColumn("_change_type", F.lit("delete")), 1)
    sink.write(spark.range(2).withColumn("_change_type", F.lit("delete")), BatchInfo(1, False))
    assert sink.written.writer == "direct"
    assert rows_of(table(spark, tmp_path)) == [(2,)]


@pytest.mark.grid
def test_files_are_kept_when_another_writer_is_faster(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(spark, DeltaAppend(str(tmp_path)), "id bigint")
    runs = spark.sparkContext.accumulator(0)

    def counted(batches: Any) -> Any:
        runs.add(1)
        yield from batches

    others = iter(["DELETE FROM {} WHERE id = 0", "ALTER TABLE {} ADD COLUMNS (more INT)"])
    written = delta_log.write_files

    def slow(*given: Any) -> Any:
        files = written(*given)
        spark.newSession().sql(next(others).format(f"delta.`{tmp_path}`"))
        return files

    write(sink, spark.range(2), 0)
    monkeypatch.setattr(delta_log, "write_files", slow)
    write(sink, spark.range(2, 4, 1, 1).mapInArrow(counted, "id bigint"), 1)
    assert sink.written is not None
    assert (sink.written.attempts, runs.value) == (2, 1)
    # For another table they may be wrong.
    with pytest.raises(BacklogError, match="Another writer changed columns or properties"):
        write(sink, spark.range(4, 6), 2)
    monkeypatch.undo()
    write(opened(spark, sink, "id bigint", 1), spark.range(4, 6), 2)
    assert rows_of(table(spark, tmp_path).select("id")) == [(number,) for number in range(1, 6)]


def test_a_commit_that_fails_leaves_the_batch_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, DeltaAppend(str(tmp_path)), "id bigint")
    write(sink, spark.range(2), 0)
    log = tmp_path / "_delta_log"

    class Failing:
        def __getattr__(self, name: str) -> Any:
            if name == "add_files":
                raise OSError("hunter22")
            return getattr(direct, name)

    assert sink._access is not None
    direct, sink._access.direct = sink._access.direct, Failing()  # type: ignore[assignment]
    with pytest.raises(BacklogError, match=r"delta-rs failed to commit .*OSError") as caught:
        write(sink, spark.range(2, 4), 1)
    assert "hunter22" not in str(caught.value)
    assert len(list(log.glob("*.json"))) == 2
    write(opened(spark, sink, "id bigint", 0), spark.range(2, 4), 1, "spark")
    assert rows_of(table(spark, tmp_path)) == [(number,) for number in range(4)]


def test_without_deltas_inner_classes_spark_commits(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = delta_log.java_class
    missing = "org.apache.spark.sql.delta.OptimisticTransaction"
    monkeypatch.setattr(delta_log, "java_class", lambda on, name: real(on, name + "X" * (name == missing)))
    sink = opened(spark, DeltaAppend(str(tmp_path)), "id bigint")
    write(sink, spark.range(2), 0, "spark")
    assert rows_of(table(spark, tmp_path)) == [(0,), (1,)]


@pytest.mark.slow
def test_one_of_several_queries_creates_the_table(spark: SparkSession, tmp_path: Path) -> None:
    start = threading.Barrier(6)

    def run(number: int) -> None:
        small_batch_rows = 0 if number % 3 == 0 else 1000
        sink = DeltaAppend(str(tmp_path / "t"), small_batch_rows=small_batch_rows)
        start.wait()
        sink.open(SinkContext(spark, f"query {number}", StructType.fromDDL("id bigint"), False))
        # As in queries, each has settings of its own.
        sink.write(spark.newSession().range(number, number + 1), BatchInfo(0, True))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows_of(table(spark, tmp_path / "t")) == [(number,) for number in range(6)]
    made = [path for path in (tmp_path / "t/_delta_log").glob("*.json") if '"metaData"' in path.read_text()]
    assert [path.name for path in made] == [f"{0:020}.json"]


def test_a_path_that_delta_rs_takes_for_another_is_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, DeltaAppend(str(tmp_path / "a%20b")), "id bigint")
    write(sink, spark.range(2), 0, "spark")
    assert [path.name for path in tmp_path.iterdir()] == ["a%20b"]
    assert rows_of(table(spark, tmp_path / "a%20b")) == [(0,), (1,)]


def test_an_empty_log_directory_is_no_table(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t/_delta_log").mkdir(parents=True)
    write(opened(spark, DeltaAppend(str(tmp_path / "t")), "id bigint"), spark.range(2), 0)
    assert rows_of(table(spark, tmp_path / "t")) == [(0,), (1,)]


@pytest.mark.grid
def test_what_a_failed_batch_leaves_is_removed_by_vacuum(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, DeltaAppend(str(tmp_path), partition_by=["_p"]), "id bigint, _p int")
    batch = spark.range(0, 10, 1, 2).withColumn("_p", F.lit(1))
    write(sink, batch, 0)
    before = files_in(tmp_path)
    # The first task ends before the second one fails.
    with pytest.raises(Exception, match="half-way"):
        write(sink, batch.where("id < 9 OR raise_error('half-way') IS NULL"), 1)
    # A try of a task that fails behind its rows, and the next one, count once.
    write(sink, batch.mapInArrow(failing_once, batch.schema), 1)
    live = Counter(path for version in (1, 2) for path in paths_of(tmp_path, version))
    assert set(live.values()) == {1}
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        spark.sql(f"VACUUM delta.`{tmp_path}` RETAIN 0 HOURS")
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert before <= files_in(tmp_path) == set(live)
    assert table(spark, tmp_path).count() == 20


def failing_once(batches: Iterator[Any]) -> Iterator[Any]:
    from pyspark import TaskContext

    context = TaskContext.get()
    yield from batches
    if context is not None and context.partitionId() == 1 and context.attemptNumber() == 0:
        raise RuntimeError("half-way")


def files_in(path: Path) -> set[str]:
    found = (file.relative_to(path) for file in path.rglob("*") if file.is_file())
    return {str(file) for file in found if file.parts[0] != "_delta_log" and not file.name.endswith(".crc")}


def paths_of(path: Path, version: int) -> Sequence[str]:
    return [add["path"] for add in actions(path, version)["add"]]
