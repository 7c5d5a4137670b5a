"""Asks again until there is an answer (pure)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["patiently"]

_T = TypeVar("_T")

_LEAST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0


def patiently(ask: Callable[[], _T], retriable: Callable[[Exception], bool], seconds: float) -> _T:
    """Ask until there is an answer, with growing pauses. Raises the last error when the time is over."""
    end, pause = time.monotonic() + seconds, _LEAST_PAUSE_S
    while True:
        try:
            return ask()
        except Exception as error:
            if not retriable(error) or time.monotonic() + pause >= end:
                raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
