"""Taking rows back to a low watermark by what the binary log says of the time since.

With a primary key (`FirstImages`): for each key that a later transaction touched, the before-image of the *first* touch
is the row as it was at the watermark; a first touch by an insert means that there was no row. When the chunk was
read does not matter.

Without one (`NetChanges`) rows are only a number of equal rows. What was added since the watermark is taken away and
what was taken away is added, which needs to know exactly which transactions the read has seen (`views`).

Either way the same chunk gives the same rows whenever and however often it is read.
"""

from __future__ import annotations

import marshal
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from pymysql.connections import Connection

from ..binlog.reading import RowsChange, TableAltered, TransactionEnd, read_changes
from ..bounded import PIECE_BYTES, pieces
from ..offsets import BinlogPosition
from ..options import MySqlOptions
from ..schema.ddl.evolution import Followed, as_read
from ..schema.ddl.history import bridge
from ..schema.ddl.timeline import Statements, Timeline
from ..schema.key_order import OrderBytes
from ..schema.keys import Key
from ..schema.table import SchemaChanged, TableSchema
from ..server.mysql import query
from ..server.watermark import Watermark, resume_after

__all__ = ["FirstImages", "NetChanges", "RewindLog", "discard_rewind_log", "rewind_log"]

# sqlite's page cache, in KiB: what a worker holds in memory before the log goes to a temporary file.
_CACHE_KIB = 16_384
_BLOCK = 5_000
_KEYS = 200_000  # of a piece, at most


class RewindLog(ABC):
    """What one batch's range of a table went through since its low watermark.

    The log grows as chunks need it: `advance` reads only what is new. It lives in a private temporary database of
    sqlite, which keeps it in memory as long as it is small and moves it to disk when it is not.

    Parameters
    ----------
    options, schema
        Where to read and which table.
    known : TableSchema
        The table at the low watermark.
    low : str
        The low watermark, as an offset keeps it.
    first, last : tuple or None
        The batch's range of chunk keys: after ``first``, up to and with ``last``; None is open. A log of keys that the
        server orders keeps those of other ranges as well, rather than to ask for each.
    """

    def __init__(
        self,
        options: MySqlOptions,
        schema: TableSchema,
        known: TableSchema,
        low: str,
        first: Key | None,
        last: Key | None,
    ) -> None:
        self._options = options
        self._schema = schema
        self._reached = resume_after(low)
        self._timeline = Timeline()
        if options.evolves:
            self._timeline = Followed(options, (schema,), (known,), self._reached, as_read)
        # Columns that the table did not have at the low watermark, or that were dropped and added again since.
        self.absent: set[int] = set()
        self._note_absent()
        self._order = OrderBytes(schema.chunk_columns)
        self._chunk_indexes = schema.indexes(schema.chunk_key)
        asks = self._order.asks
        self._first = None if first is None or asks else self._order.known(first)
        self._last = None if last is None or asks else self._order.known(last)
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._db.execute("PRAGMA journal_mode = OFF")
        # id identifies the row. chunk is its chunk key, kept until the server has given its order_bytes.
        self._db.execute(
            "CREATE TABLE image (id BLOB PRIMARY KEY, chunk BLOB, order_bytes BLOB, key BLOB, row BLOB, n INT)"
        )
        # If the chunk key is the primary key and needs no server, id holds the order bytes itself.
        self._by = "id" if schema.chunk_key == schema.key and schema.key and not asks else "order_bytes"
        if self._by == "order_bytes":
            self._db.execute("CREATE INDEX by_order ON image (order_bytes)")

    def advance(self, until: BinlogPosition, seen: Watermark | None = None) -> None:
        """Read the binary log on, at least as far as ``until``. ``seen``: what a read has seen for certain.

        Raises
        ------
        SchemaChanged
            When the table was altered after the low watermark. After any error the log is to be discarded.
        """
        pending: list[tuple[Any, ...]] = []
        size = 0
        for change in read_changes(self._options, (self._schema,), self._reached, until, timeline=self._timeline):
            if isinstance(change, TransactionEnd):
                self._reached = change.position
                continue
            if isinstance(change, TableAltered):
                self._note_absent()
                continue
            self._touch(change, pending, seen)
            size += change.size
            if len(pending) >= _BLOCK or size >= PIECE_BYTES:
                self._store(pending)
                pending, size = [], 0
        self._store(pending)
        if not isinstance(self._reached, BinlogPosition) or self._reached.sort_key() < until.sort_key():
            self._reached = until  # it is read up to there: the next chunk need not look again

    def is_altered(self, until: BinlogPosition) -> bool:
        """Whether the table was altered between where the log was read to and ``until``; the log is left as it is."""
        later = Statements()
        for _ in read_changes(self._options, (self._schema,), self._reached, until, timeline=later):
            pass
        return bool(later.found)

    def _note_absent(self) -> None:
        """Look where the read is now for columns that are not those of today."""
        layout = self._timeline.layout(self._schema)
        if layout is not None:
            sources = bridge(layout, self._schema).sources
            self.absent.update(i for i, s in enumerate(sources) if s is None or layout.now[s] is None)

    @abstractmethod
    def _touch(self, change: RowsChange, pending: list[tuple[Any, ...]], seen: Watermark | None) -> None:
        """Add what a change means for the log to ``pending``."""

    @abstractmethod
    def _store(self, pending: list[tuple[Any, ...]]) -> None:
        """Put what is pending into the log."""

    def _chunk_or_order(self, row: list[Any]) -> tuple[bytes | None, bytes | None]:
        """Chunk key and order bytes of a row; one of the two."""
        key = tuple([row[i] for i in self._chunk_indexes])
        return (marshal.dumps(key), None) if self._order.asks else (None, self._order.known(key))

    def _outside(self, order: bytes | None) -> bool:
        return order is not None and (
            (self._first is not None and order <= self._first) or (self._last is not None and order > self._last)
        )

    def _range(
        self, connection: Connection[Any], first: Key | None, last: Key | None, what: str, which: str = "TRUE"
    ) -> sqlite3.Cursor:
        """``what`` of the images after ``first`` up to ``last``; first fills in order bytes that are missing."""

        def ask(statement: str) -> list[tuple[Any, ...]]:
            return query(connection, statement)

        # The server is asked once for each image, and only when a chunk is read.
        while self._order.asks and (
            found := self._db.execute(
                "SELECT id, chunk FROM image WHERE order_bytes IS NULL LIMIT ?", (_BLOCK,)
            ).fetchall()
        ):
            found_order = self._order.of(ask, [marshal.loads(chunk) for _, chunk in found])
            self._db.execute("BEGIN")
            self._db.executemany(
                "UPDATE image SET order_bytes = ?, chunk = NULL WHERE id = ?",
                [(order, image) for order, (image, _) in zip(found_order, found, strict=True)],
            )
            self._db.execute("COMMIT")
        bounds = [None if key is None else self._order.of(ask, [key])[0] for key in (first, last)]
        return self._db.execute(
            f"SELECT {what} FROM image "
            f"WHERE (?1 IS NULL OR {self._by} > ?1) AND (?2 IS NULL OR {self._by} <= ?2) AND {which}",
            bounds,
        )

    def close(self) -> None:
        """Drop the log and its temporary file."""
        self._db.close()


