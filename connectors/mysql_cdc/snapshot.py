"""Reading one chunk of a table as it was at the batch's low watermark.

The server joins a row's bounded columns into one line of CSV and the chunk's lines into one value, which Arrow's
C++ reader parses: Python touches no row, and the client needs a quarter of the processor time that it needs for a
row at a time. Columns that may be large travel bare, beside the line, because a server expression that exceeds
max_allowed_packet becomes NULL without an error; chunks of such tables, and chunks too large for one value, are
fetched row by row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pymysql
import pymysql.cursors
from pymysql.connections import Connection

from backlog_spark.errors import BacklogError

from .chunks import key_range
from .decoder import SchemaChanged
from .offsets import SnapshotBatch
from .options import MySqlOptions
from .rewind import discard_rewind_log, rewind_log
from .schema import TableSchema
from .server import end_position, open_connection, query
from .types import Column, kind_of

__all__ = ["read_chunk", "select_statement", "with_metadata"]

_FETCH = 20_000  # lines handed to the CSV reader at a time
# Most bytes of a chunk that the server joins into one value; it holds them in memory. A chunk of 50,000 rows of 100
# to 200 bytes takes 5 to 10 MB.
_MAX_JOINED = 32 << 20
_BATCH_ROWS = 10_000  # Spark takes Arrow batches of 1k to 10k rows best


def select_statement(schema: TableSchema, first: int | None, last: int | None, *, joined: bool = False) -> str:
    """The chunk's SELECT.

    For each row a CSV line, then the large columns; ``joined``: one row, the number of lines and all of them.
    """
    fields = ", ".join(_csv_field(c) for c in schema.columns if not kind_of(c).large)
    # As bytes, so that the client does not decode what Arrow will decode
    line = f"CAST(CONCAT_WS(',', {fields}) AS BINARY)"
    if joined:
        parts = ["COUNT(*)", f"GROUP_CONCAT({line} SEPARATOR '\\n')"]
    else:
        parts = [line]
        for column in schema.columns:
            kind = kind_of(column)
            if kind.large:
                expression = kind.select(column)
                parts.append(f"CAST({expression} AS BINARY)" if kind.text else expression)
    return f"SELECT {', '.join(parts)} FROM {schema.qualified}{key_range(schema, first, last)}"


def _csv_field(column: Column) -> str:
    kind = kind_of(column)
    expression = kind.select(column)
    if kind.text:
        expression = f"""CONCAT('"', REPLACE({expression}, '"', '""'), '"')"""
    # CONCAT_WS leaves NULL arguments out; an unquoted empty field is how the line says NULL.
    return f"IFNULL({expression}, '')"


class _Lines:
    """Turns fetched rows into an Arrow table of the table's columns."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        small = [c for c in schema.columns if not kind_of(c).large]
        self._large = [c for c in schema.columns if kind_of(c).large]
        self._names = [c.name for c in small]
        self._parse_options = pacsv.ParseOptions(newlines_in_values=True, quote_char='"', double_quote=True)
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
        small = self.parse(b"\n".join(lines), len(rows))  # type: ignore[arg-type]
        large = {c.name: pa.array([row[i] for row in rows], pa.binary()) for i, c in enumerate(self._large, 1)}
        return self._finish({**small, **large})

    def joined(self, data: bytes, rows: int) -> pa.Table:
        """The table from all lines at once; for tables without large columns."""
        return self._finish(self.parse(data, rows))

    def parse(self, data: bytes, rows: int) -> dict[str, pa.Array]:
        """The columns of ``rows`` lines."""
        read = pacsv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(data) + 1)
        parsed = pacsv.read_csv(
            pa.BufferReader(data),
            read_options=read,
            parse_options=self._parse_options,
            convert_options=self._convert_options,
        )
        if parsed.num_rows != rows:
            raise BacklogError(
                f"{rows} rows of {self._schema.qualified} were parsed as {parsed.num_rows}.",
                "Report this with the table's definition.",
            )
        return {name: column.combine_chunks() for name, column in zip(self._names, parsed.columns, strict=True)}

    def _finish(self, columns: dict[str, pa.Array]) -> pa.Table:
        arrays = [kind_of(c).parse(c, columns[c.name]) for c in self._schema.columns]
        return pa.table(arrays, names=[c.name for c in self._schema.columns])


# One idle connection a worker process: opening one, TLS included, costs a quarter of the time that a chunk takes.
_idle: tuple[MySqlOptions, Connection[Any]] | None = None


