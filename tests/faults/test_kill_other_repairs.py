"""SIGKILL of the driver before, in and after a repair of an Iceberg table and of a database's table."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from tests.connectors.mysql_cdc.replay import options, table_rows
from tests.sinks.database.targets import Target
from tests.sinks.iceberg.places import rows_of, table_at
from tests.verify.copies import DatabaseCopy, IcebergCopy
from tests.verify.jobs import create, run_to_the_end, source

from .other_repair_job import POINTS, sink_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

ROWS = 300


@pytest.fixture
def target(postgres: Any) -> Iterator[Target]:
    made = Target(postgres, "postgresql")
    yield made
    made.drop()


def spoil(job: dict[str, Any], target: Target) -> None:
    """Change a third of the rows, and delete some others."""
    if job["kind"] == "iceberg":
        IcebergCopy(Path(job["lake"]).parent).rewrite(
            lambda row: None if row["id"] % 7 == 1 else {**row, "v": "wrong"} if row["id"] % 3 == 0 else row
        )
        return
    copy = DatabaseCopy(target)
    copy.target.run('DELETE FROM "t" WHERE "id" % 7 = 1')
    copy.target.run('UPDATE "t" SET "v" = \'wrong\' WHERE "id" % 3 = 0')


def rows_in(job: dict[str, Any], target: Target) -> Counter[tuple[Any, ...]]:
    if job["kind"] == "iceberg":
        return rows_of(table_at(job["lake"]), ["id", "n", "v"])
    return target.rows(columns='"id", "n", "v"')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "point"),
    [
        pytest.param(kind, point, marks=[pytest.mark.grid] if i != len(points) // 2 else [])
        for kind, points in POINTS.items()
        for i, point in enumerate(points)
    ],
)
def test_a_driver_that_is_killed_around_a_repair_leaves_it_whole_or_undone(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, target: Target, kind: str, point: str
) -> None:
    table = f"repaired_{kind}_{point}"
    create(mysql, table, ROWS)
    job = {
        "kind": kind, "point": point, "root": str(tmp_path), "lake": str(tmp_path / "lake"), "url": target.url,
        "user": target.server.user, "options": {**options(mysql, f"verify.{table}"), "schemaChange": "evolve"},
    }  # fmt: skip
    run_to_the_end(source(mysql, f"verify.{table}"), tmp_path, sink_of(job), spark)
    whole = Counter(table_rows(mysql, f"verify.{table}").values())
    assert rows_in(job, target) == whole
    spoil(job, target)
    spoilt = rows_in(job, target)
    assert spoilt != whole
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.other_repair_job", json.dumps(job)], capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert rows_in(job, target) == (whole if point == "after" else spoilt)
    mysql.execute(f"INSERT INTO verify.{table} VALUES (-1, 0, 'later')")
    mysql.execute(f"DELETE FROM verify.{table} WHERE id = 5")
    query = run_to_the_end(source(mysql, f"verify.{table}"), tmp_path, sink_of(job), spark)
    bs.verify(query, repair=True)
    assert bs.verify(query).raise_for_differences()
    assert rows_in(job, target) == Counter(table_rows(mysql, f"verify.{table}").values())
    if kind == "postgresql":
        left = target.run("SELECT table_name FROM information_schema.tables WHERE table_name LIKE '%stage%'")
        assert left == [], "the restarted query drops the staging table of the killed repair"
