"""Tables of `DeltaTables` that are put back from an older copy while no query runs: each lost batch is noticed."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

import backlog_spark as bs
from backlog_spark.common.table_names import TableName
from backlog_spark.sinks.base import BatchInfo, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "value STRING, _change_type STRING, _commit_timestamp TIMESTAMP, _commit_seq STRING, _database STRING, "
    "_table STRING, _columns STRING"
)
COLUMNS = json.dumps({"key": ["id"], "columns": [["id", "int", "number"], ["batch", "int", "number"]]})
TABLES = (("shop", "a"), ("shop", "b.c"), ("shop.b", "c"))


def batch_of(spark: SparkSession, batch: int, tables: Iterable[tuple[str, str]]) -> DataFrame:
    """One new row of each of these tables."""
    value = json.dumps({"before": None, "after": {"id": batch, "batch": batch}})
    rows = [(value, "insert", None, f"{batch:05d}", *name, COLUMNS) for name in tables]
    return spark.createDataFrame(rows, SCHEMA)


def context_of(spark: SparkSession, lake: Path, committed: int | None, planned: int | None = None) -> SinkContext:
    schema = spark.createDataFrame([], SCHEMA).schema
    newest = committed if planned is None else planned
    return SinkContext(spark, "app", schema, False, newest_committed=committed, newest_planned=newest)


def copied(spark: SparkSession, lake: Path, batches: list[list[tuple[str, str]]], since: int = 0) -> None:
    """A run of a query with these batches, which are all committed."""
    sink = bs.DeltaTables(str(lake))
    sink.open(context_of(spark, lake, since - 1 if since else None))
    for batch, tables in enumerate(batches, since):
        sink.write(batch_of(spark, batch, tables), BatchInfo(batch, is_backlog=False))


def ids(path: str) -> list[int]:
    found = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT id FROM t").read_all()
    return sorted(pa.table(found)["id"].to_pylist())


def put_back(copy: Path, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if copy.exists():
        shutil.copytree(copy, path)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.grid) for seed in range(2, 12))])
def test_a_table_from_an_older_copy(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """It is refused exactly if it lacks a batch that had rows of it."""
    drawn = random.Random(seed)
    batches = [[name for name in TABLES if drawn.random() < 0.5] for _ in range(4)]
    lake = tmp_path / "lake"
    for batch, tables in enumerate(batches):
        copied(spark, lake, [tables], since=batch)
        shutil.copytree(lake, tmp_path / f"after-{batch}")
    newest, sink = len(batches) - 1, bs.DeltaTables(str(lake))
    sink.open(context_of(spark, lake, newest))
    for name in TABLES:
        with_rows = [batch for batch, tables in enumerate(batches) if name in tables]
        own = Path(sink.path_of(*name)).relative_to(lake)
        for batch in drawn.sample(range(newest), 1) if with_rows else ():
            put_back(tmp_path / f"after-{batch}" / own, lake / own)
            if batch < with_rows[-1]:
                with pytest.raises(bs.BacklogError, match=r"lacks batches of this query.* (\d+|none of them)") as error:
                    sink.open(context_of(spark, lake, newest))
                assert f"{TableName(*name)}: " in str(error.value)
                assert str(lake / own) in str(error.value)
            else:
                sink.open(context_of(spark, lake, newest))
            put_back(tmp_path / f"after-{newest}" / own, lake / own)


def test_all_tables_with_their_notes_from_an_older_copy(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    copied(spark, lake, [[TABLES[0]], []])
    shutil.copytree(lake, tmp_path / "copy")
    copied(spark, lake, [[TABLES[0]], []], since=2)
    sink = bs.DeltaTables(str(lake))
    sink.open(context_of(spark, lake, 3))
    for copy, noted in ((tmp_path / "copy", "up to 1"), (tmp_path / "none", "none of them")):
        put_back(copy, lake)
        with pytest.raises(bs.BacklogError, match=f"committed up to 3, .*{noted}"):
            sink.open(context_of(spark, lake, 3))
    # Without a committed batch nothing can be missing.
    sink.open(context_of(spark, lake, None))


def test_a_restored_table(spark: SparkSession, tmp_path: Path) -> None:
    """RESTORE keeps the numbers of batches. It is refused when the query starts, also if no rows follow."""
    lake = tmp_path / "lake"
    copied(spark, lake, [[TABLES[0]], [TABLES[0]], [TABLES[1]]])
    sink = bs.DeltaTables(str(lake))
    DeltaTable(sink.path_of(*TABLES[0])).restore(1)
    with pytest.raises(bs.BacklogError, match=r"shop\.a: .* RESTORE in its version \d+ took rows out"):
        sink.open(context_of(spark, lake, 2))


def test_an_older_copy_while_the_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    """Of a table that had no rows since the start."""
    lake, name = tmp_path / "lake", TABLES[0]
    copied(spark, lake, [[name]])
    sink = bs.DeltaTables(str(lake))
    own = Path(sink.path_of(*name))
    shutil.copytree(own, tmp_path / "copy")
    copied(spark, lake, [[name]], since=1)
    sink.open(context_of(spark, lake, 1))
    put_back(tmp_path / "copy", own)
    with pytest.raises(bs.BacklogError, match=r"shop\.a: .* lacks batches of this query.* up to 1, .* up to 0"):
        sink.write(batch_of(spark, 2, [name]), BatchInfo(2, is_backlog=False))


def test_a_batch_that_is_repeated(spark: SparkSession, tmp_path: Path) -> None:
    """The tables have it, or some of them: it counts once Spark has committed it."""
    lake = tmp_path / "lake"
    copied(spark, lake, [[TABLES[0], TABLES[1]], [TABLES[0], TABLES[1]]])
    sink = bs.DeltaTables(str(lake))
    context = context_of(spark, lake, 0, planned=1)
    sink.open(context)
    sink.write(batch_of(spark, 1, TABLES[:2]), BatchInfo(1, is_backlog=False))
    sink.open(replace(context, newest_committed=1))
    assert [ids(sink.path_of(*name)) for name in TABLES[:2]] == [[0, 1], [0, 1]]
