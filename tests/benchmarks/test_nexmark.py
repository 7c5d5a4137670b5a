"""The benchmark of Nexmark: it finds results that differ, its page shows what was measured, and it runs in small."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import nexmark_page as page
from benchmarks.nexmark_jobs import QUERIES
from benchmarks.nexmark_results import differences, final_of_batches, final_of_flink, texts
from benchmarks.nexmark_runs import LiveRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
COLUMNS = "auction BIGINT, euros DECIMAL(23,3), dateTime TIMESTAMP, extra STRING"
ROWS = "SELECT 1L, 2.5BD, TIMESTAMP'1970-01-01 00:00:01.5', 'a b' UNION ALL SELECT 2L, NULL, NULL, ''"


def test_a_percentile_counts_each_event() -> None:
    live = LiveRun(fresh=[(3.0, 1), (1.0, 90), (2.0, 9)])
    assert [live.percentile(percent) for percent in (50, 90, 91, 99, 100)] == [1, 1, 2, 2, 3]


def test_results_compare_as_multisets_of_text(spark: SparkSession) -> None:
    frame = texts(spark.sql(ROWS).toDF("auction", "euros", "at", "extra"))
    assert sorted(map(tuple, frame.collect())) == [("1", "2.5", "1500", "a b"), ("2", "\\N", "\\N", "")]
    assert differences(frame, frame) == []
    once, twice = frame.where("c0 = 1"), frame.where("c0 = 1").union(frame.where("c0 = 1"))
    assert differences(twice, once) == ["1 different rows", "+1 of (1, 2.5, 1500, a b)"]
    assert differences(once, frame) == ["1 different rows", "-1 of (2, \\N, \\N, )"]


def test_changes_of_flink_are_added_up(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text('+\t1\t"a\n+\t2\t\n')
    (tmp_path / "two.txt").write_text('-\t1\t"a\n+\t1\t\\N\n')
    expected = spark.sql("SELECT '1' AS c0, '\\\\N' AS c1 UNION ALL SELECT '2', ''")
    assert differences(final_of_flink(spark, tmp_path, expected), expected) == []


def test_the_rows_of_batches_are_those_that_are_left(spark: SparkSession, tmp_path: Path) -> None:
    def batch(folder: str, number: int, query: str) -> None:
        spark.sql(query).write.parquet(str(tmp_path / folder / f"batch={number}"))

    batch("keyed", 0, "SELECT 10 AS category, 5 AS mean UNION ALL SELECT 11, 7")
    batch("keyed", 1, "SELECT 10 AS category, 6 AS mean")
    batch("changes", 0, "SELECT 10 AS category, 'insert' AS _change_type")
    batch("changes", 1, "SELECT 10 AS category, 'delete' AS _change_type UNION ALL SELECT 12, 'insert'")
    keyed = spark.sql("SELECT '10' AS c0, '6' AS c1 UNION ALL SELECT '11', '7'")
    assert differences(final_of_batches(spark, tmp_path / "keyed", QUERIES["q4"], keyed), keyed) == []
    changes = spark.sql("SELECT '12' AS c0")
    assert differences(final_of_batches(spark, tmp_path / "changes", QUERIES["q4"], changes), changes) == []


def test_the_page() -> None:
    facts = page.Facts(2, 23, dt.date(2026, 1, 2), "4.2.0", "17", "make bench CASE=nexmark", 200, 10)
    rows = []
    for events in (1_000, 10_000):
        row = page.Row("q0", events, seconds={"ours": events / 500, "spark_batch": 1.0}, why={"flink_batch": "a | b"})
        row.cores = {"ours": 1.26, "spark_batch": 2.0}
        row.switch, row.batch, row.fresh, row.state = (
            {"ours": 1.0},
            {"ours": 0.5},
            {"ours": (0.1, 0.25)},
            {"ours": 10**7},
        )
        rows.append(row)
    rows.append(page.Row("q5", 10_000, why={"ours": "its result differs: 3 different rows"}))
    lines = page.text(rows, facts).splitlines()
    assert "| q0 | Bids as they are | 500 (1.3) | 10,000 (2.0) |  |  |  |  |" in lines
    assert any(line.startswith("| q5 | ") and line.endswith(" | differs |  |  |  |  |  |") for line in lines)
    assert "| q0 | 1.0 | 0.50 | 0.10 | 0.25 | 10.0 |  |  |  |  |  |" in lines
    assert "| q0 | 500 | 500 | 1,000 | 10,000 |" in lines
    assert "| q0 | 10,000 | Flink batch | a \\| b |" in lines
    assert lines.index("### 10,000 events") < lines.index("### 1,000 events") < lines.index("### 1,000 events before")
    assert "## Growth" not in page.text(rows[1:], facts)


def test_figures_of_earlier_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_PAGE", tmp_path / "nexmark.md")
    monkeypatch.setattr(page, "_FIGURES", tmp_path / "figures.json")
    facts = page.Facts(2, 23, dt.date(2026, 1, 2), "4.2.0", "17", "make bench CASE=nexmark", 200, 10)
    for query, seconds in (("q0", 4.0), ("q1", 2.0), ("q0", 1.0)):
        page.write([page.Row(query, 1_000, seconds={"ours": seconds}, cores={"ours": 2.0})], facts)
    found = (tmp_path / "nexmark.md").read_text()
    assert "1,000 (2.0)" in found
    assert "500 (2.0)" in found
    assert "250 (2.0)" not in found


@pytest.mark.grid  # Kafka, and ten queries
def test_what_it_prints() -> None:
    command = [sys.executable, "-m", "benchmarks.nexmark", "--events", "3000", "--queries", "q0,q17", "--seconds", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--peers", "spark"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    figures = ("backlog", "live", "p50", "p95", "state")
    assert [line["variant"] for line in found] == [
        f"{name} events=3000 {figure}" for name in ("q0", "q17") for figure in figures
    ]
    assert all(line["ratios"]["spark_stream"] > 0 for line in found)
