"""The two sources on other versions of Spark, with kills, and whole queries on 4.3 without Delta.

Each version has an environment of its own, made by ``make test-sparks``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import Writers, apply, options, table_rows
from tests.integration.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.kafka import KafkaServer

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = Path(os.environ.get("SPARKS", ROOT / ".venv"))
# With native queries, and with queries of backlog_spark.
VERSIONS = (("4.0", False), ("4.1", False), ("4.3", False), ("4.3", True))
ALONE = ("4.0", "4.1")
LIMIT_S = 300
ROWS = 6_000

pytestmark = [pytest.mark.sparks, pytest.mark.process]


def of_version(version: str) -> str:
    """The interpreter that has this version of PySpark."""
    return str(ENVIRONMENTS / f"spark-{version}" / "bin" / "python")


@pytest.fixture(params=VERSIONS, ids=lambda given: f"{given[0]}{' whole' if given[1] else ''}")
def version(request: pytest.FixtureRequest) -> tuple[str, bool]:
    """A version of Spark, and whether the query is one of backlog_spark."""
    found: tuple[str, bool] = request.param
    return found


def environment(python: str) -> dict[str, str]:
    mine = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "PYTHONPATH": str(ROOT)}
    return {name: text for name, text in os.environ.items() if name != "SPARK_SUBMIT_OPTS"} | mine


class Job:
    """A query of another Spark, and what it has left on disk."""

    def __init__(self, version: tuple[str, bool], root: Path, **described: Any) -> None:
        self.python, self.log = of_version(version[0]), root / "log"
        described["whole"] = version[1]
        self.checkpoint, self.target = root / "checkpoint", root / "target"
        self.described = {**described, "checkpoint": str(self.checkpoint), "target": str(self.target)}

    def newest(self, log: str) -> int:
        found = (self.checkpoint / log).glob("*")
        return max((int(path.name) for path in found if path.name.isdigit()), default=-1)

    def offset(self, batch: int) -> dict[str, Any]:
        try:
            text = (self.checkpoint / "offsets" / str(batch)).read_text()
            return dict(json.loads(text.splitlines()[2]))
        except (OSError, IndexError):
            return {}

    @contextmanager
    def running(self) -> Iterator[Callable[..., None]]:
        """Start it, and kill it at the end. Gives a function that waits for a moment."""
        with self.log.open("wb") as out:
            process = subprocess.Popen(
                [self.python, str(ROOT / "tests/sparks/job.py"), json.dumps(self.described)],
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=environment(self.python),
            )  # fmt: skip

        def until(moment: Callable[[], bool], pause: float = 0.005) -> None:
            limit = time.monotonic() + LIMIT_S
            while not moment():
                assert process.poll() is None, self.log.read_text()[-3000:]
                assert time.monotonic() < limit, self.log.read_text()[-3000:]
                time.sleep(pause)

        try:
            yield until
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def is_planned(self, *, backlog: bool) -> Callable[[], bool]:
        """Whether a batch that this life has planned is of the backlog, or not, and has not committed."""
        before = self.newest("offsets")

        def moment() -> bool:
            planned = self.newest("offsets")
            start = self.offset(planned - 1).get("isProcessingBacklog", True)
            return planned > max(before, self.newest("commits")) and start is backlog

        return moment

    def has_committed(self, batches: int) -> Callable[[], bool]:
        """Whether this life has committed so many batches after the backlog."""
        before = self.newest("commits")

        def moment() -> bool:
            newest = self.newest("commits")
            return newest >= before + batches and self.offset(newest).get("isProcessingBacklog") is False

        return moment


def test_a_table_and_its_log(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, version: tuple[str, bool]
) -> None:
    table = f"sparks.t{version[0][-1]}{'w' if version[1] else ''}"
    mysql.execute("CREATE DATABASE IF NOT EXISTS sparks")
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    mysql.execute(f"INSERT INTO {table} VALUES " + ",".join(f"({i}, {i}, 's')" for i in range(ROWS)))
    job = Job(
        version, tmp_path, format="mysql_cdc", options=options(mysql, table, chunkSize=500, maxRowsPerBatch=1_000)
    )
    with Writers(mysql, table, 5, threads=1, keys=ROWS):
        for moment in (job.is_planned(backlog=True), job.is_planned(backlog=True), job.is_planned(backlog=False)):
            with job.running() as until:
                until(moment)
        with job.running() as until:  # stops between two batches, or in one
            until(job.has_committed(3))
    mysql.execute(f"INSERT INTO {table} VALUES (-1, 0, 'last')")
    with job.running() as until:

        def rows() -> list[tuple[Any, ...]]:
            found = spark.read.parquet(str(job.target)).orderBy("_commit_seq").collect()
            return [tuple(row) for row in found]

        until(lambda: (job.target / "_spark_metadata").exists() and any(row[0] == -1 for row in rows()), 0.5)
    state: dict[int, tuple[Any, ...]] = {}
    assert list(apply(state, rows())) == []
    assert state == table_rows(mysql, table)


def test_files_and_a_topic(spark: SparkSession, kafka: KafkaServer, tmp_path: Path, version: tuple[str, bool]) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(20):
        ids = list(range(number * 100, number * 100 + 100))
        pq.write_table(pa.table({"id": ids}), files / f"{number:02}.parquet")
    topic = Topic(kafka, f"sparks{version[0][-1]}{version[1]}")
    topic.send({"id": number} for number in range(2_000, 2_300))
    job = Job(
        version, tmp_path, format="hybrid",
        options={
            "path": str(files), "schema": "id BIGINT", "maxRowsPerBatch": "300", "startingOffsets": "earliest",
            "kafka.bootstrap.servers": kafka.address(), "subscribe": topic.name, "valueFormat": "json",
            "metadataLocation": str(tmp_path / "metadata"),
        },
    )  # fmt: skip
    for backlog in (True, True, False):
        moment = job.is_planned(backlog=backlog)
        with job.running() as until:
            until(moment)
    topic.send({"id": number} for number in range(2_300, 2_600))
    wanted = Counter(range(2_600))
    with job.running() as until:

        def found() -> Counter[int]:
            return Counter(row.id for row in spark.read.parquet(str(job.target)).collect())

        until(lambda: found().total() >= wanted.total(), 0.5)
        committed = job.newest("commits")
        topic.send([{"id": 2_600}])  # a batch that would repeat rows is written before its row
        until(lambda: job.newest("commits") > committed and 2_600 in found(), 0.5)
    assert found() == wanted + Counter([2_600])
    assert committed >= 7


@pytest.mark.parametrize("number", ALONE)
@pytest.mark.parametrize("name", ["register", "source", "backlog_query", "sql"])
def test_everything_else_needs_another_version(number: str, name: str) -> None:
    python = of_version(number)
    code = f"import backlog_spark as bs\ntry:\n    bs.{name}\nexcept bs.BacklogError as error:\n    print(error)"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, env=environment(python))
    assert found.stdout.startswith("backlog_spark needs PySpark 4.2 or 4.3, found 4.")
    assert "also run on 4.0 and 4.1" in found.stdout
    assert found.stdout.count("\n") == 1


_PROBE = """
import backlog_spark as bs
from pyspark.sql import SparkSession
from backlog_spark.spark.jvm.internals import INTERNALS, missing
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
bs.register(spark)
print("LACKS", sorted(name for name in INTERNALS if not INTERNALS[name].jar and missing(name)))
stream = bs.source("hybrid", name="f", schema="id BIGINT", path=FILES, phases="files")
writer = stream.write("d").trigger(interval_during_backlog=0).option("checkpointLocation", TARGET + "-c")
try:
    writer.to(bs.DeltaAppend(TARGET)).start(spark)
