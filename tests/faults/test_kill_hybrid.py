"""SIGKILL of the driver in each phase of files and Kafka and at the switch, with both kinds of readers: exact rows."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backlog_spark.spark.jvm.session import session_conf
from tests.integration.topics import Topic

from .hybrid_job import start
from .test_kill_driver import task_workers
from .watching import newest, versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from servers.kafka import KafkaServer

FILES, ROWS = 4, 200
LIMIT_S = 300
EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
TIME = pa.timestamp("us", "UTC")


class Job:
    """The files of a running job."""

    def __init__(self, root: Path, kafka: KafkaServer | None, topic: str, kind: str, during: str | None) -> None:
        self.root = root
        self.described: dict[str, Any] = {
            "kind": kind,
            "during": during,
            "files": str(root / "files"),
            "checkpoint": str(root / "checkpoint"),
            "target": str(root / "target"),
            "broker": kafka.address() if kafka else "",
            "topic": topic,
            "rows": ROWS,
        }

    def newest(self, log: str) -> int:
        return newest(self.root / "checkpoint" / log)

    def flags(self) -> dict[int, bool]:
        """``isProcessingBacklog`` of the only source at the end of each batch."""
        logged = [path for path in (self.root / "checkpoint" / "offsets").iterdir() if path.name.isdecimal()]
        return {int(p.name): json.loads(p.read_text().splitlines()[2])["isProcessingBacklog"] for p in logged}

    def written(self) -> int:
        return len(versions(self.root / "target"))

    def done(self) -> tuple[int, int, int]:
        return self.newest("offsets"), self.newest("commits"), self.written()


def live_until(job: Job, planned: int, *, is_written: bool = False, exists: str = "") -> None:
    """One life. It ends when a batch is planned, or written but not committed, or when a file exists."""
    log = job.root / "driver.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.hybrid_job", json.dumps(job.described)],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        limit = time.monotonic() + LIMIT_S
        before = job.done()
        while True:
            offsets, commits, written = job.done()
            there = offsets >= planned and (not is_written or (written > before[2] and commits < offsets))
            if (
                (job.root / "checkpoint" / exists).exists()
                if exists
                else there and (offsets, commits, written) != before
            ):
                break
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < limit, (job.done(), log.read_text()[-3000:])
            time.sleep(0.005)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# Batch 3 is the last of four files; 4 the first of the topic.
LIVES = [(1, True), (3, False), (4, False), (5, True)]
CASES = [
    pytest.param("source", None, [(4, False)], id="source"),
    pytest.param("csv", None, [(1, True), (4, False)], id="csv"),
    pytest.param("source", None, [(1, True), (4, False)], id="source two lives", marks=pytest.mark.grid),
    pytest.param("native", None, [(4, False)], id="native", marks=pytest.mark.grid),
    pytest.param("source", "0", [(0, True), (1, False)], id="source in one commit", marks=pytest.mark.grid),
    *(
        pytest.param(kind, during, LIVES, id=f"{kind} {during} all lives", marks=pytest.mark.grid)
        for kind in ("source", "native")
        for during in (None, "1 second")
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "during", "lives"), CASES)
def test_a_killed_driver_loses_and_repeats_nothing(
    spark: SparkSession,
    kafka: KafkaServer,
    tmp_path: Path,
    kind: str,
    during: str | None,
    lives: list[tuple[int, bool]],
) -> None:
    topic = Topic(kafka, f"killed_{kind}_{len(during or '')}_{len(lives)}")
    (tmp_path / "files").mkdir()
    for n in range(FILES):
        rows = list(range(n * ROWS, (n + 1) * ROWS))
        if kind == "csv":  # pieces of each file must know its header
            lines = [("n,note\n", "{},-1\n") if n % 2 else ("note,N\n", "-1,{}\n")]
            text = "".join(head + "".join(line.format(row) for row in rows) for head, line in lines)
            (tmp_path / "files" / f"{n}.csv").write_text(text)
        else:
            pq.write_table(pa.table({"n": rows}), tmp_path / "files" / f"{n}.parquet")
    at = FILES * ROWS
    topic.send({"n": n} for n in range(at, at + 3 * ROWS))
    at += 3 * ROWS
    job = Job(tmp_path, kafka, topic.name, kind, during)
    for planned, is_written in lives:
        live_until(job, planned, is_written=is_written)
        topic.send({"n": n} for n in range(at, at + 50))
        at += 50
    query = start(spark, job.described)
    try:
        wait_for(lambda: count(spark, job) >= at, query)
    finally:
        query.stop()
    assert query.exception() is None
    found = Counter(r.n for r in spark.read.format("delta").load(job.described["target"]).collect())
    assert found == Counter(range(at))


@pytest.mark.grid
@pytest.mark.parametrize(
    ("during", "lives"),
    [
        ("1 second", [(1, False), (2, True), (3, False)]),
        pytest.param("0", [(1, False), (1, True)], marks=pytest.mark.grid),
    ],
)
def test_killed_in_a_backlog_that_a_rule_has_found(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path, during: str, lives: list[tuple[int, bool]]
) -> None:
    """The rule's answer is in the offset, so a batch that is planned again has the same rows and the same flag."""
    topic = Topic(kafka, f"killed_rule_{len(during)}")
    topic.send({"n": n} for n in range(10 * ROWS))
    job = Job(tmp_path, kafka, topic.name, "rule", during)
    job.described["settings"] = settings = {"spark.backlog.rule.watermarkLag": "10 minutes"}
    seen = []
    for planned, is_written in lives:
        live_until(job, planned, is_written=is_written)
        seen.append(job.flags())
    with session_conf(spark, settings):
        query = start(spark, job.described)
    try:
        wait_for(lambda: count(spark, job) >= 10 * ROWS, query)
        topic.send({"n": n} for n in range(10 * ROWS, 10 * ROWS + 50))
        wait_for(lambda: count(spark, job) >= 10 * ROWS + 50, query)
    finally:
        query.stop()
    flags = job.flags()
    assert all(flags[batch] == flag for found in seen for batch, flag in found.items()), "no plan changed"
    assert any(flags.values())
    assert not flags[max(flags)]
    found = Counter(r.n for r in spark.read.format("delta").load(job.described["target"]).collect())
    assert found == Counter(range(10 * ROWS + 50))


