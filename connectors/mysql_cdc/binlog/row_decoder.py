"""Decodes row images of the binary log: from an event's bytes to storage values (pure).

A table's decoder has code for each column, chosen once per TABLE_MAP event. For all rows in which the same columns are
NULL it joins that code into one function (`row_code`).

Source: MySQL source documentation, "Rows_event" and "Table_map_event" (libbinlogevents), for formats.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from backlog_spark.errors import BacklogError

from ..schema.columns import EXCLUDED, not_text
from ..schema.ddl.history import Bridge, Layout, bridge
from ..schema.hidden import hidden_columns
from ..schema.json_diff import patched
from ..schema.packed import read_length
from ..schema.table import Hidden, SchemaChanged, TableSchema, altered
from ..schema.types import Column, binlog_codes, kind_of
from .column_readers import UNREAD, converted, fits, of_key, reader, skipper, value_bytes, without_zero_dates
from .row_code import Code, Reader, RowReader, as_reader, row_end, row_reader

__all__ = ["RowDecoder", "SchemaChanged", "TableMap"]

_STRING, _DECIMAL, _JSON = 254, 246, 245
# Bytes of metadata per type code in a TABLE_MAP event. 140 and 141 are MariaDB's compressed columns, 242 is MySQL's
# VECTOR.
_METADATA_BYTES = {
    **{
        4: 1,
        5: 1,
        15: 2,
        16: 2,
        17: 1,
        18: 1,
        19: 1,
        140: 1,
        141: 2,
        242: 1,
        245: 1,
        246: 2,
        252: 1,
        253: 2,
        254: 2,
        255: 1,
    },
    **dict.fromkeys((1, 2, 3, 7, 8, 9, 10, 11, 12, 13), 0),
}
_PARTIAL_JSON = 1  # flag of an after-image
# Functions kept for a table. Rows with other sets of NULLs are read column by column.
_MOST_FUNCTIONS = 256
_NO_VALUES: list[object] = []
_COLUMN_NAMES = 4  # optional metadata, written when binlog_row_metadata=FULL


@dataclass(frozen=True)
class TableMap:
    """A TABLE_MAP event: describes the row events after it."""

    table_id: int
    database: str
    table: str
    types: bytes
    metadata: tuple[int, ...]
    names: tuple[str, ...]

    @staticmethod
    def table_name(body: bytes) -> tuple[int, str, str]:
        """Only the table's id, database and name. Enough to skip tables that are not captured."""
        size = body[8]
        database = body[9 : 9 + size]
        start = 9 + size + 2
        table = body[start : start + body[start - 1]]
        return int.from_bytes(body[:6], "little"), database.decode(), table.decode()

    @classmethod
    def parse(cls, body: bytes) -> TableMap:
        """Parse an event's bytes after the header, without the checksum."""
        table_id, database, table = cls.table_name(body)
        offset = 9 + body[8] + 1
        offset += 1 + body[offset] + 1
        count, offset = read_length(body, offset)
        types = body[offset : offset + count]
        offset += count
        _, offset = read_length(body, offset)
        metadata = []
        for code in types:
            size = _METADATA_BYTES.get(code)
            if size is None:  # so the offset of the next column's metadata is unknown
                raise BacklogError(
                    f"{database}.{table} has a column of type code {code}, which mysql_cdc does not read.", UNREAD
                )
            # Two forms: strings and decimals carry two separate bytes, the rest one little-endian number.
            order = "big" if code in (_STRING, _DECIMAL) else "little"
            metadata.append(int.from_bytes(body[offset : offset + size], order))  # type: ignore[arg-type]
            offset += size
        offset += (count + 7) // 8  # nullability
        names: list[str] = []
        while offset < len(body):
            kind = body[offset]
            size, offset = read_length(body, offset + 1)
            if kind == _COLUMN_NAMES:
                at = offset
                while at < offset + size:
                    length, at = read_length(body, at)
                    names.append(body[at : at + length].decode())
                    at += length
            offset += size
        return cls(table_id, database, table, types, tuple(metadata), tuple(names))


