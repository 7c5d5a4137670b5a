"""Reading a range of the binary log: the changes of one table, in order, with every transaction's end.

python-mysql-replication opens the connection, negotiates checksums and sends the dump command. The events
are taken apart here, because the library drops what it does not know, reconnects without end and in the middle
of transactions, and decodes some values wrongly. Whatever this module does not understand is an error.

Source: MySQL source documentation, "Binlog Event" and "COM_BINLOG_DUMP_GTID".
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysqlreplication import BinLogStreamReader

from backlog_spark.errors import BacklogError

from .decoder import RowDecoder, SchemaChanged, TableMap, read_length
from .offsets import BinlogPosition, file_number
from .options import MySqlOptions
from .schema import TableSchema
from .statements import (
    DDL,
    DML,
    changes_table,
    empties_memory_table,
    first_word,
    names_database,
    names_table,
)

__all__ = ["DELETE", "INSERT", "UPDATE", "RowsChange", "TransactionEnd", "read_changes"]

INSERT, UPDATE, DELETE = "insert", "update", "delete"

_QUERY, _ROTATE, _FORMAT, _XID, _TABLE_MAP, _GTID, _ANONYMOUS_GTID = 2, 4, 15, 16, 19, 33, 34
_ROWS = {23: INSERT, 24: UPDATE, 25: DELETE, 30: INSERT, 31: UPDATE, 32: DELETE}
_ROWS_V1 = {23, 24, 25}
_PARTIAL_UPDATE, _XA_PREPARE = 39, 38
# Stop, intvar, rand, user var, heartbeats, ignorable, rows query, previous gtids, transaction context, view change
_IGNORED = {3, 5, 13, 14, 27, 28, 29, 35, 36, 37, 41}
_IGNORABLE_FLAG = 0x80
_HEADER = 20  # one OK byte, then the event header of 19 bytes

_TRANSIENT = {2002, 2003, 2006, 2013, 2014, 2055, 1053, 1317}
_MAX_ATTEMPTS = 6  # waits of 0.5, 1, 2, 4, 8 s: a server restart fits in, a dead server is told within 16 s
_FIRST_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class RowsChange:
    """The rows of one event.

    Parameters
    ----------
    kind : str
        ``"insert"``, ``"update"`` or ``"delete"``.
    uuid, number : str, int
        The transaction's GTID.
    timestamp : int
        Seconds since 1970 (UTC) at which the statement ran.
    rows : list of (sequence, before, after)
        Storage values; ``before`` is None for an insert, ``after`` for a delete. ``sequence`` grows along the
        binary log and is unique for each image: file number << 32 | byte position of the image; that of an
        update's after-image is ``sequence + 1``, since no image is shorter than one byte.
    """

    kind: str
    uuid: str
    number: int
    timestamp: int
    rows: list[tuple[int, list[Any] | None, list[Any] | None]]


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The end of a transaction, of any table: a place where reading may resume."""

    position: BinlogPosition
    uuid: str
    number: int


Change = RowsChange | TransactionEnd


class _Dump(BinLogStreamReader):  # type: ignore[misc]
    """The library's connection and dump command, without its event loop."""

    def open(self) -> Any:
        self._BinLogStreamReader__connect_to_stream()
        return self._stream_connection

    def _BinLogStreamReader__checksum_enabled(self) -> bool:
        # The library goes by the present binlog_checksum, but files written before it was switched are otherwise,
        # and a reader that does not say that it knows checksums is refused those. Each file tells by its format event.
        with self._stream_connection.cursor() as cursor:
            cursor.execute("SET @master_binlog_checksum = 'CRC32'")
        return False


def read_changes(
    options: MySqlOptions,
    schema: TableSchema,
    start: BinlogPosition | str,
    until: BinlogPosition | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Change]:
    """Changes after ``start``, as far as ``until`` or, without it, to the log's end at some time after the call.

    Parameters
    ----------
    options, schema
        Where to read and which table; other tables' rows are skipped undecoded.
    start : BinlogPosition or str
        The end of a transaction, or a GTID set whose transactions are left out.
    until : BinlogPosition, optional
        The end of a transaction or of the log. Transactions that begin at or after it are not read.
    wait : callable
        Waits before another attempt, seconds.

    Yields
    ------
    RowsChange or TransactionEnd
        In log order. A lost connection is opened again at the last transaction's end, what was yielded of the
        broken transaction is not yielded twice, and after six attempts without progress the error is raised.

    Raises
    ------
    SchemaChanged
        The table was altered, dropped, renamed or truncated.
    BacklogError
        Purged log, statement-format change, partial row image, XA transaction or unknown event.
    """
    done = 0  # changes of the unfinished transaction that the caller has already
    attempts = 0
    while True:
        skip = done
        try:
            for change in _read_once(options, schema, start, until):
                if skip and not isinstance(change, TransactionEnd):
                    skip -= 1
                    continue
                attempts = 0
                if isinstance(change, TransactionEnd):
                    start, done, skip = change.position, 0, 0
                else:
                    done += 1
                yield change
            return
        except (pymysql.err.OperationalError, pymysql.err.InterfaceError, OSError) as error:
            code = error.args[0] if error.args else 0
            if isinstance(error, pymysql.err.OperationalError) and code not in _TRANSIENT:
                raise _explained(error, start) from None
            attempts += 1
            if attempts >= _MAX_ATTEMPTS:
                raise BacklogError(
                    f"The binary log of {options.host}:{options.port} could not be read, {attempts} times: {error}.",
                    "Check that the server runs; the query resumes from its checkpoint.",
                ) from None
            wait(_FIRST_WAIT_S * 2 ** (attempts - 1))


