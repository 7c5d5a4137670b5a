"""Reads Parquet, and has the parts shared with ORC: choosing columns and casting them to the declared ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backlog_spark.errors import BacklogError

from ..needed import Fields
from .bitmaps import kept_rows
from .calendars import FIRST_COMMON_MICROS, OldCalendar, leaves
from .casting import Caster, Uncastable, caster, find_field
from .entries import DataFile, Names, Piece
from .formats import BATCH_ROWS, Asked, Format, Rows, Spans, Unreadable
from .layouts import UnitLayout
from .schemas.rescue import narrow, rescued_texts, rest
from .sparktypes import spark_schema

__all__ = ["ParquetFormat", "Selection"]

# Bytes read at a time per column of a local file, so that memory does not depend on the size of a row group.
_BUFFER = 256 << 10
_BATCH_BYTES = 16 << 20
_UNITS_A_MICROSECOND = {"milliseconds": (1000, 1), "microseconds": (1, 1), "nanoseconds": (1, 1000)}


class ParquetFormat(Format):
    """Parquet, read row group by row group."""

    name = "parquet"
    looks = 256

    @staticmethod
    def _open(source: pa.NativeFile) -> pq.ParquetFile:
        is_local = isinstance(source, pa.OSFile)
        try:
            return pq.ParquetFile(
                source,
                pre_buffer=not is_local,
                buffer_size=_BUFFER if is_local else 0,
                # Spark's default for timestamps. As nanoseconds most of their years would not fit.
                coerce_int96_timestamp_unit="us",
                arrow_extensions_enabled=False,
            )
        except (pa.ArrowException, OSError) as error:
            raise Unreadable(str(error)) from None

    def schema(self, source: pa.NativeFile) -> pa.Schema:
        return self._declared("the first file", self._open(source))

    @staticmethod
    def _declared(name: str, file: pq.ParquetFile) -> pa.Schema:
        """The columns in Spark's types."""
        leaves = [file.schema.column(i).physical_type for i in range(len(file.schema.names))]
        return spark_schema(name, file.schema_arrow, leaves)

    def layout(self, source: pa.NativeFile, file: DataFile) -> UnitLayout:
        found = self._open(source).metadata
        units = [found.row_group(i).num_rows for i in range(found.num_row_groups)]
        if file.deleted:
            gone = np.cumsum(~kept_rows(file.deleted))
            before = np.cumsum([0, *units]).clip(max=len(gone))
            units = [rows - int(n) for rows, n in zip(units, np.diff(np.concatenate([[0], gone])[before]), strict=True)]
        return UnitLayout(file.size, units)

    def rows_before(self, source: pa.NativeFile, first: int) -> int:
        found = self._open(source).metadata
        return sum(found.row_group(i).num_rows for i in range(first))

    def read(self, source: pa.NativeFile, name: str, piece: Piece, asked: Asked) -> Iterator[Rows]:
        file = self._open(source)
        if asked.seen is not None:
            asked.seen(self._declared(name, file))
        calendar = OldCalendar(file.metadata.metadata)
        # Old dates are looked for in whole columns.
        selection = Selection(name, file.schema_arrow, asked.whole if calendar else asked, piece.file.names)
        groups = range(piece.first, file.num_row_groups if piece.end is None else piece.end)
        if not groups:
            return
        physicals = _physicals(file) if calendar else {}
        try:
            paths = selection.paths or file.schema_arrow.names[:1]  # without columns the number of rows is lost
            rows = _batch_rows(file.metadata, groups, paths)
            for batch in file.iter_batches(rows, groups, paths, use_threads=False):
                for column in selection.columns if calendar else ():
                    calendar.refuse(name, column, batch.column(column), physicals[column])
                yield selection.rows(batch)
        except (pa.ArrowException, OSError) as error:
            raise Unreadable(str(error)) from None

    def latest(self, source: pa.NativeFile, file: DataFile, column: str) -> Spans | None:
        found = self._open(source)
        leaves = [found.schema.column(i) for i in range(len(found.schema.names))]
        own = {name: own for own, name, _ in file.names}
        try:
            index = find_field([leaf.path for leaf in leaves], own.get(column, column))
        except Uncastable:
            return None
        unit = None if index is None else _microsecond(leaves[index])
        if index is None or unit is None:
            return None
        is_old = OldCalendar(found.metadata.metadata).has(pa.timestamp("us", "UTC"), leaves[index].physical_type)
        spans: Spans = []
        for i in range(found.num_row_groups):
            group = found.metadata.row_group(i)
            statistics = group.column(index).statistics
            greatest = None
            if statistics is not None and statistics.has_min_max:
                greatest = statistics.max_raw * unit[0] // unit[1]
                if is_old and greatest < FIRST_COMMON_MICROS:
                    return None
            elif statistics is None or not statistics.has_null_count or statistics.null_count != group.num_rows:
                return None
            spans.append((i, i + 1, greatest))
        return spans


