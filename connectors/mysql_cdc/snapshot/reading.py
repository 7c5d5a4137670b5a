"""Reads one chunk of a table as it was at the batch's low watermark.

A chunk is one SELECT. Its rows come in the server's binary protocol and are decoded column by column, so Python touches
no single value. A chunk that is not large is read into memory before the binary log is read and rows go on to Spark, so
that no table is locked meanwhile. Rows of a large chunk go on to Spark as they come.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pymysql
from pymysql.connections import Connection

from backlog_spark.errors import BacklogError

from ..binlog.row_decoder import SchemaChanged
from ..offsets import RangeAgain, SnapshotRange
from ..options import MySqlOptions
from ..output.rows import output_of, rows_to_table
from ..schema.charsets import as_utf8
from ..schema.columns import not_text
from ..schema.ddl.evolution import start_again
from ..schema.keys import Key, key_range, refuse_null
from ..schema.table import TableSchema, of_table, zero_date
from ..schema.temporal import packed_text
from ..schema.types import Column, kind_of
from ..server.bounded import RowTooLarge, too_large
from ..server.mysql import connect, end_position, load_schema, query
from ..server.prepared import fetch
from ..server.replica import rows_connection
from ..server.retries import ConnectionLost, Retries, is_transient
from ..server.wire import WireColumn
from ..server.worker_connection import worker_connection
from .read_view import begin_exact_view, begin_view
from .rewind import FirstImages, NetChanges, RewindLog, discard_rewind_log, rewind_log
from .subtraction import Surplus, TouchedKeys, keys_among

__all__ = ["chunk_where", "read_chunk", "select_statement"]

_log = logging.getLogger(__name__)
_OTHER_TABLE = (1054, 1146, 1412)  # no such column, no such table, another definition
# Bytes of a chunk that are read into memory. 100,000 rows of 100 to 200 bytes are 10 to 20 MB.
_AHEAD = 28 << 20
_large: list[tuple[MySqlOptions, str]] = []


def select_statement(schema: TableSchema, first: Key | None, last: Key | None, condition: str = "") -> str:
    """The chunk's SELECT."""
    expressions = ", ".join(_expression(schema, column) for column in schema.read)
    return f"SELECT {expressions} FROM {schema.qualified}{chunk_where(schema, first, last, condition)}"


def chunk_where(schema: TableSchema, first: Key | None, last: Key | None, condition: str) -> str:
    """The WHERE clause for the rows of a chunk that meet a condition, with a blank before it; "" for all."""
    where = key_range(schema.chunk_columns, first, last)
    return where if not condition else f"{where} AND ({condition})" if where else f" WHERE ({condition})"


def _expression(schema: TableSchema, column: Column) -> str:
    if column.charset and column.name in schema.key:  # a key's text must identify its row
        return as_utf8(column.quoted, column.charset, exact=True)
    return kind_of(column).select(column)


def _select(
    connection: Connection[Any],
    options: MySqlOptions,
    schema: TableSchema,
    first: Key | None,
    last: Key | None,
    condition: str = "",
) -> Iterator[pa.Table]:
    """The chunk in pieces, as the connection's transaction sees it."""

    def check(found: Sequence[WireColumn]) -> None:
        for column, sent in zip(schema.read, found, strict=True):
            if sent.kind != kind_of(column).wire:
                raise pa.ArrowInvalid(f"{column.name} is {sent.kind} now, not {kind_of(column).wire}")

    try:
        statement = select_statement(schema, first, last, condition)
        for columns in fetch(connection, statement, check, options.max_row_bytes):
            yield _parsed(schema, columns, options.zero_date_fails)
    except RowTooLarge as error:
        raise too_large(f"A row of {schema.name}", error.size, options.max_row_bytes) from None


def _parsed(schema: TableSchema, columns: list[pa.Array], zero_date_fails: bool) -> pa.Table:
    keyed = {*schema.key, *schema.chunk_key}
    try:
        arrays = [kind_of(c).parse(c, sent) for c, sent in zip(schema.read, columns, strict=True)]
        for column, array in zip(schema.read, arrays, strict=True):
            if array.null_count and not column.nullable and column.name in keyed:
                raise not_text(column) if column.charset else refuse_null(column)
    except BacklogError as error:
        raise of_table(error, schema) from None
    for column, sent, array in zip(schema.read, columns, arrays, strict=True):
        if zero_date_fails and array.null_count > sent.null_count:
            lost = pc.and_(pc.is_null(array), pc.is_valid(sent))
            raise zero_date(schema, column, packed_text(sent.filter(lost)[0].as_py()))
    return pa.table(arrays, names=[c.name for c in schema.read])


class _Large(Exception):
    """A chunk has more than `_AHEAD` bytes."""


