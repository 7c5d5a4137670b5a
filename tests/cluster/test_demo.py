"""``make demo-cluster``: the scripts of the containers, with servers of this machine; executors and drivers die."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from .conftest import REPOSITORY

pytestmark = [pytest.mark.grid, pytest.mark.process]


def test_the_demo_ends_well() -> None:
    command = [sys.executable, "-m", "examples.demo_cluster", "--rows", "20000"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=850, check=False)
    last = done.stdout.splitlines()[-1]
    form = r"demo: OK rows=\d+ lost=0 duplicated=0 different=0 executors_killed=4 drivers_killed=2"
    assert re.fullmatch(form, last), (done.stdout, done.stderr[-3000:])
    assert done.returncode == 0
