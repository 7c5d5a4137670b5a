"""Options as texts: finds them in any case, checks them, and refuses wrong ones with a hint (pure)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence

from backlog_spark.common.durations import parse_duration
from backlog_spark.errors import SettingError

from ..option import Option

__all__ = ["Given"]

STORAGE = "fs."
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Given:
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
        self._given = {name.lower(): text for name, text in options.items()}
        known = {name.lower(): name for name in (*(option.name for option in catalogue), *others)}
        for name in options:
            if name.lower() in known or name.lower().startswith(STORAGE):
                continue
            near = [known[k] for k in difflib.get_close_matches(name.lower(), known)]
            hint = f"Did you mean {' or '.join(near)}? " if near else ""
            # The value is never shown: the name may be a misspelt secret.
            raise SettingError(
                name, "***", f"{what} has no such option.", f"{hint}Options: {', '.join([*known.values(), 'fs.*'])}."
            )

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower(), default)

    def required(self, name: str, hint: str) -> str:
        """A text that is not empty."""
        found = self.text(name)
        if not found.strip():
            raise SettingError(name, found or None, "is needed.", hint)
        return found

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of these words. The first is the default."""
        found = self.text(name, choices[0]).strip().lower()
        if found not in choices:
            raise SettingError(
                name, self.text(name), f"is none of {', '.join(choices)}.", f"Set one of these, or leave out {name}."
            )
        return found

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false") if default else ("false", "true")) == "true"

    def integer(self, name: str, low: int, hint: str) -> int | None:
        """A number that is at least ``low``; None if not given."""
        if not self.has(name):
            return None
        text = self.text(name).strip()
        if not re.fullmatch(r"[+-]?\d+", text) or int(text) < low:
            raise SettingError(name, self.text(name), f"is not an integer >= {low}.", hint)
        return int(text)

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

    def duration(self, name: str) -> int | None:
        """Milliseconds, None if not given."""
        return parse_duration(self.text(name), name) if self.has(name) else None

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
        return {name[len(STORAGE) :]: text for name, text in self._given.items() if name.startswith(STORAGE)}