@contextlib.contextmanager
def _worker_connection(options: MySqlOptions) -> Iterator[Connection[Any]]:
    """A connection without value decoders, kept for the worker's next chunk unless something goes wrong."""
    global _idle
    kept, _idle = _idle, None
    connection: Connection[Any] | None = None
    if kept is not None:
        with contextlib.suppress(pymysql.err.MySQLError, OSError):
            kept[1].ping(reconnect=False)
            connection = kept[1] if kept[0] == options else None
        if connection is None:
            kept[1]._force_close()
    if connection is None:
        connection = open_connection(options, conv={})
        query(connection, f"SET SESSION group_concat_max_len = {_MAX_JOINED}")
    try:
        yield connection
    except BaseException:
        connection._force_close()  # rows may still be on their way
        raise
    _idle = (options, connection)


def _select(connection: Connection[Any], schema: TableSchema, first: int | None, last: int | None) -> pa.Table:
    try:
        table = _select_joined(connection, schema, first, last)
        return _select_rows(connection, schema, first, last) if table is None else table
    except pymysql.err.MySQLError as error:
        if error.args[0] in (1054, 1146, 1412):
            raise SchemaChanged(
                f"The table {schema.database}.{schema.table} was altered: {error.args[1]} ({error.args[0]}).",
                "Start the query again with a new checkpoint.",
            ) from None
        raise


def _select_joined(
    connection: Connection[Any], schema: TableSchema, first: int | None, last: int | None
) -> pa.Table | None:
    """The chunk fetched as one value, or None if it cannot be: large columns, or more than `_MAX_JOINED` bytes.

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
    lines = _Lines(schema)
    if not int(rows):
        return rows_to_table(schema, [])
    return None if data is None else lines.joined(data, int(rows))


def _select_rows(connection: Connection[Any], schema: TableSchema, first: int | None, last: int | None) -> pa.Table:
    lines = _Lines(schema)
    tables = []
    with connection.cursor(pymysql.cursors.SSCursor) as cursor:
        cursor.execute(select_statement(schema, first, last))
        while rows := cursor.fetchmany(_FETCH):
            tables.append(lines.table(list(rows)))
    return pa.concat_tables(tables) if tables else rows_to_table(schema, [])


def rows_to_table(schema: TableSchema, rows: list[list[Any]]) -> pa.Table:
    """An Arrow table of the table's columns from storage values."""
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in schema.columns]
    arrays = [kind_of(c).build(c, list(values)) for c, values in zip(schema.columns, columns, strict=True)]
    return pa.table(arrays, names=[c.name for c in schema.columns])


def read_chunk(
    options: MySqlOptions,
    schema: TableSchema,
    batch: SnapshotBatch,
    batch_first: int | None,
    first: int | None,
    last: int | None,
) -> Iterator[pa.RecordBatch]:
    """The rows with keys after ``first`` up to ``last`` as of ``batch.low``, whenever it is called.

    Parameters
    ----------
    batch : SnapshotBatch
        The batch that the chunk belongs to; its range, after ``batch_first``, bounds the rewind log.

    Yields
    ------
    pyarrow.RecordBatch
        With the schema of `TableSchema.arrow_schema`, ``_change_type`` insert and ``_commit_seq`` 0.
    """
    with _worker_connection(options) as connection:
        table = _select(connection, schema, first, last)
        # Taken after the SELECT: everything that it saw lies before.
        high = end_position(connection, options)
    try:
        log = rewind_log(options, schema, batch.low, batch_first, batch.end)
        log.advance(high)
        images = log.images(first, last)
    except BaseException:
        discard_rewind_log()
        raise
    if images:
        key_type = table.schema.field(schema.key).type
        touched = kind_of(schema.key_column).build(schema.key_column, list(images)).cast(key_type)
        kept = table.filter(pc.invert(pc.is_in(table.column(schema.key), value_set=touched)))
        rewound = rows_to_table(schema, [row for row in images.values() if row is not None])
        table = pa.concat_tables([kept, rewound])
    yield from with_metadata(schema, table, ["insert"], [batch.at_ms * 1000], [0])


def with_metadata(
    schema: TableSchema, table: pa.Table, kinds: list[str], micros: list[int], sequences: list[int]
) -> Iterator[pa.RecordBatch]:
    """Append the three change columns, each given for every row or once for all, and cut into batches."""
    rows = table.num_rows

    def column(values: list[Any], kind: pa.DataType) -> pa.Array:
        array = pa.array(values, kind if not pa.types.is_timestamp(kind) else pa.int64())
        array = pa.repeat(array[0], rows) if len(values) == 1 and rows != 1 else array
        return array.view(kind) if pa.types.is_timestamp(kind) else array

    target = schema.arrow_schema()
    given: tuple[list[Any], ...] = (kinds, micros, sequences)
    meta = [column(v, f.type) for v, f in zip(given, list(target)[-3:], strict=True)]
    if rows:
        whole = pa.Table.from_arrays([*table.columns, *meta], schema=target)
        yield from whole.combine_chunks().to_batches(_BATCH_ROWS)
