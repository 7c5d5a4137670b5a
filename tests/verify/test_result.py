"""The text of a verification's result, and how its rate is limited (no Spark)."""

from __future__ import annotations

import io
import pickle
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from backlog_spark.verification import reading
from backlog_spark.verification.reading import ReadingLine, pause, render
from backlog_spark.verification.result import Difference, TargetDiffers, Verification

AT = {
    "tables": ("shop.orders",),
    "target": "file:/lake/orders",
    "version": 12,
    "batch_id": 9,
    "position": "binlog.7:99",
}


def test_an_equal_target_raises_nothing() -> None:
    result = Verification(**AT, source_rows=1_000, target_rows=1_000)  # type: ignore[arg-type]
    assert result.is_equal
    assert result.raise_for_differences() is result
    summary = "equal: shop.orders and file:/lake/orders at version 12 (batch 9, binlog.7:99), 1,000 rows"
    assert (str(result), repr(result)) == (summary, f"Verification({summary})")


def test_differences_are_listed_and_the_error_names_no_key() -> None:
    result = Verification(
        **AT,  # type: ignore[arg-type]
        source_rows=1_000,
        target_rows=998,
        missing=3,
        different=1,
        differences=(
            Difference("missing", {"id": 7}),
            Difference("different", {"id": 8}, ("v",), {"v": "secret"}, {"v": "other"}),
        ),
        left_out=("old",),
    )
    assert str(result).splitlines() == [
        "3 missing, 1 different: shop.orders and file:/lake/orders at version 12 (batch 9, binlog.7:99), "
        "1,000 rows in the source, 998 in the target",
        "  not compared: old",
        "  missing id=7",
        "  different id=8: v",
        "  and 2 more",
    ]
    assert "secret" not in str(result) + repr(result) + repr(result.differences)
    with pytest.raises(TargetDiffers) as raised:
        result.raise_for_differences()
    assert "3 missing, 1 different" in str(raised.value)
    assert "id=" not in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize(
    ("rows", "seconds", "rate", "expected"),
    [(500, 1.0, None, 0.0), (500, 1.0, 100.0, 4.0), (500, 9.0, 100.0, 0.0), (0, 0.0, 1.0, 0.0)],
)
def test_a_task_waits_until_its_rows_are_due(rows: int, seconds: float, rate: float | None, expected: float) -> None:
    assert pause(rows, seconds, rate) == expected


def test_the_line_shows_the_share_of_chunks() -> None:
    line = render("shop.orders", 3, 12, 300_000, 10.0)
    assert line == "verify shop.orders [######                  ]  25%  3 of 12 chunks  300,000 rows  30,000 rows/s"
    assert "100%" in render("a", 0, 0, 0, 0.0)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_and_a_log_show_how_far_the_reading_is(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Out(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    monkeypatch.setattr(reading, "_EVERY_S", 0.001)
    monkeypatch.setattr(sys, "stderr", Out())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    reader: Any = SimpleNamespace(
        chunks=SimpleNamespace(value=3), rows=SimpleNamespace(value=300), tables=SimpleNamespace(chunks=12)
    )
    until = time.monotonic() + 20
    with ReadingLine(reader, "shop.orders"):
        while "chunks" not in sys.stderr.getvalue() and time.monotonic() < until:  # type: ignore[attr-defined]
            time.sleep(0.01)
    text = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "25%  3 of 12 chunks" in text
    if not is_terminal:  # one line a minute
        assert text.count("\n") == text.count("chunks") == 1
