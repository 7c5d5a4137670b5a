"""Converts dates and times from the server's packed form to Spark's (pure).

A packed value is a number: the year times 13 plus the month, then 5 bits for the day, 5 for the hour, 6 for the minute,
6 for the second and 24 for the microseconds.

Source: mysys/my_time.cc of MySQL, "TIME_to_longlong_datetime_packed".
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["packed_days", "packed_micros", "packed_text"]

_Ints = npt.NDArray[np.int64]
_DAY_MICROS = 86_400_000_000
_YEARS = 10_000


@functools.cache
def _months() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
    """Indexed by year times 13 plus month: days from 1970 to the month's first day, and its length; 0 if no month."""
    first = np.arange("0001-01", "10000-02", dtype="datetime64[M]").astype("datetime64[D]").astype(np.int64)
    year, month = np.divmod(np.arange(len(first) - 1), 12)
    days, length = np.zeros(13 * _YEARS, dtype=np.int32), np.zeros(13 * _YEARS, dtype=np.int8)
    at = (year + 1) * 13 + month + 1
    days[at], length[at] = first[:-1], np.diff(first)
    return days, length


def _days(packed: _Ints) -> tuple[_Ints, npt.NDArray[np.bool_]]:
    """Days since 1970, and which dates exist: not zero, partial and impossible ones, and none of the year 0."""
    days, length = _months()
    day = packed >> 41 & 31
    month = packed >> 46
    return days[month] + (day - 1), (day > 0) & (day <= length[month])


def _numbers(array: pa.Array) -> tuple[_Ints, npt.NDArray[np.bool_]]:
    """Values, and which are not NULL."""
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return array.fill_null(0).to_numpy(), valid


def packed_days(array: pa.Array) -> pa.Array:
    """Dates from packed ones; NULL for those that Spark cannot hold."""
    packed, valid = _numbers(array)
    days, exists = _days(packed)
    return pa.array(days.astype(np.int32), mask=~(exists & valid)).view(pa.date32())


def packed_micros(array: pa.Array) -> pa.Array:
    """Microseconds since 1970 from packed values; NULL for those that Spark cannot hold."""
    packed, valid = _numbers(array)
    days, exists = _days(packed)
    seconds = (packed >> 36 & 31) * 3600 + (packed >> 30 & 63) * 60 + (packed >> 24 & 63)
    return pa.array(days * _DAY_MICROS + seconds * 1_000_000 + (packed & 0xFFFFFF), mask=~(exists & valid))


def packed_text(packed: int) -> str:
    """The date of a packed value as the server prints it, without the time."""
    year, month = divmod(packed >> 46, 13)
    return f"{year:04d}-{month:02d}-{packed >> 41 & 31:02d}"
