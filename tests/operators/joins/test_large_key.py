"""A key with many rows on both sides of a co-group, in workers with little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def output_of(rows: int, memory: str, root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.operators.large_key_job", str(rows), memory, str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
def test_a_key_that_does_not_fit_is_refused_by_its_name(tmp_path: Path) -> None:
    ran = output_of(20_000_000, "1500m", tmp_path)
    assert ran.returncode
    assert "Matched: the key 7 has 40,000,000 rows of" in ran.stderr, ran.stderr[-3_000:]
    assert "spark.executor.pyspark.memory" in ran.stderr


@pytest.mark.slow
def test_a_key_whose_rows_would_not_fit_as_python_objects(tmp_path: Path) -> None:
    rows = 4_000_000
    ran = output_of(rows, "1500m", tmp_path)
    assert f"n={2 * rows}, total={rows * (rows - 1)}" in ran.stdout, ran.stderr[-3_000:]
