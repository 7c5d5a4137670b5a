"""Parses time zones in the notation of Java and Spark, and finds the offset at a local time (pure)."""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

__all__ = ["Zone", "offset_seconds", "zone"]

# A fixed offset in seconds east of Greenwich, or a region.
Zone = int | ZoneInfo

# java.time.ZoneId.SHORT_IDS, which Spark accepts too.
_SHORT: dict[str, str] = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "EST": "-05:00", "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia",
    "MST": "-07:00", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip

# h, hh, hhmm, hhmmss, h:m, hh:mm and so on with colons: the forms of ZoneOffset.of and Spark's two older ones.
_OFFSET = re.compile(r"([+-])(?:(\d\d?)|(\d\d)(\d\d)(\d\d)?|(\d\d?):(\d\d?)|(\d\d?):(\d\d):(\d\d))", re.ASCII)
_PREFIXED = re.compile(r"(?:UTC|GMT|UT)([+-].*)?")
_REGION = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+")
# Names in the time zone database that are not zones of Java.
_NOT_REGIONS = re.compile(r"(?:posix|right)/|localtime$|posixrules$|Factory$")
_MOST = 18 * 3600
_CYCLE = 400  # the Gregorian calendar repeats after this many years


@lru_cache(maxsize=1024)
def zone(name: str) -> Zone | None:
    """The zone with a name such as ``Z``, ``+02:00``, ``UTC+2``, ``CET`` or ``Europe/Berlin``; None if unknown."""
    name = _SHORT.get(name, name)
    if name == "Z":
        return 0
    if name[:1] in ("+", "-"):
        return _offset(name)
    prefixed = _PREFIXED.fullmatch(name)
    if prefixed:
        return _offset(prefixed[1]) if prefixed[1] else 0
    if not _REGION.fullmatch(name) or _NOT_REGIONS.match(name):
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # also directories of the database
        return None


def _offset(text: str) -> int | None:
    found = _OFFSET.fullmatch(text)
    if not found:
        return None
    hours, minutes, seconds = (
        int(next((g for g in groups if g), "0"))
        for groups in (found.group(2, 3, 6, 8), found.group(4, 7, 9), found.group(5, 10))
    )
    total = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or total > _MOST:
        return None
    return -total if found[1] == "-" else total


def offset_seconds(of: Zone, year: int, month: int, day: int, hour: int, minute: int, second: int) -> int:
    """How far local time is ahead of UTC.

    For a local time that occurs twice the earlier one counts. A skipped one has the offset before the gap. Both as in
    Java. Works for any year: outside of Python's calendar it takes the same day of a year near the limits.
    """
    if isinstance(of, int):
        return of
    if year > 9000:
        year = 2000 + year % _CYCLE + 6 * _CYCLE
    elif year < 2:
        year = 4  # local mean time, in a leap year, away from Python's first day
    offset = datetime(year, month, day, hour, minute, second, tzinfo=of).utcoffset()
    assert offset is not None
    return offset.days * 86400 + offset.seconds