def _physicals(file: pq.ParquetFile) -> dict[str, list[str]]:
    """Parquet's physical types of the leaves of each column."""
    types = iter([file.schema.column(i).physical_type for i in range(len(file.schema.names))])
    return {field.name: [next(types) for _ in leaves(pa.nulls(0, field.type))] for field in file.schema_arrow}


def _batch_rows(metadata: pq.FileMetaData, groups: Iterable[int], columns: list[str]) -> int:
    """The number of rows to read at a time: fewer if the rows are large."""
    rows = BATCH_ROWS
    starts = tuple(f"{column}." for column in columns)
    for i in groups:
        group = metadata.row_group(i)
        leaves = [group.column(leaf) for leaf in range(group.num_columns)]
        size = sum(leaf.total_uncompressed_size for leaf in leaves if f"{leaf.path_in_schema}.".startswith(starts))
        if group.num_rows:
            rows = min(rows, max(1, group.num_rows * _BATCH_BYTES // max(1, size)))
    return rows


def _microsecond(leaf: Any) -> tuple[int, int] | None:
    """Factor and divisor that turn a column's numbers into microseconds; None if it is not such a timestamp."""
    if leaf.physical_type != "INT64":
        return None
    kind = json.loads(leaf.logical_type.to_json())
    return _UNITS_A_MICROSECOND.get(kind.get("timeUnit", "")) if kind.get("Type") == "Timestamp" else None


class Selection:
    """The columns to read from a file, and how they are cast to the declared ones.

    Parameters
    ----------
    name : str
        Of the file, for errors.
    own : pyarrow.Schema
        The file's columns.
    asked : Asked
    names : tuple of Names
        Names of the file's columns in the table.
    """

    def __init__(self, name: str, own: pa.Schema, asked: Asked, names: tuple[Names, ...] = ()) -> None:
        self._name = name
        self._rescues = asked.rescues
        # Columns, each with the part that is rescued in any row.
        self._rest: dict[str, pa.DataType] = {}
        if asked.rescues:
            self._rescue(own, asked)
            return
        record, needed = asked.record, asked.needed
        found = pa.schema(_renamed(own, names))
        if record.names and not asked.may_lack and all(_index_of(name, found, field) is None for field in record):
            raise BacklogError(
                f"{name} has none of the columns {', '.join(record.names)}. It has {', '.join(found.names) or 'none'}.",
                "Declare the columns that the files have, or exclude the file.",
            )
        self._parts: list[tuple[pa.Field, str | None, Caster]] = []
        paths: list[str] = []
        has_dots = any("." in each for each in own.names)  # then a path may stand for several columns
        for column in asked.wanted:
            field = record.field(column)
            index = _index_of(name, found, field) if needed is None or column in needed else None
            kind = pa.null() if index is None else found.field(index).type
            try:
                if index is not None:
                    fields = needed[column] if needed is not None and not names and not has_dots else {}
                    kind, of_column = _narrowed(kind, own.names[index], fields)
                    paths += of_column
                self._parts.append((field, None if index is None else own.names[index], caster(kind, field.type)))
            except Uncastable as error:
                raise _mismatch(name, field, error) from None
        self.columns = list(dict.fromkeys(column for _, column, _ in self._parts if column is not None))
        self.paths = list(dict.fromkeys(paths))
        """Parquet's paths of the columns, or of the fields that are read of a struct."""

    def _rescue(self, own: pa.Schema, asked: Asked) -> None:
        """Match names with case. Columns that are not declared, or of another type, are rescued.

        If only some columns are needed, what is rescued is not.
        """
        self._parts = []
        for column in asked.wanted:
            field = asked.record.field(column)
            index = own.get_field_index(column) if asked.needed is None or column in asked.needed else -1
            try:
                cast = caster(pa.null() if index < 0 else own.field(index).type, field.type)
            except Uncastable:
                index, cast = -1, caster(pa.null(), field.type)
            self._parts.append((field, None if index < 0 else column, cast))
        read = {column for _, column, _ in self._parts if column is not None}
        for field in own if asked.needed is None else ():
            left = rest(field.type, asked.record.field(field.name).type) if field.name in read else field.type
            if left is not None:
                self._rest[field.name] = left
        self.columns = list(dict.fromkeys([*read, *self._rest]))
        self.paths = self.columns

    def rows(self, batch: pa.RecordBatch) -> Rows:
        columns = []
        left = {name: narrow(batch.column(name), kind) for name, kind in self._rest.items()}
        for field, column, cast in self._parts:
            array = pa.nulls(batch.num_rows) if column is None else batch.column(column)
            try:
                columns.append(cast(array))
            except pa.ArrowInvalid as error:
                if self._rescues:
                    fits, made = _by_value(array, cast, field.type)
                    columns.append(made)
                    if field.name in left:  # a part of other values is rescued too: these are kept whole
                        fits = pc.and_(fits, rescued_texts(batch.num_rows, {"": left[field.name]}).is_null())
                    left[field.name] = pc.if_else(fits, pa.scalar(None, array.type), array)
                    continue
                raise BacklogError(
                    f"{self._name}: column {field.name} is {array.type} in the file, declared as {field.type}. A value "
                    f"does not fit: {error}.",
                    f"Declare {field.name} as {array.type}, or exclude the file.",
                ) from None
        return Rows(batch.num_rows, columns, rescued_texts(batch.num_rows, left) if self._rescues else None)


def _by_value(array: pa.Array, cast: Caster, kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Which values can be cast, and the column with NULL for the others."""
    fits: list[bool] = []
    parts: list[pa.Array] = []
    # Bad values are few, so the column is halved until each is alone.
    pending = [array]
    while pending:
        part = pending.pop()
        try:
            parts.append(cast(part))
            fits += [True] * len(part)
        except pa.ArrowInvalid:
            if len(part) > 1:
                half = len(part) // 2
                pending += [part[half:], part[:half]]
                continue
            parts.append(pa.nulls(1, kind))
            fits.append(False)
    return pa.array(fits), pa.concat_arrays(parts)


def _narrowed(kind: pa.DataType, path: str, fields: Fields) -> tuple[pa.DataType, list[str]]:
    """A column's type with only these fields of a struct, and Parquet's paths of them."""
    if not fields or not pa.types.is_struct(kind):
        return kind, [path]
    own = [kind.field(i) for i in range(kind.num_fields)]
    names = [field.name for field in own]
    at = {i: inner for name, inner in fields.items() if (i := find_field(names, name)) is not None}
    if any("." in name for name in names) or not at:
        return kind, [path]
    kept = {i: _narrowed(own[i].type, f"{path}.{own[i].name}", at[i]) for i in sorted(at)}
    narrow = pa.struct([own[i].with_type(inner) for i, (inner, _) in kept.items()])
    return narrow, [each for _, of_field in kept.values() for each in of_field]


def _index_of(name: str, found: pa.Schema, field: pa.Field) -> int | None:
    try:
        return find_field(found.names, field.name)
    except Uncastable as error:
        raise _mismatch(name, field, error) from None


def _mismatch(name: str, field: pa.Field, error: Uncastable) -> BacklogError:
    return BacklogError(
        f"{name}: column {field.name}: {error}.",
        f"Declare {field.name} as it is in the files, or exclude the file.",
    )


def _renamed(fields: Iterable[pa.Field], names: tuple[Names, ...]) -> list[pa.Field]:
    """Fields with their names in the table."""
    if not names:
        return list(fields)
    known = {own: (name, inner) for own, name, inner in names}
    made = []
    for field in fields:
        name, inner = known.get(field.name, (field.name, ()))
        made.append(pa.field(name, _renamed_type(field.type, inner)))
    return made


def _renamed_type(kind: pa.DataType, names: tuple[Names, ...]) -> pa.DataType:
    """A type with its fields renamed. Inner types of lists and maps are matched by position."""
    if not names:
        return kind
    if pa.types.is_struct(kind):
        return pa.struct(_renamed(kind, names))
    inner = {name: of for name, _, of in names}
    if pa.types.is_map(kind):
        return pa.map_(
            _renamed_type(kind.key_type, inner.get("key", ())), _renamed_type(kind.item_type, inner.get("value", ()))
        )
    if pa.types.is_list(kind):
        return pa.list_(_renamed_type(kind.value_type, inner.get("element", ())))
    return kind
