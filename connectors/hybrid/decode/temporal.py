"""Parses dates, times of day and timestamps in the forms of Spark's cast from string (pure).

Source: Spark's SparkDateTimeUtils (stringToDate, parseTimestampString) and DateTimeUtils (cleanLegacyTimestampStr).
"""

from __future__ import annotations

import re

from .zones import Zone, offset_seconds, zone

__all__ = ["day_number", "days_of", "micros_of", "parse_date", "parse_ntz", "parse_time", "parse_timestamp"]

_DATE = re.compile(r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_CLOCK = r"(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?([^\d].*)?)?)?"
_TIMESTAMP = re.compile(rf"([+-]?)(\d{{4,6}})(?:-(\d{{1,2}})(?:-(\d{{1,2}})(?:[ T]{_CLOCK})?)?)?", re.ASCII | re.DOTALL)
_TIME = re.compile(r"(?:T(?=\d)|(?=\d\d?:))(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?", re.ASCII)
_DAY_NUMBER = re.compile(r"[+-]?\d{1,10}", re.ASCII)
# The characters that Spark trims: white space and control characters of one byte.
_TRIMMED = "".join(map(chr, range(33))) + "\x7f"
_GMT = "GMT"

_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_FIRST_GREGORIAN = -141427
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def days_of(year: int, month: int, day: int) -> int | None:
    """Days from 1970-01-01 to a date of the proleptic Gregorian calendar, in any year; None for an invalid date."""
    if not (1 <= month <= 12 and day >= 1):
        return None
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day > _MONTH_DAYS[month - 1] + leap:
        return None
    # Count years from March, so that the leap day is the last day.
    shifted = year - (month <= 2)
    era, of_era = divmod(shifted, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


def micros_of(
    date: tuple[int, int, int], clock: tuple[int, int, int], micros: int, of: Zone | None, default: Zone
) -> int | None:
    """Microseconds since the epoch of a local time; None if it is invalid or does not fit into 64 bits."""
    days = days_of(*date)
    hour, minute, second = clock
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    seconds = days * 86400 + hour * 3600 + minute * 60 + second
    seconds -= offset_seconds(default if of is None else of, *date, hour, minute, second)
    found = seconds * 1_000_000 + micros
    return found if found in _INT64 else None


def parse_date(text: str) -> int | None:
    """Days since the epoch; None if the text is not a date."""
    found = _DATE.fullmatch(text.strip(_TRIMMED))
    if found:
        sign, year, month, day = found.groups()
        days = days_of(int(sign + year), int(month or 1), int(day or 1))
        return days if days is not None and days in _INT32 else None
    return parse_date(_without_gmt(text)) if _GMT in text else None


def day_number(text: str) -> int | None:
    """A date written as days since the epoch, as in JSON of Spark 1.5; None before the Gregorian calendar."""
    days = int(text) if _DAY_NUMBER.fullmatch(text) else None
    return days if days is not None and _FIRST_GREGORIAN <= days in _INT32 else None


def parse_timestamp(text: str, default: Zone) -> int | None:
    """Microseconds since the epoch. ``default``: zone of a time without one. None if the text is not a timestamp.

    Unlike in Spark, a time of day alone is not accepted: it would get the present day, another one after a failure.
    """
    found = _TIMESTAMP.fullmatch(text.strip(_TRIMMED))
    if found:
        of = zone(found[9].strip()) if found[9] else None
        micros = None if found[9] and of is None else _micros(found, of, default)
        if micros is not None:
            return micros
    return parse_timestamp(_without_gmt(text), default) if _GMT in text else None


def parse_ntz(text: str) -> int | None:
    """Microseconds from the local epoch; None if the text is not a timestamp or has a zone."""
    found = _TIMESTAMP.fullmatch(text.strip(_TRIMMED))
    return _micros(found, 0, 0) if found and not found[9] else None


def parse_time(text: str) -> int | None:
    """Nanoseconds since midnight, with microsecond precision; None if the text is not a time of day."""
    found = _TIME.fullmatch(text.strip(_TRIMMED))
    if not found:
        return None
    hour, minute, second = (int(found[group] or 0) for group in (1, 2, 3))
    if hour > 23 or minute > 59 or second > 59:
        return None
    return ((hour * 3600 + minute * 60 + second) * 1_000_000 + _fraction(found[4])) * 1000


def _micros(found: re.Match[str], of: Zone | None, default: Zone) -> int | None:
    sign, year, month, day, hour, minute, second, fraction = found.group(1, 2, 3, 4, 5, 6, 7, 8)
    date = (int(sign + year), int(month or 1), int(day or 1))
    return micros_of(date, (int(hour or 0), int(minute or 0), int(second or 0)), _fraction(fraction), of, default)


def _fraction(digits: str | None) -> int:
    """Microseconds. Further digits are cut off."""
    return int(digits[:6].ljust(6, "0")) if digits else 0


def _without_gmt(text: str) -> str:
    return text.replace(_GMT, "", 1)
