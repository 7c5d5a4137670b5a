"""SIGKILL of the driver at each step of a merge of the event log's files: a reader finds each line, and each once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backlog_spark.tools.stored_checkpoint import StoredCheckpoint

from .event_log_job import FILES, MERGED, STEPS

pytestmark = pytest.mark.process


@pytest.mark.grid
@pytest.mark.parametrize(
    "merges",
    [
        pytest.param([(4, "written"), (2, "one removed"), (3, "half written")], id="some"),
        pytest.param([(merge, step) for merge in (1, 2, 3, 4) for step in STEPS], id="all", marks=pytest.mark.grid),
    ],
)
def test_killed_while_files_are_merged(tmp_path: Path, merges: list[tuple[int, str]]) -> None:
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    last = -1
    for merge, step in merges:
        line = [sys.executable, "-m", f"{__package__}.event_log_job", tmp_path, last + 1, merge, step]
        with (tmp_path / "log").open("w") as log:
            done = subprocess.run(list(map(str, line)), stdout=log, stderr=log)
        assert done.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()
        last = int((tmp_path / "last").read_text())
        stored = StoredCheckpoint(str(tmp_path / "checkpoint"))
        assert [event["attempt"] for event in stored.events] == list(range(last + 1))
        assert len(stored.event_files) <= FILES + 2 * MERGED
