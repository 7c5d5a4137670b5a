"""Parses the events of a binary log into the changes of some tables and every transaction's end.

python-mysql-replication's own parser is not used: it drops what it does not know, reconnects without end and in the
middle of transactions, and decodes some values wrongly. Here every event that is not understood is an error.

Sources: MySQL source documentation, "Binlog Event"; MariaDB Knowledge Base, "Replication Protocol" (GTID_EVENT,
QUERY_COMPRESSED_EVENT, ROWS_EVENT).
"""

from __future__ import annotations

import functools
import itertools
import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from backlog_spark.errors import BacklogError

from ..schema.ddl.statements import DML, DROP, first_word, sql_mode_of, statement_text, time_zone_of
from ..schema.ddl.timeline import TableAltered, Timeline
from ..schema.ddl.writes import fills_by_functions
from ..schema.table import TableSchema, of_table
from ..server.bounded import too_large
from ..server.gtid import GtidSet, committed_ms, gtid_text, tagged_gtid
from .captured_tables import NO_CHANGES, CapturedTables
from .damaged import UNREADABLE, damaged
from .inflating import MOST_INFLATED, inflated, payload_events
from .log_position import FORMAT, HEADER, ROTATE, DumpPosition, header_of
from .positions import FAR, FIRST_EVENT, BinlogPosition, sequence_at
from .records import Change, RowsChange, Savepoint, TableEmptied, TransactionBroken, TransactionEnd
from .row_decoder import RowDecoder, TableMap
from .row_events import COMPRESSED_ROWS, ROWS, inflated_event, read_images, renumbered, step_of

__all__ = ["Events", "NotYetSent"]

_QUERY, _XID, _TABLE_MAP, _GTID, _ANONYMOUS_GTID, _TAGGED_GTID = 2, 16, 19, 33, 34, 42
_XA_PREPARE, _PAYLOAD = 38, 40
# These change no row: stop, intvar, rand, user var, heartbeats, ignorable, rows query, previous gtids, transaction
# context, view change, and MariaDB's annotated rows, binlog checkpoint and GTID list. MariaDB's start of encryption is
# only about the file: the events are sent decrypted.
_IGNORED = {3, 5, 13, 14, 27, 28, 29, 35, 36, 37, 41, 160, 161, 163, 164}
_IGNORABLE_FLAG = 0x80
_GTID_OF_MARIADB, _COMPRESSED_QUERY = 162, 165
_GTIDS = {_GTID, _ANONYMOUS_GTID, _TAGGED_GTID, _GTID_OF_MARIADB}
_STANDALONE, _GROUP_COMMIT, _PREPARED_XA, _COMPLETED_XA = 1, 2, 64, 128  # flags of MariaDB's GTID event
# Flags of its second set: an ALTER TABLE that only starts, or failed (binlog_alter_two_phase). It is logged again when
# it ends.
_START_ALTER, _ROLLBACK_ALTER = 2, 8
_TABLE_ID = 6  # bytes
_TIME_SERVER = struct.Struct("<xIxI").unpack_from  # of an event's header
_MOST_TOLD = 1_000
_OF_TABLES = {"ALTER", "CREATE", "DROP", "RENAME"}


_log = logging.getLogger(__name__)


@functools.lru_cache(maxsize=64)
def _uuid(sid: bytes) -> str:
    return str(UUID(bytes=sid))


class NotYetSent(Exception):
    """The server has sent its log only up to this position, which is before the one to read up to."""


