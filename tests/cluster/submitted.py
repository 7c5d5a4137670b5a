"""Queries that run on the cluster: submit them, kill what they run on, and get their table."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from servers.jars import delta_jars, spark_kafka_jars
from servers.spark_cluster import Executor, SparkCluster, kill_group

from .conftest import REPOSITORY

__all__ = ["LIMIT_S", "Submitted", "wait_for"]

LIMIT_S = 300
_CONF = {
    "spark.driver.memory": "700m",
    "spark.executor.memory": "640m",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.backlog.restart.delay": "100 ms",
    "spark.ui.enabled": "false",
    # The tests kill more executors in a minute than a cluster loses in a month.
    "spark.task.maxFailures": "8",
}


def wait_for(condition: Callable[[], object], what: str, limit: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.002)


class Submitted:
    """One query on one checkpoint, in one life after another.

    Parameters
    ----------
    cluster : SparkCluster
    module : str
        Its ``start(spark, job)`` starts the query.
    job : mapping
        What it takes.
    folder : Path
        The working directory of the drivers.
    conf : mapping of str to str, optional
    jars : sequence of Path, optional
        Besides Delta's and those of Spark's Kafka source.
    """

    def __init__(
        self,
        cluster: SparkCluster,
        module: str,
        job: Mapping[str, Any],
        folder: Path,
        conf: Mapping[str, str] | None = None,
        jars: Sequence[Path] = (),
    ) -> None:
        self._cluster, self._module, self.folder = cluster, module, folder
        self._job = {**job, "folder": str(folder)}
        files = [*delta_jars(), *spark_kafka_jars(), *jars]
        # As the other JVMs of the tests (tests/classes.py), which have them from the variable itself.
        of_executors = {"spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}
        self._conf = {**_CONF, **of_executors, "spark.jars": ",".join(map(str, files)), **dict(conf or {})}
        self._driver: subprocess.Popen[bytes] | None = None
        self.log = folder / "driver.log"
        folder.mkdir(exist_ok=True)

    def live(self, *deaths: str) -> None:
        """Start a driver. ``deaths``: names in `tests.cluster.program.DEATHS`, of executors, each once."""
        for death in deaths:
            (self.folder / death).touch()
        program = [str(REPOSITORY / "tests" / "cluster" / "program.py"), self._module, json.dumps(self._job), *deaths]
        environment = {"PYTHONPATH": str(REPOSITORY)}
        self._driver = self._cluster.submit(
            program, cwd=self.folder, log=self.log, conf=self._conf, environment=environment
        )

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait while the driver runs."""

        def reached() -> object:
            assert self._driver is not None
            assert self._driver.poll() is None, self.log.read_text()[-5000:]
            return condition()

        try:
            wait_for(reached, what)
        except AssertionError:
            print(self.log.read_text()[-5000:])
            raise

    def died(self, death: str) -> bool:
        """Whether an executor has died there."""
        return not (self.folder / death).exists()

    def kill_executor(self, number: int = 0) -> Executor:
        """SIGKILL one of the executors."""
        victim = self._cluster.await_executors(1, self._driver)
        victim[number % len(victim)].kill()
        return victim[number % len(victim)]

    def kill(self) -> None:
        """SIGKILL the driver, with its Python process. Its executors end by themselves."""
        assert self._driver is not None
        kill_group(self._driver)
        wait_for(lambda: not self._cluster.executors(), "the end of its executors")

    def rows(self) -> Counter[tuple[Any, ...]]:
        """Let the query take all that there is, and return what the table has."""
        assert self._driver is not None
        (self.folder / "end").touch()
        try:
            status = self._driver.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.log.read_text()[-5000:]) from None
        assert status == 0, self.log.read_text()[-5000:]
        return Counter(tuple(row) for row in json.loads((self.folder / "found").read_text()))
