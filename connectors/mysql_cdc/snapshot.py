"""Reading one chunk of a table as it was at the batch's low watermark.

The server joins a row's bounded columns into one line of CSV and the chunk's lines into one value, which Arrow's
C++ reader parses: Python touches no row, and the client needs a quarter of the processor time that it needs for a
row at a time. Columns that may be large travel bare, beside the line, because a server expression that exceeds
max_allowed_packet becomes NULL without an error; chunks of such tables, and chunks too large for one value, are
fetched row by row and go on to Spark as they come.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pymysql
import pymysql.cursors
from pymysql.connections import Connection

from backlog_spark.errors import BacklogError

from .charsets import as_utf8
from .columns import not_text
from .decoder import SchemaChanged
from .evolution import start_again
from .keys import Key, key_range, refuse_null
from .offsets import SnapshotRange
from .options import MySqlOptions
from .output import output_of, rows_to_table
from .pieces import PIECE_BYTES, pieces
from .rewind import FirstImages, NetChanges, RewindLog, discard_rewind_log, rewind_log
from .schema import TableSchema, zero_date
from .server import connect, end_position, load_schema, query
from .subtraction import Surplus, TouchedKeys
from .types import Column, kind_of
from .views import begin_exact_view, begin_view
from .workers import worker_connection

__all__ = ["read_chunk", "select_statement"]

_LOST = {1053, 1927, 2006, 2013, 2055, 4031}
_FETCH = 20_000  # lines handed to the CSV reader at a time, at most


def select_statement(schema: TableSchema, first: Key | None, last: Key | None, *, joined: bool = False) -> str:
    """The chunk's SELECT.

    For each row a CSV line, then the large columns; ``joined``: one row, the number of lines and all of them, each with
    its end.
    """
    fields = ", ".join(_csv_field(schema, c) for c in schema.columns if not kind_of(c).large)
    # As bytes, so that the client does not decode what Arrow will decode
    line = f"CAST(CONCAT_WS(',', {fields}) AS BINARY)" if fields else "''"
    if joined:
        parts = ["COUNT(*)", f"CONCAT(GROUP_CONCAT({line} SEPARATOR '\\n'), '\\n')"]
    else:
        parts = [line]
        for column in schema.columns:
            kind = kind_of(column)
            if kind.large:
                expression = _expression(schema, column)
                parts.append(f"CAST({expression} AS BINARY)" if kind.text else expression)
    return f"SELECT {', '.join(parts)} FROM {schema.qualified}{key_range(schema.chunk_columns, first, last)}"


def _expression(schema: TableSchema, column: Column) -> str:
    if column.charset and column.name in schema.key:  # a key's text must tell its row
        return as_utf8(column.quoted, column.charset, exact=True)
    return kind_of(column).select(column)


def _csv_field(schema: TableSchema, column: Column) -> str:
    expression = _expression(schema, column)
    if kind_of(column).text:
        expression = f"""CONCAT('"', REPLACE({expression}, '"', '""'), '"')"""
    # CONCAT_WS leaves NULL arguments out; an unquoted empty field is how the line says NULL.
    return f"IFNULL({expression}, '')"


class _Lines:
    """Turns fetched rows into an Arrow table of the table's columns."""

    def __init__(self, schema: TableSchema, zero_date_fails: bool) -> None:
        self._schema = schema
        self._zero_date_fails = zero_date_fails
        small = [c for c in schema.columns if not kind_of(c).large]
        self._large = [c for c in schema.columns if kind_of(c).large]
        self._names = [c.name for c in small]
        self._keyed = {*schema.key, *schema.chunk_key}
        self._parse_options = pacsv.ParseOptions(
            newlines_in_values=True, quote_char='"', double_quote=True, ignore_empty_lines=False
        )
        self._convert_options = pacsv.ConvertOptions(
            column_types={c.name: kind_of(c).csv(c) for c in small},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def table(self, rows: list[tuple[bytes | None, ...]]) -> pa.Table:
        lines = [row[0] for row in rows]
        if None in lines:
            raise BacklogError(
                f"A row of {self._schema.qualified} is too long for the server's max_allowed_packet.",
                "Raise max_allowed_packet on the server.",
            )
        small = self.parse(b"\n".join([*lines, b""]), len(rows)) if self._names else {}  # type: ignore[list-item]
        large = {c.name: pa.array([row[i] for row in rows], pa.binary()) for i, c in enumerate(self._large, 1)}
        return self._finish({**small, **large})

    def joined(self, data: bytes, rows: int) -> pa.Table:
        """The table from all lines at once; for tables without large columns."""
        return self._finish(self.parse(data, rows))

    def parse(self, data: bytes, rows: int) -> dict[str, pa.Array]:
        """The columns of ``rows`` lines."""
        # Without an end to the last line, Arrow takes an empty field there for a quoted one if the field before it is.
        assert data.endswith(b"\n")
        read = pacsv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(data) + 1)
        try:
            parsed = pacsv.read_csv(
                pa.BufferReader(data),
                read_options=read,
                parse_options=self._parse_options,
                convert_options=self._convert_options,
            )
        except pa.ArrowInvalid as error:  # as `not_text` for large columns
            if not (found := re.search(r"CSV column #(\d+):.*UTF8", str(error))):
                raise
            name = self._names[int(found[1])]
            raise not_text(next(c for c in self._schema.columns if c.name == name)) from None
        if parsed.num_rows != rows:
            raise BacklogError(
                f"{rows} rows of {self._schema.qualified} were parsed as {parsed.num_rows}.",
                "Report this with the table's definition.",
            )
        return {name: column.combine_chunks() for name, column in zip(self._names, parsed.columns, strict=True)}

    def _finish(self, columns: dict[str, pa.Array]) -> pa.Table:
        arrays = [kind_of(c).parse(c, columns[c.name]) for c in self._schema.columns]
        for column, array in zip(self._schema.columns, arrays, strict=True):
            before = columns[column.name]
            if array.null_count and not column.nullable and column.name in self._keyed:
                raise not_text(column) if column.charset else refuse_null(column)
            if self._zero_date_fails and array.null_count > before.null_count:
                lost = pc.and_(pc.is_null(array), pc.is_valid(before))
                raise zero_date(self._schema, column, before.filter(lost)[0].as_py())
        return pa.table(arrays, names=[c.name for c in self._schema.columns])