class FirstImages(RewindLog):
    """First images of the keys of a table with a primary key."""

    def __init__(
        self,
        options: MySqlOptions,
        schema: TableSchema,
        known: TableSchema,
        low: str,
        first: Key | None,
        last: Key | None,
    ) -> None:
        super().__init__(options, schema, known, low, first, last)
        self._key_indexes = schema.indexes(schema.key)
        self._stays = schema.chunks_stay

    def _touch(self, change: RowsChange, pending: list[tuple[Any, ...]], seen: Watermark | None) -> None:
        indexes, dumps = self._key_indexes, marshal.dumps
        for _, before, after in change.rows:
            old = None if before is None else tuple([before[i] for i in indexes])
            if before is not None and (at := self._at(old, before)):
                pending.append((*at, dumps(old), dumps(before)))
            if after is not None:
                new = tuple([after[i] for i in indexes])
                if new != old and (at := self._at(new, after)):
                    pending.append((*at, dumps(new), None))

    def _at(self, key: Key | None, row: list[Any]) -> tuple[bytes, bytes | None, bytes | None] | None:
        """A row's id, chunk key and order bytes; None where it lies in another batch's range and cannot leave it."""
        if self._by == "id":
            assert key is not None
            order = self._order.known(key)
            return None if self._outside(order) else (order, None, None)
        chunk, other = self._chunk_or_order(row)
        if self._stays and self._outside(other):
            return None
        return repr(key).encode(), chunk, other

    def _store(self, pending: list[tuple[Any, ...]]) -> None:
        if pending:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR IGNORE INTO image VALUES (?, ?, ?, ?, ?, 0)", pending)
            self._db.execute("COMMIT")

    def keys(self, connection: Connection[Any], first: Key | None, last: Key | None) -> Iterator[list[Key]]:
        """For the chunk after ``first`` up to ``last``: keys whose rows, as read, do not count; in pieces.

        Parameters
        ----------
        connection
            On which the server is asked where keys lie; not in the middle of a result.
        """
        if self._stays:
            found = self._range(connection, first, last, "key")
        else:
            # A row that was elsewhere at the low watermark, or nowhere, may have come into this chunk.
            found = self._db.execute("SELECT key FROM image")
        for piece in pieces(found, lambda row: len(row[0]), _KEYS):
            yield [marshal.loads(key) for (key,) in piece]

    def rows(self, connection: Connection[Any], first: Key | None, last: Key | None) -> Iterator[list[list[Any]]]:
        """The rows that the chunk had in their place, in pieces."""
        found = self._range(connection, first, last, "row")
        for piece in pieces((row for (row,) in found if row is not None), len, _BLOCK):
            yield [marshal.loads(row) for row in piece]


