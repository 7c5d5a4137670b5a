"""Takes rows back to a low watermark, with the changes that the binary log has since then.

With a primary key (`FirstImages`): for each key that a later transaction changed, the before-image of the *first*
change is the row at the watermark. If the first change is an insert, there was no row. It does not matter when the
chunk was read.

Without a primary key (`NetChanges`) equal rows are only counted. Rows that were added since the watermark are removed,
and rows that were removed are added. For that the read must have seen exactly known transactions (`read_view`).

Either way a chunk has the same rows whenever and however often it is read, unless a later TRUNCATE or DROP removed rows
whose images are nowhere. Such a chunk has only the rows that were changed between the watermark and the statement: the
stream has changes of just these, and then the statement removes all.
"""

from __future__ import annotations

import marshal
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pymysql.connections import Connection

from ..binlog.positions import BinlogPosition
from ..binlog.reading import RowsChange, TableAltered, TableEmptied, TransactionEnd, read_changes
from ..options import MySqlOptions
from ..schema.ddl.evolution import Followed, as_read
from ..schema.ddl.history import bridge
from ..schema.ddl.timeline import Statements, Timeline
from ..schema.key_order import OrderBytes
from ..schema.keys import Key
from ..schema.table import SchemaChanged, TableSchema
from ..server.bounded import PIECE_BYTES, pieces
from ..server.gtid import MariaDbGtids, is_mariadb_source
from ..server.mysql import query
from ..server.watermark import Watermark, resume_after, watermark

__all__ = ["FirstImages", "NetChanges", "RewindLog", "discard_rewind_log", "rewind_log"]

# sqlite's page cache, in KiB. A worker holds this much in memory before the log goes to a temporary file.
_CACHE_KIB = 16_384
_BLOCK = 5_000
_KEYS = 200_000  # most keys of a piece


class RewindLog(ABC):
    """The changes of one batch's range of a table since its low watermark.

    The log grows as chunks need it: `advance` reads only what is new. It is a private temporary database of sqlite,
    which keeps it in memory while it is small and on disk when it is large.

    Parameters
    ----------
    options, schema
        Where to read and which table.
    known : TableSchema
        The table's definition at the low watermark.
    low : str
        The low watermark, as an offset keeps it.
    first, last : tuple or None
        The batch's range of chunk keys: after ``first``, up to and including ``last``; None is open. If only the
        server can order the keys, the log also keeps keys of other ranges, so that it need not ask for each key.
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
        self._passed = watermark(low).gtids
        self.is_emptied = False
        """Whether the table was truncated or dropped since the low watermark. The log ends there."""
        self._timeline = Timeline()
        if options.evolves:
            self._timeline = Followed(options, (schema,), (known,), self._reached, as_read)
        # Indexes of columns that the table did not have at the low watermark, or that were dropped and added again.
        self.absent: set[int] = set()
        self._note_absent()
        self._order = OrderBytes(schema.chunk_columns)
        self._chunk_indexes = schema.indexes(schema.chunk_key)
        self._key_indexes = schema.indexes(schema.key)
        self._stays = schema.chunks_stay
        # Transactions that a read may not have seen. Only equal rows that are counted depend on them.
        self._unsettled: set[tuple[str, int, int]] = set()
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
        """Read more of the binary log, at least up to ``until``. ``seen``: transactions that a read certainly saw.

        Raises
        ------
        SchemaChanged
            The table was altered after the low watermark. After any error the log must be discarded.
        """
        if self.is_emptied:
            return
        pending: list[tuple[Any, ...]] = []
        size = 0
        for change in read_changes(self._options, (self._schema,), self._begin(), until, timeline=self._timeline):
            if isinstance(change, TransactionEnd):
                self._reached = change.position
                if change.uuid and is_mariadb_source(change.uuid) == isinstance(self._passed, MariaDbGtids):
                    self._passed.passed(change.uuid, change.number)
                continue
            if isinstance(change, TableAltered):
                self._note_absent()
                continue
            if isinstance(change, TableEmptied):
                self.is_emptied = True
                break
            self._touch(change, pending, seen)
            size += change.size
            if len(pending) >= _BLOCK or size >= PIECE_BYTES:
                self._store(pending)
                pending, size = [], 0
        self._store(pending)
        if not isinstance(self._reached, BinlogPosition) or self._reached.sort_key() < until.sort_key():
            self._reached = until  # the log is read up to there: the next chunk need not look again

    def _begin(self) -> BinlogPosition | str:
        """Where the log is read on."""
        reached = self._reached
        return replace(reached, gtids=str(self._passed)) if isinstance(reached, BinlogPosition) else reached

    def is_altered(self, until: BinlogPosition) -> bool:
        """Whether the table was altered between the log's present end and ``until``. Does not change the log."""
        later = Statements()
        found = read_changes(self._options, (self._schema,), self._begin(), until, timeline=later)
        emptied = [change for change in found if isinstance(change, TableEmptied)]
        return bool(later.found or emptied)

    def _note_absent(self) -> None:
        """Note columns of today that the table does not have at the read's present position."""
        layout = self._timeline.layout(self._schema)
        if layout is not None:
            if layout.is_passed_over:
                return  # no row of it stays in a target
            across = bridge(layout, self._schema)
            for index, source in enumerate(across.sources):
                if (source is None and index not in across.unread) or (
                    source is not None and layout.now[source] is None
                ):
                    self.absent.add(index)

    @abstractmethod
    def _touch(self, change: RowsChange, pending: list[tuple[Any, ...]], seen: Watermark | None) -> None:
        """Add the entries for a change to ``pending``."""

    @abstractmethod
    def _store(self, pending: list[tuple[Any, ...]]) -> None:
        """Store pending entries in the log."""

    def _chunk_or_order(self, row: list[Any]) -> tuple[bytes | None, bytes | None]:
        """Chunk key and order bytes of a row; one of the two is None."""
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

    @abstractmethod
    def left(self, connection: Connection[Any], first: Key | None, last: Key | None) -> Iterator[list[list[Any]]]:
        """For the chunk after ``first`` up to ``last``: the rows as of the watermark that the log has. In pieces."""

    def close(self) -> None:
        """Drop the log and its temporary file."""
        self._db.close()


