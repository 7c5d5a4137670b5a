"""The snapshot benchmark in small: what it prints, and that it refuses to compare unequal reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.common import Unequal, require_equal, result
from benchmarks.snapshot import fingerprint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
# A process of its own: the JDBC driver must be on the class path when the JVM starts.
ARGUMENTS = ["--rows", "3000", "--runs", "1"]
# The peer sees one row with another value.
DIFFERENT = """
import sys
from pyspark.sql import functions as F
from benchmarks import common, snapshot

read = snapshot.jdbc_frame

def changed(*arguments):
    return read(*arguments).withColumn("note", F.when(F.col("id") == 7, "other").otherwise(F.col("note")))

snapshot.jdbc_frame = changed
sys.exit(common.main(snapshot.run, common.arguments_parser(None, rows=1)))
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command, *ARGUMENTS],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.grid
@pytest.mark.process
def test_the_last_line_is_the_contracts() -> None:
    finished = run("-m", "benchmarks.snapshot")
    assert finished.returncode == 0, finished.stderr
    lines = finished.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == [
        "ours",
        "spark_jdbc (fetchsize default)",
        "spark_jdbc (fetchsize streaming)",
    ]
    word, _, figures = lines[-1].partition(" ")
    assert word == "RESULT"
    found = json.loads(figures)
    assert list(found) == ["case", "variant", "ours", "ratios"]
    assert (found["case"], found["variant"]) == ("snapshot", "rows=3000")
    assert found["ours"] > 0
    assert list(found["ratios"]) == ["spark_jdbc"]
    assert found["ratios"]["spark_jdbc"] > 0


@pytest.mark.grid
def test_unequal_reads_end_with_status_1_and_no_result() -> None:
    finished = run("-c", DIFFERENT)
    assert finished.returncode == 1, finished.stderr
    assert finished.stdout == ""
    last = finished.stderr.splitlines()[-1]
    assert last.startswith("error: the results differ")
    assert last.count("rows=3000") == 3  # the same number of rows: only the hashes tell


SCHEMA = "id long, a string, b string"
ROWS: list[tuple[Any, ...]] = [(1, "x", None), (2, "y", "z"), (3, None, "")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(ROWS[:2], id="a row less"),
        pytest.param([*ROWS, ROWS[0]], id="a row twice"),
        pytest.param([ROWS[0], ROWS[1], ROWS[1]], id="a row in place of another"),
        pytest.param([(1, None, "x"), *ROWS[1:]], id="NULL and value exchanged"),
        pytest.param([*ROWS[:2], (3, "", "")], id="NULL made empty"),
        pytest.param([], id="nothing"),
    ],
)
def test_fingerprints_of_different_reads_differ(spark: SparkSession, other: list[tuple[Any, ...]]) -> None:
    frame = spark.createDataFrame(ROWS, SCHEMA)
    assert fingerprint(frame, frame.schema) != fingerprint(spark.createDataFrame(other, SCHEMA), frame.schema)


@pytest.mark.slow
def test_fingerprint_ignores_order_and_the_types_of_a_reader(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS, SCHEMA)
    other = spark.createDataFrame(list(reversed(ROWS)), "id int, a string, b string")
    assert fingerprint(frame, frame.schema) == fingerprint(other, frame.schema)


def test_require_equal_names_what_each_gave() -> None:
    require_equal({"ours": 1, "peer": 1})
    with pytest.raises(Unequal, match="ours 1; peer 1; other 2"):
        require_equal({"ours": 1, "peer": 1, "other": 2})


def test_ratios_are_ours_divided_by_the_peers(capsys: pytest.CaptureFixture[str]) -> None:
    result("case", "rows=5", 300.4, {"slower": 100.0, "faster": 600.0})
    expected = '{"case": "case", "variant": "rows=5", "ours": 300, "ratios": {"slower": 3.004, "faster": 0.501}}'
    assert capsys.readouterr().out == f"RESULT {expected}\n"
