"""A table of figures beside their peers, with goals."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["Figure", "show_figures"]

_SIGNS: Final = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}


class Figure(NamedTuple):
    """A line of the table.

    Parameters
    ----------
    name : str
    ours : float
    unit : "rows/s" or "s"
    peer : str
        Empty: there is none.
    theirs : float
        The peer's figure.
    goal : str
        Of the ratio of ours to the peer's, such as ``<= 1.5``, or of our own figure, such as ``< 2 s``.
    """

    name: str
    ours: float
    unit: str
    peer: str = ""
    theirs: float = 0.0
    goal: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / max(self.theirs, 1e-9) if self.peer else None

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met; None if there is none."""
        if not self.goal:
            return None
        sign, limit, *unit = self.goal.split()
        found = self.ours if unit else self.ratio
        return found is not None and bool(_SIGNS[sign](found, float(limit)))


def show_figures(figures: Sequence[Figure]) -> None:
    """Print the table."""
    lines = [("figure", "ours", "peer", "theirs", "ratio", "goal", "")]
    for each in figures:
        digits = 0 if each.unit == "rows/s" else 3
        values = [f"{value:,.{digits}f} {each.unit}" for value in (each.ours, each.theirs)]
        ratio = "" if each.ratio is None else f"{each.ratio:.2f}"
        met = {None: "", True: "met", False: "missed"}[each.is_met]
        lines.append((each.name, values[0], each.peer, values[1] if each.peer else "", ratio, each.goal, met))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(), flush=True)
