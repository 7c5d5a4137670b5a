"""How often Python collects garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from backlog_spark.garbage import collect_rarely


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((700, 10, 10), (50_000, 10, 10), id="python's own"),
        pytest.param((100_000, 3, 4), (100_000, 3, 4), id="rarer still"),
        pytest.param((0, 10, 10), (0, 10, 10), id="never"),
    ],
)
def test_never_more_often_than_before(before: tuple[int, int, int], after: tuple[int, int, int]) -> None:
    gc.set_threshold(*before)
    collect_rarely()
    assert gc.get_threshold() == after