def _select_joined(
    connection: Connection[Any],
    schema: TableSchema,
    first: Key | None,
    last: Key | None,
    *,
    zero_date_fails: bool = False,
) -> pa.Table | None:
    """The chunk fetched as one value, or None if it cannot be: large columns, or more than `MAX_JOINED` bytes.

    May read rows that `_select_rows` then reads in another state: either is after the low watermark, so the rewind
    makes them the same.
    """
    if any(kind_of(c).large for c in schema.columns):
        return None
    with connection.cursor() as cursor:
        cursor.execute(select_statement(schema, first, last, joined=True))
        rows, data = cursor.fetchall()[0]
        # GROUP_CONCAT cuts what is too long, with a warning, and leaves out a line that is NULL for its length.
        if cursor.warning_count:
            return None
    lines = _Lines(schema, zero_date_fails)
    if not int(rows):
        return rows_to_table(schema, [])
    return None if data is None else lines.joined(data, int(rows))


def _select_rows(
    connection: Connection[Any],
    schema: TableSchema,
    first: Key | None,
    last: Key | None,
    *,
    zero_date_fails: bool = False,
) -> Iterator[pa.Table]:
    """The chunk in pieces, in the state that the connection's transaction sees."""
    lines = _Lines(schema, zero_date_fails)
    cursor = connection.cursor(pymysql.cursors.SSCursor)
    try:
        cursor.execute(select_statement(schema, first, last))
        for rows in pieces(cursor.fetchall_unbuffered(), _size, _FETCH):
            yield lines.table(rows)
    except BaseException:
        # The connection is not used again. To read what is left of the rows would take long, or fail on a connection
        # that is lost and hide why it is.
        if cursor._result is not None:
            cursor._result.unbuffered_active = False
        raise
    cursor.close()


def _size(row: tuple[bytes | None, ...]) -> int:
    return sum([len(value) for value in row if value])


