"""SIGKILL of a driver around the commit of files that Spark has written: every row once, with any writer afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from backlog_spark.sinks import BatchInfo
from backlog_spark.spark.jvm.internals import SWITCH
from tests.faults.files_job import MOMENTS, ROWS, batch, note, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_S = 300
# Without its internals, Spark itself commits the files: there is no moment between the two.
SOME = ["during" if os.environ.get(SWITCH) == "off" else "between"]


@pytest.mark.parametrize("small_batch_rows", [1000, pytest.param(0, marks=pytest.mark.grid)])
@pytest.mark.parametrize("moments", [SOME, pytest.param(MOMENTS, marks=pytest.mark.grid, id="all")])
def test_killed_around_a_commit(
    spark: SparkSession, tmp_path: Path, moments: Sequence[str], small_batch_rows: int
) -> None:
    table, noted, log = tmp_path / "t", tmp_path / "noted", tmp_path / "log"
    for moment in moments:
        with log.open("wb") as out:
            command = [sys.executable, "-m", "tests.faults.files_job", str(table), str(noted), moment]
            killed = subprocess.run(
                command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, timeout=LIMIT_S, check=False
            )
        assert killed.returncode == -signal.SIGKILL, log.read_text()
        committed = DeltaTable(table).transaction_version("app")
        assert committed == int(noted.read_text()) + (moment == "after")
        # The batch again, by this writer or the other, and twice, as Spark may not have noted it.
        for _ in range(2):
            sink, again = opened(spark, table, noted, small_batch_rows)
            sink.write(batch(spark, again), BatchInfo(again, True))
        note(noted, again)
    files = {path.name for path in table.glob("*.parquet")}
    live = set(pa.table(DeltaTable(table).get_add_actions())["path"].to_pylist())
    assert live < files or set(moments) <= {"before", "after"}, "a killed driver has left files"
    found = Counter(row.id for row in spark.read.format("delta").load(str(table)).collect())
    assert found == Counter(range(ROWS * (int(noted.read_text()) + 1)))
