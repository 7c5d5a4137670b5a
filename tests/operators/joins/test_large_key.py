"""A key with many rows on both sides of a co-group, in workers with little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.grid
@pytest.mark.process
def test_a_key_that_does_not_fit_is_refused_by_its_name(tmp_path: Path) -> None:
    rows = 5_000_000
    command = [sys.executable, "-m", "tests.operators.large_key_job", str(rows), "2g", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode
    assert f"Matched: the key 7 has {2 * rows:,} rows of" in ran.stderr, ran.stderr[-3_000:]
    assert "spark.executor.pyspark.memory" in ran.stderr
