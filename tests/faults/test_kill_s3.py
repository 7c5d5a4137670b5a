"""SIGKILL of drivers whose checkpoint and table are on S3, by Hadoop's real ``s3a://``: every row once.

The store is moto. A rename there is a copy and a delete, so a kill may leave both files.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.operators.scripted import append
from tests.sinks.s3 import lake, s3a

from .files_job import MOMENTS, ROWS
from .keyed_job import POINTS
from .test_kill_keyed import live_until_killed, rows

pytestmark = pytest.mark.process

LIMIT_S = 300


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    """delta-rs's options for a bucket."""
    with lake() as options:
        yield options


@pytest.mark.parametrize(
    ("points", "scheme"),
    [
        # Paths without a scheme, which are on S3 because it is the default file system.
        pytest.param(["half published"], "", id="some", marks=pytest.mark.grid),
        pytest.param(list(POINTS), "", id="all, default file system", marks=pytest.mark.grid),
        pytest.param(list(POINTS), "s3a://lake", id="all, s3a", marks=pytest.mark.grid),
    ],
)
def test_keyed_query(store: dict[str, str], tmp_path: Path, points: list[str], scheme: str) -> None:
    chance = random.Random(31)
    tables = [rows(chance, 2_000) for _ in range(3)]
    script = tmp_path / "script"
    for number, table in enumerate(tables):
        append(script, table, backlog=number < 2)
    conf = {**s3a(store), **({} if scheme else {"spark.hadoop.fs.defaultFS": "s3a://lake"})}
    root = f"{scheme}/keyed {len(points)}{len(scheme)}"
    job = {"script": str(script), "checkpoint": f"{root}/its checkpoint", "target": f"{root}/its table", "conf": conf}
    for point in points:
        live_until_killed(job, point, tmp_path / "driver.log")
    (tmp_path / "end").touch()
    run(["tests.cluster.program", "tests.faults.keyed_job", json.dumps({**job, "folder": str(tmp_path)})], 0)
    found = Counter(tuple(row) for row in json.loads((tmp_path / "found").read_text()))
    sums = pa.concat_tables(tables).group_by("k").aggregate([("v", "sum"), ("v", "count"), ("v", "max")])
    assert found == Counter(zip(*(sums[n].to_pylist() for n in ("k", "v_sum", "v_count", "v_max")), strict=True))


@pytest.mark.grid
@pytest.mark.parametrize("moments", [["between"], pytest.param(MOMENTS, marks=pytest.mark.grid)], ids=["some", "all"])
def test_files_that_delta_rs_commits(store: dict[str, str], tmp_path: Path, moments: list[str]) -> None:
    table, noted = f"s3a://lake/files {len(moments)}", tmp_path / "noted"
    for moment in (*moments, "never"):
        given = [table, str(noted), moment, json.dumps(store), json.dumps(s3a(store))]
        # Without Spark's internals Spark commits everything.
        run(
            ["tests.faults.files_job", *given],
            -signal.SIGKILL if moment != "never" else 0,
            BACKLOG_SPARK_INTERNALS="on",
        )
    delta = DeltaTable(table.replace("s3a", "s3"), storage_options=store)
    assert delta.transaction_version("app") == int(noted.read_text())
    writers = {action.get("operation"): action.get("engineInfo") or "" for action in delta.history()}
    assert not any("Spark" in name for name in writers.values()), writers
    found = QueryBuilder().register("t", delta).execute("SELECT id FROM t").read_all()
    assert Counter(pa.table(found)["id"].to_pylist()) == Counter(range(ROWS * (int(noted.read_text()) + 1)))


def run(program: list[str], status: int, **environment: str) -> None:
    """Run a module as a process group of its own, and compare its exit status."""
    done = subprocess.run(
        [sys.executable, "-m", *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, **environment},
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == status, done.stdout.decode()[-5000:]
