"""Reads the staged log where the server no longer has it, and then goes on to the server, as one dump.

Everything that reads the log opens a dump (`binlog.reading`). So batches of the log, the planner and the rewinding of
chunks read the staged log in the same way.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pymysql

from ..binlog.dump import Dump, is_gone, open_dump
from ..binlog.log_position import FORMAT, HEADER, ROTATE, DumpPosition, header_of
from ..binlog.positions import BinlogPosition
from ..options import MySqlOptions
from ..server.connection import connect
from .segments import Segment, Segments, staged_in
from .staged_end import Patience

__all__ = ["StagedDump", "packets_of", "staged_dump"]

_ARTIFICIAL = 0x20


def staged_dump(options: MySqlOptions, start: BinlogPosition | str) -> StagedDump | None:
    """A dump of what follows a position, or is not in a GTID set, if the staged log has it; else None.

    After a GTID set it may also have transactions of the set.
    """
    segments = staged_in(options, options.server)
    place = None if segments is None else segments.place(start)
    return None if segments is None or place is None else StagedDump(options, segments, place)


class StagedDump:
    """What `open_dump` returns, of the staged log.

    Parameters
    ----------
    options : MySqlOptions
    segments : Segments
    at : BinlogPosition
        Where it begins.
    """

    large: frozenset[str] | None = None
    after = 0

    def __init__(self, options: MySqlOptions, segments: Segments, at: BinlogPosition) -> None:
        self._options = options
        self._segments = segments
        self._at = at
        self._listed: list[Segment] = []
        self._packets: Iterator[bytes] = iter(())
        self._dump: Dump | None = None
        self._server: Any = None
        self._first: Any = None

    def open(self) -> Any:
        return self

    def _read_packet(self) -> Any:
        while self._server is None:
            data = next(self._packets, None)
            if data is not None:
                return _Packet(data)
            self._go_on()
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return self._server._read_packet()

    def _go_on(self) -> None:
        """Go on with the next segment, or with the server."""
        patience = Patience(self._segments)
        while True:
            segment = self._segments.after(self._at, self._listed)
            if segment is None:
                self._listed = self._segments.every()  # there may be more now
                segment = self._segments.after(self._at, self._listed)
            if segment is not None:
                self._packets = packets_of(self._segments.records(segment), segment, self._at)
                self._at = segment.end
                return
            end = self._segments.end(self._at)
            if end.sort_key() > self._at.sort_key():
                continue  # a segment has appeared since the last look: what it has must be read from it
            with connect(self._options) as connection:
                begin = patience.present(connection, end)
            if begin is None:
                continue
            self._dump = open_dump(self._options, begin)
            server = self._dump.open()
            try:
                self._first = server._read_packet()
            except pymysql.err.MySQLError as error:
                if not is_gone(error):
                    raise
                self._dump.abandon()  # purged in this moment
                continue
            self._server = server
            return

    def abandon(self) -> None:
        """Close the connection."""
        if self._dump is not None:
            self._dump.abandon()


class _Packet:
    """A packet of the log, as PyMySQL has it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def is_eof_packet(self) -> bool:
        return False

    def get_all_data(self) -> bytes:
        return self._data


def packets_of(records: Iterator[bytes], segment: Segment, at: BinlogPosition) -> Iterator[bytes]:
    """The packets of a segment from a position on, after one that tells the position."""
    begin = segment.begin
    position = DumpPosition()
    wanted = at.pos if at.file == begin.file and at.pos > begin.pos else begin.pos
    first = _rotate(begin.file, begin.pos)
    position.moved(first, *header_of(first))
    yield _rotate(begin.file, wanted)
    for data in records:
        kind, *told = header_of(data)
        end = position.moved(data, kind, *told)
        if kind in (ROTATE, FORMAT) or position.file != begin.file or end > wanted:
            yield data


def _rotate(file: str, pos: int) -> bytes:
    """The event with which a server begins to send a file."""
    body = struct.pack("<Q", pos) + file.encode()
    size = HEADER - 1 + len(body)
    return b"\0" + struct.pack("<IBIIIH", 0, ROTATE, 0, size, 0, _ARTIFICIAL) + body
