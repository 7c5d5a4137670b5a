"""MySQL column types: the Spark type, the SELECT expression and the Arrow column of each (pure).

A value reaches Spark in two ways: a SELECT in the snapshot phase, a row image in the binary log phase. Both must give
the same value; this module defines it. Row images give *storage values*: int (also for unscaled decimals, days and
microseconds), float, str, bytes or None. SELECT gives the columns of `wire`.

Source: MySQL Reference Manual, "Data Types".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

from backlog_spark.errors import BacklogError

from ..server.wire import BYTES, FLOAT, INTEGER, TEMPORAL
from .addresses import ADDRESS_BYTES
from .charsets import CHARSETS, as_utf8
from .columns import BOOLEAN, Column, not_text, quote_identifier
from .json_values import from_text
from .temporal import packed_days, packed_micros

__all__ = ["Column", "ColumnKind", "binlog_codes", "kind_of", "quote_identifier", "type_table"]


Expression = Callable[[Column], str]


@dataclass(frozen=True)
class ColumnKind:
    """How values of one family of MySQL types reach Spark.

    Parameters
    ----------
    spark, arrow : callable
        Type of a column in Spark and in Arrow.
    select : callable
        SQL expression for the value.
    wire : str
        The `WireColumn.kind` that the server sends for it.
    parse : callable
        Converts the array from `RowDecoder.decode` to the final array.
    build : callable
        Converts a list of storage values to the final array.
    binlog : frozenset of int
        Type codes that the binary log uses for it.
    text : bool
        Whether it is text with a character set.
    """

    spark: Callable[[Column], st.DataType]
    arrow: Callable[[Column], pa.DataType]
    select: Expression
    wire: str
    parse: Callable[[Column, pa.Array], pa.Array]
    build: Callable[[Column, Sequence[object]], pa.Array]
    binlog: frozenset[int]
    text: bool = False


def _bare(column: Column) -> str:
    return column.quoted


def _as_is(column: Column, array: pa.Array) -> pa.Array:
    return array


def _build_plain(column: Column, values: Sequence[object]) -> pa.Array:
    return pa.array(values, kind_of(column).arrow(column))


def _build_decimal(column: Column, values: Sequence[object]) -> pa.Array:
    # Unscaled integers go directly into the buffer. Through Decimal it would take four times as long.
    unscaled = pa.array(values, pa.decimal128(38, 0))
    return pa.Array.from_buffers(kind_of(column).arrow(column), len(unscaled), unscaled.buffers())


def _build_days(column: Column, values: Sequence[object]) -> pa.Array:
    return pa.array(values, pa.int32()).view(pa.date32())


def _build_micros(column: Column, values: Sequence[object]) -> pa.Array:
    return pa.array(values, pa.int64()).view(kind_of(column).arrow(column))


def _parse_date(column: Column, array: pa.Array) -> pa.Array:
    """Dates; zero, partial and impossible ones, which Spark cannot hold, become NULL."""
    return packed_days(array)


def _parse_timestamp(column: Column, array: pa.Array) -> pa.Array:
    return packed_micros(array).view(kind_of(column).arrow(column))


def _parse_number(column: Column, array: pa.Array) -> pa.Array:
    return pc.cast(array, kind_of(column).arrow(column))


def _parse_decimal(column: Column, array: pa.Array) -> pa.Array:
    return pc.cast(pc.cast(array, pa.string()), kind_of(column).arrow(column))


def _parse_text(column: Column, array: pa.Array) -> pa.Array:
    try:
        return pc.cast(array, pa.string())
    except pa.ArrowInvalid:  # MariaDB's utf8mb3 and utf8mb4 may hold halves of surrogate pairs
        raise not_text(column) from None


def _text_select(column: Column) -> str:
    return as_utf8(column.quoted, column.charset)


def _parse_json(column: Column, array: pa.Array) -> pa.Array:
    return pa.array([None if v is None else from_text(v) for v in pc.cast(array, pa.string()).to_pylist()], pa.string())


_INT_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 32, "int": 32, "bigint": 64}
_SPARK_INT: dict[int, st.DataType] = {
    8: st.ByteType(),
    16: st.ShortType(),
    32: st.IntegerType(),
    64: st.LongType(),
}
_ARROW_INT = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def _int_bits(column: Column) -> int:
    bits = _INT_BITS[column.data_type]
    if column.unsigned and column.data_type != "mediumint":  # 24 bits fit 32 either way
        bits *= 2
    return bits


def _spark_int(column: Column) -> st.DataType:
    return _SPARK_INT.get(_int_bits(column), st.DecimalType(20, 0))


def _arrow_int(column: Column) -> pa.DataType:
    return _ARROW_INT.get(_int_bits(column), pa.decimal128(20, 0))


def _build_int(column: Column, values: Sequence[object]) -> pa.Array:
    if _int_bits(column) > 64:
        return _build_decimal(column, values)
    return _build_plain(column, values)


def _integer(*codes: int) -> ColumnKind:
    return ColumnKind(_spark_int, _arrow_int, _bare, INTEGER, _parse_number, _build_int, frozenset(codes))


def _decimal_spark(column: Column) -> st.DataType:
    return st.StringType() if column.is_wide_decimal else st.DecimalType(column.precision, column.scale)


def _decimal_arrow(column: Column) -> pa.DataType:
    return pa.string() if column.is_wide_decimal else pa.decimal128(column.precision, column.scale)


def _decimal_select(column: Column) -> str:
    # ZEROFILL only affects how the column itself is printed.
    return f"{column.quoted} + 0" if "zerofill" in column.column_type.lower() else column.quoted


def _build_exact(column: Column, values: Sequence[object]) -> pa.Array:
    return _build_plain(column, values) if column.is_wide_decimal else _build_decimal(column, values)


def _of(
    spark: st.DataType,
    arrow: pa.DataType,
    wire: str,
    *codes: int,
    select: Expression = _bare,
    parse: Callable[[Column, pa.Array], pa.Array] = _as_is,
    build: Callable[[Column, Sequence[object]], pa.Array] = _build_plain,
    text: bool = False,
) -> ColumnKind:
    """A kind whose columns all have the same types."""
    return ColumnKind(lambda c: spark, lambda c: arrow, select, wire, parse, build, frozenset(codes), text)


def _text(*codes: int, select: Expression = _text_select, text: bool = True) -> ColumnKind:
    return _of(st.StringType(), pa.string(), BYTES, *codes, select=select, parse=_parse_text, text=text)


def _bytes(*codes: int) -> ColumnKind:
    return _of(st.BinaryType(), pa.binary(), BYTES, *codes)


def _bit_spark(column: Column) -> st.DataType:
    return st.LongType() if column.bits < 64 else st.DecimalType(20, 0)


def _bit_arrow(column: Column) -> pa.DataType:
    return pa.int64() if column.bits < 64 else pa.decimal128(20, 0)


def _build_bit(column: Column, values: Sequence[object]) -> pa.Array:
    return _build_plain(column, values) if column.bits < 64 else _build_decimal(column, values)


GEOMETRIES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
    "geometrycollection", "geomcollection",
)  # fmt: skip

_STRING_CODES, _BLOB_CODE = (15, 253, 254), 252

_KINDS: dict[str, ColumnKind] = {
    "tinyint": _integer(1),
    "smallint": _integer(2),
    "mediumint": _integer(9),
    "int": _integer(3),
    "bigint": _integer(8),
    "decimal": ColumnKind(
        _decimal_spark, _decimal_arrow, _decimal_select, BYTES, _parse_decimal, _build_exact, frozenset({246})
    ),
    "float": _of(st.FloatType(), pa.float32(), FLOAT, 4),
    "double": _of(st.DoubleType(), pa.float64(), FLOAT, 5),
    "bit": ColumnKind(
        _bit_spark,
        _bit_arrow,
        lambda c: f"CAST({c.quoted} AS UNSIGNED)",
        INTEGER,
        _parse_number,
        _build_bit,
        frozenset({16}),
    ),
    "year": _of(st.ShortType(), pa.int16(), INTEGER, 13, parse=_parse_number),
    "date": _of(st.DateType(), pa.date32(), TEMPORAL, 10, parse=_parse_date, build=_build_days),
    "datetime": _of(
        st.TimestampNTZType(), pa.timestamp("us"), TEMPORAL, 18, parse=_parse_timestamp, build=_build_micros
    ),
    # The session's time zone is +00:00 on every connection, so it is UTC.
    "timestamp": _of(
        st.TimestampType(), pa.timestamp("us", tz="UTC"), TEMPORAL, 17, parse=_parse_timestamp, build=_build_micros
    ),
    # A MySQL TIME runs from -838:59:59 to 838:59:59, beyond Spark's TIME; Delta stores no intervals.
    "time": _text(19, select=lambda c: f"CAST({c.quoted} AS CHAR)", text=False),
    "char": _text(*_STRING_CODES),
    "varchar": _text(*_STRING_CODES),
    "tinytext": _text(_BLOB_CODE),
    "text": _text(_BLOB_CODE),
    "mediumtext": _text(_BLOB_CODE),
    "longtext": _text(_BLOB_CODE),
    "enum": _text(254, 247),
    "set": _text(254, 248),
    "binary": _bytes(*_STRING_CODES),
    "varbinary": _bytes(*_STRING_CODES),
    "tinyblob": _bytes(_BLOB_CODE),
    "blob": _bytes(_BLOB_CODE),
    "mediumblob": _bytes(_BLOB_CODE),
    "longblob": _bytes(_BLOB_CODE),
    # JSON comes in the connection's character set, UTF-8.
    "json": _of(st.StringType(), pa.string(), BYTES, 245, parse=_parse_json),
    # Four bytes with the SRID, then WKB, from SELECT and from row images.
    **dict.fromkeys(GEOMETRIES, _bytes(255)),
    # MariaDB's
    **dict.fromkeys(ADDRESS_BYTES, _text(254, text=False)),
}


def _parse_boolean(column: Column, array: pa.Array) -> pa.Array:
    return pc.not_equal(array, 0)


def _build_boolean(column: Column, values: Sequence[object]) -> pa.Array:
    return pa.array([None if v is None else v != 0 for v in values], pa.bool_())


# TINYINT(1) with ``tinyInt1isBit``. It may hold -128 to 127; all but 0 are true.
_BOOLEAN = _of(st.BooleanType(), pa.bool_(), INTEGER, 1, parse=_parse_boolean, build=_build_boolean)
# In MariaDB's COLUMN_TYPE: compressed columns, UUIDs and times as older servers stored them, two-digit years.
_KEPT_OTHERWISE = ("COMPRESSED", "/* old */", "/* mariadb-5.3 */", "year(2)")


def kind_of(column: Column) -> ColumnKind:
    """How values of a column reach Spark.

    Raises
    ------
    BacklogError
        The type, precision or character set is not supported. The message names the column.
    """
    if column.use == BOOLEAN:
        return _BOOLEAN
    kind = _KINDS.get(column.data_type)
    if kind is None:
        raise BacklogError(
            f"Column {column.name!r} has the type {column.column_type}, which mysql_cdc does not read yet.",
            f"Leave the column out by columns.exclude. Read: {', '.join(_KINDS)}.",
        )
    kept_otherwise = next((mark for mark in _KEPT_OTHERWISE if mark in column.column_type), None)
    if kept_otherwise:
        raise BacklogError(
            f"Column {column.name!r} is {column.column_type}, stored in a form that mysql_cdc does not read.",
            "MODIFY the column to the plain type; ALTER TABLE … FORCE rewrites an old form. Or leave the column out by "
            "columns.exclude.",
        )
    if kind.text and column.charset not in CHARSETS:
        raise BacklogError(
            f"Column {column.name!r} has the character set {column.charset or 'binary'}, which is not read.",
            f"Read: {', '.join(CHARSETS)}.",
        )
    return kind


def binlog_codes(column: Column) -> frozenset[int]:
    """Type codes that the binary log uses for a column; empty if they are not known."""
    kind = _KINDS.get(column.data_type)
    return kind.binlog if kind and not any(mark in column.column_type for mark in _KEPT_OTHERWISE) else frozenset()


_EXAMPLES = {
    "decimal": Column("c", "decimal", "decimal(12,2)", precision=12, scale=2),
    "bit": Column("c", "bit", "bit(8)"),
}


def type_table() -> str:
    """The table of types for the documentation, in Markdown."""
    lines = ["| MySQL or MariaDB | Spark |", "|---|---|"]
    for name, kind in _KINDS.items():
        if name in GEOMETRIES:
            continue
        column = _EXAMPLES.get(name, Column("c", name, name, charset="utf8mb4"))
        spark = kind.spark(column).simpleString()
        if name in _INT_BITS:
            unsigned = Column("c", name, name + " unsigned")
            spark += f"; unsigned: {kind.spark(unsigned).simpleString()}"
        if name == "decimal":
            spark += "; of more than 38 digits: string"
        if name == "bit":
            spark += "; bit(64): decimal(20,0)"
        lines.append(f"| {name} | {spark} |")
    lines.append(f"| {', '.join(GEOMETRIES)} | binary |")
    return "\n".join(lines) + "\n"
