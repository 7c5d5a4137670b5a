"""How the targets benchmark judges its figures and reads the commits of Iceberg tables, and all of it in small."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import targets
from benchmarks.figures import Figure, show_figures
from benchmarks.table_formats import ICEBERG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_goals_of_ratios_and_of_figures() -> None:
    assert Figure("a", 80.0, "rows/s", "b", 100.0, ">= 0.8").is_met is True
    assert Figure("a", 79.0, "rows/s", "b", 100.0, ">= 0.8").is_met is False
    assert Figure("a", 1.4, "s", "b", 1.0, "< 1.4").is_met is False
    assert Figure("a", 1.5, "s", "b", 100.0, "< 2 s").is_met is True
    assert Figure("a", 2.5, "s", goal="< 2 s").is_met is False
    assert Figure("a", 2.5, "s", "b", 1.0).is_met is None


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    show_figures(
        [Figure("backlog", 1500.4, "rows/s", "peer", 1000.0, ">= 0.8"), Figure("live", 2.5, "s", goal="< 2 s")]
    )
    assert [re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines()] == [
        ["figure", "ours", "peer", "theirs", "ratio", "goal"],
        ["backlog", "1,500 rows/s", "peer", "1,000 rows/s", "1.50", ">= 0.8", "met"],
        ["live", "2.500 s", "< 2 s", "missed"],
    ]


def test_commits_of_an_iceberg_table_have_the_time_of_their_metadata(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))
    catalog.create_namespace("shop")
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    table = catalog.create_table("shop.t", rows.schema)
    at = []
    for number in range(3):
        table.append(rows)
        table.transaction().set_properties(n=str(number)).commit_transaction()  # no snapshot of its own
        table = catalog.load_table("shop.t")
        written = table.metadata.metadata_log[-1].metadata_file.removeprefix("file://")
        os.utime(written, (100 + number, 100 + number))
        at.append(100 + number)
    commits = ICEBERG.commits(tmp_path)
    assert [commit.at for commit in commits] == at
    paths = [file["path"] for commit in commits for file in commit.files]
    assert len(paths) == 3
    assert sorted(paths) == sorted(map(str, tmp_path.rglob("*.parquet")))


@pytest.mark.grid
def test_all_kinds(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--rows", "3000", "--runs", "1", "--rate", "60", "--seconds", "2"]
    figures = targets.measure(spark, targets.parser().parse_args(arguments))
    found = [json.loads(line[7:]) for line in capsys.readouterr().out.splitlines() if line.startswith("RESULT ")]
    assert [line["variant"] for line in found] == [each.name for each in figures]
    assert {each.name.split()[0] for each in figures} == {"backlog", "freshness", "live"}
    assert all(each.ours > 0 and (each.ratio is None or each.ratio > 0) for each in figures)
