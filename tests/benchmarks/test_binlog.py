"""The binary log benchmark in small: it compares equal rows and prints what the contract asks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


def test_what_it_prints() -> None:
    command = [sys.executable, "-m", "benchmarks.binlog", "--rows", "600", "--runs", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert [line["variant"] for line in found] == ["insert", "update", "single", "other tables"]
    assert all(line["case"] == "binlog" and line["ratios"]["mysql_replication"] > 0 for line in found)
