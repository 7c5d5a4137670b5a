"""Parses texts as values of one type: one at a time, exactly, or whole columns of regular texts with Arrow (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import SettingError
from backlog_spark.spi.options import option
from backlog_spark.spi.user_options import UserOptions

from .numeric import parse_bool, parse_decimal, parse_double, parse_float, parse_integer
from .patterns import Kind, Pattern
from .temporal import parse_date, parse_ntz, parse_time, parse_timestamp
from .zones import Zone, zone

__all__ = ["Formats", "Parse", "Texts", "is_readable", "merged"]

# Returns a value that `pyarrow.array` takes for the type, or None if the text is not such a value.
Parse = Callable[[str], Any]

_OFFSET = r"(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9]|[+-]18:00)"
_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
# With fewer texts, parsing each one is cheaper than halving the column further.
_FEW = 32


def _zone(given: UserOptions, name: str) -> Zone:
    found = zone(given.text(name, "UTC"))
    if found is None:
        raise SettingError(
            "timeZone", given.text(name), "is not a time zone.", "For example UTC, +02:00 or Europe/Berlin."
        )
    return found


def _pattern(kind: Kind) -> Callable[[UserOptions, str], Pattern | None]:
    """Parses a pattern. None: the forms that Spark's cast accepts."""
    return lambda given, name: Pattern(name, given.text(name), kind) if given.has(name) else None


@dataclass(frozen=True)
class Formats:
    """The formats of dates and timestamps."""

    zone: Zone = option("timeZone", _zone, 0, type="zone", shown="UTC", spark="timeZone")
    """Zone of times without one, in records and in ORC files."""
    date: Pattern | None = option(
        "dateFormat", _pattern("date"), None, type="pattern", shown="ISO 8601", spark="dateFormat"
    )
    """Format of dates."""
    timestamp: Pattern | None = option(
        "timestampFormat", _pattern("timestamp"), None, type="pattern", shown="ISO 8601", spark="timestampFormat"
    )
    """Format of timestamps."""
    timestamp_ntz: Pattern | None = option(
        "timestampNTZFormat",
        _pattern("timestamp_ntz"),
        None,
        type="pattern",
        shown="ISO 8601",
        spark="timestampNTZFormat",
    )
    """Format of timestamps without zone."""