def _explained(error: pymysql.err.MySQLError, start: BinlogPosition | str) -> BacklogError:
    code, text = error.args[0], str(error.args[1] if len(error.args) > 1 else "")
    if code == 1236:
        lowered = text.lower()
        if "purged" in lowered or "could not find first log file" in lowered:
            return BacklogError(
                f"The server has purged binary logs that are still needed after {start}: {text} (1236).",
                "The changes in them cannot be read any more: start with a new checkpoint, and raise "
                "binlog_expire_logs_seconds above the longest time that the query may lag or be stopped.",
            )
        if "same server" in lowered:
            return BacklogError(f"Another reader took this one's server id: {text} (1236).", "Start the query again.")
        return BacklogError(
            f"The server cannot read its binary log after {start}: {text} (1236).",
            "If the server was restored or replaced, start with a new checkpoint.",
        )
    if code in (1045, 1044, 1227):
        return BacklogError(
            f"The server refused to send its binary log: {text} ({code}).",
            "GRANT REPLICATION SLAVE ON *.* to the user.",
        )
    return BacklogError(f"Reading the binary log failed: {text} ({code}).")


def _open(options: MySqlOptions, start: BinlogPosition | str) -> _Dump:
    # Two readers with one server id end each other, so every dump draws its own.
    common: dict[str, Any] = {
        "connection_settings": options.connect_arguments(),
        "server_id": random.SystemRandom().randrange(2**30, 2**32 - 1),
        "blocking": False,
        "resume_stream": True,  # without it the library ignores the position
        "slave_heartbeat": 10,
        "enable_logging": False,
    }
    if isinstance(start, BinlogPosition):
        return _Dump(log_file=start.file, log_pos=start.pos, **common)
    if start:
        return _Dump(auto_position=start, **common)
    # The library reads an empty GTID set as "from now on"; everything is meant.
    connection = pymysql.connect(**options.connect_arguments())
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            first = cursor.fetchone()
    finally:
        connection.close()
    assert first is not None, "the binary log is on: checked before"
    return _Dump(log_file=str(first[0]), log_pos=4, **common)


def _read_once(
    options: MySqlOptions, schema: TableSchema, start: BinlogPosition | str, until: BinlogPosition | None
) -> Iterator[Change]:
    if isinstance(start, BinlogPosition) and until and start.sort_key() >= until.sort_key():
        return
    dump = _open(options, start)
    try:
        connection = dump.open()
        yield from _Events(dump, connection, schema, until).read()
    finally:
        # Closing the socket at once: the server may still have much to send.
        stream = getattr(dump, "_stream_connection", None)
        if stream is not None and stream.open:
            stream._force_close()