class RowDecoder:
    """Decodes the row images of one table.

    Parameters
    ----------
    schema : TableSchema
        The table as the query knows it.
    table_map : TableMap
        How the following row events are laid out.
    layout : Layout, optional
        The columns that the table had when the rows were logged, if they differ. Rows still get the columns of
        ``schema``, as `bridge` describes.
    zero_date_fails : bool
        Refuse zero, partial and impossible dates. Otherwise they become NULL.

    Attributes
    ----------
    read_row : callable
        Reads one row image at an offset; returns its storage values and the offset after it.

    Raises
    ------
    SchemaChanged
        The log differs from the layout in the number, order, type or (if it has them) names of columns; or the
        layout's values cannot be converted to the schema's.
    BacklogError
        From ``read_row``: a value is refused.
    """

    read_row: Callable[[bytes, int], tuple[list[object], int]]

    def __init__(
        self,
        schema: TableSchema,
        table_map: TableMap,
        layout: Layout | None = None,
        *,
        zero_date_fails: bool = False,
    ) -> None:
        self.schema = schema
        self._zero_date_fails = zero_date_fails
        across = bridge(layout, schema) if layout else None
        columns = layout.columns if layout else schema.columns
        described = len(table_map.types)
        shared = min(len(columns), len(schema.columns))
        same_order = across is None or all(across.index_of(at) == at for at in range(shared))
        hidden = hidden_columns(schema, [c.name for c in columns], described, table_map.names, same_order=same_order)
        absent = {each.index for each in hidden if not each.is_logged}
        if hidden:
            columns, across = _with_logged(columns, across, hidden)
            table_map = _without(table_map, absent)
        # The index of each column in the events' bitmaps.
        self._places = [index for index in range(described) if index not in absent]
        self._absent = sum(1 << index for index in absent)
        self._described = (1 << described) - 1
        self._of_bitmaps: dict[bytes, RowDecoder] = {}
        self._lay_out(table_map, columns, across)

    def _lay_out(self, table_map: TableMap, columns: tuple[Column, ...], across: Bridge | None) -> None:
        """Make the code for images of these columns."""
        self._logged, self._columns, self._across = table_map, columns, across
        self._present = sum(1 << index for index in self._places)
        self.count = len(columns)
        self._is_json = [code == _JSON for code in table_map.types]
        self._ends: dict[int, Callable[[bytes, int], int]] = {}
        self._codes: list[Code | Reader] = []
        self._functions: dict[int, RowReader] = {}
        if across and not across.is_identity:
            self._read_across(self.schema, table_map, columns, across)
        else:
            self._read_as_declared(self.schema, table_map)
        self._null_bytes = (self.count + 7) // 8
        self._all_null = (1 << self.count) - 1
        self._table = f"{self.schema.database}.{self.schema.table}"

    def _read_as_declared(self, schema: TableSchema, table_map: TableMap) -> None:
        for column, code, meta in zip(schema.columns, table_map.types, table_map.metadata, strict=True):
            excluded = column.use == EXCLUDED
            codes = binlog_codes(column) if excluded else kind_of(column).binlog
            if code not in codes and not (excluded and not codes):
                raise _other_type(schema, column, code)
            self._codes.append(self._reader(column, column, code, meta))
        self._indexes = [*range(self.count)]
        self.read_row = self._row

    def _read_across(
        self, schema: TableSchema, table_map: TableMap, columns: tuple[Column, ...], across: Bridge
    ) -> None:
        self._width = len(schema.columns)
        # Index of each value in the row. Columns that the stream does not have go behind the row's end.
        self._indexes = [self._width] * self.count
        for at, (column, code, meta) in enumerate(zip(columns, table_map.types, table_map.metadata, strict=True)):
            codes = binlog_codes(column)
            if codes and (code not in codes or not fits(column, meta)):
                raise _other_type(schema, column, code)
            index = across.index_of(at)
            if index is None or schema.columns[index].use == EXCLUDED:
                self._codes.append(skipper(column.name, code, meta))
                continue
            kind_of(column)  # refuses what cannot be read
            read = self._reader(schema.columns[index], column, code, meta)
            self._indexes[at] = index
            self._codes.append(converted(read, across.converts[index]))
        self.read_row = self._row_across

    def _reader(self, declared: Column, logged: Column, code: int, meta: int) -> Code | Reader:
        """A reader of a logged column for the declared one. It refuses values that the declared one must not hold."""
        schema = self.schema
        if declared.use == EXCLUDED:
            return skipper(logged.name, code, meta)
        read = reader(schema, logged, code, meta, exact=declared.name in schema.key)
        if not declared.nullable and declared.name in {*schema.key, *schema.chunk_key}:
            return of_key(declared, read)
        return without_zero_dates(schema, declared, code, read) if self._zero_date_fails else read

    def of_images(self, bitmap: bytes) -> RowDecoder:
        """The decoder of images with these columns.

        Images may leave out columns that the stream does not read: since 11.8 MariaDB leaves out generated columns, and
        hidden ones, in updates and deletes.

        Raises
        ------
        BacklogError
            They leave out others (``binlog_row_image`` other than FULL).
        """
        found = self._of_bitmaps.get(bitmap)
        if found is None:
            # MySQL also sets the bits that fill the last byte.
            present = int.from_bytes(bitmap, "little") & self._described
            found = self if present == self._present else self._of_fewer(present)
            self._of_bitmaps[bitmap] = found
        return found

    def _of_fewer(self, present: int) -> RowDecoder:
        if present & self._absent:
            raise BacklogError(
                f"A change of {self._table} was logged with values in columns that the server now keeps for indexes "
                "on expressions: such an index was dropped and made again.",
                "Set binlog_row_metadata=FULL, so that the log says which columns these are, and start the query with "
                "a new checkpoint.",
            )
        kept = [at for at, place in enumerate(self._places) if present >> place & 1]
        read = {at: index for at in range(self.count) if (index := self._read_as(at)) is not None}
        missing = [self._columns[at].name for at in read if at not in kept]
        if missing:
            raise BacklogError(
                f"A change of {self._table} was logged without {', '.join(missing)}: a session ran with "
                "binlog_row_image other than FULL, or these are generated columns, which MariaDB 11.8 leaves out.",
                "Set binlog_row_image=FULL globally, or leave generated columns out with columns.exclude. Start with a "
                "new checkpoint.",
            )
        new_of = {old: new for new, old in enumerate(kept)}
        across = self._across or Bridge(tuple(range(self.count)), (None,) * self.count)
        sources = tuple(None if old is None else new_of.get(old) for old in across.sources)
        made = copy.copy(self)
        for cached in ("_sizes", "_readers"):
            vars(made).pop(cached, None)
        made._of_bitmaps = {}
        made._places = [self._places[at] for at in kept]
        made._lay_out(
            _without(self._logged, {*range(self.count)} - {*kept}),
            tuple(self._columns[at] for at in kept),
            replace(across, sources=sources, is_identity=False),
        )
        return made

    def _read_as(self, at: int) -> int | None:
        """The index of a logged column in the stream; None if the stream does not read it."""
        index = at if self._across is None else self._across.index_of(at)
        return None if index is None or self.schema.columns[index].use == EXCLUDED else index

    def _row(self, data: bytes, offset: int) -> tuple[list[object], int]:
        end = offset + self._null_bytes
        nulls = int.from_bytes(data[offset:end], "little") & self._all_null
        read = self._functions.get(nulls)
        if read is None:
            if len(self._functions) >= _MOST_FUNCTIONS:
                return self._row_by_column(data, end, nulls)
            read = self._functions[nulls] = row_reader(self._codes, nulls)
        try:
            return read(data, end)
        except UnicodeDecodeError:
            return self._row_by_column(data, end, nulls)

    def skip_row(self, data: bytes, offset: int) -> tuple[list[object], int]:
        """As ``read_row``, but only the offset is right: no value is decoded."""
        end = offset + self._null_bytes
        nulls = int.from_bytes(data[offset:end], "little") & self._all_null
        row_after = self._ends.get(nulls)
        if row_after is None:
            if len(self._ends) >= _MOST_FUNCTIONS:
                self._ends.clear()
            row_after = self._ends[nulls] = row_end(self._sizes, nulls)
        return _NO_VALUES, row_after(data, end)

    @functools.cached_property
    def _sizes(self) -> list[int]:
        described = zip(self._logged.types, self._logged.metadata, strict=True)
        return [value_bytes(self._table, code, meta) for code, meta in described]

    def _row_by_column(self, data: bytes, offset: int, nulls: int) -> tuple[list[object], int]:
        """Reads column by column, so that an error can name the column whose text cannot be decoded."""
        row: list[object] = []
        try:
            for read in self._readers:
                value: object = None
                if not nulls & 1:
                    value, offset = read(data, offset)
                row.append(value)
                nulls >>= 1
        except UnicodeDecodeError:
            raise not_text(self.schema.columns[len(row)]) from None
        return row, offset

    def read_partial(self, data: bytes, offset: int, before: list[object]) -> tuple[list[object], int]:
        """Reads an after-image that may have changes of JSON documents instead of the documents.

        Parameters
        ----------
        before : list
            The before-image.
        """
        flags, offset = read_length(data, offset)
        if flags & ~_PARTIAL_JSON:
            raise BacklogError(
                f"The binary log has an after-image of {self._table} with the unknown flags {flags}.", UNREAD
            )
        if not flags:
            return self.read_row(data, offset)
        end = offset + (sum(self._is_json) + 7) // 8
        partial = int.from_bytes(data[offset:end], "little")
        offset = end + self._null_bytes
        nulls = int.from_bytes(data[end:offset], "little")
        row: list[object] = [None] * (len(self.schema.columns) + 1)
        for at, read in enumerate(self._readers):
            index = self._indexes[at]
            is_partial = self._is_json[at] and partial & 1
            partial >>= self._is_json[at]
            if nulls >> at & 1:
                continue
            if is_partial:
                begin = offset + 4
                offset = begin + int.from_bytes(data[offset:begin], "little")
                if index < len(before) and self.schema.columns[index].use != EXCLUDED:
                    row[index] = patched(str(before[index]), data[begin:offset])
                continue
            try:
                row[index], offset = read(data, offset)
            except UnicodeDecodeError:
                raise not_text(self.schema.columns[index]) from None
        row.pop()
        return row, offset

    @functools.cached_property
    def _readers(self) -> list[Reader]:
        return [as_reader(code) for code in self._codes]

    def _row_across(self, data: bytes, offset: int) -> tuple[list[object], int]:
        end = offset + self._null_bytes
        nulls = int.from_bytes(data[offset:end], "little")
        offset = end
        row: list[object] = [None] * (self._width + 1)
        for read, index in zip(self._readers, self._indexes, strict=True):
            if not nulls & 1:
                try:
                    row[index], offset = read(data, offset)
                except UnicodeDecodeError:
                    raise not_text(self.schema.columns[index]) from None
            nulls >>= 1
        row.pop()
        return row, offset


def _with_logged(
    columns: tuple[Column, ...], across: Bridge | None, hidden: list[Hidden]
) -> tuple[tuple[Column, ...], Bridge | None]:
    """The columns with logged hidden ones added, and a bridge that drops the hidden ones for the stream."""
    logged = tuple(Column("", "", "") for each in hidden if each.is_logged)  # they come after all others
    if logged:
        across = replace(across or Bridge(tuple(range(len(columns))), (None,) * len(columns)), is_identity=False)
    return (*columns, *logged), across


def _without(table_map: TableMap, absent: set[int]) -> TableMap:
    kept = [at for at in range(len(table_map.types)) if at not in absent]
    types = bytes(table_map.types[at] for at in kept)
    return replace(table_map, types=types, metadata=tuple(table_map.metadata[at] for at in kept))


def _other_type(schema: TableSchema, column: Column, code: int) -> SchemaChanged:
    return altered(schema, f"type code {code} for column {column.name}, which is {column.column_type or 'unknown'}")
