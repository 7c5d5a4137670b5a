"""Taking rows back to a low watermark: the first image of every key that changed after it.

A chunk is read at any time after its low watermark. For each of its keys that a later transaction touched, the
before-image of the *first* touch is the row as it was at the watermark; a first touch by an insert means that
there was no row. So the same chunk gives the same rows whenever and however often it is read.
"""

from __future__ import annotations

import marshal
import sqlite3
from typing import Any

from .binlog import RowsChange, TransactionEnd, read_changes
from .offsets import BinlogPosition
from .options import MySqlOptions
from .schema import TableSchema
from .watermark import resume_after

__all__ = ["RewindLog", "rewind_log"]

# sqlite's page cache, in KiB: what a worker holds in memory before the log goes to a temporary file.
_CACHE_KIB = 32_768
_INSERT_BLOCK = 5_000


class RewindLog:
    """First images of the keys of one batch's range since its low watermark.

    The log grows as chunks need it: `advance` reads only what is new. It lives in a private temporary database
    of sqlite, which keeps it in memory as long as it is small and moves it to disk when it is not.

    Parameters
    ----------
    options, schema
        Where to read and which table.
    low : str
        The low watermark, as an offset keeps it.
    first, last : int or None
        The batch's key range: after ``first``, up to and with ``last``; None is open.
    """

    def __init__(
        self, options: MySqlOptions, schema: TableSchema, low: str, first: int | None, last: int | None
    ) -> None:
        self._options = options
        self._schema = schema
        self._reached = resume_after(low)
        self._key_index = schema.key_index
        self._bounds = _shift(schema, first), _shift(schema, last)
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("CREATE TABLE image (key INTEGER PRIMARY KEY, row BLOB)")

    def advance(self, until: BinlogPosition) -> None:
        """Read the binary log on, at least as far as ``until``.

        Raises
        ------
        SchemaChanged
            When the table was altered after the low watermark. After any error the log is to be discarded.
        """
        pending: list[tuple[int, bytes | None]] = []
        for change in read_changes(self._options, self._schema, self._reached, until):
            if isinstance(change, TransactionEnd):
                self._reached = change.position
                continue
            self._touch(change, pending)
            if len(pending) >= _INSERT_BLOCK:
                self._store(pending)
                pending = []
        self._store(pending)
        if not isinstance(self._reached, BinlogPosition) or self._reached.sort_key() < until.sort_key():
            self._reached = until  # nothing lies between: the next chunk need not look again

    def _touch(self, change: RowsChange, pending: list[tuple[int, bytes | None]]) -> None:
        at = self._key_index
        low, high = self._bounds
        for _, before, after in change.rows:
            old = None if before is None else _shift(self._schema, before[at])
            if before is not None and old is not None and (low is None or old > low) and (high is None or old <= high):
                pending.append((old, marshal.dumps(before)))
            new = None if after is None else _shift(self._schema, after[at])
            if new is not None and new != old and (low is None or new > low) and (high is None or new <= high):
                pending.append((new, None))

    def _store(self, pending: list[tuple[int, bytes | None]]) -> None:
        if pending:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR IGNORE INTO image VALUES (?, ?)", pending)
            self._db.execute("COMMIT")

    def images(self, first: int | None, last: int | None) -> dict[int, list[Any] | None]:
        """First images of the keys after ``first`` up to ``last``; None where there was no row."""
        low, high = _shift(self._schema, first), _shift(self._schema, last)
        found = self._db.execute(
            "SELECT key, row FROM image WHERE (?1 IS NULL OR key > ?1) AND (?2 IS NULL OR key <= ?2)", (low, high)
        )
        back = _unshift(self._schema)
        return {key + back: None if row is None else marshal.loads(row) for key, row in found}

    def close(self) -> None:
        """Drop the log and its temporary file."""
        self._db.close()


def _unshift(schema: TableSchema) -> int:
    """BIGINT UNSIGNED keys are stored 2**63 lower: sqlite's integers are signed."""
    column = schema.key_column
    return 2**63 if column.unsigned and column.data_type == "bigint" else 0


def _shift(schema: TableSchema, key: Any) -> int | None:
    return None if key is None else int(key) - _unshift(schema)


# One log a worker process: chunks of a batch that land in the same process share it. A new batch has another
# low watermark, and the old log is of no more use.
_current: tuple[tuple[object, ...], RewindLog] | None = None


def rewind_log(options: MySqlOptions, schema: TableSchema, low: str, first: int | None, last: int | None) -> RewindLog:
    """The process's log of a batch, made at its first chunk."""
    global _current
    key = (options, schema, low, first, last)
    if _current is None or _current[0] != key:
        discard_rewind_log()
        _current = (key, RewindLog(options, schema, low, first, last))
    return _current[1]


def discard_rewind_log() -> None:
    """Forget the process's log: after an error it may lack a part."""
    global _current
    if _current is not None:
        _current[1].close()
        _current = None
