"""Reads ORC. Its timestamps have no zone of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc

from backlog_spark.errors import BacklogError

from .calendars import has_old_days, leaves
from .casting import Uncastable, find_field
from .columnar import Selection
from .entries import DataFile, Names, Piece
from .formats import BATCH_ROWS, Asked, Format, Rows, Unreadable
from .layouts import UnitLayout
from .sparktypes import spark_schema

__all__ = ["OrcFormat"]

_UTC = ("UTC", "GMT", "Etc/UTC", "Z", "+00:00")
# Metadata key for the Spark type of a column for which ORC has no type, or another one.
_SPARK_TYPE = b"spark.sql.catalyst.type"
_HIVE = "_col"
_OUT_OF_RANGE = "out of range for nanosecond"
_MICROS = pa.timestamp("us")
_INSTANT = pa.timestamp("us", "UTC")


class OrcFormat(Format):
    """Reads ORC, stripe by stripe. A whole stripe, some 64 MB in the file, is in memory.

    ORC's type ``timestamp`` is a wall-clock time. Spark writes instants as the wall clock of its JVM. So the zone of
    the JVM is needed if such a column is declared as an instant.

    Parameters
    ----------
    time_zone : str
        Time zone of the process that wrote the files; "" if unknown.
    """

    name = "orc"
    looks = 256

    def __init__(self, time_zone: str = "") -> None:
        self._zone = time_zone

    @staticmethod
    def _open(source: pa.NativeFile) -> orc.ORCFile:
        try:
            return orc.ORCFile(source)
        except (pa.ArrowException, OSError) as error:
            raise Unreadable(str(error)) from None

    def schema(self, source: pa.NativeFile) -> pa.Schema | None:
        return self._declared("the first file", self._open(source).schema)

    @staticmethod
    def _declared(name: str, own: pa.Schema) -> pa.Schema | None:
        """The columns in Spark's types; None if they have no names."""
        if _has_no_names(own.names):
            return None
        fields = []
        for field in own:
            spark = (field.metadata or {}).get(_SPARK_TYPE)
            is_instant = spark == b"timestamp" and pa.types.is_timestamp(field.type)
            fields.append(pa.field(field.name, _INSTANT if is_instant else _kind(field)))
        return spark_schema(name, pa.schema(fields))

    def layout(self, source: pa.NativeFile, file: DataFile) -> UnitLayout:
        found = self._open(source)
        # The row counts of single stripes are not available. All but the last have about the same count.
        count = found.nstripes
        return UnitLayout(file.size, [found.nrows * (i + 1) // count - found.nrows * i // count for i in range(count)])

    def read(self, source: pa.NativeFile, name: str, piece: Piece, asked: Asked) -> Iterator[Rows]:
        file = self._open(source)
        if asked.seen is not None and (declared := self._declared(name, file.schema)) is not None:
            asked.seen(declared)
        names = _by_position(name, file.schema.names, asked.record.names)
        called = {own: declared for own, declared, _ in names}
        makers = {
            field.name: self._maker(name, field.with_name(called.get(field.name, field.name)), asked.record)
            for field in file.schema
        }
        fields = [field.with_type(makers[field.name][0]) for field in file.schema]
        # Without names nothing tells which columns are not declared.
        whole = replace(asked.whole, seen=None) if names else asked.whole
        selection = Selection(name, pa.schema(fields), whole, names)
        # Read at least one column: without columns the number of rows is lost.
        columns = selection.columns or file.schema.names[:1]
        try:
            for stripe in range(piece.first, file.nstripes if piece.end is None else piece.end):
                read = _stripe(name, file, stripe, columns)
                for column in selection.columns:
                    _refuse_old_days(name, column, read.column(column))
                made = [makers[column][1](read.column(column)) for column in columns]
                batch = pa.RecordBatch.from_arrays(made, columns)
                for at in range(0, batch.num_rows, BATCH_ROWS):
                    yield selection.rows(batch.slice(at, BATCH_ROWS))
        except (pa.ArrowException, OSError) as error:
            raise Unreadable(str(error)) from None

    def _maker(
        self, name: str, field: pa.Field, record: pa.Schema
    ) -> tuple[pa.DataType, Callable[[pa.Array], pa.Array]]:
        """The type of a column of the file, and a function that converts its arrays."""
        kind = _kind(field)
        if kind != field.type:
            return kind, lambda array: array.cast(kind)
        try:
            index = find_field(record.names, field.name)
        except Uncastable:
            index = None  # reported where columns are chosen
        if index is None or not (_has(kind, None) and _has(record.field(index).type, "UTC")) or self._zone in _UTC:
            return kind, lambda array: array
        if not self._zone:
            raise BacklogError(
                f"{name}: column {field.name} is an ORC timestamp, which has no zone, but is declared with one.",
                "Set timeZone to the zone of the JVM or other process that wrote the files, such as UTC or "
                "Europe/Berlin. Or declare the column as timestamp_ntz.",
            )
        if not pa.types.is_timestamp(kind):
            raise BacklogError(
                f"{name}: column {field.name} has nested ORC timestamps. These are only converted from UTC, but "
                f"timeZone is {self._zone}.",
                "Declare them as timestamp_ntz.",
            )

        def instants(array: pa.Array) -> pa.Array:
            try:
                return pc.assume_timezone(array, self._zone)
            except pa.ArrowInvalid as error:
                raise BacklogError(
                    f"{name}: column {field.name}: a time is not a single instant in {self._zone}: {error}.",
                    f"Declare {field.name} as timestamp_ntz.",
                ) from None

        return pa.timestamp(kind.unit, self._zone), instants


def _stripe(name: str, file: orc.ORCFile, stripe: int, columns: list[str]) -> pa.RecordBatch:
    try:
        return file.read_stripe(stripe, columns)
    except pa.ArrowInvalid as error:
        if _OUT_OF_RANGE not in str(error):
            raise
        found = [column for column in columns if _is_out_of_range(file, stripe, column)]
    raise BacklogError(
        f"{name}: column {', '.join(found)} has timestamps outside of 1677-09-21 to 2262-04-11. Those of ORC are "
        "read as nanoseconds, and others do not fit into 64 bits.",
        "Read the file with Spark's own reader (bs.hybrid), rewrite it as Parquet, or remove the column from the "
        "schema.",
    )


def _is_out_of_range(file: orc.ORCFile, stripe: int, column: str) -> bool:
    try:
        file.read_stripe(stripe, [column])
    except pa.ArrowInvalid as error:
        return _OUT_OF_RANGE in str(error)
    return False


def _refuse_old_days(name: str, column: str, array: pa.Array) -> None:
    """Refuse old dates: ORC's footer has their calendar, but pyarrow does not show it."""
    if any(map(has_old_days, leaves(array))):
        raise BacklogError(
            f"{name}: column {column} has dates before 1582-10-15, in an unknown calendar.",
            "Read the file with Spark's own reader (bs.hybrid), rewrite it as Parquet, or remove the column from the "
            "schema.",
        )


def _has_no_names(names: Sequence[str]) -> bool:
    """Whether a file has only Hive's generated names: ``_col0``, ``_col1``."""
    return bool(names) and all(name.startswith(_HIVE) for name in names)


def _by_position(name: str, own: Sequence[str], declared: Sequence[str]) -> tuple[Names, ...]:
    """Names for the columns of a file without names: the declared ones, by position (Spark's ``OrcUtils``)."""
    if not _has_no_names(own) or any(column.startswith(_HIVE) for column in declared):
        return ()
    if len(own) > len(declared):
        raise BacklogError(
            f"{name} was written by Hive without the names of its {len(own)} columns. Names are taken from the schema "
            f"by position, but it has only {len(declared)}: {', '.join(declared)}.",
            "Declare as many columns as the files have, in the same order.",
        )
    return tuple((column, called, ()) for column, called in zip(own, declared, strict=False))


def _kind(field: pa.Field) -> pa.DataType:
    """The type of a column. Spark writes timestamps without a zone as microseconds."""
    is_micros = (field.metadata or {}).get(_SPARK_TYPE) == b"timestamp_ntz" and field.type == pa.int64()
    return _MICROS if is_micros else field.type


def _has(kind: pa.DataType, zone: str | None) -> bool:
    """Whether a type is, or contains, a timestamp with a zone."""
    if pa.types.is_timestamp(kind):
        return bool(kind.tz == zone)
    return any(_has(kind.field(i).type, zone) for i in range(kind.num_fields))