def _at_once(
    options: MySqlOptions, schema: TableSchema, low: str, first: Key | None, last: Key | None, condition: str = ""
) -> list[pa.Table] | None:
    """The chunk as one SELECT sees it. None if it is large; then the table's later chunks are not tried."""
    if (options, schema.qualified) in _large:
        return None
    held: list[pa.Table] = []
    size = 0
    try:
        with rows_connection(options, low) as connection:
            for table in _select(connection, options, schema, first, last, condition):
                held.append(table)
                size += table.nbytes
                if size > _AHEAD:
                    raise _Large  # closes the connection instead of reading the rest of the rows
    except _Large:
        _large.append((options, schema.qualified))
        return None
    return held


def read_chunk(
    options: MySqlOptions,
    schema: TableSchema,
    known: TableSchema,
    of: SnapshotRange,
    after: Key | None,
    first: Key | None,
    last: Key | None,
    sequence: int = 0,
) -> Iterator[pa.RecordBatch]:
    """The rows with chunk keys after ``first`` up to ``last`` as of ``of.low``, whenever this is called.

    Parameters
    ----------
    known : TableSchema
        The table's definition at the low watermark. Columns that it did not have then are NULL.
    of : SnapshotRange
        The range that the chunk belongs to. It starts after key ``after`` and bounds the rewind log.
    sequence : int
        ``_commit_seq`` of the rows.

    Yields
    ------
    pyarrow.RecordBatch
        In the form of the option ``format``, with ``_change_type`` insert.

    Raises
    ------
    SchemaChanged
        The table was altered after the low watermark.
    """
    retries = Retries(options)
    while True:
        is_begun = False
        try:
            for batch in _read(options, schema, known, of, after, first, last, sequence):
                is_begun = True
                yield batch
            return
        except ConnectionLost:
            # Spark already has rows of a chunk that has begun. Only Spark can read it again.
            if is_begun or not retries.again():
                raise


def _read(
    options: MySqlOptions,
    schema: TableSchema,
    known: TableSchema,
    of: SnapshotRange,
    after: Key | None,
    first: Key | None,
    last: Key | None,
    sequence: int,
) -> Iterator[pa.RecordBatch]:
    """One attempt of `read_chunk`."""
    try:
        log = rewind_log(options, schema, known, of.low, after, of.end)
        again = of if isinstance(of, RangeAgain) else None
        missing = set(again.in_target if again else ())
        if again is not None and again.condition:
            tables = _meeting(options, schema, of.low, log, first, last, again.condition)
        else:
            tables = _known_rows(options, schema, of.low, log, first, last)
        output = output_of(options.format, options.metadata, options.columns.salt)
        for table in tables:
            if missing:
                missing -= keys_among(table, schema, missing)
            rows = _without_values(table, {schema.columns[i].name for i in log.absent})
            yield from output.snapshot(schema, rows, of, sequence)
        if missing:
            yield from output.missing(schema, sorted(missing, key=repr), of)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        discard_rewind_log()
        # A column that was widened meanwhile may hold values that its declared type cannot.
        with connect(options) as connection:
            now = load_schema(connection, options, schema.database, schema.table)
        if now.fingerprint() == schema.fingerprint():
            raise
        raise start_again(schema, "its values are not those of the declared columns any more") from None
    except pymysql.err.MySQLError as error:
        discard_rewind_log()
        if error.args[0] in _OTHER_TABLE:
            raise SchemaChanged(
                f"The table {schema.name} was altered while its snapshot was read: {error.args[1]} ({error.args[0]}).",
                "Start the query again; if a column that it reads is gone, with a new checkpoint.",
            ) from None
        if is_transient(error):
            raise ConnectionLost(
                f"The connection to {options.host}:{options.port} was lost while a part of {schema.name} was read: "
                f"{error.args[1]} ({error.args[0]}).",
                "Spark reads the part again. If it happens every time, look for timeouts between Spark and the server.",
            ) from None
        raise
    except BaseException:
        discard_rewind_log()
        raise
    finally:
        # Otherwise memory that Arrow keeps from this chunk would add to that of the next one.
        pa.default_memory_pool().release_unused()


