"""The examples of docs/small_sinks.md run on real files, and again change nothing."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from .blocks import ROOT, python_blocks

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession


def test_the_examples_write_each_row_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1, "page": "a"}\n{"id": 2, "page": "b"}\n')
    for _ in range(2):
        names: dict[str, Any] = {"spark": spark}
        for code in python_blocks(ROOT / "docs" / "small_sinks.md"):
            exec(code.replace("/lake", str(tmp_path)), names)
    assert "page" in capsys.readouterr().out
    found = spark.read.parquet(str(tmp_path / "clicks")).collect()
    assert sorted((row.id, row.page) for row in found) == [(1, "a"), (2, "b")]
    with sqlite3.connect(tmp_path / "pages.db") as db:
        assert sorted(db.execute("SELECT page FROM pages")) == [("a",), ("b",)]
