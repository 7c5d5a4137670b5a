"""The events of a binary log, taken apart: the changes of some tables and every transaction's end.

python-mysql-replication's own reading is not used, because it drops what it does not know, reconnects without end and
in the middle of transactions, and decodes some values wrongly. Whatever this module does not understand is an error.

Sources: MySQL source documentation, "Binlog Event"; MariaDB Knowledge Base, "Replication Protocol" (GTID_EVENT,
QUERY_COMPRESSED_EVENT, ROWS_EVENT).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from backlog_spark.errors import BacklogError

from .decoder import RowDecoder, SchemaChanged, TableMap, read_length
from .offsets import BinlogPosition, file_number
from .schema import TableSchema
from .statements import (
    DDL,
    DML,
    changes_table,
    dropped_database,
    empties_memory_table,
    first_word,
    named_tables,
    statement_text,
)
from .timeline import TableAltered, Timeline

__all__ = [
    "DELETE",
    "INSERT",
    "UPDATE",
    "Change",
    "Events",
    "NotYetSent",
    "RowsChange",
    "Savepoint",
    "TableAltered",
    "TransactionBroken",
    "TransactionEnd",
]

INSERT, UPDATE, DELETE = "insert", "update", "delete"

_QUERY, _ROTATE, _FORMAT, _XID, _TABLE_MAP, _GTID, _ANONYMOUS_GTID = 2, 4, 15, 16, 19, 33, 34
_ROWS = {23: INSERT, 24: UPDATE, 25: DELETE, 30: INSERT, 31: UPDATE, 32: DELETE}
_ROWS_V1 = {23, 24, 25}
_PARTIAL_UPDATE, _XA_PREPARE = 39, 38
# Stop, intvar, rand, user var, heartbeats, ignorable, rows query, previous gtids, transaction context, view change
# and MariaDB's annotated rows, binlog checkpoint, GTID list: nothing that changes a row. And its start of encryption:
# that is how the file is kept, the events are sent as they were before.
_IGNORED = {3, 5, 13, 14, 27, 28, 29, 35, 36, 37, 41, 160, 161, 163, 164}
_IGNORABLE_FLAG, _ARTIFICIAL_FLAG = 0x80, 0x20
_GTID_OF_MARIADB, _COMPRESSED_QUERY = 162, 165
_COMPRESSED_ROWS = range(166, 172)
_STANDALONE, _GROUP_COMMIT, _PREPARED_XA, _COMPLETED_XA = 1, 2, 64, 128  # flags of MariaDB's GTID event
# Of its second set: an ALTER TABLE that only starts, or failed (binlog_alter_two_phase); it is logged again at its end.
_START_ALTER, _ROLLBACK_ALTER = 2, 8
_TABLE_ID = 6  # bytes
_MOST_TOLD = 1_000
_UUID = 36  # letters of MySQL's; MariaDB has domain-server in its place
_HEADER = 20  # one OK byte, then the event header of 19 bytes


@dataclass(frozen=True, slots=True)
class RowsChange:
    """The rows of one event.

    Parameters
    ----------
    schema : TableSchema
        The table's.
    kind : str
        ``"insert"``, ``"update"`` or ``"delete"``.
    uuid, number : str, int
        The transaction's GTID.
    timestamp : int
        Seconds since 1970 (UTC) at which the statement ran.
    file, server_id : str, int
        The binary log's file, and the server that the statement ran on.
    rows : list of (sequence, before, after)
        Storage values; ``before`` is None for an insert, ``after`` for a delete. ``sequence`` grows along the
        binary log and is unique for each image: file number << 32 | byte position of the image; that of an
        update's after-image is ``sequence + 1``, since no image is shorter than one byte.
    size : int
        Bytes of the event.
    """

    schema: TableSchema
    kind: str
    uuid: str
    number: int
    timestamp: int
    rows: list[tuple[int, list[Any] | None, list[Any] | None]]
    file: str = ""
    server_id: int = 0
    size: int = 0

    @property
    def gtid(self) -> str:
        """The transaction's GTID as its server writes it; "" without one."""
        return f"{self.uuid}{':' if len(self.uuid) == _UUID else '-'}{self.number}" if self.uuid else ""


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The end of a transaction, of any table: a place where reading may resume.

    ``timestamp`` is the server's, seconds since 1970 (UTC), of the transaction's first event. MariaDB logs transactions
    that were rolled back if they had to do with tables that are not transactional.
    """

    position: BinlogPosition
    uuid: str
    number: int
    timestamp: int = 0
    is_rolled_back: bool = False


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint of MariaDB's; ``is_back``: what came after the last one of that name was rolled back."""

    name: str
    is_back: bool


