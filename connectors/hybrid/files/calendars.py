"""Dates and times written in the calendar of before 1582, as those of today's that Spark's readers give (pure).

Source: Spark's RebaseDateTime and DataSourceUtils.datetimeRebaseSpec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .casting import Caster, mask_of, offsets_of

__all__ = ["FIRST_COMMON_MICROS", "Rebasing", "has_old_days", "rebased_days", "rebased_instants", "within"]

# 1582-10-15, from which on both calendars are one.
_FIRST_DAY = -141427
#: 1900-01-01 in UTC. Before, Java's old classes have other offsets for most time zones than its new ones, which is what
#: Spark's table julian-gregorian-rebase-micros.json is of; from here on none differs.
FIRST_COMMON_MICROS = -2_208_988_800_000_000
_SECONDS_A_DAY = 86_400
_A_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
# Those of the table that differ in the calendar only, by the names that Spark writes.
_UTC = frozenset(
    ("Etc/GMT", "Etc/GMT+0", "Etc/GMT-0", "Etc/GMT0", "Etc/Greenwich", "Etc/UCT", "Etc/UTC", "Etc/Universal",
     "Etc/Zulu", "GMT", "GMT0", "Greenwich", "UCT", "UTC", "Universal", "Z", "Zulu")
)  # fmt: skip


class Rebasing:
    """What a Parquet file tells of its calendar.

    Parameters
    ----------
    metadata : mapping of bytes to bytes, or None
        Keys and values of its footer.
    """

    def __init__(self, metadata: Mapping[bytes, bytes] | None) -> None:
        found = metadata or {}
        version = found.get(b"org.apache.spark.version")
        zone = found.get(b"org.apache.spark.timeZone")
        #: Session time zone of the writer; "" if it is not told.
        self.zone = zone.decode("utf-8", "replace") if zone else ""
        # Without a version Spark goes by its settings, by default datetimeRebaseModeInRead=CORRECTED.
        self._days = version is not None and (version < b"3.0.0" or b"org.apache.spark.legacyDateTime" in found)
        self._int96 = version is not None and (version < b"3.1.0" or b"org.apache.spark.legacyINT96" in found)

    def __bool__(self) -> bool:
        return self._days or self._int96

    def applies(self, kind: pa.DataType, physical: str) -> bool:
        """Whether a leaf of this type, and of Parquet's physical type, is in the old calendar."""
        if physical == "INT96":
            return self._int96
        return self._days and (pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None))


def within(kind: pa.DataType, leaf: Callable[[pa.DataType], Caster | None]) -> Caster | None:
    """What changes the leaves of arrays of a type; None if none is to be changed.

    Parameters
    ----------
    kind : pyarrow.DataType
    leaf : callable
        Asked for what changes each leaf, once and in their order.
    """
    t = pa.types
    if t.is_struct(kind):
        return _struct([within(field.type, leaf) for field in kind])
    if t.is_map(kind):
        return _map(within(kind.key_type, leaf), within(kind.item_type, leaf))
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return _list(within(kind.value_type, leaf))
    return leaf(kind)


def _struct(inner: list[Caster | None]) -> Caster | None:
    def change(array: pa.StructArray) -> pa.Array:
        children = [array.field(i) if make is None else make(array.field(i)) for i, make in enumerate(inner)]
        return pa.StructArray.from_arrays(children, fields=list(array.type), mask=mask_of(array))

    return change if any(inner) else None


def _map(keys: Caster | None, items: Caster | None) -> Caster | None:
    def change(array: pa.MapArray) -> pa.Array:
        made = (keys(array.keys) if keys else array.keys, items(array.items) if items else array.items)
        return pa.MapArray.from_arrays(offsets_of(array), *made, mask=mask_of(array)).cast(array.type)

    return change if keys or items else None


def _list(values: Caster | None) -> Caster | None:
    if values is None:
        return None

    def change(array: pa.Array) -> pa.Array:
        return pa.ListArray.from_arrays(offsets_of(array), values(array.values), mask=mask_of(array)).cast(array.type)

    return change


def has_old_days(array: pa.Array) -> bool:
    """Whether one of some dates depends on the calendar."""
    least = pc.min(array.view(pa.int32())).as_py()
    return bool(least is not None and least < _FIRST_DAY)


def rebased_days(array: pa.Array) -> pa.Array:
    """Dates with the year, month and day that they have in the old calendar."""
    if not has_old_days(array):
        return array
    days = array.view(pa.int32()).fill_null(0).to_numpy()
    return _like(array, np.where(days < _FIRST_DAY, _rebased(days), days).astype(np.int32))


def rebased_instants(array: pa.Array, zone: str) -> pa.Array | None:
    """Instants whose clock shows the same in the old calendar; None if some are old, and the zone is not UTC."""
    second = _A_SECOND[array.type.unit]
    least = pc.min(array.view(pa.int64())).as_py()
    if least is None or least >= FIRST_COMMON_MICROS // 1_000_000 * second:
        return array
    if zone not in _UTC:
        return None
    values = array.view(pa.int64()).fill_null(0).to_numpy()
    days, clock = np.divmod(values, _SECONDS_A_DAY * second)
    return _like(array, np.where(days < _FIRST_DAY, _rebased(days) * (_SECONDS_A_DAY * second) + clock, values))


def _like(array: pa.Array, values: np.ndarray) -> pa.Array:
    mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(values, mask=mask).view(array.type)


def _rebased(days: np.ndarray) -> np.ndarray:
    """Days since 1970 of Julian dates as those of Gregorian ones; the 29th of a February that has none is the 1st."""
    # By Julian day number, of years that begin in March, the first one 4801 BC.
    at = 4 * (days.astype(np.int64) + 2_440_588 + 32_082) + 3
    year, at = at // 1461, at % 1461 // 4
    month = (5 * at + 2) // 153
    day = at - (153 * month + 2) // 5
    months = 12 * (year - 4800 - 1970) + month + 2
    found: np.ndarray = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) + day
    return found
