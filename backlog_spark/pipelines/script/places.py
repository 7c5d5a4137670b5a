"""Where a part of a script stands: lines and columns (pure)."""

from __future__ import annotations

import bisect
import re

from backlog_spark.pipelines.document import Document, Fault, Place
from backlog_spark.pipelines.script.tokens import Refused

__all__ = ["Places"]


class Places:
    """The lines of a script.

    Parameters
    ----------
    text : str
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]

    def of(self, start: int) -> Place:
        """Line and column of a position."""
        line = bisect.bisect_right(self._lines, start) - 1
        return Place(line + 1, start - self._lines[line] + 1)

    def written(self, part: tuple[int, int]) -> tuple[str, tuple[Place, ...]]:
        """A part of the script, and where each of its lines begins."""
        text, first = self._text[slice(*part)], self.of(part[0])
        return text, (first, *(Place(first.line + n, 1) for n in range(1, text.count("\n") + 1)))

    def fault(self, document: Document, error: Refused) -> None:
        """Note a mistake."""
        hide = document.redacted
        document.faults.append(Fault(self.of(error.start), hide(error.problem), hide(error.hint)))
