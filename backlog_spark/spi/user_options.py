"""Options of a source as its user gave them: looked up in any case, checked, and refused with what to do (pure)."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from backlog_spark.common.durations import format_duration, parse_duration
from backlog_spark.errors import SettingError

__all__ = ["MOST", "UserOptions", "bounds_text", "check_names", "unknown_option"]

_T = TypeVar("_T")

MOST: Final = 2**63 - 1
"""The greatest whole number of Java and of Arrow. No option may be more."""


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

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of some words, as it stands there. The first is the default, if there is no other."""
        if not self.has(name):
            return choices[0] if default is None else default
        text = self.text(name)
        found = {choice.lower(): choice for choice in choices}.get(text.strip().lower())
        if found is None:
            hint = f"Set one of these, or leave out {name}."
            raise SettingError(name, text, f"is none of {', '.join(choices)}.", hint)
        return found

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def integer(self, name: str, default: _T, low: int, high: int | None = None, hint: str = "") -> int | _T:
        """A whole number within bounds."""
        if not self.has(name):
            return default
        text = self.text(name)
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= (MOST if high is None else high):
            high = MOST if high is None and value > MOST else high
            raise SettingError(name, text, f"is not an integer {bounds_text(low, high)}.", hint or _other(name))
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
            raise SettingError(name, text, f"is not a number {bounds_text(low, high)}.", _other(name))
        return value

    def duration(self, name: str, default: _T, low: int = 0, high: int | None = None) -> int | _T:
        """Milliseconds within bounds."""
        if not self.has(name):
            return default
        text = self.text(name)
        found = parse_duration(text, name)
        if high is None and found < low:
            raise SettingError(name, text, "must be above 0.", 'For example "5 min".')
        if high is not None and not low <= found <= high:
            bounds = f"{format_duration(low)} and {format_duration(high)}"
            raise SettingError(name, text, f"is not between {bounds}.", _other(name))
        return found

    def pattern(self, name: str, hint: str) -> str:
        """A regular expression; "" if not given."""
        pattern = self.text(name)
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise SettingError(name, pattern, f"is not a regular expression: {error}.", hint) from None
        return pattern


def _other(name: str) -> str:
    return f"Set it within these bounds, or leave out {name}."


def bounds_text(low: float, high: float | None, shown: Callable[[Any], str] = str) -> str:
    """Bounds as in errors and in the documentation."""
    return f">= {shown(low)}" if high is None else f"{shown(low)}..{shown(high)}"


def check_names(options: Iterable[str], known: Iterable[str], problem: str) -> None:
    """Refuse options that are none of the known ones, in any case."""
    names = list(known)
    lower = {each.lower() for each in names}
    for name in options:
        if name.lower() not in lower:
            raise unknown_option(name, names, problem)


def unknown_option(name: str, known: Iterable[str], problem: str) -> SettingError:
    """The refusal of a name that is none of the known ones."""
    names = list(dict.fromkeys(known))
    lower = {each.lower(): each for each in names}
    near = [lower[each] for each in difflib.get_close_matches(name.lower(), lower)]
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    # The value is never shown: the name may be a misspelt password.
    return SettingError(name, "***", problem, f"{hint}Options: {', '.join(names)}.")
