"""Two drivers on one checkpoint on S3, by Hadoop's ``s3a://``.

A rename there is a copy: two drivers that plan at the same moment could both write an entry of Spark's log.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import s3fs

from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import Writers, options, table_rows
from tests.sinks.s3 import lake, s3a

from .test_kill_driver import ROWS, Job, after_the_switch, create, in_snapshot
from .test_two_drivers import driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class S3Job(Job):
    """A job whose checkpoint is on S3."""

    def __init__(self, root: Path, source: dict[str, str], store: dict[str, str]) -> None:
        super().__init__(root, source, "1 second")
        self.described |= {"checkpoint": "s3a://lake/two drivers", "conf": s3a(store)}
        self._store = s3fs.S3FileSystem(
            key=store["AWS_ACCESS_KEY_ID"],
            secret=store["AWS_SECRET_ACCESS_KEY"],
            client_kwargs={"endpoint_url": store["AWS_ENDPOINT_URL"]},
            use_listings_cache=False,
        )

    def newest(self, log: str) -> int:
        try:
            found = self._store.ls(f"lake/two drivers/{log}", detail=False)
        except FileNotFoundError:
            return -1
        names = (path.rpartition("/")[2] for path in found)
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def offset(self, batch: int) -> dict[str, Any]:
        try:
            text = self._store.cat(f"lake/two drivers/offsets/{batch}").decode()
        except FileNotFoundError:
            return {}
        return dict(json.loads(text.splitlines()[2]))


@pytest.mark.grid
@pytest.mark.parametrize("paused", [False, True])
def test_the_newest_driver_goes_on(spark: SparkSession, mysql: MySQLServer, tmp_path: Path, paused: bool) -> None:
    table = f"faults.s3_{paused}"
    create(mysql, table)
    with lake() as store:
        job = S3Job(tmp_path, options(mysql, table, chunkSize=1_000, maxRowsPerBatch=4_000), store)
        writers = Writers(mysql, table, 6, threads=1, keys=ROWS, pause=0.02)
        with writers, driver(job, tmp_path / "first.log") as first:
            first.until(in_snapshot)
            if paused:
                os.killpg(first.process.pid, signal.SIGSTOP)
            with driver(job, tmp_path / "second.log") as second:
                before = job.newest("commits")
                second.until(lambda job: job.newest("commits") > before + 1)
                if paused:
                    os.killpg(first.process.pid, signal.SIGCONT)
                first.is_fenced()
                second.until(after_the_switch)
                with driver(job, tmp_path / "third.log") as third:
                    second.is_fenced()
                    third.until(after_the_switch)
                    writers.__exit__()
                    mysql.execute(f"INSERT INTO {table} VALUES (-1, -1, 'last')")
                    expected = Counter(table_rows(mysql, table).values())

                    def found() -> Counter[tuple[Any, ...]]:
                        return Counter(tuple(row) for row in spark.read.format("delta").load(str(job.target)).collect())

                    third.until(lambda _: any(row[0] == -1 for row in found()))
                    assert found() == expected
    batches = job.transactions()
    assert batches == sorted(set(batches)), "a batch was written twice"
