"""Reading one chunk of a table as it was at the batch's low watermark.

The server joins a row's bounded columns into one line of CSV, which Arrow's C++ reader parses: over twice as fast
here as taking the columns apart in Python. Columns that may be large travel bare, beside the line, because a
server expression that exceeds max_allowed_packet becomes NULL without an error.
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

from .decoder import SchemaChanged
from .offsets import SnapshotBatch
from .options import MySqlOptions
from .rewind import discard_rewind_log, rewind_log
from .server import end_position, open_connection
from .types import Column, TableSchema, kind_of

__all__ = ["read_chunk", "select_statement", "with_metadata"]

_FETCH = 20_000  # lines handed to the CSV reader at a time
_BATCH_ROWS = 10_000  # Spark takes Arrow batches of 1k to 10k rows best


def select_statement(schema: TableSchema, first: int | None, last: int | None) -> tuple[str, tuple[int, ...]]:
    """The chunk's SELECT and its arguments: a CSV line, then the large columns."""
    fields = ", ".join(_csv_field(c) for c in schema.columns if not kind_of(c).large)
    # As bytes, so that the client does not decode what Arrow will decode
    parts = [f"CAST(CONCAT_WS(',', {fields}) AS BINARY)"]
    for column in schema.columns:
        kind = kind_of(column)
        if kind.large:
            expression = kind.select(column)
            parts.append(f"CAST({expression} AS BINARY)" if kind.text else expression)
    key = schema.key_column.quoted
    conditions, arguments = [], []
    if first is not None:
        conditions.append(f"{key} > %s")
        arguments.append(first)
    if last is not None:
        conditions.append(f"{key} <= %s")
        arguments.append(last)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {', '.join(parts)} FROM {schema.qualified}{where}", tuple(arguments)


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
        data = b"\n".join(lines)  # type: ignore[arg-type]
        read = pacsv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(data) + 1)
        parsed = pacsv.read_csv(
            pa.BufferReader(data),
            read_options=read,
            parse_options=self._parse_options,
            convert_options=self._convert_options,
        )
        if parsed.num_rows != len(rows):
            raise BacklogError(
                f"{len(rows)} rows of {self._schema.qualified} were parsed as {parsed.num_rows}.",
                "Report this with the table's definition.",
            )
        small = dict(zip(self._names, parsed.columns, strict=True))
        large = {c.name: pa.array([row[i] for row in rows], pa.binary()) for i, c in enumerate(self._large, 1)}
        arrays = []
        for column in self._schema.columns:
            array = large[column.name] if column.name in large else small[column.name].combine_chunks()
            arrays.append(kind_of(column).parse(column, array))
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
    try:
        yield connection
    except BaseException:
        connection._force_close()  # rows may still be on their way
        raise
    _idle = (options, connection)


def _select(connection: Connection[Any], schema: TableSchema, first: int | None, last: int | None) -> pa.Table:
    statement, arguments = select_statement(schema, first, last)
    lines = _Lines(schema)
    tables = []
    with connection.cursor(pymysql.cursors.SSCursor) as cursor:
        try:
            # With no decoders PyMySQL escapes no arguments either; these are integers.
            cursor.execute(statement % tuple(str(int(a)) for a in arguments) if arguments else statement)
            while rows := cursor.fetchmany(_FETCH):
                tables.append(lines.table(list(rows)))
        except pymysql.err.MySQLError as error:
            if error.args[0] in (1054, 1146, 1412):
                raise SchemaChanged(
                    f"The table {schema.database}.{schema.table} was altered: {error.args[1]} ({error.args[0]}).",
                    "Start the query again with a new checkpoint.",
                ) from None
            raise
    if not tables:
        return rows_to_table(schema, [])
    return pa.concat_tables(tables)


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
