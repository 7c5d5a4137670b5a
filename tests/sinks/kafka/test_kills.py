"""SIGKILL of a worker and of the driver before, in and after a transaction: the exact multiset of committed records."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.sinks import BatchInfo
from tests.sinks.kafka.changes import batches, counted, envelopes_of, frame, opened, table_after, upserts_of
from tests.sinks.kafka.driver_job import batch, info, write
from tests.sinks.kafka.killing import POINTS, KilledSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.sinks.kafka.topics import Topics

LIMIT_S = 300
SOME = [pytest.param(each, marks=() if each == "flushed" else pytest.mark.grid) for each in POINTS]


@pytest.mark.parametrize("is_backlog", [True, pytest.param(False, marks=pytest.mark.grid)])
@pytest.mark.parametrize("point", SOME)
def test_a_worker_is_killed(spark: SparkSession, topics: Topics, tmp_path: Path, point: str, is_backlog: bool) -> None:
    topic, rows, flag = topics.new(), batches(5, 1, 400, 60)[0], tmp_path / "flag"
    sink: Any = opened(topics, topic, spark=spark, sink=KilledSink)
    sink.point, sink.flag = point, str(flag)
    sink.write(frame(spark, rows), BatchInfo(0, is_backlog))
    assert flag.exists()
    assert counted(topics.messages(topic)) == counted(upserts_of(rows))


@pytest.mark.parametrize("form", ["json", pytest.param("debezium", marks=pytest.mark.grid)])
@pytest.mark.parametrize("points", [["in"], pytest.param(POINTS, marks=pytest.mark.grid, id="all")])
def test_the_driver_is_killed(
    spark: SparkSession, topics: Topics, tmp_path: Path, points: list[str], form: str
) -> None:
    topic, noted, log = topics.new(), tmp_path / "noted", tmp_path / "log"
    address = topics.server.address()
    for point in points:
        flag = tmp_path / point
        with log.open("wb") as out:
            given = [address, topic, form, point, str(flag), str(noted)]
            killed = subprocess.run(
                [sys.executable, "-m", "tests.sinks.kafka.driver_job", *given],
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True, timeout=LIMIT_S, check=False,
            )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL, log.read_text()
        write(spark, topics.options(), topic, form, noted, "never", "", 1)
    last = int(noted.read_text())
    made = [batch(number) for number in range(last + 1)]
    assert {info(number).is_backlog for number in range(last + 1)} == {False, True}
    if form == "json":
        assert counted(topics.messages(topic)) == counted(itertools.chain(*map(upserts_of, made)))
        assert topics.table(topic) == table_after(made)
    else:
        found = [
            (key, value and (value["op"], value["before"], value["after"])) for key, value in topics.messages(topic)
        ]
        assert counted(found) == counted(itertools.chain(*map(envelopes_of, made)))
