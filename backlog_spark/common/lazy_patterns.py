"""Regular expressions that are compiled at their first use (pure).

Each Python process of a query imports the connectors again, and few of them ever see an ALTER TABLE. Compiling the
expressions for statements took half of the import of ``mysql_cdc``.
"""

from __future__ import annotations

import re
from typing import Any, cast

__all__ = ["lazy_pattern"]


class _Lazy:
    def __init__(self, text: str, flags: int) -> None:
        self._arguments = text, flags

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes: once for each method of the pattern.
        found = getattr(re.compile(*self._arguments), name)
        setattr(self, name, found)
        return found


def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Like ``re.compile``, but compiles at the first use of a method. A mistake in ``text`` is raised only then.

    The attribute ``re`` of a match is the compiled pattern, not this object.
    """
    return cast("re.Pattern[str]", _Lazy(text, flags))
