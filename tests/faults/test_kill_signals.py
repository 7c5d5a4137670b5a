"""SIGKILL of the driver, or of workers, while a signal makes the stream read its table again: each row exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.connectors.mysql_cdc.offsets import Offset
from backlog_spark.connectors.mysql_cdc.snapshot.requests import Requests
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID, Writers, options, table_rows

from .job import start
from .signal_job import is_begun
from .test_kill_driver import Job, Moment, task_workers, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, CHANGED = 3_000, 2_000
"""The table's rows; writers' statements begin at a key below the second number."""
UNTOUCHED = CHANGED + 4
"""No statement reaches this key: the longest deletes five keys in a row."""
T = {"data-collections": ["faults.signals"]}
METADATA = "_change_type,_commit_timestamp,_commit_seq,_is_snapshot"


@pytest.fixture(params=SERVERS_IN_GRID)
def mysql(request: pytest.FixtureRequest, pool: Callable[..., MySQLServer]) -> MySQLServer:
    server = pool(request.param)
    server.execute("DROP DATABASE IF EXISTS faults")
    server.execute("CREATE DATABASE faults")
    server.execute("CREATE TABLE faults.asks (id VARCHAR(42) PRIMARY KEY, type VARCHAR(32), data TEXT)")
    server.execute("CREATE TABLE faults.signals (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    server.execute("INSERT INTO faults.signals VALUES " + ",".join(f"({i}, {i}, 's')" for i in range(ROWS)))
    return server


def requests(job: Job, batch: int) -> Requests:
    offset = job.offset(batch)
    return Offset.from_json(offset).requests if offset else Requests()


def is_sent(job: Job) -> bool:
    """The signal is in the query's log; no batch has taken it, or one is about to."""
    return any((job.checkpoint / "backlog").glob("signals-rows-*.json"))


def is_taken(job: Job) -> bool:
    """A batch has taken the signal, and none has read anything for it."""
    return bool((found := requests(job, job.newest("offsets"))).queue) and not found.reads


def is_planned(job: Job) -> bool:
    """A batch that reads is planned and not committed."""
    running = job.running()
    return bool(running) and bool(Offset.from_json(running).requests.reads)


def is_written(job: Job) -> bool:
    """The target has such a batch, Spark's commit log does not."""
    return is_planned(job) and job.newest("offsets") in job.transactions()


def is_committed(job: Job) -> bool:
    """Such a batch is committed, and there is more to read."""
    return bool((found := requests(job, job.newest("commits"))).reads) and bool(found.queue)


def is_paused(job: Job) -> bool:
    return requests(job, job.newest("commits")).is_paused


def run_and_kill(job: Job, moment: Moment, log: Path) -> None:
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.signal_job", json.dumps(job.described)],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:

        def reached() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            return moment(job)

        wait_for(reached, moment.__name__)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def described(server: MySQLServer, root: Path, *signals: tuple[str, Any], **more: object) -> Job:
    source = options(server, "faults.signals", chunkSize=500, metadataColumns=METADATA, **more)
    job = Job(root, source, None)
    job.described |= {"appends": True, "signals": signals, "interval": "200 ms"}
    return job


def finish(spark: SparkSession, server: MySQLServer, job: Job, writers: Writers, resume: bool) -> None:
    """Start again from the checkpoint, wait for the rest, and compare."""
    query = start(spark, job.described)
    try:
        if resume:
            query.signal("resume-snapshot")

        def done() -> bool:
            assert query.isActive, query.exception()
            found = requests(job, job.newest("commits"))
            return found.heard >= len(job.described["signals"]) + resume and not found.queue

        wait_for(done, "the end of the snapshot", 0.1)
        writers.__exit__()
        query.processAllAvailable()
    finally:
        query.stop()
    check(spark, server, job, times=1)


def check(spark: SparkSession, server: MySQLServer, job: Job, times: int) -> None:
    """The newest row of each key is the table's, and each key was read again as often as it was asked for."""
    rows = spark.read.format("delta").load(str(job.target)).collect()
    newest: dict[int, Any] = {}
    for row in sorted(rows, key=lambda row: row["_commit_seq"]):
        newest[row["id"]] = row
    is_there = ("insert", "update_postimage")
    kept = {key: (key, row["n"], row["v"]) for key, row in newest.items() if row["_change_type"] in is_there}
    assert kept == table_rows(server, "faults.signals")
    again = Counter(row["id"] for row in rows if row["_is_snapshot"] and row["_change_type"] == "update_postimage")
    assert {again[key] for key in range(UNTOUCHED, ROWS)} == {times}
    assert max(again.values()) == times
    first = Counter(row["id"] for row in rows if row["_is_snapshot"] and row["_change_type"] == "insert")
    assert set(first.values()) == {1}
    changes = Counter(row["_commit_seq"] for row in rows if not row["_is_snapshot"])
    assert not changes or set(changes.values()) == {1}, "a change came twice"
    assert job.transactions() == sorted(set(job.transactions())), "a batch was written twice"