class Texts:
    """Parses the texts of one type.

    Parameters
    ----------
    type : pyarrow.DataType
        Type of the values; not nested.
    formats : Formats
        Formats of dates and timestamps.
    words : mapping of str to float
        Texts that mean a float, such as ``NaN``.

    Attributes
    ----------
    one : callable
        Parses one text; None if it is not a value.
    """

    def __init__(self, type: pa.DataType, formats: Formats, words: dict[str, float] | None = None) -> None:
        self.type = type
        self.one: Parse = _one(type, formats, words or {})
        # Tried in order: a regular expression (RE2), and a conversion of the matching texts.
        self._regular = _regular(type, formats)

    def many(self, texts: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
        """Parse a column of texts. Also returns which texts are not values, if any; these are NULL."""
        if pa.types.is_string(self.type):
            return texts, None
        left = texts
        found: pa.Array | None = None
        for expression, convert in self._regular:
            fits = pc.match_substring_regex(left, expression)
            count = fits.true_count
            if not count:
                continue
            whole = count + left.null_count == len(left)
            values = self._converted(left if whole else pc.if_else(fits, left, None), convert)
            found = values if found is None else pc.coalesce(found, values)
            # Texts without a value are left, regular or not: 2020-02-30 is regular.
            left = pc.if_else(pc.is_null(values), left, None)
            if left.null_count == len(left):
                return found, None
        return self._rest(found, left)

    def _converted(self, texts: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
        """Arrow refuses a whole column for one bad value. So the column is halved until the bad value is alone."""
        try:
            values: pa.Array = convert(texts)
        except pa.ArrowInvalid:
            if len(texts) <= _FEW:
                return pa.nulls(len(texts), self.type)
            half = len(texts) // 2
            return pa.concat_arrays([self._converted(part, convert) for part in (texts[:half], texts[half:])])
        return values

    def _rest(self, found: pa.Array | None, left: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
        at = np.flatnonzero(left.is_valid().to_numpy(zero_copy_only=False))
        values = [self.one(text) for text in left.take(pa.array(at)).to_pylist()]
        if found is None:
            found = pa.nulls(len(left), self.type)
        if len(values):
            found = merged(found, at, pa.array(values, self.type))
        bad = np.zeros(len(left), bool)
        bad[at] = [value is None for value in values]
        return found, bad if bad.any() else None


def is_readable(type: pa.DataType) -> bool:
    """Whether texts can be parsed as this type. Takes the Arrow types of Spark's types."""
    if pa.types.is_timestamp(type):
        return bool(type.unit == "us")
    kinds = (
        pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_float32, pa.types.is_float64,
        pa.types.is_decimal128, pa.types.is_date32, pa.types.is_string, pa.types.is_binary,
    )  # fmt: skip
    return type == pa.time64("ns") or any(fits(type) for fits in kinds)


def merged(column: pa.Array, at: np.ndarray, values: pa.Array) -> pa.Array:
    """The column with some values replaced. ``at``: their indices, sorted."""
    order = np.arange(len(column))
    order[at] = len(column) + np.arange(len(at))
    return pa.concat_arrays([column, values]).take(pa.array(order))


def _one(type: pa.DataType, formats: Formats, words: dict[str, float]) -> Parse:
    if pa.types.is_boolean(type):
        return parse_bool
    if pa.types.is_integer(type):
        return partial(parse_integer, bits=type.bit_width)
    if pa.types.is_floating(type):
        parse = parse_float if pa.types.is_float32(type) else parse_double
        return lambda text: words[text] if text in words else parse(text)
    if pa.types.is_decimal128(type):
        return partial(parse_decimal, precision=type.precision, scale=type.scale)
    if pa.types.is_date32(type):
        return formats.date.date if formats.date else parse_date
    if pa.types.is_time64(type):
        return parse_time
    if pa.types.is_timestamp(type):
        if type.tz is None:
            ntz = formats.timestamp_ntz
            return partial(ntz.timestamp, default=0) if ntz else parse_ntz
        pattern = formats.timestamp
        return partial(pattern.timestamp if pattern else parse_timestamp, default=formats.zone)
    if pa.types.is_binary(type):
        return str.encode
    return str


def _regular(type: pa.DataType, formats: Formats) -> Sequence[tuple[str, Callable[[pa.Array], pa.Array]]]:
    cast = partial(pc.cast, target_type=type)
    if pa.types.is_boolean(type):
        return [(r"\A(?:true|false)\z", cast)]
    if pa.types.is_integer(type):
        # One digit fewer than the greatest number.
        return [(rf"\A-?[0-9]{{1,{ {8: 2, 16: 4, 32: 9, 64: 18}[type.bit_width] } }}\z", cast)]
    if pa.types.is_floating(type):
        return [(r"\A-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9])?\z", cast)]
    if pa.types.is_decimal128(type):
        whole = type.precision - type.scale
        fraction = rf"(?:\.[0-9]{{1,{type.scale}}})?" if type.scale else ""
        return [(rf"\A-?[0-9]{{1,{whole}}}{fraction}\z", cast)] if whole else []
    if pa.types.is_date32(type):
        return _by_pattern(formats.date, [(rf"\A{_DAY}\z", cast)])
    if pa.types.is_timestamp(type):
        zone = formats.zone if type.tz else 0
        # Not for regions: Arrow's rule for skipped times differs from Java's.
        local = [(rf"\A{_DAY}{_CLOCK}\z", partial(_local, type=type, zone=zone))] if isinstance(zone, int) else []
        if type.tz is None:
            return _by_pattern(formats.timestamp_ntz, local)
        return _by_pattern(formats.timestamp, [(rf"\A{_DAY}{_CLOCK}{_OFFSET}\z", cast), *local])
    return []


def _local(texts: pa.Array, type: pa.DataType, zone: int) -> pa.Array:
    """Timestamps without a zone, all with the same offset."""
    values = pc.cast(texts, pa.timestamp("us"))
    if zone:
        values = pc.subtract(values, pa.scalar(zone * 1_000_000, pa.duration("us")))
    return values.view(type)


def _by_pattern(
    pattern: Pattern | None, standard: Sequence[tuple[str, Callable[[pa.Array], pa.Array]]]
) -> Sequence[tuple[str, Callable[[pa.Array], pa.Array]]]:
    """The regular texts of a pattern: those that can be rewritten as ISO 8601 by moving their parts."""
    if pattern is None:
        return standard
    if pattern.fixed is None or not standard:
        return []
    expression, replacement = pattern.fixed
    has_zone = "(Z|" in expression
    convert = standard[0][1] if has_zone or pattern.kind != "timestamp" else standard[-1][1]
    if not has_zone and pattern.kind == "timestamp" and len(standard) == 1:
        return []  # local times of a region are not regular
    rewrite = partial(pc.replace_substring_regex, pattern=expression, replacement=replacement)
    return [(expression, lambda texts: convert(rewrite(texts)))]
