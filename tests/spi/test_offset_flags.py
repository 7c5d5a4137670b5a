"""Flags in offsets."""

from __future__ import annotations

from typing import Any

import pytest

from backlog_spark.spi.offset_flags import (
    BatchFlags,
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


def flags(position: int, processing: bool, backlog: bool, **more: Any) -> dict[str, Any]:
    """An offset of one of our sources."""
    return {"position": position, "isProcessingBacklog": processing, "isBacklog": backlog, **more}


def batch(start: list[Any] | None, end: list[Any], *, first: bool = False) -> BatchFlags:
    """Offsets as dicts or as Spark's text. ``first``: the sources start in backlog."""
    starts, ends = (
        [parse_offset(each) if isinstance(each, str) else each for each in offsets]
        for offsets in (start or [None] * len(end), end)
    )
    return BatchFlags(starts, ends, [first] * len(end))


B = flags(1, True, True)
ENDED = flags(2, True, True, isFinished=True)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        # The flag at the start decides, whatever the end says.
        ([B], [flags(2, True, True)], True),
        ([B], [flags(2, False, True)], True),
        ([flags(1, False, True)], [flags(2, True, True)], False),
        ([flags(1, False, False)], [flags(2, False, False)], False),
        # An unchanged offset: the source gave no rows.
        ([B], [B], False),
        ([B, flags(1, False, False)], [B, flags(2, False, False)], False),
        # Any source is enough.
        ([B, flags(1, False, False)], [flags(2, True, True), flags(2, False, False)], True),
        # No start offset for the source: isBacklog of its end.
        ([None], [flags(1, False, True)], True),
        ([None], [flags(1, True, False)], False),
        ([None, "5"], [None, "6"], False),
        (None, [flags(1, False, True)], True),
        # Foreign sources.
        (['{"topic":{"0":5}}'], ['{"topic":{"0":6}}'], False),
        (["5"], ["6"], False),
    ],
)
def test_record_attributes_of_a_batch(start: list[Any] | None, end: list[Any], expected: bool) -> None:
    for first in (False, True):
        assert batch(start, end, first=first).is_backlog is expected


@pytest.mark.parametrize(
    ("start", "end", "first", "rows", "after"),
    [
        (B, flags(2, False, True), False, (True, False), (False, False)),
        (B, ENDED, False, (True, False), (False, True)),  # FLIP-147
        (
            flags(2, True, True, isFinished=True),
            flags(2, True, True, isFinished=True),
            True,
            (False, True),
            (False, True),
        ),
        # The first batch of a source, and a source that has not begun.
        (None, flags(1, True, False), True, (False, False), (True, False)),
        (None, flags(1, False, True), False, (True, False), (False, False)),
        (None, None, True, (True, False), (True, False)),
        (None, None, False, (False, False), (False, False)),
        ('{"topic":{"0":5}}', '{"topic":{"0":6}}', False, (False, False), (False, False)),
    ],
)
def test_flags_of_one_source_around_a_batch(
    start: Any, end: Any, first: bool, rows: tuple[bool, bool], after: tuple[bool, bool]
) -> None:
    """In backlog and finished: of the batch's rows, and from its end on."""
    found = batch([start], [end], first=first)
    assert (found.rows_in_backlog, found.had_finished) == ([rows[0]], [rows[1]])
    assert (found.in_backlog, found.finished) == ([after[0]], [after[1]])


def test_a_source_without_rows_says_nothing_about_a_batch() -> None:
    told = flags(2, True, True, hasTableEvents=True, hasChanges=True, fills=[["shop", "orders", "x"]])
    moved = batch([B], [told])
    assert (moved.has_table_events, moved.has_changes, moved.fills) == (True, True, (("shop", "orders", "x"),))
    still = batch([told, B], [told, flags(2, True, True)])
    assert (still.has_table_events, still.has_changes, still.fills) == (False, False, ())


def test_a_streaming_dataframe_may_read_a_source_with_flags() -> None:
    told = flags(2, True, True, hasTableEvents=True, hasChanges=True, fills=[["shop", "orders", "x"]])
    found = BatchFlags([], [], [], others=[({"topic": {"0": 5}}, {"topic": {"0": 6}}), (B, told)])
    assert (found.is_backlog, found.has_table_events, found.has_changes, len(found.fills)) == (True, True, True, 1)
    assert (found.in_backlog, found.rows_in_backlog) == ([], []), "it has no flag of its own in the query"
    assert not BatchFlags([], [], [], others=[(told, told)]).is_backlog


S, L = flags(1, True, True, isSnapshot=True), flags(9, False, False, isSnapshot=False)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, [S], "part"),
        (None, [L], "end"),
        ([S], [flags(2, True, True, isSnapshot=True)], "part"),
        ([S], [L], "end"),
        ([S], [flags(9, True, True, isSnapshot=False)], "end"),  # the log is backlog as well
        ([L], [flags(10, False, False, isSnapshot=False)], ""),
        # The last of several decides. One without an offset has read nothing.
        ([S, S], [L, S], "part"),
        ([L, S], [L, S], "part"),
        ([L, S], [L, L], "end"),
        ([L, L], [L, flags(10, False, False, isSnapshot=False)], ""),
        ([S, S], [L, None], "part"),
        ([S, None], [L, L], "end"),
        # An earlier version of the connector.
        (None, [B], ""),
        ([B], [flags(2, False, True)], ""),
        ([B], [L], ""),
    ],
)
def test_snapshots_of_a_batch(start: list[Any] | None, end: list[Any], expected: str) -> None:
    assert batch(start, end).snapshot == expected
