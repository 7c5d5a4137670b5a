"""SIGKILL of executors of a standalone cluster, where work is lost with them, and of the driver: the exact rows."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.connectors.mysql_cdc.replay import Writers, options, table_rows
from tests.faults.test_kill_driver import Job, after_the_switch, create, in_binary_log, in_snapshot
from tests.faults.watching import newest
from tests.operators.scripted import append

from .submitted import Submitted

if TYPE_CHECKING:
    from servers.mysql import MySQLServer
    from servers.spark_cluster import SparkCluster

pytestmark = pytest.mark.process

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
KEYS, BACKLOG, LIVE = 500, 40_000, 2_000


def rows(chance: random.Random, count: int) -> pa.Table:
    made = [(chance.randrange(KEYS), chance.randrange(-(10**9), 10**9)) for _ in range(count)]
    return pa.table(list(zip(*made, strict=True)), schema=SCHEMA)


def sums(tables: list[pa.Table]) -> Counter[tuple[int, ...]]:
    """Sum, count and maximum of each key, by Arrow."""
    found = pa.concat_tables(tables).group_by("k").aggregate([("v", "sum"), ("v", "count"), ("v", "max")])
    return Counter(zip(*(found[name].to_pylist() for name in ("k", "v_sum", "v_count", "v_max")), strict=True))


@pytest.mark.grid
@pytest.mark.parametrize(
    ("deaths", "losses"),
    [
        pytest.param(["behind the shuffle"], 1, id="some"),
        pytest.param(
            ["before the shuffle", "behind the shuffle", "in the sink", "between two jobs"],
            2,
            id="all",
            marks=pytest.mark.grid,
        ),
    ],
)
def test_keyed_sums(cluster: SparkCluster, tmp_path: Path, deaths: list[str], losses: int) -> None:
    chance = random.Random(5)
    # URLs, and a blank in each path.
    job = {name: f"file://{tmp_path}/its {name}" for name in ("checkpoint", "target")}
    job["script"] = str(tmp_path / "its script")
    tables = [rows(chance, BACKLOG) for _ in range(2)]
    for table in tables:
        append(Path(job["script"]), table, backlog=True)
    checkpoint = tmp_path / "its checkpoint"
    query = Submitted(cluster, "tests.faults.keyed_job", job, tmp_path / "driver")

    def more() -> None:
        tables.append(rows(chance, LIVE))
        append(Path(job["script"]), tables[-1], backlog=False)

    query.live(*deaths)
    query.until(lambda: newest(checkpoint / "commits") >= 0, "a commit")
    # The state is on the executors now. One by one is lost in a batch that changes it.
    for number in range(losses):
        before = newest(checkpoint / "offsets")
        more()
        query.until(lambda before=before: newest(checkpoint / "offsets") > before, "a live batch")
        query.kill_executor(number)
        query.until(lambda before=before: newest(checkpoint / "commits") > before, "its commit")
    assert all(map(query.died, deaths))
    query.kill()
    more()
    query.live()
    assert query.rows() == sums(tables)


@pytest.mark.grid
def test_snapshot_and_binary_log(cluster: SparkCluster, mysql: MySQLServer, tmp_path: Path) -> None:
    """A worker's rewind log and its rows in flight are lost in the snapshot."""
    table = "faults.on_a_cluster"
    create(mysql, table)
    job = Job(tmp_path, options(mysql, table, chunkSize=500, maxRowsPerBatch=1_000), "1 second")
    query = Submitted(cluster, "tests.faults.job", job.described, tmp_path / "driver")
    writers = Writers(mysql, table, 7, threads=1, keys=20_000, pause=0.02)
    with writers:
        query.live()
        for number in range(2):
            before = job.newest("commits")
            query.until(lambda before=before: in_snapshot(job) and job.newest("commits") > before, "the snapshot")
            query.kill_executor(number)
        query.kill()
        query.live()
        query.until(lambda: after_the_switch(job), "the switch")
        for number in range(2):
            query.until(lambda: in_binary_log(job), "a batch of the binary log")
            query.kill_executor(number)
            before = job.newest("commits")
            query.until(lambda before=before: job.newest("commits") > before, "a commit")
        query.kill()
        query.live()
        query.until(lambda: in_binary_log(job), "a batch of the binary log")
    found = query.rows()
    assert writers.commits > 0
    assert found == Counter(table_rows(mysql, table).values())
    assert job.transactions() == sorted(set(job.transactions())), "a batch was written twice"