PAUSED = (("execute-snapshot", T), ("pause-snapshot", None))


@pytest.mark.grid
@pytest.mark.parametrize(
    ("moments", "signals"),
    [
        pytest.param([is_written], [("execute-snapshot", T)], id="written"),
        pytest.param([is_sent], [("execute-snapshot", T)], id="sent", marks=pytest.mark.grid),
        pytest.param([is_taken], [("execute-snapshot", T)], id="taken", marks=pytest.mark.grid),
        pytest.param([is_planned], [("execute-snapshot", T)], id="planned", marks=pytest.mark.grid),
        pytest.param([is_committed], [("execute-snapshot", T)], id="committed", marks=pytest.mark.grid),
        pytest.param([is_paused], PAUSED, id="paused", marks=pytest.mark.grid),
    ],
)
def test_a_killed_driver_reads_each_row_again_once(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, moments: list[Moment], signals: Any
) -> None:
    job = described(mysql, tmp_path, *signals)
    writers = Writers(mysql, "faults.signals", 3, threads=1, keys=CHANGED, pause=0.02)
    with writers:
        for moment in moments:
            run_and_kill(job, moment, tmp_path / "driver.log")
        finish(spark, mysql, job, writers, resume=len(signals) > 1)
    assert writers.commits > 0


@pytest.mark.grid
def test_killed_workers_and_rows_of_the_signal_table(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    job = described(mysql, tmp_path, **{"signal.table": "faults.asks"})
    killed = 0
    writers = Writers(mysql, "faults.signals", 4, threads=1, keys=CHANGED, pause=0.02)
    with writers:
        query = start(spark, job.described)
        try:
            wait_for(lambda: not query.isProcessingBacklog and is_begun(query), "the log", 0.1)
            condition = {**T, "additional-conditions": [{"data-collection": "faults.signals", "filter": "id >= 0"}]}
            for number, data in enumerate(({**T}, condition, "{broken")):
                text = data if isinstance(data, str) else json.dumps(data)
                with mysql.connect() as connection, connection.cursor() as cursor:
                    cursor.execute("INSERT INTO faults.asks VALUES (%s, 'execute-snapshot', %s)", (number, text))
            wait_for(lambda: is_committed(job), "a part", 0.05)
            while requests(job, job.newest("commits")).queue:
                assert query.isActive, query.exception()
                for worker in task_workers()[:1] if killed < 3 else ():
                    os.kill(worker, signal.SIGKILL)
                    killed += 1
                time.sleep(0.5)
            writers.__exit__()
            query.processAllAvailable()
        finally:
            query.stop()
    check(spark, mysql, job, times=2)
    assert killed > 0


def test_signals_that_a_query_refuses(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    source = options(mysql, "faults.signals")
    query = start(spark, described(mysql, tmp_path).described)
    try:
        for kind, data, message in (
            ("make-coffee", None, "no signal of type 'make-coffee'"),
            ("execute-snapshot", {"data-collections": ["faults.other"]}, "No captured table matches 'faults.other'"),
            ("execute-snapshot", {**T, "additional-condition": "no_column = 1"}, "'no_column = 1' does not work"),
        ):
            with pytest.raises(bs.BacklogError, match=message):
                query.signal(kind, data)
        with pytest.raises(bs.BacklogError, match=r"'other': is no source.*'rows'"):
            query.signal("pause-snapshot", source="other")
    finally:
        query.stop()
    with pytest.raises(bs.BacklogError, match="has ended"):
        query.signal("pause-snapshot")
    keyed = bs.source("mysql_cdc", name="rows", options={**source, "signal.table": "faults.asks"}).key_by("id").count()
    with pytest.raises(bs.BacklogError, match=r"may give rows again \(signal\.table\)"):
        keyed.write("counts").option("checkpointLocation", str(tmp_path / "keyed")).to(
            bs.DeltaUpsert(str(tmp_path / "counts"), keys=["id"])
        ).start(spark)
