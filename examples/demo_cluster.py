"""The job on a standalone cluster whose executors and driver are killed: nothing is lost or duplicated.

``make demo-cluster`` runs it: a master and two workers of one core each, MySQL and Kafka, all as processes of this
machine, started by the scripts of docker/ that the containers of docker-compose.yml run too. An executor is killed in
the backlog and in the stream of each of the two queries, and the driver in each; then the job is submitted again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.request import urlopen

from servers.cache import cache_dir
from servers.jars import delta_jars
from servers.kafka import KafkaServer
from servers.launch import launch
from servers.mysql import MySQLServer
from servers.server import free_port
from servers.spark_cluster import SCRIPTS, SparkCluster, kill_group

from .cluster_data import PARTS, QUERIES
from .common import main

PASSWORD = "reads-only"  # of docker/mysql-user.sql
_STEP_SECONDS = 900


class Mysql(MySQLServer):
    """The server, started as in its container."""

    default_options: ClassVar[Mapping[str, str | None]] = {"mysqlx": "OFF"}

    def command(self) -> list[str]:
        return ["/bin/sh", str(SCRIPTS / "mysql.sh"), *super().command()]


class Kafka(KafkaServer):
    """The broker, started as in its container."""

    def initialise(self) -> None:
        """The script does."""

    def command(self) -> list[str]:
        *runner, _, _ = super().command()
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        return ["/bin/sh", str(SCRIPTS / "kafka.sh"), *runner]

    def environment(self) -> dict[str, str]:
        own = {"KAFKA_HOST": self.host, "KAFKA_LISTEN": self.host, "KAFKA_PORT": str(self.port)}
        return {**os.environ, **own, "KAFKA_CONTROLLER_PORT": str(free_port()), "KAFKA_DATA": str(self.datadir)}


class Log:
    """What Spark's logs of one checkpoint say."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint

    def newest(self, log: str) -> int:
        """The newest batch in ``offsets`` or ``commits``; -1 without one."""
        names = [path.name for path in (self._checkpoint / log).glob("*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def ends_in_backlog(self, batch: int) -> bool:
        """Whether any source is in backlog at a batch's end."""
        try:
            lines = (self._checkpoint / "offsets" / str(batch)).read_text().splitlines()[2:]
        except OSError:
            return False
        return any('"isProcessingBacklog": true' in line or '"isProcessingBacklog":true' in line for line in lines)

    def runs_backlog(self) -> bool:
        """Whether a batch of backlog is planned and not committed."""
        newest = self.newest("offsets")
        starts_so = newest == 0 or self.ends_in_backlog(newest - 1)
        return newest > self.newest("commits") and starts_so

    def runs_stream(self) -> bool:
        """Whether a batch after the backlog is planned and not committed."""
        newest = self.newest("offsets")
        return newest > self.newest("commits") >= 0 and not self.ends_in_backlog(newest - 1)


class Demo:
    """The running demo: the cluster, the job and what was killed."""

    def __init__(self, folder: Path, cluster: SparkCluster, environment: dict[str, str], options: list[str]) -> None:
        self.folder, self.cluster = folder, cluster
        self.environment, self.options = environment, options
        self.executors = self.drivers = 0
        self.driver: subprocess.Popen[bytes] | None = None

    def submit(self) -> None:
        """Submit the job, from a directory that is neither the repository nor a worker's."""
        command = ["/bin/sh", str(SCRIPTS / "job.sh"), *self.options, "--seconds", "3"]
        submitter = self.folder / "submitter"
        submitter.mkdir(exist_ok=True)
        self.driver = self.cluster.run_driver(command, submitter, self.folder / "job.log", self.environment)

    def until(self, what: str, condition: Callable[[], object]) -> None:
        """Wait while the job runs."""
        assert self.driver is not None
        deadline = time.monotonic() + _STEP_SECONDS
        while not condition():
            if self.driver.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / "job.log").read_text(errors="replace")
                raise RuntimeError(f"{what} did not come; the job's log ends: {log[-700:]}")
            time.sleep(0.01)

    def kill_executor(self, when: str) -> None:
        """SIGKILL one, and wait until there are two again."""
        found = self.cluster.await_executors(1, self.driver)
        victim = found[self.executors % len(found)]
        victim.kill()
        self.executors += 1
        print(f"  executor {victim.pid} of worker {victim.worker + 1} killed in {when}", flush=True)
        self.until("another executor", lambda: len([e for e in self.cluster.executors() if e != victim]) == 2)

    def read_metrics(self, query: str) -> None:
        """Wait until the driver serves the metrics of a query, as Prometheus reads them."""
        url = f"http://127.0.0.1:{self.environment['METRICS_PORT']}/metrics"

        def told() -> bool:
            with contextlib.suppress(OSError), urlopen(url, None, 1) as answer:
                return f'backlog_spark_query_running{{query="{query}"}} 1.0'.encode() in answer.read()
            return False

        self.until(f"the metrics of {query}", told)
        print(f"  metrics of {query} read", flush=True)

    def kill_driver(self, when: str) -> None:
        """SIGKILL it and submit the job again."""
        assert self.driver is not None
        kill_group(self.driver)
        self.drivers += 1
        print(f"  driver killed in {when}; the job is submitted again", flush=True)
        self.submit()

    def result(self) -> dict[str, Any]:
        """Wait for the job's end and return what it has found."""
        assert self.driver is not None
        status, result = self.driver.wait(_STEP_SECONDS), self.folder / "result.json"
        if not result.exists():
            raise RuntimeError(f"the job ended with status {status}")
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    def kill_in(self, part: str) -> None:
        """An executor in backlog and in stream, and the driver."""
        log = Log(self.folder / "checkpoints" / part)
        hold = self.folder / f"hold-{part}"
        self.until(f"the backlog of {part}", log.runs_backlog)
        time.sleep(1)  # into the work of its tasks
        self.kill_executor(f"the backlog of {part}")
        self.until(f"the stream of {part}", log.runs_stream)
        self.kill_executor(f"the stream of {part}")
        committed = log.newest("commits")
        self.until("a commit", lambda: log.newest("commits") > committed)
        self.read_metrics(QUERIES[part])
        self.until(f"the stream of {part}", log.runs_stream)
        self.kill_driver(f"the stream of {part}")
        hold.unlink()


def run(arguments: argparse.Namespace) -> str:
    """The whole demo. Returns the last line to print."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-demo-cluster-")))
        mysql = stack.enter_context(Mysql())
        for statement in _statements((SCRIPTS / "mysql-user.sql").read_text()):
            mysql.execute(statement)
        kafka = stack.enter_context(Kafka())
        # A worker's own environment is that of its executors.
        secret = {"MYSQL_PASSWORD": PASSWORD}
        cluster = stack.enter_context(SparkCluster(environment=secret))
        print(f"MySQL on {mysql.port}, Kafka on {kafka.port}, {cluster.url} with two workers", flush=True)
        options = ["--folder", str(folder), "--mysql", f"127.0.0.1:{mysql.port}", "--broker", kafka.address()]
        command = ["/bin/sh", str(SCRIPTS / "changes.sh"), *options, "--rows", str(arguments.rows)]
        changes = launch(command, os.environ, sys.stdout.buffer)
        stack.callback(_end, changes)
        jars = ",".join(map(str, delta_jars()))
        own = {"SPARK_DRIVER_HOST": "127.0.0.1", "SPARK_DRIVER_BIND": "127.0.0.1", "SPARK_JARS": jars, **secret}
        own["METRICS_PORT"] = str(free_port())
        for part in PARTS:
            (folder / f"hold-{part}").touch()
        demo = Demo(folder, cluster, own, options)
        try:
            demo.submit()
            for part in PARTS:
                demo.kill_in(part)
            found = demo.result()
        except Exception:
            shutil.copy(folder / "job.log", cache_dir() / "demo-cluster.log")  # the folder is removed
            raise
        killed = f"executors_killed={demo.executors} drivers_killed={demo.drivers}"
        return f"demo: {'OK' if found['right'] else 'FAILED'} {found['text']} {killed}"


def _statements(script: str) -> list[str]:
    lines = [line for line in script.splitlines() if not line.startswith("--")]
    return [statement.strip() for statement in " ".join(lines).split(";") if statement.strip()]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


if __name__ == "__main__":
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--rows", type=int, default=200_000, help="orders in MySQL at the start, and in the files")
    sys.exit(main(run, given))
