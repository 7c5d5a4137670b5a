"""The progress line: rows never seem to get fewer."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from backlog_spark.runner.progress_line import ProgressLine, Snapshot, render
from backlog_spark.runner.query_progress import BacklogProgress


def in_backlog() -> Any:
    """The query's properties that the line reads."""
    query = SimpleNamespace(isProcessingBacklog=True, backlogProgress=BacklogProgress(), done=(0.0, 100))
    query.backlogRows = lambda: query.done
    return query


def test_a_batch_whose_second_stage_begins_takes_no_rows_back() -> None:
    query = in_backlog()
    line = ProgressLine(query, io.StringIO())
    shown = []
    for rows in (25.0, 0.0, 10.0, 40.0):
        query.done = (rows, 100)
        shown.append(line._snapshot().rows)
    assert shown == [25.0, 25.0, 25.0, 40.0]


def test_after_the_switch_the_rows_of_the_backlog_are_still_shown() -> None:
    query = in_backlog()
    line = ProgressLine(query, io.StringIO())
    query.done = (95.0, 100)
    assert line._snapshot().rows == 95.0
    query.isProcessingBacklog = False
    query.backlogRowsCommitted = 100
    query.backlogProgress = BacklogProgress(rows=100, backlog_rows=100, rows_per_second=50.0)
    assert render(line._snapshot()) == "stream  backlog of 100 rows done, 0 live rows  0 rows/s  0 commits"
    query.backlogProgress = BacklogProgress(rows=107, backlog_rows=100, rows_per_second=5.0, commits_after=1)
    assert render(line._snapshot()) == "stream  backlog of 100 rows done, 7 live rows  5 rows/s  1 commit"
    query.isProcessingBacklog = True
    query.done = (3.0, 50)
    assert line._snapshot().rows == 3.0, "of another backlog"


def test_a_stream_without_backlog() -> None:
    assert render(Snapshot(False, 5, 0, 1.0, 1)) == "stream  5 live rows  1 rows/s  1 commit"
