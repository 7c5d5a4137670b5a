"""The standalone cluster: two executors in directories of their own, replaced after SIGKILL, and nothing left."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from servers.spark_cluster import SparkCluster, kill_group

pytestmark = pytest.mark.process

_JOB = """
import json, os
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("where").getOrCreate()
while True:
    found = set(spark.sparkContext.parallelize(range(4), 4).mapPartitions(lambda _: [os.getcwd()]).collect())
    if len(found) == 2 and os.path.exists("ask"):
        os.remove("ask")
        with open("new", "w") as out:
            json.dump([os.getcwd(), *sorted(found)], out)
        os.rename("new", "told")
"""


def _told(folder: Path, seconds: float = 120) -> list[str]:
    (folder / "ask").touch()
    deadline = time.monotonic() + seconds
    while not (folder / "told").exists():
        assert time.monotonic() < deadline, (folder / "driver.log").read_text()[-3000:]
        time.sleep(0.05)
    told: list[str] = json.loads((folder / "told").read_text())
    (folder / "told").unlink()
    return told


@pytest.mark.grid
def test_executors_are_replaced_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(_JOB)
    with SparkCluster() as cluster:
        assert [worker["cores"] for worker in cluster.master.status()["workers"]] == [1, 1]
        conf = {"spark.executor.memory": "512m", "spark.task.maxFailures": "20"}
        driver = cluster.submit(["job.py"], cwd=tmp_path, log=tmp_path / "driver.log", conf=conf)
        first = cluster.await_executors(2, driver)
        told = _told(tmp_path)
        assert told[0] == str(tmp_path)
        homes = [str(worker.datadir) for worker in cluster.workers]
        assert sorted(home for place in told[1:] for home in homes if place.startswith(home + "/")) == sorted(homes)
        first[0].kill()
        deadline = time.monotonic() + 120
        while first[0] in cluster.executors() or len(cluster.executors()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(_told(tmp_path)) == 3
        left = [executor.pid for executor in cluster.executors()]
        left += [daemon.pid for daemon in (cluster.master, *cluster.workers) if daemon.pid]
        kill_group(driver)
        assert driver.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in left):
        assert time.monotonic() < deadline, [Path(f"/proc/{pid}/cmdline").read_bytes()[:300] for pid in left]
        time.sleep(0.05)
