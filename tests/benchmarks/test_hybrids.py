"""The benchmark of both hybrid sources: its data have the same rows in all formats, and in small it runs to its end."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks import hybrids

ROOT = Path(__file__).parents[2]
COUNT = 40


def typed(row: dict[str, Any]) -> tuple[Any, ...]:
    return (
        int(row["id"]), int(row["customer"]), row["status"], Decimal(row["amount"]),
        None if row["discount"] is None else float(row["discount"]), row["note"], date.fromisoformat(row["day"]),
        datetime.fromisoformat(row["at"]),
    )  # fmt: skip


def test_all_formats_have_the_same_rows(tmp_path: Path) -> None:
    hybrids._write(tmp_path, ["parquet", "json", "csv"], COUNT)
    parquet = [tuple(row.values()) for row in pq.read_table(tmp_path / "parquet").to_pylist()]
    assert [row[0] for row in parquet] == list(range(COUNT))
    assert {None, "order 1"} <= {row[5] for row in parquet}
    lines = [line for file in sorted((tmp_path / "json").iterdir()) for line in file.read_text().splitlines()]
    assert [typed(json.loads(line, parse_float=str)) for line in lines] == parquet
    texts = [line for file in sorted((tmp_path / "csv").iterdir()) for line in file.read_text().splitlines()]
    found = [[None if field == "" else field for field in row] for row in csv.reader(texts)]
    assert [typed(dict(zip(json.loads(lines[0]), row, strict=True))) for row in found] == parquet
    assert [record.decode() for record in hybrids._records(3, 5)] == lines[3:8]


@pytest.mark.grid  # Kafka, and seven queries
def test_what_it_prints() -> None:
    command = [sys.executable, "-m", "benchmarks.hybrids", "--rows", "600", "--runs", "1", "--kind", "json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert [line["variant"] for line in found] == [
        f"json {figure} rows={60 if figure == 'kafka' else 600}" for figure in ("files", "kafka", "switch", "cpu")
    ]
    assert all(line["ratios"]["bs_hybrid"] > 0 for line in found)
