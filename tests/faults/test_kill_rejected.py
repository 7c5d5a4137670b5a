"""SIGKILL of a driver between the rejected rows of a batch and the others: every row once, in one of the two tables."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .rejected_job import KEYS, changes, written
from .watching import transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
def test_every_row_is_in_one_table(spark: SparkSession, tmp_path: Path) -> None:
    target, beside = str(tmp_path / "target"), str(tmp_path / "beside")
    spark.sql(f"CREATE TABLE delta.`{target}` (id BIGINT, n BIGINT) USING delta")
    spark.sql(f"ALTER TABLE delta.`{target}` ADD CONSTRAINT fifth CHECK (n % 5 <> 0)")
    command = [sys.executable, "-m", "tests.faults.rejected_job", target, beside, "1"]
    died = subprocess.run(command, capture_output=True, start_new_session=True, timeout=300, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr[-3000:]
    assert (transactions(Path(target)), transactions(Path(beside))) == ([0], [0, 1])
    written(spark, target, beside, range(1, 3), 1)
    every = [row for batch in range(3) for row in changes(batch)]
    newest = {row[0]: row[1] for row in every}
    assert len(newest) == KEYS
    found = spark.read.format("delta").load(target).collect()
    assert Counter(map(tuple, found)) == Counter((key, n) for key, n in newest.items() if n % 5)
    found = spark.read.format("delta").load(beside).select("id", "n", "_commit_seq").collect()
    assert Counter(map(tuple, found)) == Counter((row[0], row[1], row[4]) for row in every if row[1] % 5 == 0)
