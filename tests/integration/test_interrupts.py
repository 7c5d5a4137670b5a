"""Ctrl-C in a program that waits for a query, sent to its whole process group as a terminal does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def interrupted(folder: Path, times: int) -> tuple[list[Any], str]:
    """What the program printed: how the query ended, and its messages."""
    line = [sys.executable, "-m", "tests.integration.interrupted", str(folder), str(times)]
    done = subprocess.run(line, capture_output=True, text=True, start_new_session=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.process
def test_ctrl_c_ends_a_query_after_its_batch(tmp_path: Path) -> None:
    outcome, told = interrupted(tmp_path, 1)
    raised, status, wrote, planned, committed = outcome
    assert (raised, status) == ("KeyboardInterrupt", "CANCELED")
    if os.environ.get("BACKLOG_SPARK_INTERNALS") == "off":  # the next batch may have begun; it is replayed
        assert (wrote[0], planned[0], committed[0]) == (20, 0, 0)
    else:
        assert (wrote, planned, committed) == ([20], [0], [0])
    assert "Query numbers ends after its running batch. Press Ctrl-C again to end it at once." in told
    assert "Query numbers has ended after a whole batch: 20 rows in 1 commit, " in told


@pytest.mark.slow
@pytest.mark.process
def test_ctrl_c_between_batches_is_no_failure_of_a_source(tmp_path: Path) -> None:
    outcome, told = interrupted(tmp_path, 0)
    assert outcome == ["KeyboardInterrupt", "CANCELED", [20], [0], [0]]
    assert "Query numbers has ended after a whole batch: 20 rows in 1 commit, " in told
    assert "Traceback" not in told
    assert "terminated with error" not in told


@pytest.mark.grid
@pytest.mark.process
def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    (raised, status, _, planned, committed), told = interrupted(tmp_path, 2)
    assert (raised, status, planned, committed) == ("KeyboardInterrupt", "CANCELED", [0], [])
    assert "Query numbers was stopped: 0 rows in 0 commits, " in told
    assert "Its next start replays the batch that was running." in told


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("times", [-1, pytest.param(-2, id="before the restart", marks=pytest.mark.grid)])
def test_ctrl_c_does_not_hide_a_failure(tmp_path: Path, times: int) -> None:
    (raised, status, wrote, planned, committed), told = interrupted(tmp_path, times)
    assert raised not in ("", "KeyboardInterrupt")
    assert (status, wrote, planned, committed) == ("FAILED", [], [0], [])
    assert "Query numbers ends after its running batch." in told
    assert "Query numbers has failed after 0 rows in 0 commits, " in told
    assert "The batch failed." in told
    assert "Its next start replays the batch that failed." in told
    assert "has ended after a whole batch" not in told