def read_chunk(
    options: MySqlOptions,
    schema: TableSchema,
    known: TableSchema,
    of: SnapshotRange,
    after: Key | None,
    first: Key | None,
    last: Key | None,
) -> Iterator[pa.RecordBatch]:
    """The rows with chunk keys after ``first`` up to ``last`` as of ``of.low``, whenever it is called.

    Parameters
    ----------
    known : TableSchema
        The table at the low watermark. What it did not have then is NULL.
    of : SnapshotRange
        The range that the chunk belongs to, after key ``after``, which bounds the rewind log.

    Yields
    ------
    pyarrow.RecordBatch
        As the option ``format`` says, ``_change_type`` insert and ``_commit_seq`` 0.

    Raises
    ------
    SchemaChanged
        When the table was altered after the low watermark.
    """
    try:
        log = rewind_log(options, schema, known, of.low, after, of.end)
        with worker_connection(options) as connection:
            tables = (
                _rewound(connection, options, schema, log, first, last)
                if isinstance(log, FirstImages)
                else _restored(connection, options, schema, log, first, last)
            )
            output = output_of(options.format, options.metadata)
            for table in tables:
                yield from output.snapshot(schema, _without_values(table, log.absent), of)
    except pa.ArrowInvalid:
        discard_rewind_log()
        # A column that was made wider meanwhile may hold what its declared type cannot.
        with connect(options) as connection:
            now = load_schema(connection, options, schema.database, schema.table)
        if now.fingerprint() == schema.fingerprint():
            raise
        raise start_again(schema, "its values are not those of the declared columns any more") from None
    except pymysql.err.MySQLError as error:
        discard_rewind_log()
        if error.args[0] in (1054, 1146, 1412):
            raise SchemaChanged(
                f"The table {schema.name} was altered while its snapshot was read: {error.args[1]} ({error.args[0]}).",
                "Start the query again; if a column is gone that it was to read, with a new checkpoint.",
            ) from None
        if error.args[0] in _LOST:
            raise BacklogError(
                f"The connection to {options.host}:{options.port} was lost while a part of {schema.name} was read: "
                f"{error.args[1]} ({error.args[0]}).",
                "Spark reads the part again; if it happens each time, look for timeouts between it and the server.",
            ) from None
        raise
    except BaseException:
        discard_rewind_log()
        raise
    finally:
        # What Arrow keeps for later of a chunk would otherwise come on top of the next one.
        pa.default_memory_pool().release_unused()


def _rewound(
    connection: Connection[Any],
    options: MySqlOptions,
    schema: TableSchema,
    log: FirstImages,
    first: Key | None,
    last: Key | None,
) -> Iterator[pa.Table]:
    """A chunk of a table with a primary key: rows that changed since are left out, their first images put in."""
    # The whole table as one chunk is not tried as one value: the server would join all before it sees that it is long.
    fails = options.zero_date_fails
    joined = _select_joined(connection, schema, first, last, zero_date_fails=fails) if schema.chunk_key else None
    if joined is None:
        begin_view(connection)
    # Taken after the SELECT or the view: everything that it saw lies before.
    log.advance(end_position(connection, options))
    touched = TouchedKeys(schema, log.keys(connection, first, last))
    with closing(touched):
        read = _select_rows(connection, schema, first, last, zero_date_fails=fails)
        for table in read if joined is None else _slices(joined):
            yield touched.taken_out(table)
    if joined is None:
        query(connection, "COMMIT")
    for rows in log.rows(connection, first, last):
        yield rows_to_table(schema, rows)


def _slices(table: pa.Table) -> Iterator[pa.Table]:
    """Parts of a table that share its memory, so that what is made of each is small."""
    rows = max(1, table.num_rows * PIECE_BYTES // max(1, table.nbytes))
    return (table.slice(at, rows) for at in range(0, table.num_rows, rows))


def _without_values(table: pa.Table, columns: set[int]) -> pa.Table:
    for i in columns:
        kind = table.schema.field(i)
        table = table.set_column(i, kind, pa.nulls(table.num_rows, kind.type))
    return table


def _restored(
    connection: Connection[Any],
    options: MySqlOptions,
    schema: TableSchema,
    log: RewindLog,
    first: Key | None,
    last: Key | None,
) -> Iterator[pa.Table]:
    """A chunk of a table without a primary key: what was added since is taken away, what was taken away added."""
    assert isinstance(log, NetChanges)
    begin_exact_view(connection, options, schema, log)
    surplus = Surplus(schema, log.added(connection, first, last))
    with closing(surplus):
        for table in _select_rows(connection, schema, first, last, zero_date_fails=options.zero_date_fails):
            yield surplus.taken_out(table)
    query(connection, "COMMIT")
    if left := surplus.left():
        raise BacklogError(
            f"{left} rows that the binary log added to {schema.qualified} were not found in it.",
            "Report this with the table's definition; with a primary key it is read another way.",
        )
    for rows in log.removed(connection, first, last):
        yield rows_to_table(schema, rows)
