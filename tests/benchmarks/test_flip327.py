"""The benchmarks of FLIP-327: the page shows what was measured, and Flink's results are compared."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from benchmarks import flip327, proof_page
from benchmarks.common import Unequal

SECONDS = {
    "reduce": {"ours": [2.0, 1.0, 4.0], "ours, live": [3.0], "spark_batch": [1.5], "flink_stream": [20.0]},
    "cogroup": {"ours": [5.0], "ours, per key": [6.0], "flink_batch": [7.5]},
}


def test_the_page_has_medians_and_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_page, "_FOLDER", tmp_path)
    given = argparse.Namespace(rows=1_000, runs=3)
    flip327._write({"reduce": 1_000, "cogroup": 400}, SECONDS, 50, given)
    lines = (tmp_path / "flip327.md").read_text().splitlines()
    assert "`make bench CASE=flip327 ROWS=1000 KEYS=50 RUNS=3 WRITE=1`" in "\n".join(lines)
    assert "| backlog_spark, backlog | 500 | 2.0 | 2.0, 1.0, 4.0 |  |  |" in lines
    assert "| Flink stream | 50 | 20.0 | 20.0 | 10.0 | at least 8 |" in lines
    assert "| Flink batch | 53 | 7.5 | 7.5 | 1.5 | at least 2 |" in lines
    assert [line for line in lines if line.startswith("## ")][:2] == [
        "## reduce: 1,000 records of 50 keys",
        "## cogroup: 2 × 200 records",
    ]


def test_another_result_of_flink_gives_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Case:
        name, inputs = "reduce", (Path("a"),)

        def expected(self) -> tuple[int, int]:
            return 5, 7

    told = [("CHECK", "reduce-0", "5 7"), ("RESULT", "reduce-0", "9 9"), ("RESULT", "reduce-1", "2.5 4")]
    monkeypatch.setattr(flip327, "run_program", lambda *a, **b: told)
    case: list[object] = [Case()]
    assert flip327._flink("batch", "", case, 1, tmp_path) == {"reduce": [2.5]}  # type: ignore[arg-type]
    told[0] = ("CHECK", "reduce-0", "5 8")
    with pytest.raises(Unequal, match=re.escape("flink batch (5, 8); spark_batch (5, 7)")):
        flip327._flink("batch", "", case, 1, tmp_path)  # type: ignore[arg-type]
    told[:] = [("CHECK", "reduce-0", "5 7"), ("RESULT", "reduce-0", "9 9")]
    with pytest.raises(Exception, match="did not end batch"):
        flip327._flink("batch", "", case, 1, tmp_path)  # type: ignore[arg-type]
