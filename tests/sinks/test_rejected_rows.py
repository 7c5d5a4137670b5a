"""Rows that a constraint of a target rejects: named, and not tried again, or in a table of their own."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

import backlog_spark as bs
from backlog_spark.errors import RejectedRowError, SettingError
from backlog_spark.sinks import BatchInfo, SinkContext
from backlog_spark.sinks.delta.constraints import table_constraints
from backlog_spark.sinks.outputs import Outputs
from backlog_spark.sinks.rejected_rows import REJECTED_ROWS, with_violations
from tests.integration.test_foreign import files
from tests.sinks.iceberg.places import TABLE, catalog_at, created, table_at
from tests.sinks.iceberg.places import rows_of as ice_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    StructType()
    .add("id", LongType())
    .add("a", LongType())
    .add("name", StringType())
    .add("_change_type", StringType())
    .add("_commit_timestamp", TimestampType())
    .add("_commit_seq", LongType())
)
COLUMNS = "id BIGINT, a BIGINT NOT NULL, name VARCHAR(3)"
Change = tuple[int, int | None, str | None, str, int]


def violated(a: int | None, name: str | None) -> str | None:
    """The first constraint of the table that a row violates."""
    if a is None or a <= 0:  # Delta counts NULL as a violation of a CHECK
        return "CHECK positive (a > 0)"
    return "the length of name, varchar(3)" if name is not None and len(name) > 3 else None


def changes(spark: SparkSession, rows: list[Change]) -> DataFrame:
    return spark.createDataFrame([(*row[:4], None, row[4]) for row in rows], SCHEMA)


def table(spark: SparkSession, path: Path, columns: str = COLUMNS) -> str:
    spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT positive CHECK (a > 0)")
    return str(path)


def opened(spark: SparkSession, *sinks: bs.Sink, beside: str, **context: Any) -> Outputs:
    outputs = Outputs({"": sinks, REJECTED_ROWS: [bs.DeltaAppend(beside)]})
    outputs.open(SinkContext(spark, "app", SCHEMA, False, **context), {}, lambda keys: True)
    return outputs


def rows_of(spark: SparkSession, path: str, *columns: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in spark.read.format("delta").load(path).select(*columns).collect())


def test_which_rows_violate(spark: SparkSession) -> None:
    """By the columns and properties as a Delta table has them."""
    schema = StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {"name": "a.b", "type": "integer", "nullable": False, "metadata": {}},
                {
                    "name": "t",
                    "type": "string",
                    "nullable": True,
                    "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(2)"},
                },
                {
                    "name": "s",
                    "type": {
                        "type": "struct",
                        "fields": [{"name": "x", "type": "integer", "nullable": False, "metadata": {}}],
                    },
                    "nullable": True,
                    "metadata": {},
                },
                {"name": "lacking", "type": "integer", "nullable": False, "metadata": {}},
            ],
        }
    )
    constraints = table_constraints(schema, {"delta.constraints.c": "t <> 'no'", "delta.appendOnly": "true"})
    rows = [
        (1, "ok", (1,)), (None, "ok", (1,)), (1, "abc", (1,)), (1, "ab", None), (1, "no", (1,)), (1, None, (1,)),
        (1, "ok", (None,)),
    ]  # fmt: skip
    frame = spark.createDataFrame(rows, "`a.b` INT, t STRING, s STRUCT<x: INT>")
    marked = with_violations(frame, constraints, None)
    assert marked is not None
    assert [row[-1] for row in marked.collect()] == [
        None, "NOT NULL of a.b", "the length of t, char(2)", None, "CHECK c (t <> 'no')", "CHECK c (t <> 'no')",
        "NOT NULL of s.x",
    ]  # fmt: skip


def random_log(chance: random.Random) -> list[Change]:
    """Changes of few keys, many of them with values that the table rejects."""
    now: dict[int, tuple[int | None, str | None]] = {}
    log: list[Change] = []
    for sequence in range(1, 40):
        key = chance.randrange(6)
        if key in now and chance.random() < 0.2:
            log.append((key, *now.pop(key), "delete", sequence))
            continue
        if is_update := key in now:
            log.append((key, *now[key], "update_preimage", sequence))
        now[key] = chance.choice([5, 5, 5, -1, None]), chance.choice(["x", "ab ", "abc ", "abcd", None])
        log.append((key, *now[key], "update_postimage" if is_update else "insert", sequence))
    return log


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.grid) for seed in range(1, 10))])
def test_random_changes(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """A key's newest version is in the target or in the side output, however batches are cut, and never in both."""
    chance = random.Random(seed)
    target, beside = table(spark, tmp_path / "target"), str(tmp_path / "beside")
    outputs = opened(spark, bs.DeltaUpsert(target, keys=["id"]), beside=beside)
    log, number, at = random_log(chance), 0, 0
    while at < len(log):
        size = chance.randrange(10, 30)
        info = BatchInfo(number, chance.random() < 0.3, has_changes=True)
        for _ in range(chance.choice([1, 2])):  # the second one is a replay
            outputs.write(changes(spark, log[at : at + size]), {}, info)
        number, at = number + 1, at + size
    newest = {key: (a, name, kind) for key, a, name, kind, _ in log}
    wanted = {(key, a, name) for key, (a, name, kind) in newest.items() if kind != "delete" and not violated(a, name)}
    assert rows_of(spark, target, "id", "a", "name") == Counter(wanted)
    rejected = [row for row in log if row[3] in ("insert", "update_postimage") and violated(row[1], row[2])]
    assert rejected
    columns = ("id", "a", "name", "_change_type", "_commit_seq", "_rejected_by", "_constraint")
    place = f"file:{target}"
    assert rows_of(spark, beside, *columns) == Counter((*row, place, violated(row[1], row[2])) for row in rejected)
    outputs.close()


