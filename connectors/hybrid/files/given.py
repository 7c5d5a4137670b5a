"""Options of a phase that reads files (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from backlog_spark.errors import SettingError
from backlog_spark.spi.user_options import UserOptions, unknown_option

from ..option import Option

__all__ = ["FilesGiven"]

STORAGE = "fs."
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class FilesGiven(UserOptions):
    """The options that a user gave.

    Parameters
    ----------
    options : mapping
    catalogue : sequence of Option
        The known options, besides ``fs.*``.
    others : collection of str
        Names that other modules read.
    what : str
        Owner of the options, for errors.

    Raises
    ------
    SettingError
        For an unknown name.
    """

    def __init__(self, options: Mapping[str, str], catalogue: Sequence[Option], others: Collection[str], what: str):
        super().__init__(options)
        known = [*(option.name for option in catalogue), *others]
        lower = {name.lower() for name in known}
        for name in options:
            if name.lower() not in lower and not name.lower().startswith(STORAGE):
                raise unknown_option(name, [*known, "fs.*"], f"{what} has no such option.")

    def size(self, name: str, default: int, low: int) -> int:
        """A number of bytes in Spark's notation: ``67108864``, ``64m`` or ``64MB``."""
        if not self.has(name):
            return default
        found = re.fullmatch(r"\s*(\d+)\s*(b|[kmg]i?b?)?\s*", self.text(name), re.IGNORECASE)
        size = int(found[1]) * _UNITS[(found[2] or "").lower()[:1]] if found else 0
        if size < low:
            raise SettingError(
                name, self.text(name), f"is not a number of bytes >= {low}.", "Write a number, such as 67108864 or 64m."
            )
        return size

    def character(self, name: str, default: str) -> str:
        """One character, or none."""
        found = self.text(name, default)
        if len(found) > 1 or not found.isascii() or found in ("\n", "\r"):
            raise SettingError(name, found, "is not one ASCII character.", f"Set {name} to one, or to nothing.")
        return found

    def names(self, name: str) -> tuple[str, ...]:
        """Names between commas."""
        return tuple(part.strip() for part in self.text(name).split(",") if part.strip())

    def storage(self) -> dict[str, str]:
        """The options ``fs.*``, without that prefix."""
        return {name[len(STORAGE) :]: text for name, text in self.items() if name.startswith(STORAGE)}
