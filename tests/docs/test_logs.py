"""Log records as lines of JSON."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest

from backlog_spark.common.log_fields import event

from .blocks import python_blocks

ROOT = Path(__file__).parents[2]


def test_the_example_of_conf_writes_lines_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("backlog_spark")
    before = logger.level, logger.handlers[:], logger.propagate
    try:
        [block] = python_blocks(ROOT / "docs" / "operations.md")
        monkeypatch.chdir(ROOT)
        exec(block, {})
        [handler] = logger.handlers
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(out := io.StringIO())
        child = logging.getLogger("backlog_spark.runner.runs")
        child.warning(
            "Query %s failed", "orders", extra=event("restart", query="orders", attempt=2, error='a\n"b"', why=None)
        )
        try:
            raise ValueError("no \n space")
        except ValueError:
            child.exception("plain")
        child.debug("not shown")
    finally:
        logger.setLevel(before[0])
        logger.handlers[:], logger.propagate = before[1], before[2]
        logging.getLogger("py4j").setLevel(logging.NOTSET)
    first, second = map(json.loads, out.getvalue().splitlines())
    assert first.pop("at")
    assert first == {
        "level": "WARNING", "logger": "backlog_spark.runner.runs", "message": "Query orders failed", "event": "restart",
        "query": "orders", "attempt": 2, "error": 'a\n"b"',
    }  # fmt: skip
    assert second["message"] == "plain"
    assert second["trace"].startswith("Traceback")


def test_all_loggers_are_in_one_tree() -> None:
    for path in [*(ROOT / "backlog_spark").rglob("*.py"), *(ROOT / "connectors").rglob("*.py")]:
        for line in path.read_text().splitlines():
            # The library of Kafka is made to log below ours, or not at all. One logger of PySpark's gets a filter.
            ours = (
                "getLogger(__name__)" in line or '"kafka"' in line or ".addFilter(" in line or "PySparkLogger" in line
            )
            assert "getLogger(" not in line or ours, path
