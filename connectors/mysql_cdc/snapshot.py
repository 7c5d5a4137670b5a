"""Reading one chunk of a table as it was at the batch's low watermark.

A chunk is one SELECT, whose rows come in the server's binary protocol and are taken apart column by column: Python
touches no value of theirs. A chunk that is not large is in memory before any of it goes on, so that its transaction
is over; of others rows go on to Spark as they come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pymysql
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
from .prepared import fetch
from .rewind import FirstImages, NetChanges, RewindLog, discard_rewind_log, rewind_log
from .schema import TableSchema, zero_date
from .server import connect, end_position, load_schema, query
from .subtraction import Surplus, TouchedKeys
from .temporal import packed_text
from .types import Column, kind_of
from .views import begin_exact_view, begin_view, hold_table
from .wire import WireColumn
from .workers import worker_connection

__all__ = ["read_chunk", "select_statement"]

_LOST = {1053, 1927, 2006, 2013, 2055, 4031}
# Bytes of a chunk that are read before its transaction ends and its rows go on. A chunk of 100,000 rows of 100 to 200
# bytes is 10 to 20 MB.
_AHEAD = 28 << 20


def select_statement(schema: TableSchema, first: Key | None, last: Key | None) -> str:
    """The chunk's SELECT."""
    expressions = ", ".join(_expression(schema, column) for column in schema.columns)
    return f"SELECT {expressions} FROM {schema.qualified}{key_range(schema.chunk_columns, first, last)}"


def _expression(schema: TableSchema, column: Column) -> str:
    if column.charset and column.name in schema.key:  # a key's text must tell its row
        return as_utf8(column.quoted, column.charset, exact=True)
    return kind_of(column).select(column)


def _select(
    connection: Connection[Any],
    schema: TableSchema,
    first: Key | None,
    last: Key | None,
    *,
    zero_date_fails: bool = False,
) -> Iterator[pa.Table]:
    """The chunk in pieces, in the state that the connection's transaction sees."""

    def check(found: Sequence[WireColumn]) -> None:
        for column, sent in zip(schema.columns, found, strict=True):
            if sent.kind != kind_of(column).wire:
                raise pa.ArrowInvalid(f"{column.name} is {sent.kind} now, not {kind_of(column).wire}")

    for columns in fetch(connection, select_statement(schema, first, last), check):
        yield _parsed(schema, columns, zero_date_fails)


def _parsed(schema: TableSchema, columns: list[pa.Array], zero_date_fails: bool) -> pa.Table:
    keyed = {*schema.key, *schema.chunk_key}
    arrays = [kind_of(c).parse(c, sent) for c, sent in zip(schema.columns, columns, strict=True)]
    for column, sent, array in zip(schema.columns, columns, arrays, strict=True):
        if array.null_count and not column.nullable and column.name in keyed:
            raise not_text(column) if column.charset else refuse_null(column)
        if zero_date_fails and array.null_count > sent.null_count:
            lost = pc.and_(pc.is_null(array), pc.is_valid(sent))
            raise zero_date(schema, column, packed_text(sent.filter(lost)[0].as_py()))
    return pa.table(arrays, names=[c.name for c in schema.columns])


def _read_ahead(connection: Connection[Any], tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The tables of a transaction that then ends, at once if they are not large."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        held.append(table)
        size += table.nbytes
        if size > _AHEAD:
            yield from held
            held = []
    query(connection, "COMMIT")
    yield from held


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
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
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
    end = end_position(connection, options)
    if not log.is_near(end):
        # Not while the table is held, as that may take long.
        log.advance(end)
    begin_view(connection)
    hold_table(connection, schema)
    # Taken after the view: everything that it sees lies before.
    log.advance(end_position(connection, options))
    touched = TouchedKeys(schema, log.keys(connection, first, last))
    with closing(touched):
        read = _select(connection, schema, first, last, zero_date_fails=options.zero_date_fails)
        for table in _read_ahead(connection, read):
            yield touched.taken_out(table)
    for rows in log.rows(connection, first, last):
        yield rows_to_table(schema, rows)


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
        read = _select(connection, schema, first, last, zero_date_fails=options.zero_date_fails)
        for table in _read_ahead(connection, read):
            yield surplus.taken_out(table)
    if left := surplus.left():
        raise BacklogError(
            f"{left} rows that the binary log added to {schema.qualified} were not found in it.",
            "Report this with the table's definition; with a primary key it is read another way.",
        )
    for rows in log.removed(connection, first, last):
        yield rows_to_table(schema, rows)
