"""The functions of an OVER aggregation (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

__all__ = ["RANKS", "Default", "OverFunction"]

RANKS: Final = ("row_number", "rank", "dense_rank")
"""Functions that number the rows of a key."""

Default = int | float | Decimal | str | bool | None


@dataclass(frozen=True)
class OverFunction:
    """One function over a row and the rows before it.

    Parameters
    ----------
    kind : str
        ``sum``, ``min``, ``max``, ``avg``, ``count``, ``lag``, ``first_value``, ``last_value``, or one of `RANKS`.
    column : str or None
        Argument; None for ``row_number`` and ``count(*)``.
    name : str
        Column of the result.
    offset : int, default 1
        For ``lag``: how many rows before.
    default : int, float, Decimal, str, bool or None
        For ``lag``: the result if there is no such row.
    """

    kind: str
    column: str | None
    name: str
    offset: int = 1
    default: Default = None

    @property
    def text(self) -> str:
        """The text in the checkpoint: without the name, which may change."""
        if self.kind == "lag":
            return f"lag({self.column}, {self.offset}, {self.default!r})"
        return f"{self.kind}({'*' if self.kind == 'count' and self.column is None else self.column or ''})"
