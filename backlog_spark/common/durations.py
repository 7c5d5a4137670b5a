"""Durations as Spark and Flink users write them (pure)."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from typing import Final

from backlog_spark.errors import SettingError

__all__ = ["format_duration", "in_words", "parse_duration"]

_UNIT_WORDS: Final = {
    Fraction(1, 1_000_000): "ns nano nanos nanosecond nanoseconds",
    Fraction(1, 1_000): "us micro micros microsecond microseconds",
    Fraction(1): "ms milli millis millisecond milliseconds",
    Fraction(1_000): "s sec secs second seconds",
    # "m" is minutes in Spark's time strings and in Flink's TimeUtils; neither has months there.
    Fraction(60_000): "m min mins minute minutes",
    Fraction(3_600_000): "h hr hrs hour hours",
    Fraction(86_400_000): "d day days",
    Fraction(604_800_000): "w week weeks",
}
_UNITS: Final = {word: size for size, words in _UNIT_WORDS.items() for word in words.split()}
# Spark counts the microseconds of a trigger in 64 bits.
_MOST_MS: Final = (2**63 - 1) // 1_000
# Python refuses to convert numbers of thousands of digits.
_LONGEST: Final = 1_000
_TERM: Final = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([a-zµ]*)\s*", re.IGNORECASE)
# The format of Java's Duration.parse, which Flink reads too, and weeks. Years and months have no fixed length.
_ISO: Final = re.compile(
    r"([+-]?)P(?=\d|T\d)(?:(\d+)W)?(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:[.,]\d+)?)S)?)?", re.IGNORECASE
)
_ISO_UNITS: Final = (604_800_000, 86_400_000, 3_600_000, 60_000, 1_000)
_FORMS: Final = (
    "Write a number with its unit, such as '500 ms', '30 seconds', '10 min', '1h' or '1 minute 30 seconds', or as in "
    "ISO 8601: 'PT30S'."
)


def parse_duration(value: str | int | float | timedelta, setting: str) -> int:
    """Parse a duration as Spark and Flink users write it.

    Parameters
    ----------
    value : str, int, float or datetime.timedelta
        ``"30 seconds"``, ``"10 min"``, ``"30min"``, ``"500 ms"``, ``"1 minute 30 seconds"``, ``"1h"``,
        ``"1.5 s"``, ISO 8601 such as ``"PT30S"`` or ``"P1DT12H"``, a timedelta, or zero as ``0`` or ``"0"``.
        Units run from ns to weeks, in any case; several terms are added.
    setting : str
        Name of the setting as the user wrote it, for the error.

    Returns
    -------
    int
        Milliseconds, 0 or more.

    Raises
    ------
    SettingError
        For a number other than 0 without a unit (Spark would take milliseconds, most users mean seconds), an
        unknown unit, a negative duration, or one that is not a whole number of milliseconds (Spark's trigger
        has no finer grain; rounding 0.5 ms to 0 would silently mean "no commit during backlog").

    Examples
    --------
    >>> parse_duration("1 minute 30 seconds", "interval")
    90000
    >>> parse_duration(timedelta(seconds=2), "interval")
    2000
    """
    if isinstance(value, bool):
        raise SettingError(setting, value, "is not a duration.", _FORMS)
    if isinstance(value, timedelta):
        ms = Fraction(value // timedelta(microseconds=1), 1000)
    elif isinstance(value, (int, float)):
        if value != 0:
            raise SettingError(setting, value, "a bare number has no unit.", _FORMS)
        return 0
    elif isinstance(value, str):
        ms = _parse_terms(value, setting)
    else:
        raise SettingError(setting, value, f"is not a duration but a {type(value).__name__}.", _FORMS)
    if ms < 0:
        raise SettingError(setting, value, "a duration cannot be negative.", _FORMS)
    if ms > _MOST_MS:
        raise SettingError(setting, value, "is longer than Spark can count.", "Take one of less than 292,000 years.")
    if ms.denominator != 1:
        raise SettingError(setting, value, "is not a whole number of milliseconds.", "The finest unit is 1 ms.")
    return int(ms)


def _parse_terms(text: str, setting: str) -> Fraction:
    """Sum of the number-unit terms of a text, in milliseconds."""
    rest = text.strip()
    if not rest:
        raise SettingError(setting, text, "is empty.", _FORMS)
    if len(rest) > _LONGEST:
        raise SettingError(setting, text, "is too long for a duration.", _FORMS)
    if iso := _ISO.fullmatch(rest):
        terms = zip(_ISO_UNITS, iso.groups()[1:], strict=True)
        ms = sum((Fraction(number.replace(",", ".")) * size for size, number in terms if number), Fraction(0))
        return -ms if iso[1] == "-" else ms
    total = Fraction(0)
    position = 0
    while position < len(rest):
        term = _TERM.match(rest, position)
        if term is None:
            raise SettingError(setting, text, "is not a duration.", _FORMS)
        number, unit = Fraction(term[1]), term[2].lower()
        if unit:
            size = _UNITS.get(unit)
            if size is None:
                raise SettingError(setting, text, f"unknown unit {term[2]!r}.", _FORMS)
            if number < 0:
                raise SettingError(setting, text, "a duration cannot be negative.", _FORMS)
            total += number * size
        elif number != 0:
            raise SettingError(setting, text, f"the number {term[1]} has no unit.", _FORMS)
        position = term.end()
    return total


def format_duration(ms: int) -> str:
    """Shortest text for milliseconds that :func:`parse_duration` reads back: 90000 is ``"90 s"``."""
    if ms == 0:
        return "0"
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms % size == 0:
            return f"{ms // size} {unit}"
    return f"{ms} ms"


def in_words(seconds: float) -> str:
    """A duration for people, such as 0.42 s, 12.3 s, 3 min 4 s or 2 h 5 min."""
    if seconds < 0.0005:
        return "0 s"
    if seconds < 9.95:
        return f"{seconds:.3g} s" if seconds < 0.995 else f"{seconds:.1f} s".replace(".0 ", " ")
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 // 60 else "")
