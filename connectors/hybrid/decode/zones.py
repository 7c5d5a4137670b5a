"""Time zones as Java and Spark write them, and the offset that one has at a local time (pure)."""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

__all__ = ["Zone", "offset_seconds", "zone"]

# A fixed offset in seconds east of Greenwich, or a region.
Zone = int | ZoneInfo

# java.time.ZoneId.SHORT_IDS, which Spark adds to the names of regions.
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
# In the database's directory, but no zones of Java's.
_NOT_REGIONS = re.compile(r"(?:posix|right)/|localtime$|posixrules$|Factory$")
_MOST = 18 * 3600
_CYCLE = 400  # years after which the Gregorian calendar is the same again


@lru_cache(maxsize=1024)
def zone(name: str) -> Zone | None:
    """The zone of a name such as ``Z``, ``+02:00``, ``UTC+2``, ``CET`` or ``Europe/Berlin``; None if there is none."""
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

    A local time that occurs twice is the earlier one, and one that is skipped counts with the offset before the gap, as
    in Java. Any year: outside of Python's calendar the offset is that of the same day near its ends.
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
