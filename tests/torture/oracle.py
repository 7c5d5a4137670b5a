"""What the binary log says, read by python-mysql-replication: nothing of ours but the columns' names.

It is read from its first file at the end of a torture, when nothing is written any more. Whatever a transaction has
when the log goes on without its end was never committed: a server that is killed leaves such.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any
from unittest import mock

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import GtidEvent, MariadbGtidEvent, QueryEvent, XidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from servers.mysql import MySQLServer

from .tables import DATABASE, TABLES, Shape, family, following, plain, preceding

Image = dict[str, Any]
"""Values by the columns' families."""
Change = tuple[str, Image]
"""Kind, as in ``_change_type``, and image."""
Changes = dict[tuple[str, int, tuple[Any, ...]], list[Change]]
"""In order, by table, epoch and key. An epoch of a table ends where all its rows are removed or it gets others."""

_EVENTS = [QueryEvent, XidEvent, GtidEvent, MariadbGtidEvent, WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent]
_ALTERED = re.compile(rf"(?:ALTER|RENAME) TABLE {DATABASE}\.(\w+) /\* (\d+) \*/")
_EMPTIED = re.compile(rf"(TRUNCATE|DROP) TABLE (?:IF EXISTS )?`?{DATABASE}`?\.`?(\w+)`?")
_SWAPPED = re.compile(rf"RENAME TABLE {DATABASE}\.(\w+) TO ")


class Log:
    """The changes of both tables.

    Attributes
    ----------
    changes : Changes
    emptied : dict
        By table the kinds of the statements that begin its second and later epochs: ``"truncate"`` or ``"drop"``.
    bases : dict
        By table, epoch and key the rows that an epoch began with. Only of tables that others were renamed to.
    transactions, altered, broken, truncated : int
        How many there were, with rows of the tables; ALTER TABLEs; transactions without an end; files that end with
        half an event.
    """

    def __init__(self, server: MySQLServer, shape: Shape) -> None:
        self.changes: Changes = defaultdict(list)
        self.emptied: dict[str, list[str]] = {table: [] for table in TABLES}
        self.bases: dict[tuple[str, int, tuple[Any, ...]], Image] = {}
        self._next: dict[str, dict[tuple[Any, ...], Image]] = defaultdict(dict)
        self.transactions = self.altered = self.broken = self.truncated = 0
        self._shape = shape
        self._names = dict.fromkeys(TABLES, shape.stages[0])
        self._open: list[tuple[str, str, list[Any]]] = []
        files = [row[0] for row in server.execute("SHOW BINARY LOGS")]
        with mock.patch.object(QueryEvent, "_read_status_vars_value_for_key", _skip):
            while files:
                last = self._read(server, files[0])
                files = files[files.index(last) + 1 :]

    def _read(self, server: MySQLServer, first: str) -> str:
        """Read on from a file; returns the last one that was read, to its end or to where it is broken off."""
        stream = BinLogStreamReader(
            connection_settings={"host": server.host, "port": server.port, "user": server.user, "passwd": ""},
            server_id=4_000_000_001,
            blocking=False,
            resume_stream=True,
            log_file=first,
            log_pos=4,
            only_events=_EVENTS,
        )
        try:
            for event in stream:
                self._take(event)
        except pymysql.err.OperationalError as error:
            if "truncated in the middle of event" not in str(error):
                raise
            self.truncated += 1
        finally:
            stream.close()
        return str(stream.log_file)

    def _take(self, event: Any) -> None:
        if isinstance(event, GtidEvent | MariadbGtidEvent):
            self.broken += bool(self._open)
            self._open = []
        elif isinstance(event, XidEvent):
            self._commit()
        elif isinstance(event, QueryEvent):
            text = event.query if isinstance(event.query, str) else event.query.decode()
            if found := _ALTERED.match(text):
                self._names[found[1]] = self._shape.stages[int(found[2])]
                self.altered += 1
            elif text == "COMMIT":
                self._commit()
            elif found := _EMPTIED.match(text):
                self._next.pop(found[2], None)
                if found[2] in TABLES:
                    self.emptied[found[2]].append(found[1].lower())
            elif (found := _SWAPPED.match(text)) and found[1] in TABLES:
                self.emptied[found[1]].append("drop")
                rows = self._next.pop(following(found[1]), {})
                self.bases.update({(found[1], len(self.emptied[found[1]]), key): row for key, row in rows.items()})
        elif event.schema == DATABASE and event.table in (*TABLES, *map(following, TABLES)):
            self._rows(event)

    def _rows(self, event: Any) -> None:
        for row in event.rows:
            if isinstance(event, WriteRowsEvent):
                self._add(event.table, "insert", row["values"])
            elif isinstance(event, DeleteRowsEvent):
                self._add(event.table, "delete", row["values"])
            else:
                self._add(event.table, "before", row["before_values"])
                self._add(event.table, "after", row["after_values"])

    def _add(self, table: str, kind: str, values: dict[str, Any]) -> None:
        # By ordinal: without binlog_row_metadata=FULL the log has no names.
        self._open.append((table, kind, list(values.values())))

    def _commit(self) -> None:
        self.transactions += bool(self._open)
        images = [(table, kind, self._image(table, values)) for table, kind, values in self._open]
        for i, (table, kind, image) in enumerate(images):
            moved = kind in ("before", "after") and self._key(image) != self._key(
                images[i + (1, -1)[kind == "after"]][2]
            )
            told = {
                "before": "delete" if moved else "update_preimage",
                "after": "insert" if moved else "update_postimage",
            }
            if table in TABLES:
                epoch = len(self.emptied[table])
                self.changes[table, epoch, self._key(image)].append((told.get(kind, kind), image))
            else:
                self._next[table][self._key(image)] = image
        self._open = []

    def _image(self, table: str, values: list[Any]) -> Image:
        names = self._names[preceding(table)]
        assert len(names) == len(values), f"{table}: {names} and {values}"
        return {family(name): plain(value) for name, value in zip(names, values, strict=True)}

    def _key(self, image: Image) -> tuple[Any, ...]:
        return tuple(image[name] for name in self._shape.key_columns)


def _skip(event: QueryEvent, key: int) -> None:
    """Pass over all status variables: the library does not know those of MariaDB."""
    event.packet.read(event.status_vars_length - 1)


def rows_of(changes: list[Change], base: Image | None) -> Image | None:
    """The row that changes leave of the one before them, or None."""
    if not changes:
        return base
    kind, image = changes[-1]
    return None if kind == "delete" else image