class NetChanges(RewindLog):
    """How many equal rows each change since the low watermark took away or added, for a table without a key."""

    def __init__(
        self,
        options: MySqlOptions,
        schema: TableSchema,
        known: TableSchema,
        low: str,
        first: Key | None,
        last: Key | None,
    ) -> None:
        super().__init__(options, schema, known, low, first, last)
        self._unsettled: set[tuple[str, int, int]] = set()

    def _note_absent(self) -> None:
        super()._note_absent()
        if self.absent:
            raise SchemaChanged(
                f"{self._schema.name} has no primary key and got a column after its snapshot was planned.",
                "Start the query again with a new checkpoint.",
            )

    def _touch(self, change: RowsChange, pending: list[tuple[Any, ...]], seen: Watermark | None) -> None:
        # By its rows' sequence as well: MariaDB may number two transactions alike.
        transaction = change.uuid, change.number, change.rows[0][0]
        if seen is None or not seen.includes(*transaction):
            self._unsettled.add(transaction)
        for _, before, after in change.rows:
            for row, n in ((before, 1), (after, -1)):
                if row is not None:
                    pending.append((repr(row).encode(), *self._chunk_or_order(row), marshal.dumps(row), n))

    def _store(self, pending: list[tuple[Any, ...]]) -> None:
        if pending:
            self._db.execute("BEGIN")
            self._db.executemany(
                "INSERT INTO image (id, chunk, order_bytes, row, n) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET n = n + excluded.n",
                pending,
            )
            self._db.execute("COMMIT")

    def settled(self, seen: Watermark) -> bool:
        """Whether ``seen`` includes every transaction of the table that was read so far."""
        self._unsettled = {t for t in self._unsettled if not seen.includes(*t)}
        return not self._unsettled

    def added(
        self, connection: Connection[Any], first: Key | None, last: Key | None
    ) -> Iterator[list[tuple[list[Any], int]]]:
        """For the chunk after ``first`` up to ``last``: rows to take away and how often, in pieces."""
        found = self._range(connection, first, last, "row, -n", "n < 0")
        for piece in pieces(found, lambda row: len(row[0]), _KEYS):
            yield [(marshal.loads(row), n) for row, n in piece]

    def removed(self, connection: Connection[Any], first: Key | None, last: Key | None) -> Iterator[list[list[Any]]]:
        """For the chunk after ``first`` up to ``last``: rows to add, as often as they are, in pieces."""
        found = self._range(connection, first, last, "row, n", "n > 0")
        for piece in pieces((row for row, n in found for _ in range(n)), len, _BLOCK):
            yield [marshal.loads(row) for row in piece]


# One log a worker process: chunks of a batch that land in the same process share it. A new batch has another
# low watermark, and the old log is of no more use.
_current: tuple[tuple[object, ...], RewindLog] | None = None


def rewind_log(
    options: MySqlOptions, schema: TableSchema, known: TableSchema, low: str, first: Key | None, last: Key | None
) -> RewindLog:
    """The process's log of a batch, made at its first chunk."""
    global _current
    key = (options, schema, known, low, first, last)
    if _current is None or _current[0] != key:
        discard_rewind_log()
        kind = FirstImages if schema.key else NetChanges
        _current = (key, kind(options, schema, known, low, first, last))
    return _current[1]


def discard_rewind_log() -> None:
    """Forget the process's log: after an error it may lack a part."""
    global _current
    if _current is not None:
        _current[1].close()
        _current = None
