"""Bounded sources next to an unbounded one, killed after each has finished: each row once, no source read again."""

from __future__ import annotations

import datetime as dt
import json
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

from backlog_spark.runner.handle import JobStatus
from tests.integration.topics import Topic

from .finished_job import BOUNDED, ROWS, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import backlog_spark as bs
    from servers.kafka import KafkaServer

LIMIT_S = 300
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
# The bounded ones are of another year each: their last times are long before the others' first.
YEARS = {"a": 2023, "b": 2024, "c": 2025}


def write(root: Path) -> Counter[tuple[str, int]]:
    """The files of the bounded sources, one more a source, and their rows."""
    expected: Counter[tuple[str, int]] = Counter()
    for files, name in enumerate(BOUNDED, 1):
        (root / name).mkdir(parents=True)
        first = dt.datetime(YEARS[name], 1, 1, tzinfo=dt.UTC)
        for number in range(files):
            numbers = range(number * ROWS, (number + 1) * ROWS)
            times = pa.array([first + dt.timedelta(seconds=n) for n in numbers], pa.timestamp("us", "UTC"))
            table = pa.table({"n": pa.array(numbers, pa.int64()), "ts": times})
            pq.write_table(table, root / name / f"{number}.parquet")
            expected.update((name, n) for n in numbers)
    return expected


def put_out(spark: SparkSession, job: dict[str, Any]) -> Counter[tuple[str, int]]:
    rows = spark.read.format("delta").load(job["target"]).collect()
    return Counter((row["origin"], row["n"]) for row in rows)


def live_until_killed(job: dict[str, Any], finished: int, log: Path) -> None:
    with log.open("wb") as out:
        command = [sys.executable, "-m", "tests.faults.finished_job", json.dumps(job), str(finished)]
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        raise AssertionError(f"{finished} sources have not finished: {log.read_text()[-3000:]}") from None
    assert code == -signal.SIGKILL, (finished, log.read_text()[-3000:])


def described(tmp_path: Path, *, broker: str, topic: str, during: str | None) -> dict[str, Any]:
    return {
        "root": str(tmp_path / "files"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "target": str(tmp_path / "target"),
        "broker": broker,
        "topic": topic,
        "during": during,
    }


# Killed when so many of the bounded sources have finished: two of three, or after each.
@pytest.mark.grid
@pytest.mark.parametrize("kills", [[2], pytest.param([1, 2, 3], marks=pytest.mark.grid)], ids=["some", "all"])
def test_each_finishes_once_and_the_query_goes_on(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path, kills: list[int]
) -> None:
    topic = Topic(kafka, f"finished-beside-{len(kills)}")
    expected = write(tmp_path / "files")
    job = described(tmp_path, broker=kafka.address(), topic=topic.name, during=None)

    def send(first: int, count: int) -> None:
        times = ((NOW + dt.timedelta(seconds=n)).isoformat() for n in range(first, first + count))
        topic.send([{"n": n, "ts": ts} for n, ts in enumerate(times, first)])

    send(0, 100)
    for finished in kills:
        live_until_killed(job, finished, tmp_path / "driver.log")
        # They are not read again, and not even looked for.
        for name in BOUNDED[:finished]:
            if (tmp_path / "files" / name).exists():
                (tmp_path / "files" / name).rename(tmp_path / f"gone-{name}")
    query = start(spark, job)
    try:
        # Nothing of the bounded ones holds the watermark: the rows of the topic come out by their own times.
        send(100, 100)
        expected.update(("live", n) for n in range(199))
        wait(lambda: query.backlogProgress.rows >= 100, query)
        query.processAllAvailable()
        wait(lambda: put_out(spark, job).total() >= expected.total(), query)
        assert query.jobStatus is JobStatus.RUNNING
    finally:
        query.stop()
    assert query.exception() is None
    assert put_out(spark, job) == expected
    assert query.lateRows == 0


@pytest.mark.grid
@pytest.mark.parametrize("during", ["0", None])
def test_when_all_have_finished_the_query_has(spark: SparkSession, tmp_path: Path, during: str | None) -> None:
    expected = write(tmp_path / "files")
    job = described(tmp_path, broker="", topic="", during=during)
    live_until_killed(job, 3, tmp_path / "driver.log")
    query = start(spark, job)
    assert query.awaitTermination(LIMIT_S), "it ends by itself"
    assert query.jobStatus is JobStatus.FINISHED
    assert put_out(spark, job) == expected


def wait(condition: Any, query: bs.BacklogQuery) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < limit
        time.sleep(0.2)