def test_of_several_targets_one_rejects(spark: SparkSession, tmp_path: Path) -> None:
    """Unique inserts are left out, not turned into deletes. Computed columns count too."""
    target, free, beside = table(spark, tmp_path / "target"), str(tmp_path / "free"), str(tmp_path / "beside")
    first = bs.DeltaUpsert(target, keys=["id"], computed={"a": "b * 2"})
    rows = spark.createDataFrame([(1, 3, "x"), (2, -3, "y")], "id BIGINT, b BIGINT, name STRING")
    rows = rows.selectExpr("*", "'insert' AS _change_type", "now() AS _commit_timestamp", "1L AS _commit_seq")
    outputs = Outputs({"": [first, bs.DeltaAppend(free)], REJECTED_ROWS: [bs.DeltaAppend(beside)]})
    spark.sql(f"ALTER TABLE delta.`{target}` ADD COLUMNS (b BIGINT)")
    outputs.open(SinkContext(spark, "app", rows.schema, False), {}, lambda keys: True)
    for _ in range(2):
        outputs.write(rows, {}, BatchInfo(0, True))
    assert rows_of(spark, target, "id", "a") == Counter([(1, 6)])
    assert rows_of(spark, free, "id", "b") == Counter([(1, 3), (2, -3)])
    assert rows_of(spark, beside, "id", "b", "_constraint") == Counter([(2, -3, "CHECK positive (a > 0)")])
    outputs.close()


@pytest.mark.parametrize("is_backlog", [True, False])
def test_required_columns_of_iceberg(spark: SparkSession, tmp_path: Path, is_backlog: bool) -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("a", pa.int64(), nullable=False), ("name", pa.string())])
    created(tmp_path, columns)
    sink = bs.IcebergUpsert(TABLE, ["id"], catalog_at(tmp_path))
    rows = changes(spark, [(1, 5, "x", "insert", 1), (2, None, "y", "insert", 2)])
    alone = Outputs({"": [sink]})
    alone.open(SinkContext(spark, "alone", SCHEMA, False), {}, lambda keys: True)
    with pytest.raises(RejectedRowError, match=r"violates NOT NULL of a\. It is the row with id = 2\."):
        alone.write(rows, {}, BatchInfo(0, is_backlog))
    outputs = opened(spark, sink, beside=str(tmp_path / "beside"))
    outputs.write(rows, {}, BatchInfo(0, is_backlog))
    assert ice_rows(table_at(tmp_path)) == Counter([(1, 5, "x")])
    assert rows_of(spark, str(tmp_path / "beside"), "id", "a", "_constraint") == Counter([(2, None, "NOT NULL of a")])
    outputs.close()


def test_a_query_stops_at_once_and_continues_with_the_side_output(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE delta.`{tmp_path / 'target'}` (n BIGINT) USING delta")
    spark.sql(f"ALTER TABLE delta.`{tmp_path / 'target'}` ADD CONSTRAINT small CHECK (n < 4)")
    files(tmp_path / "in", 0, 2, rows=3)

    def run(*beside: bs.Sink) -> bs.BacklogQuery:
        reader = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1)
        writer = bs.stream(reader.parquet(str(tmp_path / "in"))).write("small").trigger(available_now=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).to(
            bs.DeltaAppend(tmp_path / "target")
        )
        for sink in beside:
            writer = writer.to(sink, side_output=REJECTED_ROWS)
        return writer.start(spark)

    query = run()
    with pytest.raises(
        RejectedRowError, match=r"violates CHECK small \(n < 4\). It is the row with n = [45]\."
    ) as caught:
        query.awaitTermination(120)
    assert "side_output='rejected_rows'" in caught.value.hint
    told = "".join(path.read_text() for path in (tmp_path / "checkpoint/backlog/events").glob("[!.]*"))
    assert '"start"' in told
    assert '"restart"' not in told
    again = run(bs.DeltaAppend(tmp_path / "beside"))
    again.awaitTermination(120)
    assert again.exception() is None
    assert rows_of(spark, str(tmp_path / "target"), "n") == Counter((n,) for n in range(4))
    assert rows_of(spark, str(tmp_path / "beside"), "n") == Counter((n,) for n in range(4, 6))


def test_sinks_that_give_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="BlackHole gives no rows to it"):
        opened(spark, bs.BlackHole(), beside=str(tmp_path / "beside"))
    soft = bs.DeltaUpsert(tmp_path / "target", keys=["id"], deletes="soft")
    with pytest.raises(SettingError, match="DeltaUpsert gives no rows to it"):
        opened(spark, soft, beside=str(tmp_path / "beside"))
    outputs = Outputs({"": [bs.DeltaAppend(tmp_path / "t")]})
    with pytest.raises(SettingError, match="Choose another name"):
        outputs.open(SinkContext(spark, "app", SCHEMA, False), {REJECTED_ROWS: SCHEMA}, lambda keys: True)
    same = bs.DeltaAppend(tmp_path / "t")
    with pytest.raises(SettingError, match="is the place of two targets"):
        opened(spark, same, beside=str(tmp_path / "t"))
