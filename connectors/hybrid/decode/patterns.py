"""Parses dates and timestamps with Java's patterns, as far as these can be used for reading (pure).

Source: Spark's "Datetime Patterns for Formatting and Parsing" and Iso8601TimestampFormatter, java.time's
DateTimeFormatterBuilder (fields missing in a pattern are those of 1970-01-01 00:00; a fraction may have fewer digits).
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Literal

from backlog_spark.errors import SettingError

from .temporal import days_of, micros_of
from .zones import Zone, zone

__all__ = ["Kind", "Pattern"]

Kind = Literal["date", "timestamp", "timestamp_ntz"]

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_OFFSET_RANGE = r"(?:0[0-9]|1[0-7]):[0-5][0-9]|18:00"

# The regular expression of each run of letters. The group's name is the field. yy counts from 2000.
_LETTERS: dict[str, tuple[str, str]] = {
    "y": ("year", r"-?[0-9]{1,10}"),
    "yy": ("short", r"[0-9]{2}"),
    "yyyy": ("year", r"-?[0-9]{4}|\+[0-9]{5,10}"),
    "M": ("month", r"[0-9]{1,19}"),
    "MM": ("month", r"[0-9]{2}"),
    "MMM": ("name", "|".join(_MONTHS)),
    "d": ("day", r"[0-9]{1,19}"),
    "dd": ("day", r"[0-9]{2}"),
    "H": ("hour", r"[0-9]{1,19}"),
    "HH": ("hour", r"[0-9]{2}"),
    "h": ("half", r"[0-9]{1,19}"),
    "hh": ("half", r"[0-9]{2}"),
    "a": ("noon", "am|pm"),
    "m": ("minute", r"[0-9]{1,19}"),
    "mm": ("minute", r"[0-9]{2}"),
    "s": ("second", r"[0-9]{1,19}"),
    "ss": ("second", r"[0-9]{2}"),
    "X": ("zone", r"z|[+-][0-9]{2}(?:[0-9]{2})?"),
    "XX": ("zone", r"z|[+-][0-9]{4}"),
    "XXX": ("zone", r"z|[+-][0-9]{2}:[0-9]{2}"),
    "Z": ("zone", r"[+-][0-9]{4}"),
    "VV": ("region", r"[a-z0-9/_+:-]+"),
    **{"S" * n: ("fraction", rf"[0-9]{{1,{n}}}") for n in range(1, 10)},
}
# Fields with the same meaning: a pattern may have one of each set.
_ONE_OF = ({"year", "short"}, {"month", "name"}, {"hour", "half"}, {"zone", "region"})
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|.", re.DOTALL)
_SUPPORTED = "y yy yyyy M MM MMM d dd H HH h hh a m mm s ss S to SSSSSSSSS X XX XXX Z VV, text in quotes, and [ ]"

# Letters with a fixed width, and their position in ISO 8601.
_FIXED = {
    "yyyy": "[0-9]{4}", "MM": "[0-9]{2}", "dd": "[0-9]{2}", "HH": "[0-9]{2}", "mm": "[0-9]{2}", "ss": "[0-9]{2}",
    "XXX": rf"Z|[+-](?:{_OFFSET_RANGE})",
}  # fmt: skip


class Pattern:
    """One pattern. Only its text is pickled.

    Parameters
    ----------
    option : str
        Name of its option, for errors.
    text : str
        Java's pattern.
    kind : "date", "timestamp" or "timestamp_ntz"
        The type of the values.

    Raises
    ------
    SettingError
        For a letter that is not supported, and for a pattern that cannot match anything.
    """

    def __init__(self, option: str, text: str, kind: Kind) -> None:
        self.option, self.text, self.kind = option, text, kind
        self._regex = self._compile()

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.option, self.text, self.kind))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash((self.option, self.text, self.kind))

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def date(self, text: str) -> int | None:
        """Days since the epoch; None if the text does not fit."""
        found = self._regex.fullmatch(text)
        days = days_of(*self._date(found.groupdict())) if found else None
        return days if days is not None and -(2**31) <= days < 2**31 else None

    def timestamp(self, text: str, default: Zone) -> int | None:
        """Microseconds since the epoch, with ``default`` for texts without a zone; None if the text does not fit."""
        found = self._regex.fullmatch(text)
        if not found:
            return None
        fields = found.groupdict()
        # Java's zones with "Z" match in any case; names of regions do not.
        name = (fields.get("zone") or "").upper() or fields.get("region")
        of = zone(name) if name else None
        if name and of is None:
            return None
        hour = int(fields.get("hour") or 0)
        if fields.get("half"):
            half = int(fields["half"])
            if not 1 <= half <= 12:
                return None
            hour = half % 12 + (12 if (fields.get("noon") or "").lower() == "pm" else 0)
        clock = (hour, int(fields.get("minute") or 0), int(fields.get("second") or 0))
        micros = int((fields.get("fraction") or "0")[:6].ljust(6, "0"))
        return micros_of(self._date(fields), clock, micros, of, default)

    @cached_property
    def fixed(self) -> tuple[str, str] | None:
        """A regular expression (RE2), and a replacement that writes the match in ISO 8601.

        It matches fewer texts than the pattern. None if a field of the pattern has no fixed width.
        """
        expression, at = "", dict[str, int]()
        for quoted, run in self._tokens():
            if run in "[]":
                return None
            field = _LETTERS[run][0] if quoted is None and run in _LETTERS else None
            if field is None:
                expression += re.escape(run if quoted is None else quoted)
                continue
            fits = f"[0-9]{{1,{min(len(run), 6)}}}" if field == "fraction" else _FIXED.get(run)
            if fits is None:
                return None
            at[field] = len(at) + 1
            expression += f"({fits})"
        if not {"year", "month", "day"} <= at.keys():
            return None
        replacement = rf"\{at['year']}-\{at['month']}-\{at['day']}"
        if self.kind != "date":
            clock = [rf"\{at[name]}" if name in at else "00" for name in ("hour", "minute", "second")]
            replacement += "T" + ":".join(clock)
            replacement += rf".\{at['fraction']}" if "fraction" in at else ""
            replacement += rf"\{at['zone']}" if "zone" in at else ""
        return rf"\A{expression}\z", replacement

    def _date(self, fields: dict[str, str | None]) -> tuple[int, int, int]:
        short, name = fields.get("short"), fields.get("name")
        year = 2000 + int(short) if short else int(fields.get("year") or 1970)
        month = _MONTHS.index(name.lower()) + 1 if name else int(fields.get("month") or 1)
        return year, month, int(fields.get("day") or 1)

    def _tokens(self) -> list[tuple[str | None, str]]:
        """The parts of the pattern: None and a run of letters, or quoted text and its source."""
        found = []
        for token in _TOKEN.finditer(self.text):
            quoted = token[1]
            if quoted is not None:
                quoted = "'" if token[0] == "''" else quoted.replace("''", "'")
            found.append((quoted, token[0]))
        return found

    def _compile(self) -> re.Pattern[str]:
        expression, depth = "", 0
        fields: set[str] = set()
        before = ""
        for quoted, run in self._tokens():
            if quoted is not None:
                expression, before = expression + re.escape(quoted), ""
            elif run in _LETTERS:
                field, fits = _LETTERS[run]
                self._check_field(field, run, fields)
                if field == "fraction" and before.isalpha():
                    raise self._refused(f"{run} follows another number, which Java cannot read")
                fields.add(field)
                expression, before = expression + f"(?P<{field}>{fits})", run
            elif run == "[":
                expression, depth, before = expression + "(?:", depth + 1, ""
            elif run == "]" and depth:
                expression, depth, before = expression + ")?", depth - 1, ""
            elif run[0].isalpha() or run in "]'#{}":
                raise self._refused(f"{run!r} is not supported")
            else:
                expression, before = expression + re.escape(run), ""
        if depth:
            raise self._refused("a [ is not closed")
        if not fields:
            raise self._refused("it has no field")
        if ("noon" in fields) != ("half" in fields):
            raise self._refused("h and a must be used together")
        if self.kind == "timestamp_ntz" and fields & {"zone", "region"}:
            raise self._refused("a timestamp without time zone cannot have one")
        return re.compile(expression, re.IGNORECASE | re.ASCII)

    def _check_field(self, field: str, run: str, fields: set[str]) -> None:
        same = next((group for group in _ONE_OF if field in group), {field})
        if same & fields:
            raise self._refused(f"{run} repeats a field")

    def _refused(self, why: str) -> SettingError:
        return SettingError(self.option, self.text, f"{why}.", f"Patterns may have {_SUPPORTED}.")
