"""SIGKILL of a driver before, in and after a commit: every row once, with any writer afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlog_spark.sinks import BatchInfo
from backlog_spark.sinks.iceberg.marks import Mark
from tests.sinks.iceberg.kill_job import MOMENTS, PLAIN, VERSIONS, batch, expected, found, note, opened
from tests.sinks.iceberg.places import table_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_S = 300


@pytest.mark.parametrize(
    ("moments", "small_batch_rows", "form"),
    [
        (("during",), 1000, PLAIN),
        *(
            pytest.param(MOMENTS, rows, form, marks=pytest.mark.grid)
            for rows, form in ((1000, PLAIN), (1000, VERSIONS), (0, PLAIN), (0, VERSIONS))
        ),
    ],
)
def test_killed_around_a_commit(
    spark: SparkSession, tmp_path: Path, moments: Sequence[str], small_batch_rows: int, form: str
) -> None:
    lake, noted, log = tmp_path / "lake", tmp_path / "noted", tmp_path / "log"
    for moment in moments:
        with log.open("wb") as out:
            arguments = [str(lake), str(noted), moment, str(small_batch_rows), form]
            killed = subprocess.run(
                [sys.executable, "-m", "tests.sinks.iceberg.kill_job", *arguments],
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True, timeout=LIMIT_S, check=False,
            )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL, log.read_text()
        last = int(noted.read_text())
        mark = Mark.of(table_at(lake).properties, "app")
        assert mark is not None
        is_there = moment in ("swapped", "after")
        assert mark.batch == last + is_there
        assert found(table_at(lake)) == expected(last + 1 + is_there, form)
        # The batch again, by one writer or the other, and twice, as Spark may not have noted it.
        for rows in (small_batch_rows, 1000 - small_batch_rows):
            sink, again = opened(spark, str(lake), noted, rows, form)
            sink.write(batch(spark, again, form), BatchInfo(again, False))
            assert sink.written is not None
            assert (sink.written.writer == "none") == (is_there or rows != small_batch_rows)
        note(noted, again)
        assert found(table_at(lake)) == expected(again + 1, form)
    used = {task.file.file_path for task in table_at(lake).scan().plan_files()}
    assert used < {str(path) for path in lake.rglob("*.parquet")}, "killed drivers and older snapshots have files"
