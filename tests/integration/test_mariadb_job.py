"""The main job on MariaDB: its offsets go through Spark's checkpoint, its changes through Spark's workers to Delta."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlog_spark.decide.steps import Mode
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS, Writers, table_rows

from .test_main_job import contents, create, wait, writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=SERVERS[1:])
def mariadb(request: pytest.FixtureRequest, pool: Callable[..., MySQLServer]) -> MySQLServer:
    return pool(request.param)


@pytest.mark.slow
def test_backlog_and_log_under_writers_stopped_in_between_give_the_exact_table(
    spark: SparkSession, mariadb: MySQLServer, tmp_path: Path
) -> None:
    create(mariadb, "orders")
    made = writer(mariadb, "orders", tmp_path, maxRowsPerBatch=1_000, chunkSize=300)
    made = made.trigger(processing_time="300 ms", interval_during_backlog="1 second")
    writers = Writers(mariadb, "job.orders", 5, threads=1, keys=3_000, pause=0.02)
    with writers:
        query = made.start(spark)
        try:
            wait(lambda: query.mode is Mode.STREAM and query.backlogProgress.commits_after > 0, query)
        finally:
            query.stop()
    mariadb.restart()  # the checkpoint is about the same log still
    again = made.start(spark)
    try:
        again.processAllAvailable()
        assert again.isProcessingBacklog is False
    finally:
        again.stop()
    assert again.exception() is None
    assert contents(spark, tmp_path) == Counter(table_rows(mariadb, "job.orders").values())
