"""Regular expressions that are compiled when they are first used (pure).

Each Python process of a query imports the connectors anew, and few of them ever see an ALTER TABLE. Compiling the
expressions for statements took half of ``mysql_cdc``'s import.
"""

from __future__ import annotations

import re
from typing import Any, cast

__all__ = ["lazy_pattern"]


class _Lazy:
    def __init__(self, text: str, flags: int) -> None:
        self._arguments = text, flags

    def __getattr__(self, name: str) -> Any:
        # Called for what the instance has not: so once for each method of the pattern.
        found = getattr(re.compile(*self._arguments), name)
        setattr(self, name, found)
        return found


def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """As ``re.compile``, at the first use of a method. A mistake in ``text`` is told only then.

    It is not itself what a match has as ``re``.
    """
    return cast("re.Pattern[str]", _Lazy(text, flags))