class _Events:
    """Takes the events of one dump apart. Holds what one event says of the next: file, GTID, table maps."""

    def __init__(self, dump: _Dump, connection: Any, schema: TableSchema, until: BinlogPosition | None) -> None:
        self._connection = connection
        self._tail = 0
        self._schema = schema
        self._until = until.sort_key() if until else None
        self._file = ""
        self._file_number = 0
        self._decoders: dict[int, RowDecoder | None] = {}
        self._uuid, self._number = "", 0
        self._rows_seen = False
        self._xa = False

    def read(self) -> Iterator[Change]:
        while True:
            packet = self._connection._read_packet()
            if packet.is_eof_packet():
                return
            data = packet.get_all_data()
            if data[0]:  # neither an event nor an end of file
                raise BacklogError(f"The binary log stream holds a packet that starts with {data[0]}.")
            kind = data[5]
            end = int.from_bytes(data[14:18], "little")
            size = int.from_bytes(data[10:14], "little")
            if kind == _ROTATE:
                self._rotate(data)
            elif kind == _FORMAT:
                self._decoders.clear()
                self._tail = 4 if data[-5] == 1 else 0  # the algorithm, then the format event's own checksum
            elif kind in (_GTID, _ANONYMOUS_GTID):
                if self._until and (self._file_number, end - size) >= self._until:
                    return
                self._begin(data, kind)
            elif kind == _TABLE_MAP:
                self._table_map(data)
            elif kind in _ROWS:
                change = self._rows(data, kind, end - size)
                if change is not None:
                    yield change
            elif kind == _XID:
                yield self._end(end)
                if self._until and (self._file_number, end) >= self._until:
                    return
            elif kind == _QUERY:
                if self._query(data):
                    yield self._end(end)
                    if self._until and (self._file_number, end) >= self._until:
                        return
            elif kind == _XA_PREPARE:
                yield self._end(end)
            elif kind == _PARTIAL_UPDATE:
                if self._decoders.get(int.from_bytes(data[_HEADER : _HEADER + 6], "little")) is not None:
                    raise self._refused("a partial JSON update", "Set binlog_row_value_options='' on the server.")
            elif kind not in _IGNORED and not int.from_bytes(data[18:20], "little") & _IGNORABLE_FLAG:
                raise self._refused(
                    f"an event of type {kind}, which mysql_cdc does not read",
                    "Type 40 is a compressed transaction: set binlog_transaction_compression=OFF.",
                )

    def _refused(self, what: str, hint: str) -> BacklogError:
        return BacklogError(f"The binary log has {what} in transaction {self._uuid}:{self._number}.", hint)

    def _rotate(self, data: bytes) -> None:
        # The one that opens a file is made up and comes before the format: whether it has a checksum, only that tells.
        checked = zlib.crc32(data[1:-4]) == int.from_bytes(data[-4:], "little")
        self._file = data[_HEADER + 8 : len(data) - (4 if checked else 0)].decode()
        self._file_number = file_number(self._file)
        self._decoders.clear()

    def _begin(self, data: bytes, kind: int) -> None:
        if kind == _GTID:
            sid = data[_HEADER + 1 : _HEADER + 17].hex()
            self._uuid = f"{sid[:8]}-{sid[8:12]}-{sid[12:16]}-{sid[16:20]}-{sid[20:]}"
            self._number = int.from_bytes(data[_HEADER + 17 : _HEADER + 25], "little")
        else:
            self._uuid, self._number = "", 0
        self._rows_seen = self._xa = False

    def _end(self, end: int) -> TransactionEnd:
        return TransactionEnd(BinlogPosition(self._file, end), self._uuid, self._number)

    def _table_map(self, data: bytes) -> None:
        body = data[_HEADER : len(data) - self._tail]
        table_id, database, table = TableMap.table_name(body)
        if database == self._schema.database and table == self._schema.table:
            self._decoders[table_id] = RowDecoder(self._schema, TableMap.parse(body))
        else:
            self._decoders[table_id] = None

    def _rows(self, data: bytes, kind: int, event_start: int) -> RowsChange | None:
        table_id = int.from_bytes(data[_HEADER : _HEADER + 6], "little")
        decoder = self._decoders.get(table_id, ...)
        if decoder is None:
            return None
        if decoder is ...:
            raise self._refused(f"rows of table id {table_id} without a table map", "Start the query again.")
        if self._xa:
            raise self._refused(f"an XA transaction on {self._schema.table}", "Change the table without XA.")
        if not self._uuid:
            raise self._refused(f"a change of {self._schema.table} without a GTID", "Keep gtid_mode=ON.")
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
        return RowsChange(change, self._uuid, self._number, int.from_bytes(data[1:5], "little"), rows)

    def _query(self, data: bytes) -> bool:
        """Whether the statement ends a transaction. Refuses what would change the table unseen."""
        schema_size = data[_HEADER + 8]
        status_size = int.from_bytes(data[_HEADER + 11 : _HEADER + 13], "little")
        at = _HEADER + 13 + status_size
        default = data[at : at + schema_size].decode("utf-8", "replace")
        raw = data[at + schema_size + 1 : len(data) - self._tail]
        if raw == b"BEGIN":
            return False
        if raw == b"COMMIT":
            return True
        text = raw.decode("utf-8", "replace")
        first = first_word(text)
        if first in ("ROLLBACK", "XA", "SAVEPOINT", "RELEASE"):
            return self._control(first, text)
        if first in DDL or first in DML:
            self._statement(first, text, default)
        return True

    def _control(self, first: str, text: str) -> bool:
        words = text.upper().split()
        if first == "ROLLBACK" and self._rows_seen:
            raise self._refused(f"{text!r} after rows of {self._schema.table}", "Do not mix engines in a transaction.")
        if first == "XA":
            self._xa = self._xa or words[1:2] == ["START"] or words[1:2] == ["BEGIN"]
            return words[1:2] in (["COMMIT"], ["ROLLBACK"])
        return first == "ROLLBACK" and len(words) == 1

    def _statement(self, first: str, text: str, default: str) -> None:
        name = f"{self._schema.database}.{self._schema.table}"
        if first == "DROP" and names_database(text, self._schema.database):
            raise SchemaChanged(f"The database of {name} was dropped: {text[:200]!r}.", "Stop the query.")
        named = names_table(text, default, self._schema)
        if first in DML:
            if not named and empties_memory_table(text):
                return
            # Whatever table it names: through a view, a trigger or a function it may change this one.
            raise self._refused(
                f"a statement-format change, {text[:200]!r}, that may reach {name},",
                "Set binlog_format=ROW in every session, then start with a new checkpoint.",
            )
        if named and changes_table(first, text):
            raise SchemaChanged(
                f"The table {name} was changed by {text[:200]!r}.",
                "Start the query again with a new checkpoint and a new target.",
            )
