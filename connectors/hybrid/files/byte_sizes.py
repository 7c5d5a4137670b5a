"""Numbers of bytes in options (pure)."""

from __future__ import annotations

import re
from typing import TypeVar

from backlog_spark.errors import SettingError
from backlog_spark.spi.user_options import UserOptions

__all__ = ["byte_size"]

_T = TypeVar("_T")
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def byte_size(given: UserOptions, name: str, default: _T, low: int = 1) -> int | _T:
    """A number of bytes in Spark's notation: ``67108864``, ``64m`` or ``64MB``."""
    if not given.has(name):
        return default
    found = re.fullmatch(r"\s*(\d{1,19})\s*(b|[kmgt]i?b?)?\s*", given.text(name), re.IGNORECASE)
    size = int(found[1]) * _UNITS[(found[2] or "").lower()[:1]] if found else -1
    if size < low:
        raise SettingError(
            name, given.text(name), f"is not a number of bytes >= {low}.", "Write a number, such as 67108864 or 64m."
        )
    return size
