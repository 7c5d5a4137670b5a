"""ORC, whose timestamps have no zone of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc

from backlog_spark.errors import BacklogError

from .casting import Uncastable, find_field
from .columnar import Selection
from .entries import DataFile, Piece
from .formats import BATCH_ROWS, Format, Rows, Unreadable
from .layouts import UnitLayout
from .sparktypes import spark_schema

__all__ = ["OrcFormat"]

_UTC = ("UTC", "GMT", "Etc/UTC", "Z", "+00:00")
# Under which Spark writes the type of a column that ORC has none for, or not the same.
_SPARK_TYPE = b"spark.sql.catalyst.type"
_MICROS = pa.timestamp("us")
_INSTANT = pa.timestamp("us", "UTC")


class OrcFormat(Format):
    """ORC, read stripe by stripe: one, which is some 64 MB in the file, is in memory as a whole.

    Its type ``timestamp`` is what a clock on the wall shows: Spark writes instants as the clock of its JVM shows them.
    So the zone of that has to be told where such a column is declared as an instant.

    Parameters
    ----------
    time_zone : str
        Of who wrote the files; "" if unknown.
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

    def schema(self, source: pa.NativeFile) -> pa.Schema:
        fields = []
        for field in self._open(source).schema:
            spark = (field.metadata or {}).get(_SPARK_TYPE)
            is_instant = spark == b"timestamp" and pa.types.is_timestamp(field.type)
            fields.append(pa.field(field.name, _INSTANT if is_instant else _kind(field)))
        return spark_schema("the first file", pa.schema(fields))

    def layout(self, source: pa.NativeFile, file: DataFile) -> UnitLayout:
        found = self._open(source)
        # Stripes' own counts are not to be had. All but the last have about the same.
        count = found.nstripes
        return UnitLayout(file.size, [found.nrows * (i + 1) // count - found.nrows * i // count for i in range(count)])

    def read(
        self, source: pa.NativeFile, name: str, piece: Piece, record: pa.Schema, wanted: tuple[str, ...]
    ) -> Iterator[Rows]:
        file = self._open(source)
        makers = {field.name: self._maker(name, field, record) for field in file.schema}
        fields = [field.with_type(makers[field.name][0]) for field in file.schema]
        selection = Selection(name, pa.schema(fields), record, wanted)
        # Without a column there would be no rows either.
        columns = selection.columns or file.schema.names[:1]
        try:
            for stripe in range(piece.first, file.nstripes if piece.end is None else piece.end):
                read = file.read_stripe(stripe, columns)
                made = [makers[column][1](read.column(column)) for column in columns]
                batch = pa.RecordBatch.from_arrays(made, columns)
                for at in range(0, batch.num_rows, BATCH_ROWS):
                    yield selection.rows(batch.slice(at, BATCH_ROWS))
        except (pa.ArrowException, OSError) as error:
            raise Unreadable(str(error)) from None

    def _maker(
        self, name: str, field: pa.Field, record: pa.Schema
    ) -> tuple[pa.DataType, Callable[[pa.Array], pa.Array]]:
        """What a column of a file is, and what makes that of the arrays that are read."""
        kind = _kind(field)
        if kind != field.type:
            return kind, lambda array: array.cast(kind)
        try:
            place = find_field(record.names, field.name)
        except Uncastable:
            place = None  # told where columns are chosen
        if place is None or not (_has(kind, None) and _has(record.field(place).type, "UTC")) or self._zone in _UTC:
            return kind, lambda array: array
        if not self._zone:
            raise BacklogError(
                f"{name}: column {field.name} is a timestamp of ORC, which has no zone, and is declared with one.",
                "Set timeZone to the zone of the JVM or other process that wrote the files, such as UTC or "
                "Europe/Berlin, or declare the column as timestamp_ntz.",
            )
        if not pa.types.is_timestamp(kind):
            raise BacklogError(
                f"{name}: column {field.name} has timestamps of ORC within, which are converted from UTC only, and "
                f"timeZone is {self._zone}.",
                "Declare them as timestamp_ntz.",
            )

        def instants(array: pa.Array) -> pa.Array:
            try:
                return pc.assume_timezone(array, self._zone)
            except pa.ArrowInvalid as error:
                raise BacklogError(
                    f"{name}: column {field.name}: a time is no one instant in {self._zone}: {error}.",
                    f"Declare {field.name} as timestamp_ntz.",
                ) from None

        return pa.timestamp(kind.unit, self._zone), instants


def _kind(field: pa.Field) -> pa.DataType:
    """The type of a column. Spark writes timestamps without a zone as microseconds."""
    is_micros = (field.metadata or {}).get(_SPARK_TYPE) == b"timestamp_ntz" and field.type == pa.int64()
    return _MICROS if is_micros else field.type


def _has(kind: pa.DataType, zone: str | None) -> bool:
    """Whether a type is a timestamp of a zone, or has one within."""
    if pa.types.is_timestamp(kind):
        return bool(kind.tz == zone)
    return any(_has(kind.field(i).type, zone) for i in range(kind.num_fields))
