"""Cutting a key range into chunks by stepping along the primary key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from .schema import TableSchema
from .server import query

__all__ = ["Chunks", "key_range", "step_by_rows", "step_to_key"]

# Fewer rows than this in a chunk and starting the task costs more than reading them.
_SMALLEST_CHUNK = 2_000
# Pieces that a batch is cut into at least, so that no core waits while another reads a long chunk.
_PIECES = 8


@dataclass(frozen=True)
class Chunks:
    """Ends of consecutive chunks, each inclusive; the last is None when the range is open.

    Parameters
    ----------
    ends : tuple of int or None
    rows : int
        Rows counted on the way; what concurrent writers add or remove does not matter.
    """

    ends: tuple[int | None, ...]
    rows: int


def step_by_rows(
    connection: Connection[Any], schema: TableSchema, low: int | None, rows: int | None, chunk_size: int
) -> Chunks:
    """Chunks after key ``low`` that hold about ``rows`` rows, or all that follow.

    Parameters
    ----------
    low : int or None
        The last key before the range; None from the beginning.
    rows : int or None
        Rows wanted; None takes all.
    chunk_size : int
        Most rows of one chunk.

    Returns
    -------
    Chunks
        The last end is None if nothing follows the range.
    """
    size = chunk_size if rows is None else max(1, min(chunk_size, max(_SMALLEST_CHUNK, -(-rows // _PIECES))))
    ends: list[int | None] = []
    counted = 0
    while rows is None or counted < rows:
        step = size if rows is None else min(size, rows - counted)
        end = _key_after(connection, schema, low, step)
        if end is None:
            counted += _count(connection, schema, low)
            return Chunks((*ends, None), counted)
        ends.append(end)
        counted += step
        low = end
    if not _count(connection, schema, low, limit=1):
        ends[-1] = None  # the table ends right here: leave the last chunk open instead of an empty one
    return Chunks(tuple(ends), counted)


def step_to_key(
    connection: Connection[Any], schema: TableSchema, low: int | None, high: int | None, chunk_size: int
) -> Chunks:
    """Chunks of the range after ``low`` up to ``high``, for a batch that was planned by another process."""
    ends: list[int | None] = []
    counted = 0
    while True:
        end = _key_after(connection, schema, low, chunk_size)
        if end is None or (high is not None and end >= high):
            return Chunks((*ends, high), counted)
        ends.append(end)
        counted += chunk_size
        low = end


def _key_after(connection: Connection[Any], schema: TableSchema, low: int | None, rows: int) -> int | None:
    key = schema.key_column.quoted
    where = key_range(schema, low, None)
    found = query(connection, f"SELECT {key} FROM {schema.qualified}{where} ORDER BY {key} LIMIT 1 OFFSET {rows - 1}")
    return int(found[0][0]) if found else None


def _count(connection: Connection[Any], schema: TableSchema, low: int | None, limit: int | None = None) -> int:
    where = key_range(schema, low, None)
    if limit is None:
        return int(query(connection, f"SELECT COUNT(*) FROM {schema.qualified}{where}")[0][0])
    return len(query(connection, f"SELECT {schema.key_column.quoted} FROM {schema.qualified}{where} LIMIT {limit}"))


def key_range(schema: TableSchema, first: int | None, last: int | None) -> str:
    """The WHERE clause for keys after ``first`` up to ``last``, with a blank before it; "" for all."""
    # Put in as literals: names in the statement may hold a "%", which PyMySQL would take for a place to fill.
    key = schema.key_column.quoted
    conditions = [] if first is None else [f"{key} > {int(first)}"]
    conditions += [] if last is None else [f"{key} <= {int(last)}"]
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""