def _known_rows(
    options: MySqlOptions, schema: TableSchema, low: str, log: RewindLog, first: Key | None, last: Key | None
) -> Iterator[pa.Table]:
    """The chunk as of the low watermark. If the table was truncated or dropped since: the rows that the log has."""
    yielded = False
    try:
        if not log.is_emptied:
            for table in (
                _rewound(options, schema, low, log, first, last)
                if isinstance(log, FirstImages)
                else _restored(options, schema, log, first, last)
            ):
                yielded = True
                yield table
    except (pymysql.err.MySQLError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if yielded or (isinstance(error, pymysql.err.MySQLError) and error.args[0] not in _OTHER_TABLE):
            raise
        # The table may have been dropped, or truncated, and another one may have its name.
        with connect(options) as connection, suppress(SchemaChanged):
            log.advance(end_position(connection, options))
        if not log.is_emptied:
            raise
    if log.is_emptied and not yielded:
        with worker_connection(options) as connection:
            for rows in log.left(connection, first, last):
                yield rows_to_table(schema, rows)


def _rewound(
    options: MySqlOptions, schema: TableSchema, low: str, log: FirstImages, first: Key | None, last: Key | None
) -> Iterator[pa.Table]:
    """A chunk of a table with a primary key: rows that changed since then are replaced by their first images."""
    # A whole table as one chunk is not tried in memory.
    whole = _at_once(options, schema, low, first, last) if schema.chunk_key else None
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(worker_connection(options))
        viewed = connection
        if whole is None:
            if options.snapshot_host:
                viewed = stack.enter_context(rows_connection(options, low))
            begin_view(viewed)
        # The end is read after the SELECT or the view, so everything that they saw lies before it.
        log.advance(end_position(connection, options))
        if log.is_emptied:
            return
        touched = TouchedKeys(schema, log.keys(connection, first, last))
        with closing(touched):
            if whole is None:
                for table in _select(viewed, options, schema, first, last):
                    yield touched.taken_out(table)
                query(viewed, "COMMIT")
                _check_unaltered(connection, options, schema, log)
            else:
                yield from map(touched.taken_out, whole)
        for rows in log.left(connection, first, last):
            yield rows_to_table(schema, rows)


def _meeting(
    options: MySqlOptions,
    schema: TableSchema,
    low: str,
    log: RewindLog,
    first: Key | None,
    last: Key | None,
    condition: str,
) -> Iterator[pa.Table]:
    """The rows of a chunk that meet a condition and have not changed since the low watermark.

    Only the server can evaluate the condition, and it does not have the rows of then. The stream has the changes of
    the others, with all their columns.
    """
    assert isinstance(log, FirstImages), "only tables with a key are read again"
    yielded = False
    try:
        whole = _at_once(options, schema, low, first, last, condition)
        with worker_connection(options) as connection:
            if whole is None:
                begin_view(connection)
                query(
                    connection, f"SELECT COUNT(*) FROM {schema.qualified}{chunk_where(schema, first, last, condition)}"
                )
            log.advance(end_position(connection, options))
            if log.is_emptied:
                return
            touched = TouchedKeys(schema, log.keys(connection, first, last))
            with closing(touched):
                if whole is None:
                    for table in _select(connection, options, schema, first, last, condition):
                        yielded = True
                        yield touched.taken_out(table)
                    query(connection, "COMMIT")
                    _check_unaltered(connection, options, schema, log)
                else:
                    yield from map(touched.taken_out, whole)
            return
    except pymysql.err.MySQLError as error:
        if yielded or is_transient(error):
            raise
        # When the chunk was planned it worked for every row. An error here would come back after each restart.
        _log.warning(
            "The condition %r cannot be evaluated for rows of %s any more (%s, %s). All rows of this part are read.",
            condition, schema.name, error.args[0], error.args[1],
        )  # fmt: skip
    yield from _known_rows(options, schema, low, log, first, last)


def _check_unaltered(connection: Connection[Any], options: MySqlOptions, schema: TableSchema, log: RewindLog) -> None:
    """Check a table after the end of a view whose rows were read after the log.

    Raises
    ------
    SchemaChanged
        The table was altered meanwhile. After some ALTER TABLEs an older view shows the new values.
    """
    if log.is_altered(end_position(connection, options)):
        raise SchemaChanged(
            f"The table {schema.name} was altered while a part of its snapshot was read.",
            "Spark reads the part again. If it does not, start the query again.",
        )


def _without_values(table: pa.Table, columns: set[str]) -> pa.Table:
    for i, kind in enumerate(table.schema):
        if kind.name not in columns:
            continue
        table = table.set_column(i, kind, pa.nulls(table.num_rows, kind.type))
    return table


def _restored(
    options: MySqlOptions, schema: TableSchema, log: RewindLog, first: Key | None, last: Key | None
) -> Iterator[pa.Table]:
    """A chunk of a table without a primary key: rows added since then are removed, removed ones are added."""
    assert isinstance(log, NetChanges)
    with worker_connection(options) as connection:
        begin_exact_view(connection, options, schema, log)
        if log.is_emptied:
            query(connection, "COMMIT")
            return
        surplus = Surplus(schema, log.added(connection, first, last))
        with closing(surplus):
            for table in _select(connection, options, schema, first, last):
                yield surplus.taken_out(table)
        query(connection, "COMMIT")
        _check_unaltered(connection, options, schema, log)
        if left := surplus.left():
            raise BacklogError(
                f"{left} rows that the binary log added to {schema.qualified} were not found in it.",
                "Report this with the table's definition. A table with a primary key is read another way.",
            )
        for rows in log.left(connection, first, last):
            yield rows_to_table(schema, rows)
