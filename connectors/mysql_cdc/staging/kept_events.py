"""Decides which events of the log are staged, and what of them (pure).

Staged are the rows of captured tables, statements about tables, and the frame of every transaction: GTID, BEGIN,
COMMIT. Of any other event only the header stays, so that positions are those of the log. A statement about users or
with a credential is never staged, nor are the texts of statements that the server logs beside rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..binlog.captured_tables import CapturedTables
from ..binlog.inflating import inflated, payload_events
from ..binlog.log_position import FORMAT, HEADER, ROTATE
from ..binlog.row_decoder import TableMap
from ..binlog.row_events import ROWS
from ..schema.ddl.renames import altered_table, made
from ..schema.ddl.statements import DML, changed_tables, first_word, readings, statement_text
from ..schema.ddl.writes import fills_by_functions
from ..schema.table import SchemaChanged

__all__ = ["KeptEvents", "NotStaged"]

_QUERY, _XID, _TABLE_MAP, _IGNORABLE, _PAYLOAD, _COMPRESSED_QUERY = 2, 16, 19, 28, 40, 165
_HEARTBEATS = {27, 41}
# Frames of transactions: the end of one, GTIDs, and a prepared XA transaction.
_FRAMES = {_XID, 33, 34, 38, 42, 162}
_CONTROL = {"ROLLBACK", "XA", "SAVEPOINT", "RELEASE"}
_OF_TABLES = {"ALTER", "CREATE", "DROP", "RENAME", "TRUNCATE"}
_OF_USERS = re.compile(
    r"\W*(?:(?:ALTER|CREATE|DROP|RENAME)\s+(?:OR\s+REPLACE\s+)?(?:USER|ROLE|SERVER)|GRANT|REVOKE)\b", re.I
)
# In a statement about a table: of tables of other servers (FEDERATED, SPIDER), or of a form that is not known here.
_CREDENTIAL = re.compile(
    r"""\b(?:CONNECTION|PASSWORD|PASSWD|PWD)\s*[=(]?\s*['"]|\bIDENTIFIED\s+(?:BY|WITH|VIA)\b|\bPASSWORD\s*\(""", re.I
)


class NotStaged(Exception):
    """The log has an event that must not be staged, and that a reader has to see."""


class KeptEvents:
    """Goes through the packets of one dump.

    Parameters
    ----------
    tables : CapturedTables
    is_captured : callable
        Whether the rows of a table, given its database and name, are staged.
    most_inflated : int
        As for `Events`.
    """

    def __init__(self, tables: CapturedTables, is_captured: Callable[[str, str], bool], most_inflated: int) -> None:
        self._tables = tables
        self._is_captured = is_captured
        self._most_inflated = most_inflated
        self._kept: dict[bytes, bool] = {}  # by a table's id in the log
        self._tail = 0

    def of(self, data: bytes) -> bytes | None:
        """The packet to stage for an event; None for a heartbeat.

        Raises
        ------
        NotStaged
            Says why.
        """
        kind = data[5]
        if kind in _HEARTBEATS:
            return None
        if kind in (ROTATE, FORMAT):
            self._kept.clear()
            if kind == FORMAT:
                self._tail = 4 if data[-5] == 1 else 0
            return data
        if kind in _FRAMES:
            return data
        if kind == _PAYLOAD:
            return self._payload(data)
        if kind == _TABLE_MAP:
            _, database, table = TableMap.table_name(data[HEADER:])
            self._kept[data[HEADER : HEADER + 6]] = self._is_captured(database, table)
        if kind in ROWS or kind == _TABLE_MAP:
            kept = self._kept.get(data[HEADER : HEADER + 6])
            if kept is None:
                raise NotStaged("it has rows without a table map")
            return data if kept else _header(data, _IGNORABLE)
        if kind in (_QUERY, _COMPRESSED_QUERY):
            return data if self._wants(data, kind) else self._emptied(data)
        return _header(data, kind)

    def _payload(self, data: bytes) -> bytes:
        """A compressed transaction without the events that are not staged. It is not compressed any more."""
        tail, self._tail = self._tail, 0
        events = payload_events(data[HEADER : len(data) - tail], self._most_inflated)
        # Field 2, the compression, has the value 255: none. 0 ends the fields.
        kept = [b"\x02\x03\xfc\xff\x00\x00", *(event[1:] for event in events if self.of(event) == event)]
        self._tail = tail
        return b"".join([data[:HEADER], *kept, bytes(tail)])

    def _emptied(self, data: bytes) -> bytes:
        """A statement's event without database, variables and text. Like any statement it ends its transaction."""
        fixed = data[HEADER : HEADER + 8] + b"\0" + data[HEADER + 9 : HEADER + 11]
        return _header(data, _QUERY) + fixed + bytes(3 + self._tail)

    def _wants(self, data: bytes, kind: int) -> bool:
        """Whether a statement is staged."""
        schema_size, status_size = data[HEADER + 8], int.from_bytes(data[HEADER + 11 : HEADER + 13], "little")
        at = HEADER + 13 + status_size
        raw = data[at + schema_size + 1 : len(data) - self._tail]
        if kind == _COMPRESSED_QUERY:
            raw = inflated(raw, self._most_inflated)
        if raw in (b"BEGIN", b"COMMIT"):
            return True
        text = statement_text(raw, data[HEADER + 13 : at])
        return self._wants_text(text, data[at : at + schema_size].decode("utf-8", "replace"))

    def _wants_text(self, text: str, default: str) -> bool:
        first = first_word(text)
        if not first or first in _CONTROL:
            return bool(first)
        if any(map(_OF_USERS.match, readings(text))):
            return False  # it changes no table
        if first in DML or (first == "CREATE" and fills_by_functions(text)):
            if unsafe := self._tables.unsafe_write(first, text, default):
                raise NotStaged(f"it has {unsafe} and the values of such a statement are not stored")
            return False
        try:
            changes = self._tables.changes(first, text, default)
            concerns = bool(changes.altered or changes.removed)
        except SchemaChanged:  # a reader raises it again
            concerns = True
        if not concerns and not (first in _OF_TABLES and _names_table(text, default)):
            return False
        if _CREDENTIAL.search(text):
            if concerns:
                raise NotStaged("it has a statement about captured tables with a credential")
            return False
        return True


def _names_table(text: str, default: str) -> bool:
    return bool(made(text, default) or altered_table(text, default) or changed_tables(text, default))


def _header(data: bytes, kind: int) -> bytes:
    """Only the header, of an event of another type. It has the size of the whole event."""
    return data[:5] + bytes([kind]) + data[6:HEADER]
