"""``bs.verify`` on real servers: it finds exactly what another writer has done to a target, under writers."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import backlog_spark as bs
from backlog_spark.decide.steps import Mode
from backlog_spark.spark.jvm.internals import is_usable
from backlog_spark.verification.verify import _sized_session
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID

from .jobs import EVERY, Beside, corrupt, create, found, source, wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

ROWS = 600


@pytest.mark.grid
@pytest.mark.parametrize("server", SERVERS_IN_GRID, indirect=True)
def test_finds_exactly_the_corrupted_keys_while_query_and_writers_go_on(
    spark: SparkSession, server: MySQLServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(7)
    create(server, "busy", ROWS)
    orders = source(server, "verify.busy", chunkSize=150)
    path = str(tmp_path / "target")
    made = orders.write("busy").trigger(processing_time="200 ms", interval_during_backlog="1 second")
    made = made.option("checkpointLocation", str(tmp_path / "checkpoint")).to(bs.DeltaUpsert(path, keys=["id"]))
    caplog.set_level(logging.INFO, logger="backlog_spark")
    writers = Beside(server, "verify.busy", 3, threads=2, keys=ROWS, pause=0.02)
    with writers:
        query = made.start(spark)
        try:
            wait(lambda: query.mode is Mode.STREAM and query.backlogProgress.commits_after > 1, query)
            before = bs.verify(query)
            assert before.raise_for_differences() is before
            assert before.source_rows == before.target_rows > 0
            assert before.chunks > 1
            expected = corrupt(path, chance, list(range(0, ROWS, EVERY)), [-5, 10**6])
            written = query.backlogProgress.commits_after
            wait(lambda: query.backlogProgress.commits_after > written, query)
            while_it_runs = bs.verify(query)
            first = bs.verify(query, max_differences=3, values=True)
        finally:
            query.stop()
        stopped = bs.verify(orders, bs.DeltaUpsert(path, keys=["id"]), checkpoint=str(tmp_path / "checkpoint"))
    for result in (while_it_runs, stopped):
        assert found(result) == expected
        assert (result.missing, result.different, result.doubled, result.extra) == (3, 4, 2, 2)
    assert before.batch_id < while_it_runs.batch_id <= stopped.batch_id
    assert [d.key["id"] for d in first.differences] == sorted(key for _, key in expected)[:3]
    assert first.differences[0].target == {"n": 0.5, "v": "x"}
    assert first.differences[0].source is None
    assert "more" in str(first)
    with pytest.raises(bs.TargetDiffers, match="3 missing, 2 extra, 4 different, 2 doubled"):
        stopped.raise_for_differences()
    told = "\n".join(r.getMessage() for r in caplog.records if "verify" in r.getMessage())
    assert "3 missing" in told
    assert "id=" not in told


def test_there_are_as_many_tasks_as_the_tables_need(spark: SparkSession) -> None:
    setting, cores = "spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism
    before = str(spark.conf.get(setting))
    spark.conf.set(setting, "200")
    try:
        found = [int(str(_sized_session(spark, chunks).conf.get(setting))) for chunks in (0, 1, cores + 5, 10_000)]
        sized = [cores, cores, cores + 5, 200] if is_usable("session copy") else [200] * 4
        assert found == sized
        assert spark.conf.get(setting) == "200", "of the user's own queries"
    finally:
        spark.conf.set(setting, before)