class FirstImages(RewindLog):
    """First images of the keys of a table with a primary key."""

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
        """A row's id, chunk key and order bytes. None if it lies in another batch's range and cannot leave it."""
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
        """For the chunk after ``first`` up to ``last``: keys whose rows, as read, must be dropped. In pieces.

        Parameters
        ----------
        connection
            Used to ask the server for order bytes; must not be in the middle of a result.
        """
        if self._stays:
            found = self._range(connection, first, last, "key")
        else:
            # A row may have moved into this chunk since the low watermark, or be new.
            found = self._db.execute("SELECT key FROM image")
        for piece in pieces(found, lambda row: len(row[0]), _KEYS):
            yield [marshal.loads(key) for (key,) in piece]

    def left(self, connection: Connection[Any], first: Key | None, last: Key | None) -> Iterator[list[list[Any]]]:
        """The rows that the chunk had instead of them, in pieces."""
        found = self._range(connection, first, last, "row")
        for piece in pieces((row for (row,) in found if row is not None), len, _BLOCK):
            yield [marshal.loads(row) for row in piece]


class NetChanges(RewindLog):
    """For a table without a key: how many equal rows the changes since the low watermark added or removed."""

    def _note_absent(self) -> None:
        super()._note_absent()
        if self.absent:
            raise SchemaChanged(
                f"{self._schema.name} has no primary key and got a column after its snapshot was planned.",
                "Start the query again with a new checkpoint.",
            )

    def _touch(self, change: RowsChange, pending: list[tuple[Any, ...]], seen: Watermark | None) -> None:
        # With its position: MariaDB may give two transactions the same number.
        transaction = change.uuid, change.number, change.at
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
        """Whether ``seen`` includes every transaction of the table in the log so far."""
        self._unsettled = {t for t in self._unsettled if not seen.includes(*t)}
        return not self._unsettled

    def added(
        self, connection: Connection[Any], first: Key | None, last: Key | None
    ) -> Iterator[list[tuple[list[Any], int]]]:
        """For the chunk after ``first`` up to ``last``: rows to remove, and how many of each. In pieces."""
        found = self._range(connection, first, last, "row, -n", "n < 0")
        for piece in pieces(found, lambda row: len(row[0]), _KEYS):
            yield [(marshal.loads(row), n) for row, n in piece]

    def left(self, connection: Connection[Any], first: Key | None, last: Key | None) -> Iterator[list[list[Any]]]:
        """For the chunk after ``first`` up to ``last``: rows to add, each as often as it is missing. In pieces."""
        found = self._range(connection, first, last, "row, n", "n > 0")
        for piece in pieces((row for row, n in found for _ in range(n)), len, _BLOCK):
            yield [marshal.loads(row) for row in piece]


# One log for each worker process: chunks of a batch in the same process share it. A new batch has another low watermark
# and cannot use the old log.
_current: tuple[tuple[object, ...], RewindLog] | None = None


def rewind_log(
    options: MySqlOptions, schema: TableSchema, known: TableSchema, low: str, first: Key | None, last: Key | None
) -> RewindLog:
    """The process's log for a batch; created at its first chunk."""
    global _current
    key = (options, schema, known, low, first, last)
    if _current is None or _current[0] != key:
        discard_rewind_log()
        kind = FirstImages if schema.key else NetChanges
        _current = (key, kind(options, schema, known, low, first, last))
    return _current[1]


def discard_rewind_log() -> None:
    """Drop the process's log, which may be incomplete after an error."""
    global _current
    if _current is not None:
        _current[1].close()
        _current = None
