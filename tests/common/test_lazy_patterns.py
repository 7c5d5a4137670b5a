"""Patterns that are compiled when they are first used."""

from __future__ import annotations

import re

import pytest

from backlog_spark.common.lazy_patterns import lazy_pattern


def test_a_lazy_pattern_does_what_the_compiled_one_does() -> None:
    lazy = lazy_pattern(r"(\w)(\d)", re.I)
    for _ in range(2):
        found = lazy.match("A1")
        assert found is not None
        assert found.groups() == ("A", "1")
    assert lazy.sub(r"\2\1", "a1 b2") == "1a 2b"
    assert [each.group() for each in lazy.finditer("a1 b2")] == ["a1", "b2"]
    assert lazy.pattern == r"(\w)(\d)"


def test_nothing_is_compiled_before_it_is_used() -> None:
    wrong = lazy_pattern("(")
    with pytest.raises(re.error):
        wrong.match("")
