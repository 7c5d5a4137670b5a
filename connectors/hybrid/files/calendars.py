"""Finds and refuses dates and times in the calendar of Spark before 3.0 (pure).

Spark's own readers convert them. Here they are refused: such files are rare, and `bs.hybrid` reads them.
Source: Spark's DataSourceUtils.datetimeRebaseSpec.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError

__all__ = ["FIRST_COMMON_MICROS", "OldCalendar", "has_old_days", "leaves"]

# 1582-10-15. From this day on both calendars are the same.
_FIRST_DAY = -141427
#: 1900-01-01 in UTC. For earlier times Java's old classes have other offsets than its new ones in most time zones.
FIRST_COMMON_MICROS = -2_208_988_800_000_000
_A_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def leaves(array: pa.Array) -> Iterator[pa.Array]:
    """The arrays without nested types inside an array, in the order of Parquet's columns."""
    t = pa.types
    if t.is_struct(array.type):
        for child in array.flatten():
            yield from leaves(child)
    elif t.is_map(array.type):
        yield from leaves(array.keys)
        yield from leaves(array.items)
    elif t.is_list(array.type) or t.is_large_list(array.type) or t.is_fixed_size_list(array.type):
        yield from leaves(array.flatten())
    else:
        yield array


def has_old_days(leaf: pa.Array) -> bool:
    """Whether the leaf has a date that depends on the calendar."""
    if not pa.types.is_date32(leaf.type):
        return False
    least = pc.min(leaf.view(pa.int32())).as_py()
    return bool(least is not None and least < _FIRST_DAY)


def _has_old_instants(leaf: pa.Array) -> bool:
    least = pc.min(leaf.view(pa.int64())).as_py()
    return bool(least is not None and least < FIRST_COMMON_MICROS // 1_000_000 * _A_SECOND[leaf.type.unit])


class OldCalendar:
    """The calendar of a Parquet file, from its metadata. True if any of its values are in the old one.

    Parameters
    ----------
    metadata : mapping of bytes to bytes, or None
        Keys and values of its footer.
    """

    def __init__(self, metadata: Mapping[bytes, bytes] | None) -> None:
        found = metadata or {}
        version = found.get(b"org.apache.spark.version")
        # Without a version Spark uses its settings; the default is datetimeRebaseModeInRead=CORRECTED.
        self._days = version is not None and (version < b"3.0.0" or b"org.apache.spark.legacyDateTime" in found)
        self._int96 = version is not None and (version < b"3.1.0" or b"org.apache.spark.legacyINT96" in found)

    def __bool__(self) -> bool:
        return self._days or self._int96

    def has(self, kind: pa.DataType, physical: str) -> bool:
        """Whether a leaf with this type and physical Parquet type is in the old calendar."""
        if physical == "INT96":
            return self._int96
        return self._days and (pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None))

    def refuse(self, name: str, column: str, array: pa.Array, physicals: Sequence[str]) -> None:
        """Refuse values that would be another date or time in today's calendar.

        Parameters
        ----------
        name, column : str
            Name of the file and of its column.
        array : pyarrow.Array
            Values of the column.
        physicals : sequence of str
            Physical Parquet types of its leaves.

        Raises
        ------
        BacklogError
        """
        for leaf, physical in zip(leaves(array), physicals, strict=True):
            if not self.has(leaf.type, physical):
                continue
            if has_old_days(leaf) or (pa.types.is_timestamp(leaf.type) and _has_old_instants(leaf)):
                raise BacklogError(
                    f"{name}: column {column} has dates before 1582-10-15 or timestamps before 1900-01-01 in the "
                    "calendar of Spark before 3.0, according to its metadata.",
                    "Read the file with Spark's own reader (bs.hybrid), rewrite it with Spark, with "
                    "spark.sql.parquet.datetimeRebaseModeInWrite and int96RebaseModeInWrite CORRECTED, or leave "
                    f"{column} out of the schema.",
                )