def count(spark: SparkSession, job: Job) -> int:
    return int(spark.read.format("delta").load(job.described["target"]).count())


def wait_for(condition: Callable[[], bool], query: Any) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < limit
        time.sleep(0.5)


@pytest.mark.grid
def test_killed_while_the_old_phase_hands_over(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    """With Spark's own readers: rows that are in files and in the topic appear once, and no other row is lost."""
    topic = Topic(kafka, "killed_handover", 1)
    (tmp_path / "files").mkdir()
    for n in range(FILES):
        rows = [(i, EPOCH + dt.timedelta(seconds=i)) for i in range(n * ROWS, (n + 1) * ROWS)]
        table = pa.table(list(zip(*rows, strict=True)), schema=pa.schema([("n", "int64"), ("at", TIME)]))
        pq.write_table(table, tmp_path / "files" / f"{n}.parquet")
    at = FILES * ROWS
    send(topic, range(at - 80, at + ROWS))
    job = Job(tmp_path, kafka, topic.name, "handover", None)
    live_until(job, 0, exists="backlog/keys-0")
    assert not (tmp_path / "checkpoint" / "backlog" / "phases-1.json").exists()
    live_until(job, 0, exists="backlog/phases-1.json")
    live_until(job, FILES)
    send(topic, range(at + ROWS, at + ROWS + 50))
    query = start(spark, job.described)
    try:
        limit = time.monotonic() + LIMIT_S
        while spark.read.format("delta").load(job.described["target"]).count() < at + ROWS + 50:
            assert query.isActive, query.exception()
            assert time.monotonic() < limit
            time.sleep(0.5)
    finally:
        query.stop()
    assert query.exception() is None
    found = Counter(r.n for r in spark.read.format("delta").load(job.described["target"]).collect())
    assert found == Counter(range(at + ROWS + 50))


def send(topic: Topic, numbers: range) -> None:
    for n in numbers:
        at = EPOCH + dt.timedelta(seconds=n)
        topic.send([{"n": n, "at": at.isoformat()}], at_ms=int(at.timestamp() * 1000))


@pytest.mark.grid
def test_killed_workers_lose_and_repeat_nothing(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, "killed_workers", 3)
    (tmp_path / "files").mkdir()
    pq.write_table(pa.table({"n": list(range(400_000))}), tmp_path / "files" / "1.parquet", row_group_size=50_000)
    topic.send({"n": n} for n in range(400_000, 480_000))
    job = Job(tmp_path, kafka, topic.name, "source", "1 second")
    job.described["rows"] = 100_000
    query = start(spark, job.described)
    killed = {True: 0, False: 0}
    try:
        limit = time.monotonic() + LIMIT_S
        while query.backlogProgress.rows < 480_000:
            assert query.isActive, query.exception()
            assert time.monotonic() < limit
            for worker in task_workers()[:1]:
                backlog = query.isProcessingBacklog
                if killed[backlog] < 2:  # a task has four attempts
                    os.kill(worker, signal.SIGKILL)
                    killed[backlog] += 1
            time.sleep(0.2)
    finally:
        query.stop()
    assert query.exception() is None
    assert killed[True], "in the files"
    found = spark.read.format("delta").load(job.described["target"])
    assert (found.count(), found.distinct().count()) == (480_000, 480_000)


@pytest.mark.grid
def test_killed_while_an_entry_of_the_log_is_mended(spark: SparkSession, tmp_path: Path) -> None:
    """Otherwise Spark would plan the batch again with other rows, and Delta would skip it because of its number."""
    for folder, count in (("files", 2), ("later", 1)):
        (tmp_path / folder).mkdir()
        for n in range(count):
            write_numbers(tmp_path / folder / f"{n}.parquet", 10 * n + (1_000 if folder == "later" else 0))
    job = Job(tmp_path, None, "", "native", None)
    job.described["later"] = str(tmp_path / "later")
    live_until(job, 1, is_written=True)
    assert job.newest("commits") == 0
    # Spark does not always keep them in the log.
    entry = tmp_path / "checkpoint" / "offsets" / "1"
    version, told, *offsets = entry.read_text().split("\n")
    metadata = json.loads(told)
    metadata["conf"].pop("spark.sql.shuffle.partitions", None)
    entry.with_name(".1.crc").unlink(missing_ok=True)
    entry.write_text("\n".join([version, json.dumps(metadata), *offsets]))
    for how, is_there in (("deleted", False), ("checksum", True)):
        dying = json.dumps({**job.described, "dies_when_the_log_is_mended": how})
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.hybrid_job", dying], capture_output=True, timeout=LIMIT_S
        )
        assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
        assert (entry.exists(), entry.with_name(".1.crc").exists()) == (is_there, is_there)
    write_numbers(tmp_path / "files" / "2.parquet", 20)
    query = start(spark, job.described)
    expected = Counter([*range(30), *range(1_000, 1_010)])

    def found() -> Counter[int]:
        return Counter(r.n for r in spark.read.format("delta").load(job.described["target"]).collect())

    try:
        limit = time.monotonic() + LIMIT_S
        while sum(found().values()) < sum(expected.values()):
            assert query.isActive, query.exception()
            assert time.monotonic() < limit, found()
            time.sleep(0.5)
    finally:
        query.stop()
    assert query.exception() is None
    assert found() == expected
    assert not list((tmp_path / "checkpoint" / "backlog").glob("replacing-*"))


def write_numbers(path: Path, first: int) -> None:
    pq.write_table(pa.table({"n": list(range(first, first + 10))}), path)
