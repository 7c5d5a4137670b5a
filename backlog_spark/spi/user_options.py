"""Options of a source as its user gave them: looked up in any case, checked, and refused with what to do (pure)."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from backlog_spark.common.durations import parse_duration
from backlog_spark.errors import SettingError

__all__ = ["UserOptions", "unknown_option"]

_T = TypeVar("_T")


class UserOptions(dict[str, str]):
    """The texts of options, by name in small letters. The methods take names as they are documented.

    Every method but `has` and `text` raises `SettingError` for a text that does not fit.

    Parameters
    ----------
    options : mapping of str to str
        Names in any case.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({name.lower(): text for name, text in options.items()})

    def has(self, name: str) -> bool:
        return name.lower() in self

    def text(self, name: str, default: str = "") -> str:
        return self.get(name.lower(), default)

    def required(self, name: str, hint: str, problem: str = "is needed.") -> str:
        """A text that is not empty."""
        found = self.text(name)
        if not found.strip():
            raise SettingError(name, self.get(name.lower()), problem, hint)
        return found

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of some words, as it stands there; the first is the default."""
        text = self.text(name, choices[0])
        found = {choice.lower(): choice for choice in choices}.get(text.strip().lower())
        if found is None:
            hint = f"Set one of these, or leave out {name}."
            raise SettingError(name, text, f"is none of {', '.join(choices)}.", hint)
        return found

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false") if default else ("false", "true")) == "true"

    def integer(self, name: str, default: _T, low: int, high: int | None = None, hint: str = "") -> int | _T:
        """A whole number within bounds."""
        if not self.has(name):
            return default
        text = self.text(name)
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low or (high is not None and value > high):
            bounds = f">= {low}" if high is None else f"{low}..{high}"
            raise SettingError(name, text, f"is not an integer {bounds}.", hint)
        return value

    def number(self, name: str, default: float, low: float, high: float | None = None) -> float:
        """A finite number within bounds."""
        if not self.has(name):
            return default
        text = self.text(name)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (low <= value < math.inf if high is None else low <= value <= high):
            bounds = f">= {low:g}" if high is None else f"{low:g}..{high:g}"
            raise SettingError(name, text, f"is not a number {bounds}.")
        return value

    def duration(self, name: str) -> int | None:
        """Milliseconds; None if not given."""
        return parse_duration(self.text(name), name) if self.has(name) else None

    def pattern(self, name: str, hint: str) -> str:
        """A regular expression; "" if not given."""
        pattern = self.text(name)
        try:
            re.compile(pattern)
        except re.error as error:
            raise SettingError(name, pattern, f"is not a regular expression: {error}.", hint) from None
        return pattern


def unknown_option(name: str, known: Iterable[str], problem: str) -> SettingError:
    """The refusal of a name that is none of the known ones."""
    names = list(dict.fromkeys(known))
    lower = {each.lower(): each for each in names}
    near = [lower[each] for each in difflib.get_close_matches(name.lower(), lower)]
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    # The value is never shown: the name may be a misspelt password.
    return SettingError(name, "***", problem, f"{hint}Options: {', '.join(names)}.")