except bs.BacklogError as error:
    print("TOLD", error)
totals = stream.key_by("id").aggregate("count(*) AS n")
writer = totals.write("t").trigger(interval_during_backlog=0).option("checkpointLocation", TARGET + "-t")
writer.to(bs.FilesSink(TARGET + "-totals")).start(spark).awaitTermination()
print("ROWS", sorted(tuple(row) for row in spark.read.parquet(TARGET + "-totals").collect()))
"""


def test_a_newer_version_has_what_is_used_but_delta(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    pq.write_table(pa.table({"id": [1, 1, 2]}), tmp_path / "files" / "a.parquet")
    names = f"TARGET, FILES = {str(tmp_path / 'target')!r}, {str(tmp_path / 'files')!r}"
    python = of_version("4.3")
    found = subprocess.run([python, "-c", names + _PROBE], capture_output=True, text=True, env=environment(python))
    told = [line for line in found.stdout.splitlines() if line.startswith(("LACKS", "TOLD", "ROWS"))]
    assert found.returncode == 0, found.stderr[-3000:]
    assert told[0] == "LACKS []"
    assert told[1].startswith("TOLD Delta has no jar for Spark 4.3")
    assert "another target" in told[1]
    assert told[2] == "ROWS [(1, 2), (2, 1)]"
