"""The changelog begins with the unreleased changes, and a release has at most two pages."""

from __future__ import annotations

import re
from pathlib import Path

import backlog_spark as bs

TEXT = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()


def test_releases_are_short_and_in_order() -> None:
    _, *parts = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    names = [part.splitlines()[0] for part in parts]
    assert names[:2] == ["Unreleased", bs.__version__]
    assert {
        name: lines for name, part in zip(names, parts, strict=True) if (lines := len(part.splitlines())) > 120
    } == {}