class Events:
    """Parses the events of one dump. Keeps what an event says about later ones: file, GTID, table maps.

    Without tables it yields only the ends of transactions. ``timeline`` gives the layout of the tables' rows.

    Parameters
    ----------
    large, after
        See `DumpPosition`.
    left_out : GtidSet, optional
        Transactions to skip.
    ignored : str
        Regular expression over ``database.table``: statement-format changes of rows in such tables pass.
    max_row_bytes : int
        Most bytes of a row of the tables.
    most_inflated : int
        Most bytes that a compressed transaction or event may have when it is inflated.
    counts : callable, optional
        Called with the size of an event with rows. If it returns True, the rows are only counted: they have no values.
    removals, reads_swaps_again, folds_case
        See `CapturedTables`.
    signals : TableSchema, optional
        A table whose rows are read too. Statements about it do not matter, and rows of another form are left out.
    """

    def __init__(
        self,
        connection: Any,
        tables: Sequence[TableSchema],
        until: BinlogPosition | None,
        timeline: Timeline,
        zero_date_fails: bool = False,
        *,
        large: frozenset[str] | None = None,
        after: int = 0,
        left_out: GtidSet | None = None,
        ignored: str = "",
        max_row_bytes: int = 1 << 30,
        most_inflated: int = MOST_INFLATED,
        counts: Callable[[int], bool] | None = None,
        removals: frozenset[str] = frozenset(),
        reads_swaps_again: bool = False,
        folds_case: Callable[[], bool] = lambda: False,
        signals: TableSchema | None = None,
    ) -> None:
        self._connection = connection
        self._counts = counts
        # An event is this large only if it has a single row: an update's two images.
        self._most_bytes = 2 * max_row_bytes
        self._most_inflated = most_inflated
        self._position = DumpPosition(large, after)
        self._left_out = left_out
        self._leaves_out = False
        self._tail = 0
        self._captured = CapturedTables(
            tables, ignored, folds_case, removals=removals, reads_swaps_again=reads_swaps_again
        )
        self._until = until.sort_key() if until else None
        self._timeline = timeline
        self._zero_date_fails = zero_date_fails
        self._changes = NO_CHANGES  # what the present statement does to captured tables
        self._signals = signals
        self._decoders: dict[int, RowDecoder | None] = {}
        self._told: dict[bytes, RowDecoder | None] = {}
        self._uuid, self._number = "", 0
        self._began_at = self._committed_ms = 0
        self._rows_seen = self._is_open = self._is_rolled_back = False
        # Of the present transaction: numbers that its compressed rows need beyond the bytes that they have in the file.
        self._excess = 0
        # Inside a compressed transaction: offset and size of its event, and numbers that its rows took so far.
        self._payload: tuple[int, int] | None = None
        self._taken = 0
        self._is_end = False
        self._savepoint: Savepoint | None = None
        self._xa = self._no_alter = False
        # Only the last event of a group ends the transaction: a COMMIT, or the single statement of the group.
        self._of_mariadb = self._in_group = False

    def read(self) -> Iterator[Change | Savepoint | TransactionBroken]:
        """Yield everything up to ``until``. NotYetSent if MySQL sends less, because it has not synced its log so far.

        A transaction that ends beyond 4 GiB is nearly always the last of its file. Its end is then given as the next
        file's beginning, where a dump can begin.

        Raises
        ------
        BacklogError
            An event is not understood, or damaged.
        """
        position = self._position
        far: TransactionEnd | None = None
        try:
            while True:
                packet = self._connection._read_packet()
                if packet.is_eof_packet():
                    if far is not None:
                        yield far
                    if self._until and (position.number, position.sent) < self._until:
                        raise NotYetSent(f"{position.file}:{position.sent}")
                    return
                data = packet.get_all_data()
                if data[0]:  # neither an event nor the end of the log
                    raise BacklogError(
                        f"The binary log stream holds a packet that starts with {data[0]}.",
                        "Look at the server's error log, and at proxies in between.",
                    )
                kind, size, told, flags = header_of(data)
                end = position.moved(data, kind, size, told, flags)
                if far is not None:
                    if kind == ROTATE:
                        far = replace(far, position=BinlogPosition(position.file, FIRST_EVENT))
                    yield far
                    far = None
                is_end = False
                if kind == ROTATE:
                    self._decoders.clear()
                elif kind == FORMAT:
                    self._decoders.clear()
                    self._tail = 4 if data[-5] == 1 else 0  # the algorithm, then the format event's own checksum
                elif position.after and position.is_before(end, size):
                    continue
                elif kind in _GTIDS:
                    if self._until and (position.number, end - size) >= self._until:
                        return
                    if self._is_open:
                        yield TransactionBroken()
                    self._begin(data, kind)
                elif self._leaves_out:
                    continue
                elif kind == _PAYLOAD:
                    yield from self._inflated(data, end, size)
                    is_end = True
                else:
                    self._is_end = False
                    yield from self._event(data, kind, end, size)
                    is_end = self._is_end
                if is_end:
                    found = self._end(end)
                    if end >= FAR:
                        far = found
                    else:
                        yield found
                    if kind not in (_XA_PREPARE, _PAYLOAD) and self._until and (position.number, end) >= self._until:
                        if far is not None:
                            yield far
                        return
        except UNREADABLE as error:
            raise damaged(error, position) from error

    def _event(self, data: bytes, kind: int, end: int, size: int) -> Iterable[Change | Savepoint]:
        """What an event inside a transaction says. Notes whether it ends the transaction."""
        if kind == _TABLE_MAP:
            self._table_map(data)
        elif kind in ROWS:
            change = self._rows(data, kind, end - size, size)
            if change is not None:
                self._is_open = True
                return (change,)
        elif kind in (_XID, _XA_PREPARE):
            self._is_end = True
        elif kind in (_QUERY, _COMPRESSED_QUERY):
            self._is_end = self._query(data, kind)
            if self._changes is not NO_CHANGES or self._savepoint is not None:
                return self._of_statement(data, end, size)
        elif kind not in _IGNORED and not int.from_bytes(data[18:20], "little") & _IGNORABLE_FLAG:
            raise self._refused(
                f"an event of type {kind}, which mysql_cdc does not read", "Report this with the server's version."
            )
        return ()

    def _of_statement(self, data: bytes, end: int, size: int) -> Iterator[Change | Savepoint]:
        yield from self._changed_tables(data, end, size)
        if self._savepoint is not None:
            yield self._savepoint
            self._savepoint = None

    def _inflated(self, data: bytes, end: int, size: int) -> Iterator[Change | Savepoint]:
        """The events of a compressed transaction. They have no positions of their own, and no checksums."""
        if not self._captured or not self._timeline.decodes:
            return  # a transaction of rows: it alters no table
        tail, self._tail = self._tail, 0
        self._payload, self._taken = (end - size, size), 0
        for event in payload_events(data[HEADER : len(data) - tail], self._most_inflated):
            yield from self._event(event, event[5], end, size)
        self._tail, self._payload = tail, None
        self._excess += max(0, self._taken - size)

    def first_position(self) -> BinlogPosition | None:
        """Position where the first transaction begins; None if there is none up to the log's end."""
        try:
            return self._first_position()
        except UNREADABLE as error:
            raise damaged(error, self._position) from error

    def _first_position(self) -> BinlogPosition | None:
        while True:
            packet = self._connection._read_packet()
            if packet.is_eof_packet():
                return None
            data = packet.get_all_data()
            kind, size, told, flags = header_of(data)
            end = self._position.moved(data, kind, size, told, flags)
            if kind in _GTIDS and not self._position.is_before(end, size):
                return BinlogPosition(self._position.file, end - size)

    def _refused(self, what: str, hint: str) -> BacklogError:
        return BacklogError(
            f"The binary log has {what} in transaction {gtid_text(self._uuid, self._number) or 'without a GTID'}.", hint
        )

    def _begin(self, data: bytes, kind: int) -> None:
        self._began_at = int.from_bytes(data[1:5], "little")
        self._committed_ms = self._began_at * 1000
        if kind in (_GTID, _ANONYMOUS_GTID):
            self._committed_ms = committed_ms(data[HEADER : len(data) - self._tail]) or self._committed_ms
        if kind == _GTID:
            self._uuid = _uuid(data[HEADER + 1 : HEADER + 17])
            self._number = int.from_bytes(data[HEADER + 17 : HEADER + 25], "little")
        elif kind == _TAGGED_GTID:
            self._uuid, self._number = tagged_gtid(data[HEADER : len(data) - self._tail])
        elif kind == _GTID_OF_MARIADB:
            domain, server = data[HEADER + 8 : HEADER + 12], data[6:10]
            self._uuid = f"{int.from_bytes(domain, 'little')}-{int.from_bytes(server, 'little')}"
            self._number = int.from_bytes(data[HEADER : HEADER + 8], "little")
        else:
            self._uuid, self._number = "", 0
        flags = data[HEADER + 12] if kind == _GTID_OF_MARIADB else 0
        self._of_mariadb = kind == _GTID_OF_MARIADB
        self._in_group = self._of_mariadb and not flags & _STANDALONE
        self._xa = bool(flags & _PREPARED_XA)
        at = HEADER + (21 if flags & _GROUP_COMMIT else 13)
        has_more = self._of_mariadb and not flags & (_PREPARED_XA | _COMPLETED_XA) and len(data) - self._tail > at
        self._no_alter = has_more and bool(data[at] & (_START_ALTER | _ROLLBACK_ALTER))
        self._rows_seen = self._is_open = self._is_rolled_back = False
        self._excess = 0
        self._leaves_out = self._left_out is not None and self._left_out.contains(self._uuid, self._number)

    def _end(self, end: int) -> TransactionEnd:
        if not self._position.is_told:
            raise self._refused("an end without a position", "Report this together with the server's version.")
        self._is_open = False
        told = self._uuid, self._number, self._began_at, self._is_rolled_back, self._position.file, self._excess
        return TransactionEnd(BinlogPosition(self._position.file, end), *told, self._committed_ms)

    def _table_map(self, data: bytes) -> None:
        body = data[HEADER : len(data) - self._tail]
        # Every transaction describes its tables again, nearly always as the one before did.
        told = body[_TABLE_ID:]
        if told in self._told:
            self._decoders[int.from_bytes(body[:_TABLE_ID], "little")] = self._told[told]
            return
        table_id, database, table = TableMap.table_name(body)
        schema = self._captured.get(database, table)
        decoder = None
        if schema is not None and not self._timeline.decodes:
            self._timeline.described(schema, TableMap.parse(body).names)
        elif schema is not None:
            layout = self._timeline.layout(schema)
            passed = layout is not None and layout.is_passed_over
            decoder = (
                None
                if passed
                else RowDecoder(schema, TableMap.parse(body), layout, zero_date_fails=self._zero_date_fails)
            )
        elif self._signals is not None and (database, table) == (self._signals.database, self._signals.table):
            decoder = self._of_signals(body)
        if len(self._told) >= _MOST_TOLD:
            self._told.clear()
        self._told[told] = self._decoders[table_id] = decoder

    def _of_signals(self, body: bytes) -> RowDecoder | None:
        assert self._signals is not None
        try:
            return RowDecoder(self._signals, TableMap.parse(body), None, zero_date_fails=False)
        except BacklogError as error:  # it would come back after each restart
            _log.warning(
                "Rows of the signal table %s are ignored: %s If it was altered, start the query again.",
                self._signals.name,
                error.problem,
            )
            return None

    def _signal_rows(self, decoder: RowDecoder, data: bytes, kind: int, event_start: int) -> RowsChange | None:
        """Rows of the signal table. They have no numbers in the stream, and cannot end it."""
        try:
            if self._xa:
                raise BacklogError("They are in an XA transaction.", "Write signals in an ordinary transaction.")
            end = len(data) - self._tail
            if kind in COMPRESSED_ROWS:
                data = inflated_event(data, kind, end, self._most_inflated)
                end = len(data)
            rows = read_images(decoder, data, kind, end, 0)
        except BacklogError as error:
            _log.warning("Rows of the signal table %s are ignored: %s", decoder.schema.name, error.problem)
            return None
        at, server_id = int.from_bytes(data[1:5], "little"), int.from_bytes(data[6:10], "little")
        told = self._uuid, self._number, at, rows, self._position.file, server_id, len(data)
        return RowsChange(decoder.schema, ROWS[kind], *told, sequence_at(self._position.number, event_start))

    def _rows(self, data: bytes, kind: int, event_start: int, size: int) -> RowsChange | None:
        table_id = int.from_bytes(data[HEADER : HEADER + 6], "little")
        decoder = self._decoders.get(table_id, ...)
        if decoder is None:
            return None
        if decoder is ...:
            raise self._refused(f"rows of table id {table_id} without a table map", "Start the query again.")
        if decoder.schema is self._signals:
            return self._signal_rows(decoder, data, kind, event_start)
        if self._xa:
            raise self._refused(f"an XA transaction on {decoder.schema.name}", "Change the table without XA.")
        end = len(data) - self._tail
        if kind in COMPRESSED_ROWS:
            data = inflated_event(data, kind, end, self._most_inflated)
            end = len(data)
        if len(data) > self._most_bytes:
            raise too_large(f"A change of {decoder.schema.name}", len(data) // 2, self._most_bytes // 2)
        self._rows_seen = True
        # Offset of data[0] in the file: one less than the event's, because of the OK byte.
        event = sequence_at(self._position.number, event_start)
        base = event - 1 + self._excess
        counts = self._counts is not None and self._counts(len(data))
        try:
            rows = read_images(decoder, data, kind, end, base, counts=counts)
        except BacklogError as error:
            raise of_table(error, decoder.schema) from None
        change = ROWS[kind]
        if self._payload is not None:
            rows = renumbered(rows, change, base + 1 + self._taken)
            self._taken += len(rows) * step_of(change)
        elif kind in COMPRESSED_ROWS:
            rows = renumbered(rows, change, base + 1)
            self._excess += max(0, len(rows) * step_of(change) - size)
        at, server_id = _TIME_SERVER(data)
        told = self._uuid, self._number, at, rows, self._position.file, server_id, len(data)
        return RowsChange(decoder.schema, change, *told, event, self._payload is not None or kind in COMPRESSED_ROWS)

    def _query(self, data: bytes, kind: int) -> bool:
        """Whether the statement ends a transaction. Refuses a statement that could change a table unseen."""
        schema_size = data[HEADER + 8]
        status_size = int.from_bytes(data[HEADER + 11 : HEADER + 13], "little")
        at = HEADER + 13 + status_size
        raw = data[at + schema_size + 1 : len(data) - self._tail]
        if kind == _COMPRESSED_QUERY:
            raw = inflated(raw, self._most_inflated)
        if raw == b"BEGIN":
            self._in_group = True
            return False
        if raw == b"COMMIT":
            return True
        text = statement_text(raw, data[HEADER + 13 : at])
        first = first_word(text)
        if first in ("ROLLBACK", "XA", "SAVEPOINT", "RELEASE"):
            return self._control(first, text)
        if first and self._captured:
            self._statement(first, text, data[at : at + schema_size].decode("utf-8", "replace"))
        return not self._in_group

    def _statement(self, first: str, text: str, default: str) -> None:
        if first in DML or (first == "CREATE" and fills_by_functions(text)):
            if unsafe := self._captured.unsafe_write(first, text, default):
                raise self._refused(
                    unsafe,
                    "Set binlog_format=ROW in every session, then start with a new checkpoint. If the statement writes "
                    "only tables that are not captured, name them in binlog.statement.ignore, and keep the checkpoint.",
                )
            return
        if first == "ALTER" and self._no_alter:
            return
        self._changes = self._captured.changes(first, text, default)
        if not self._changes.altered and not self._timeline.decodes and first in _OF_TABLES:
            self._timeline.other(text, default)

    def _changed_tables(self, data: bytes, end: int, size: int) -> Iterator[TableAltered | TableEmptied]:
        """What a statement does to captured tables."""
        changes, self._changes = self._changes, NO_CHANGES
        if not changes.altered and not changes.removed:
            return
        at, server_id = int.from_bytes(data[1:5], "little"), int.from_bytes(data[6:10], "little")
        told = self._uuid, self._number, at, self._position.file, server_id
        # Unique as long as the event has a byte for each table.
        most = len(data) - 1
        sequences = (sequence_at(self._position.number, end - size + min(n, most)) for n in itertools.count())
        status_size = int.from_bytes(data[HEADER + 11 : HEADER + 13], "little")
        status = data[HEADER + 13 : HEADER + 13 + status_size]
        mode, zone = sql_mode_of(status), time_zone_of(status)
        for schema, origin in changes.altered:
            position = BinlogPosition(self._position.file, end)
            altered = TableAltered(schema, changes.statement, position, origin, mode, zone, next(sequences), *told)
            self._timeline.altered(altered)
            self._forget_layouts()
            yield altered
        for schema in changes.removed:
            sequence = next(sequences)
            if changes.removal == DROP:
                # Whatever has this name from here on is another table.
                self._captured.drop(schema)
                self._forget_layouts()
            yield TableEmptied(schema, changes.removal, changes.statement, sequence, *told)

    def _forget_layouts(self) -> None:
        self._told.clear()
        self._decoders.clear()

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
