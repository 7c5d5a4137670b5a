"""Cuts a range of keys into chunks: by arithmetic if the keys are dense enough, otherwise by stepping along the index.

Stepping is exact and reads each index entry once: 0.25 to 0.5 s per million rows. Arithmetic takes a millisecond for
each chunk. The server's estimate of the rows in each piece (EXPLAIN) corrects it, so that gaps and crowded ranges make
neither empty nor giant chunks.

Source of the distribution factor: Flink CDC, MySqlChunkSplitter and the options
``chunk-key.even-distribution.factor.lower-bound`` and ``…upper-bound``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pymysql.connections import Connection

from backlog_spark.errors import BacklogError

from ..options import MySqlOptions
from ..schema.columns import not_text
from ..schema.keys import Key, key_kind, key_range
from ..schema.table import TableSchema, of_table
from ..server.connection import is_mariadb, query

__all__ = ["Chunks", "Splitter", "count_rows", "estimated_rows", "even_step", "even_steps"]

# For a chunk with fewer rows, starting the task costs more than reading them.
_SMALLEST_CHUNK = 2_000
# A batch is cut into at least this many pieces, so that no core waits while another reads a long chunk.
_PIECES = 8
# If the server estimates that a piece cut by arithmetic has more rows than this many chunks, the piece is stepped
# through instead. For a piece of more than about ten pages InnoDB reports twice its estimate, for a smaller one the
# exact number. So the rows of 1.5 to 3 chunks pass as one chunk.
_CROWDED = 3


@dataclass(frozen=True)
class Chunks:
    """Ends of consecutive chunks, each inclusive. The last is None if the range is open.

    Parameters
    ----------
    ends : tuple of keys or None
    rows : int
        Rows that were counted or estimated. It does not matter if others add or remove rows meanwhile.
    """

    ends: tuple[Key | None, ...]
    rows: int


def even_step(low: int, high: int, scale: int, rows: int, size: int, factors: tuple[float, float]) -> int | None:
    """The difference between the ends of chunks of ``size`` rows. None if keys are too dense or too sparse.

    Parameters
    ----------
    low, high : int
        Least and greatest key; for a decimal, unscaled.
    scale : int
        Digits after a decimal's point.
    rows : int
        Rows between them, > 0.
    factors : tuple
        Bounds of the distribution factor: (high - low + 1) / rows, in units of 1.
    """
    unit = 10**scale
    factor = Fraction(high - low + unit, unit * rows)
    if not factors[0] <= float(factor) <= factors[1]:
        return None
    return max(1, int(factor * unit * size))


def even_steps(
    low: int,
    high: int,
    step: int,
    size: int,
    wanted: int | None,
    count: Callable[[int, int], int],
    crowded: Callable[[int, int], Iterator[int]],
) -> tuple[list[int], int, bool]:
    """Ends of chunks after ``low`` that are ``step`` apart, corrected for pieces with few or many rows.

    Parameters
    ----------
    high : int
        All ends are less than this.
    size : int
        Rows of a chunk.
    wanted : int or None
        Stop when this many rows are counted.
    count : callable
        Estimates the rows after the first key, up to and including the second.
    crowded : callable
        Yields ends of exact chunks between two keys, without the second key.

    Returns
    -------
    ends, rows, open
        ``open``: whether the keys after the last end are the last chunk.
    """
    ends: list[int] = []
    total = last = 0
    at = low
    while True:
        end = min(at + step, high)
        rows = count(at, end)
        if rows > _CROWDED * size:
            for exact in crowded(at, end):
                ends.append(exact)
                total += size
                if wanted is not None and total >= wanted:
                    return ends, total, False
            total += size // 2  # the rest of the piece: between nothing and a whole chunk
            last = size
        else:
            if ends and last + rows <= size:
                ends.pop()
                last += rows
            else:
                last = rows
            total += rows
        if end == high:
            return ends, total, True
        ends.append(end)
        at = end
        if wanted is not None and total >= wanted:
            return ends, total, False


class Splitter:
    """Cuts a table's snapshot into chunks, a batch at a time.

    Parameters
    ----------
    connection, schema, options
        Of ``options``, ``chunkSize`` and the bounds of the distribution factor are used.
    """

    def __init__(self, connection: Connection[Any], schema: TableSchema, options: MySqlOptions) -> None:
        self._connection = connection
        self._schema = schema
        self._options = options
        self._columns = schema.chunk_columns

    def next(
        self, low: Key | None, rows: int | None, *, at_most: bool = False, before: int = 0, high: Key | None = None
    ) -> Chunks:
        """Chunks after key ``low`` that hold about ``rows`` rows, or all rows that follow.

        Parameters
        ----------
        low : tuple or None
            The last key before the range; None for the beginning.
        rows : int or None
            Rows wanted; None for all.
        at_most : bool
            Whether ``rows`` is a strict limit. Then rows are counted by stepping.
        before : int
            Rows before ``low``, as far as known.
        high : tuple, optional
            The last key to look at; needs ``at_most``.

        Returns
        -------
        Chunks
            The last end is ``high`` if nothing follows up to there.
        """
        if not self._columns:
            return Chunks((high,), estimated_rows(self._connection, self._schema))
        most = self._options.chunk_size
        size = most if rows is None else max(1, min(most, max(_SMALLEST_CHUNK, -(-rows // _PIECES))))
        if not at_most and (even := self._even(low, None, rows, size, before)):
            return even
        ends: list[Key | None] = []
        counted = 0
        while rows is None or counted < rows:
            step = size if rows is None else min(size, rows - counted)
            end = self._key_after(low, high, step)
            if end is None:
                counted += self._count(low, high)
                return Chunks((*ends, high), counted)
            ends.append(end)
            counted += step
            low = end
        if not self._count(low, high, limit=1):
            ends[-1] = high  # the table ends here: leave the last chunk open instead of adding an empty one
        return Chunks(tuple(ends), counted)

    def between(self, low: Key | None, high: Key | None) -> Chunks:
        """Chunks of the range after ``low`` up to ``high``, for a batch that another process planned."""
        if not self._columns:
            return Chunks((None,), 0)
        size = self._options.chunk_size
        if even := self._even(low, high, None, size, 0):
            return even
        steps = list(self._steps(low, high, size))
        return Chunks((*steps, high), size * len(steps))

    def edges(self) -> tuple[int, int] | None:
        """The least and the greatest key of a numeric column, a decimal unscaled. None if the table is empty."""
        least, greatest = self._edge(None, None, "ASC"), self._edge(None, None, "DESC")
        return None if least is None or greatest is None else (least, greatest)

    def _steps(self, low: Key | None, high: Key | None, size: int) -> Iterator[Key]:
        """Ends of exact chunks after ``low`` before ``high``."""
        while (end := self._key_after(low, high, size)) is not None and end != high:
            yield end
            low = end

    def _even(self, low: Key | None, high: Key | None, wanted: int | None, size: int, before: int) -> Chunks | None:
        """Chunks by arithmetic. None if the range must be stepped."""
        column = self._columns[0]
        kind = key_kind(column)
        if len(self._columns) > 1 or kind is None or not kind.numeric:
            return None
        rows = estimated_rows(self._connection, self._schema) - before if high is None else 0
        if rows <= 0:
            rows = self._estimate(low, high) // 2  # InnoDB reports twice its estimate
        if rows <= size:
            return None
        least, greatest = self._edge(low, high, "ASC"), self._edge(low, high, "DESC")
        if least is None or greatest is None:
            return None
        factors = self._options.distribution_factor_lower, self._options.distribution_factor_upper
        step = even_step(least, greatest, column.scale, rows, size, factors)
        if step is None:
            return None
        first, last = (least - 1 if low is None else int(low[0] or 0)), greatest if high is None else int(high[0] or 0)
        ends, counted, ended = even_steps(
            first,
            last,
            step,
            size,
            wanted,
            lambda a, b: self._estimate((a,), (b,)),
            lambda a, b: (int(key[0] or 0) for key in self._steps((a,), (b,), size)),
        )
        keys: list[Key | None] = [(end,) for end in ends]
        # The server's estimates of the pieces may add up to twice its estimate of all.
        return Chunks((*keys, high) if ended else tuple(keys), min(counted, rows))

    # -- questions to the server ----------------------------------------------------------------------------

    def _where(self, low: Key | None, high: Key | None) -> str:
        where = key_range(self._columns, low, high)
        if low is None and self._columns[0].nullable:
            # Rows with NULL are in the first chunk, and no chunk ends with NULL.
            where = (f"{where} AND" if where else " WHERE") + f" {self._columns[0].quoted} IS NOT NULL"
        return where

    def _key_after(self, low: Key | None, high: Key | None, rows: int) -> Key | None:
        """The key of the row that is ``rows`` rows after ``low``, at most ``high``. None if there are fewer rows."""
        return self._key(f"{self._where(low, high)} ORDER BY {self._ordered('ASC')} LIMIT 1 OFFSET {rows - 1}")

    def _edge(self, low: Key | None, high: Key | None, direction: str) -> int | None:
        key = self._key(f"{self._where(low, high)} ORDER BY {self._ordered(direction)} LIMIT 1")
        return None if key is None else int(key[0] or 0)

    def _ordered(self, direction: str) -> str:
        return ", ".join(f"{c.quoted} {direction}" for c in self._columns)

    def _key(self, rest: str) -> Key | None:
        kinds = [key_kind(c) for c in self._columns]
        fields = ", ".join(kind.fetch(c) for kind, c in zip(kinds, self._columns, strict=True) if kind)
        found = query(self._connection, f"SELECT {fields} FROM {self._schema.qualified}{rest}")
        if not found:
            return None
        for column, text in zip(self._columns, found[0], strict=True):
            if text is None and column.charset:
                raise of_table(not_text(column), self._schema)
        try:
            return tuple(
                kind.parse(c, str(text)) for kind, c, text in zip(kinds, self._columns, found[0], strict=True) if kind
            )
        except ValueError:
            raise BacklogError(
                f"The key {', '.join(map(str, found[0]))} of {self._schema.qualified} is a zero or partial date, which "
                "Spark has no value for.",
                "Correct such rows, then start with a new checkpoint.",
            ) from None

    def _count(self, low: Key | None, high: Key | None, limit: int | None = None) -> int:
        where = key_range(self._columns, low, high)
        if limit is None:
            return int(query(self._connection, f"SELECT COUNT(*) FROM {self._schema.qualified}{where}")[0][0])
        return len(query(self._connection, f"SELECT 1 FROM {self._schema.qualified}{where} LIMIT {limit}"))

    def _estimate(self, low: Key | None, high: Key | None) -> int:
        return estimated_rows(self._connection, self._schema, key_range(self._columns, low, high))


def count_rows(connection: Connection[Any], schema: TableSchema, where: str, seconds: float) -> int:
    """The number of rows that a WHERE clause selects. The server ends it with an error after some seconds.

    Without a condition InnoDB counts in threads of its own, which MySQL's limit does not end.
    """
    rest = f"COUNT(*) FROM {schema.qualified}"
    if is_mariadb(connection):
        statement = f"SET STATEMENT max_statement_time = {seconds:.3f} FOR SELECT {rest}{where}"
    else:
        limit = max(1, int(seconds * 1000))
        statement = f"SELECT /*+ MAX_EXECUTION_TIME({limit}) */ {rest}{where or ' WHERE RAND() >= 0'}"
    return int(query(connection, statement)[0][0])


def estimated_rows(connection: Connection[Any], schema: TableSchema, where: str = "") -> int:
    """The server's estimate, from the index, of the rows that a condition on the chunk key selects.

    For a small part of a table it is right within about a factor of two. For more than half of a table the server says
    one half.
    """
    wanted = schema.chunk_columns[0].quoted if schema.chunk_key else "1"
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN FORMAT=TRADITIONAL SELECT {wanted} FROM {schema.qualified}{where}")
        at = [str(field[0]).lower() for field in cursor.description].index("rows")
        return int(cursor.fetchall()[0][at] or 0)
