"""The sink of docs/own_sink.md has each batch once, whenever its driver is killed."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import Writers, options, table_rows

from .blocks import ROOT
from .own_sink_job import sink_class, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_S = 300
PAGE = ROOT / "docs" / "own_sink.md"


@pytest.mark.slow
def test_the_sink_of_the_page_under_kills(
    spark: SparkSession, pool: Callable[..., MySQLServer], tmp_path: Path
) -> None:
    mysql, table = pool(MySQLServer), "own.sink"
    mysql.execute("CREATE DATABASE IF NOT EXISTS own")
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    mysql.execute(f"INSERT INTO {table} VALUES " + ",".join(f"({i}, {i}, 's')" for i in range(2_000)))
    job = {
        "source": options(mysql, table, chunkSize=200, maxRowsPerBatch=500),
        "page": str(PAGE),
        "checkpoint": str(tmp_path / "checkpoint"),
        "target": str(tmp_path / "own.db"),
    }
    with Writers(mysql, table, 3, threads=1, keys=2_000, pause=0.02) as writers:
        for batch, moment in ((1, "in"), (8, "before"), (9, "after")):
            command = [
                sys.executable,
                "-m",
                "tests.docs.own_sink_job",
                json.dumps({**job, "batch": batch, "moment": moment}),
            ]
            died = subprocess.run(command, capture_output=True, start_new_session=True, timeout=LIMIT_S, check=False)
            assert died.returncode == -signal.SIGKILL, died.stderr.decode()[-3000:]
        query = start(spark, job, sink_class(PAGE))
        try:
            limit = time.monotonic() + LIMIT_S
            while query.backlogProgress.commits_after == 0:
                assert query.isActive, query.exception()
                assert time.monotonic() < limit
                time.sleep(0.1)
            writers.__exit__()
            query.processAllAvailable()
        finally:
            query.stop()
    assert query.exception() is None
    with sqlite3.connect(job["target"]) as database:
        found = Counter(database.execute('SELECT id, n, v FROM "odd table"'))
    assert found == Counter(table_rows(mysql, table).values())
