"""The backlog benchmark in small: it compares equal tables and prints what the contract asks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.grid  # six JVMs
def test_what_it_prints() -> None:
    command = [sys.executable, "-m", "benchmarks.backlog", "--rows", "600", "--runs", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert [line["variant"] for line in found] == [
        f"{jvm} rows=600 interval={during}" for jvm in ("warm", "new_jvm") for during in ("0", "10 seconds")
    ]
    assert all(line["ratios"]["spark_jdbc"] > 0 for line in found)
