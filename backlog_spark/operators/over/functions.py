"""The functions of an OVER aggregation (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

__all__ = ["Default", "OverFunction"]

Default = int | float | Decimal | str | bool | None


@dataclass(frozen=True)
class OverFunction:
    """One function over the rows that precede a row.

    Parameters
    ----------
    kind : str
        ``sum``, ``min``, ``max``, ``avg``, ``count``, ``row_number``, ``lag``, ``first_value`` or ``last_value``.
    column : str or None
        Its argument; None for ``row_number`` and ``count(*)``.
    name : str
        Column of the result.
    offset : int, default 1
        Of ``lag``: how many rows before.
    default : int, float, Decimal, str, bool or None
        Of ``lag``: the result where there is no such row.
    """

    kind: str
    column: str | None
    name: str
    offset: int = 1
    default: Default = None

    @property
    def text(self) -> str:
        """As it is kept in the checkpoint: without its name, which may change."""
        if self.kind == "lag":
            return f"lag({self.column}, {self.offset}, {self.default!r})"
        return f"{self.kind}({'*' if self.kind == 'count' and self.column is None else self.column or ''})"