@dataclass(frozen=True, slots=True)
class TransactionBroken:
    """The log went on without the transaction's end: the server died while it wrote it, and rolled it back."""


class NotYetSent(Exception):
    """The place up to which the server has sent its log, before that up to which it is to be read."""


Change = RowsChange | TableAltered | TransactionEnd


class Events:
    """Takes the events of one dump apart. Holds what one event says of the next: file, GTID, table maps.

    Without tables it finds the ends of transactions alone, whatever is in them. ``timeline`` says how the tables' rows
    are laid out.
    """

    def __init__(
        self,
        connection: Any,
        tables: Sequence[TableSchema],
        until: BinlogPosition | None,
        timeline: Timeline,
        zero_date_fails: bool = False,
    ) -> None:
        self._connection = connection
        self._tail = 0
        self._tables = {(t.database, t.table): t for t in tables}
        # By what a statement may call it: where names differ by case alone, several.
        self._folded: dict[tuple[str, str], list[TableSchema]] = {}
        for t in tables:
            self._folded.setdefault((t.database.lower(), t.table.lower()), []).append(t)
        self._until = until.sort_key() if until else None
        self._timeline = timeline
        self._zero_date_fails = zero_date_fails
        self._altered: list[tuple[TableSchema, str]] = []
        self._file = ""
        self._file_number = self._sent = 0
        self._decoders: dict[int, RowDecoder | None] = {}
        self._told: dict[bytes, RowDecoder | None] = {}
        self._uuid, self._number = "", 0
        self._began_at = 0
        self._rows_seen = self._is_open = self._is_rolled_back = False
        self._savepoint: Savepoint | None = None
        self._xa = self._no_alter = False
        # MariaDB: only the transaction's last event ends it, be it a COMMIT or the one statement of a standalone group.
        self._of_mariadb = self._in_group = False
        self._end_of_last, self._end_is_told = 0, True

    def read(self) -> Iterator[Change | Savepoint | TransactionBroken]:
        """All up to ``until``; NotYetSent if MySQL sends less: it tells of places up to which it has not synced yet."""
        while True:
            packet = self._connection._read_packet()
            if packet.is_eof_packet():
                if self._until and (self._file_number, self._sent) < self._until:
                    raise NotYetSent(f"{self._file}:{self._sent}")
                return
            data = packet.get_all_data()
            if data[0]:  # neither an event nor an end of file
                raise BacklogError(f"The binary log stream holds a packet that starts with {data[0]}.")
            kind = data[5]
            size = int.from_bytes(data[10:14], "little")
            end = self._end_of(data, size)
            self._sent = max(self._sent, end)
            if kind == _ROTATE:
                self._rotate(data)
            elif kind == _FORMAT:
                self._decoders.clear()
                self._tail = 4 if data[-5] == 1 else 0  # the algorithm, then the format event's own checksum
            elif kind in (_GTID, _ANONYMOUS_GTID, _GTID_OF_MARIADB):
                if self._until and (self._file_number, end - size) >= self._until:
                    return
                if self._is_open:
                    yield TransactionBroken()
                self._begin(data, kind)
            elif kind == _TABLE_MAP:
                self._table_map(data)
            elif kind in _ROWS:
                change = self._rows(data, kind, end - size)
                if change is not None:
                    self._is_open = True
                    yield change
            elif kind == _XID:
                yield self._end(end)
                if self._until and (self._file_number, end) >= self._until:
                    return
            elif kind in (_QUERY, _COMPRESSED_QUERY):
                is_end = self._query(data, kind)
                for schema, statement in self._altered:
                    altered = TableAltered(schema, statement, BinlogPosition(self._file, end))
                    self._timeline.altered(altered)
                    self._told.clear()
                    self._decoders.clear()
                    yield altered
                self._altered.clear()
                if self._savepoint is not None:
                    yield self._savepoint
                    self._savepoint = None
                if is_end:
                    yield self._end(end)
                    if self._until and (self._file_number, end) >= self._until:
                        return
            elif kind == _XA_PREPARE:
                yield self._end(end)
            elif kind == _PARTIAL_UPDATE:
                if self._decoders.get(int.from_bytes(data[_HEADER : _HEADER + 6], "little")) is not None:
                    raise self._refused("a partial JSON update", "Set binlog_row_value_options='' on the server.")
            elif kind in _COMPRESSED_ROWS:
                self._compressed_rows(data)
            elif kind not in _IGNORED and not int.from_bytes(data[18:20], "little") & _IGNORABLE_FLAG:
                raise self._refused(
                    f"an event of type {kind}, which mysql_cdc does not read",
                    "Type 40 is a compressed transaction: set binlog_transaction_compression=OFF.",
                )

    def first_place(self) -> BinlogPosition | None:
        """Where the first transaction begins; None if there is none up to the log's end."""
        while True:
            packet = self._connection._read_packet()
            if packet.is_eof_packet():
                return None
            data = packet.get_all_data()
            size = int.from_bytes(data[10:14], "little")
            if data[5] == _ROTATE:
                self._rotate(data)
            elif data[5] in (_GTID, _ANONYMOUS_GTID, _GTID_OF_MARIADB):
                return BinlogPosition(self._file, self._end_of(data, size) - size)

    def _end_of(self, data: bytes, size: int) -> int:
        """Where an event ends in its file.

        MariaDB 11.4 leaves that out of the events inside a transaction, which follow one another. One that it keeps to
        itself (annotated rows) shifts those behind it, so they are known by a place that is too low, yet never by that
        of another event: the transaction's first and last event say where they are.
        """
        end = int.from_bytes(data[14:18], "little")
        if int.from_bytes(data[18:20], "little") & _ARTIFICIAL_FLAG or data[5] in (_ROTATE, _FORMAT):
            return end
        self._end_is_told = end > 0
        self._end_of_last = end or self._end_of_last + size
        return self._end_of_last

    def _refused(self, what: str, hint: str) -> BacklogError:
        mark = "-" if self._of_mariadb else ":"
        return BacklogError(f"The binary log has {what} in transaction {self._uuid}{mark}{self._number}.", hint)

    def _rotate(self, data: bytes) -> None:
        # The one that opens a file is made up and comes before the format: whether it has a checksum, only that tells.
        checked = zlib.crc32(data[1:-4]) == int.from_bytes(data[-4:], "little")
        self._file = data[_HEADER + 8 : len(data) - (4 if checked else 0)].decode()
        self._file_number = file_number(self._file)
        self._sent = int.from_bytes(data[_HEADER : _HEADER + 8], "little")  # where what is sent of the file starts
        self._decoders.clear()

    def _begin(self, data: bytes, kind: int) -> None:
        self._began_at = int.from_bytes(data[1:5], "little")
        if kind == _GTID:
            sid = data[_HEADER + 1 : _HEADER + 17].hex()
            self._uuid = f"{sid[:8]}-{sid[8:12]}-{sid[12:16]}-{sid[16:20]}-{sid[20:]}"
            self._number = int.from_bytes(data[_HEADER + 17 : _HEADER + 25], "little")
        elif kind == _GTID_OF_MARIADB:
            domain, server = data[_HEADER + 8 : _HEADER + 12], data[6:10]
            self._uuid = f"{int.from_bytes(domain, 'little')}-{int.from_bytes(server, 'little')}"
            self._number = int.from_bytes(data[_HEADER : _HEADER + 8], "little")
        else:
            self._uuid, self._number = "", 0
        flags = data[_HEADER + 12] if kind == _GTID_OF_MARIADB else 0
        self._of_mariadb = kind == _GTID_OF_MARIADB
        self._in_group = self._of_mariadb and not flags & _STANDALONE
        self._xa = bool(flags & _PREPARED_XA)
        at = _HEADER + (21 if flags & _GROUP_COMMIT else 13)
        has_more = self._of_mariadb and not flags & (_PREPARED_XA | _COMPLETED_XA) and len(data) - self._tail > at
        self._no_alter = has_more and bool(data[at] & (_START_ALTER | _ROLLBACK_ALTER))
        self._rows_seen = self._is_open = self._is_rolled_back = False

    def _end(self, end: int) -> TransactionEnd:
        if not self._end_is_told:
            raise self._refused("an end without a position", "Report this with the server's version.")
        self._is_open = False
        told = self._uuid, self._number, self._began_at, self._is_rolled_back
        return TransactionEnd(BinlogPosition(self._file, end), *told)

    def _table_map(self, data: bytes) -> None:
        body = data[_HEADER : len(data) - self._tail]
        # Every transaction tells the tables that it changes again, nearly always as the one before did.
        told = body[_TABLE_ID:]
        if told in self._told:
            self._decoders[int.from_bytes(body[:_TABLE_ID], "little")] = self._told[told]
            return
        table_id, database, table = TableMap.table_name(body)
        schema = self._tables.get((database, table)) if self._timeline.decodes else None
        decoder = None
        if schema is not None:
            layout = self._timeline.layout(schema)
            decoder = RowDecoder(schema, TableMap.parse(body), layout, zero_date_fails=self._zero_date_fails)
        if len(self._told) >= _MOST_TOLD:
            self._told.clear()
        self._told[told] = self._decoders[table_id] = decoder

    def _rows(self, data: bytes, kind: int, event_start: int) -> RowsChange | None:
        table_id = int.from_bytes(data[_HEADER : _HEADER + 6], "little")
        decoder = self._decoders.get(table_id, ...)
        if decoder is None:
            return None
        if decoder is ...:
            raise self._refused(f"rows of table id {table_id} without a table map", "Start the query again.")
        if self._xa:
            raise self._refused(f"an XA transaction on {decoder.schema.name}", "Change the table without XA.")
        self._rows_seen = True
        end = len(data) - self._tail
        offset = _HEADER + 8
        if kind not in _ROWS_V1:
            offset += int.from_bytes(data[offset : offset + 2], "little")
        count, offset = read_length(data, offset)
        width = (count + 7) // 8
        change = _ROWS[kind]
        for _ in range(2 if change == UPDATE else 1):
            decoder.check_present(data[offset : offset + width])
            offset += width
        # Position of data[0] in the file, one less than the event's because of the OK byte.
        base = (self._file_number << 32) + event_start - 1
        read_row = decoder.read_row
        rows: list[tuple[int, list[Any] | None, list[Any] | None]] = []
        if change == UPDATE:
            while offset < end:
                sequence = base + offset
                before, offset = read_row(data, offset)
                after, offset = read_row(data, offset)
                rows.append((sequence, before, after))
        elif change == INSERT:
            while offset < end:
                sequence = base + offset
                after, offset = read_row(data, offset)
                rows.append((sequence, None, after))
        else:
            while offset < end:
                sequence = base + offset
                before, offset = read_row(data, offset)
                rows.append((sequence, before, None))
        if offset != end:
            raise self._refused("a row image that does not end where its event ends", "Report this with the table.")
        at, server_id = int.from_bytes(data[1:5], "little"), int.from_bytes(data[6:10], "little")
        told = self._uuid, self._number, at, rows, self._file, server_id, len(data)
        return RowsChange(decoder.schema, change, *told)

    def _compressed_rows(self, data: bytes) -> None:
        # Rows that take more room than the event has cannot be told apart by their place in the file.
        if self._decoders.get(int.from_bytes(data[_HEADER : _HEADER + 6], "little"), ...) is not None:
            raise self._refused("compressed rows", "Set log_bin_compress=OFF on the server, and a new checkpoint.")

    def _query(self, data: bytes, kind: int) -> bool:
        """Whether the statement ends a transaction. Refuses what would change the table unseen."""
        schema_size = data[_HEADER + 8]
        status_size = int.from_bytes(data[_HEADER + 11 : _HEADER + 13], "little")
        at = _HEADER + 13 + status_size
        default = data[at : at + schema_size].decode("utf-8", "replace")
        raw = data[at + schema_size + 1 : len(data) - self._tail]
        if kind == _COMPRESSED_QUERY:
            raw = zlib.decompress(raw[1 + (raw[0] & 7) :])  # after a byte with the size of the length, and the length
        if raw == b"BEGIN":
            return False
        if raw == b"COMMIT":
            return True
        text = statement_text(raw, data[_HEADER + 13 : at])
        first = first_word(text)
        if first in ("ROLLBACK", "XA", "SAVEPOINT", "RELEASE"):
            return self._control(first, text)
        if first in DDL or first in DML:
            self._statement(first, text, default)
        return not self._in_group

    def _control(self, first: str, text: str) -> bool:
        words = text.upper().split()
        if first == "XA":
            self._xa = self._xa or words[1:2] == ["START"] or words[1:2] == ["BEGIN"]
            return words[1:2] in (["COMMIT"], ["ROLLBACK"])
        if first == "ROLLBACK" and self._rows_seen and not self._of_mariadb:
            raise self._refused(f"{text!r} after rows of the table", "Do not mix engines in a transaction.")
        if self._of_mariadb and (first == "SAVEPOINT" or words[1:2] == ["TO"]):
            name = text.split(maxsplit=1 if first == "SAVEPOINT" else 2)[-1]
            self._savepoint = Savepoint(name, is_back=first == "ROLLBACK")
        self._is_rolled_back = first == "ROLLBACK" and len(words) == 1
        return self._is_rolled_back

    def _statement(self, first: str, text: str, default: str) -> None:
        if not self._tables:
            return
        gone = dropped_database(text) if first == "DROP" else set()
        for database, table in self._folded:
            if database in gone:
                name = self._folded[database, table][0].name
                raise SchemaChanged(f"The database of {name} was dropped: {text[:200]!r}.", "Stop the query.")
        named = [schema for name in named_tables(text, default) for schema in self._folded.get(name, ())]
        if first in DML:
            if not named and empties_memory_table(text):
                return
            # Whatever table it names: through a view, a trigger or a function it may change any.
            names = ", ".join(t.name for t in named or self._tables.values())
            raise self._refused(
                f"a statement-format change, {text[:200]!r}, that may reach {names},",
                "Set binlog_format=ROW in every session, then start with a new checkpoint.",
            )
        if not named or not changes_table(first, text):
            return
        if first == "ALTER" and self._no_alter:
            return
        if first == "ALTER":
            self._altered += [(schema, text) for schema in named]
        else:
            raise SchemaChanged(
                f"The table {named[0].name} was changed by {text[:200]!r}.",
                "Start the query again with a new checkpoint and a new target.",
            )
