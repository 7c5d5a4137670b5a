"""Flags in offsets."""

from __future__ import annotations

from typing import Any

import pytest

from backlog_spark.spi.offset_flags import (
    committed_ms,
    has_flag,
    is_backlog,
    is_finished,
    is_processing_backlog,
    parse_offset,
    rows_behind,
    snapshot_follows,
)


@pytest.mark.parametrize(
    ("text", "flag", "backlog", "finished"),
    [
        ('{"isProcessingBacklog": true}', True, True, False),
        ('{"isProcessingBacklog": false}', True, False, False),
        ('{"isProcessingBacklog": true, "isFinished": true}', True, False, True),  # FLIP-147: it does not count
        ('{"isProcessingBacklog": "true"}', True, False, False),
        ('{"logOffset": 3}', False, False, False),
        ("17", False, False, False),
        ("null", False, False, False),
        (None, False, False, False),
    ],
)
def test_one_offset(text: str | None, flag: bool, backlog: bool, finished: bool) -> None:
    offset = parse_offset(text)
    assert (has_flag(offset), is_processing_backlog(offset), is_finished(offset)) == (flag, backlog, finished)


def test_rows_are_what_the_flag_was_at_their_start() -> None:
    on, off = {"isProcessingBacklog": True}, {"isProcessingBacklog": False}
    assert is_backlog(on, off)
    assert not is_backlog(off, on)
    assert is_backlog(None, {**off, "isBacklog": True})
    assert not is_backlog(None, on)
    assert not is_backlog(None, None)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (None, None),
        ({}, None),
        ({"isSnapshot": None}, None),
        ({"isSnapshot": 1}, None),
        ({"isSnapshot": False}, False),
        ({"isSnapshot": True}, True),
    ],
)
def test_snapshot_follows(offset: dict[str, Any] | None, expected: bool | None) -> None:
    assert snapshot_follows(offset) is expected


def test_rows_behind() -> None:
    backlog = {"isProcessingBacklog": True, "rows": 30, "total": 100}
    assert rows_behind(backlog) == 70
    assert rows_behind({**backlog, "rows": 120}) == 0, "the estimate was too low"
    assert rows_behind({"isProcessingBacklog": True}) is None
    assert rows_behind({**backlog, "isProcessingBacklog": False}) == 0
    assert rows_behind({**backlog, "isFinished": True}) == 0
    assert rows_behind({"rows": 30, "total": 100}) is None, "of a foreign source"
    assert rows_behind(None) is None


def test_times_of_commits() -> None:
    assert committed_ms({"committedMs": [5, 7]}) == (5, 7)
    for other in (None, {}, {"committedMs": [5]}, {"committedMs": [5, "7"]}, {"committedMs": 5}):
        assert committed_ms(other) is None
