"""A job that masks a column, leaves one out and uses a unique key, with a compressed log: killed, then resumed."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlog_spark.errors import SettingError
from servers.mariadb import MariaDBServer
from tests.connectors.mysql_cdc.replay import Writers, options

from .job import start
from .test_kill_driver import (
    ROWS,
    Job,
    before_the_commits_in_binary_log,
    between_the_two_commits_in_backlog,
    run_and_kill,
    wait_for,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SALT = "hush"


def mask(value: str | None) -> str | None:
    return None if value is None else hashlib.sha256(f"{SALT}{value}".encode()).hexdigest()


@pytest.mark.grid
def test_a_killed_job_of_chosen_columns_resumes_and_refuses_another_choice(spark: SparkSession, tmp_path: Path) -> None:
    with MariaDBServer(options={"log-bin-compress": "ON", "log-bin-compress-min-len": "10"}, fast=True) as server:
        server.execute("CREATE DATABASE faults")
        server.execute("CREATE TABLE faults.t (id INT NOT NULL, n INT, v VARCHAR(20), UNIQUE KEY u (id))")
        server.execute(f"INSERT INTO faults.t SELECT seq, seq, 's' FROM faults.seq_0_to_{ROWS - 1}")
        chosen = {
            "messageKeyColumns": "faults.t:id",
            "columns.exclude": "faults.t.n",
            "columns.mask": "faults.t.v",
            "columns.mask.secretSalt": SALT,
        }
        job = Job(tmp_path, options(server, "faults.t", chunkSize=1_000, maxRowsPerBatch=4_000, **chosen), "1 second")
        writers = Writers(server, "faults.t", 3, threads=1, keys=ROWS, pause=0.02)
        with writers:
            for moment in (between_the_two_commits_in_backlog, before_the_commits_in_binary_log):
                run_and_kill(job, moment, tmp_path / "driver.log")
            for change, said in (
                ({"columns.mask.secretSalt": "loud"}, "secretSalt"),
                ({"messageKeyColumns": ""}, "messageKeyColumns"),
                ({"columns.exclude": ""}, r"columns\.exclude = 'none'.*were n when"),
            ):
                with pytest.raises(SettingError, match=said):
                    start(spark, {**job.described, "source": {**job.described["source"], **change}})
            query = start(spark, job.described)
            try:
                wait_for(lambda: query.backlogProgress.commits_after > 0 or not query.isActive, "the log", 0.1)
                writers.__exit__()
                query.processAllAvailable()
            finally:
                query.stop()
        assert query.exception() is None
        found = Counter(tuple(row) for row in spark.read.format("delta").load(str(job.target)).collect())
        assert found == Counter((i, mask(v)) for i, v in server.execute("SELECT id, v FROM faults.t"))
    assert job.transactions() == sorted(set(job.transactions())), "a batch was written twice"
    kept = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert not any(SALT.encode() in path.read_bytes() for path in kept)
    assert SALT not in (tmp_path / "driver.log").read_text()
