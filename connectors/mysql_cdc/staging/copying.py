"""Copies a server's log into segments, in a thread beside the planner.

It reads one dump that waits for more, as a replica does. A server purges whole files only, and none that a dump is
reading. So a segment is written whenever the log goes on in another file, and otherwise only if it is large.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pymysql

from backlog_spark.errors import BacklogError

from ..binlog.dump import Dump, explained, open_dump
from ..binlog.events import Events
from ..binlog.log_position import FORMAT, ROTATE, DumpPosition, header_of
from ..binlog.positions import FAR, FIRST_EVENT, BinlogPosition
from ..binlog.records import TransactionEnd
from ..options import MySqlOptions
from ..schema.ddl.timeline import Timeline
from ..server.connection import connect
from ..server.gtid import GtidSet, MariaDbGtids
from ..server.purged import present
from ..server.retries import Retries, is_transient
from ..server.watermark import NO_GTIDS
from .kept_events import KeptEvents, NotStaged
from .segments import Segments, SegmentWriter, Trailer

__all__ = ["Copying", "Recording"]

_log = logging.getLogger(__name__)
# Bytes of records before compression. Reading from within a segment inflates what is before: a second for this much.
_SEGMENT_BYTES = 128 << 20
# An idle server tells so often that it is there. After three times without it the connection is opened again.
_HEARTBEAT_MS = 5_000
_ARTIFICIAL = 0x20
_STOP_S = 60.0  # a segment may be on its way to an object store


class Copying(threading.Thread):
    """Stages the log from a position on, until it is stopped or cannot continue.

    Parameters
    ----------
    options : MySqlOptions
        With the server.
    segments : Segments
    at : BinlogPosition
        The end of a transaction, with the GTIDs there.
    kept : KeptEvents

    Attributes
    ----------
    at : BinlogPosition
        Up to here the log is staged, with the GTIDs there.
    is_over : bool
        It cannot continue. Otherwise another thread may, if this one has ended.
    """

    def __init__(self, options: MySqlOptions, segments: Segments, at: BinlogPosition, kept: KeptEvents) -> None:
        super().__init__(name="staging of the binary log", daemon=True)
        self._options = replace(options, heartbeat_ms=_HEARTBEAT_MS)
        self._segments = segments
        self._kept = kept
        self.at = at
        self.is_over = False
        self._stopped = threading.Event()
        self._dump: Dump | None = None

    @property
    def server(self) -> str:
        """The server that it reads."""
        return self._options.server

    def stop(self) -> None:
        """End it, without what is not in a segment yet. No segment is written afterwards."""
        self._stopped.set()
        stream = getattr(self._dump, "_stream_connection", None)
        with contextlib.suppress(OSError, AttributeError):
            stream._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
        self.join(_STOP_S)

    def run(self) -> None:
        retries = Retries(self._options, self._wait)
        while not self._stopped.is_set():
            before = self.at
            try:
                self._copy()
            except NotStaged as why:
                return self._end(str(why))
            except Exception as error:
                # Also what a connection raises that `stop` has closed.
                if not self._stopped.is_set() and not is_transient(error):
                    return self._end(_told(error, self.at))
            if self.at != before:
                retries.succeeded()
            if not self._stopped.is_set() and not retries.again():
                return None
        return None

    def _end(self, why: str) -> None:
        self.is_over = True
        if not self._stopped.is_set():
            _log.warning(
                "The binary log is staged up to %s only: %s. The rest is read from the server, which has to keep it "
                "until the query has read it.", self.at, why.rstrip("."),
            )  # fmt: skip

    def _copy(self) -> None:
        """Copy until the connection ends."""
        with connect(self._options) as connection:
            begin = present(connection, self.at)
        dump = self._dump = open_dump(self._options, begin, blocking=True)
        recording = Recording(self, self._segments, self._kept, self._options.staging_most_bytes)
        try:
            recording.source = dump.open()
            if begin != self.at:
                recording.close_segment(begin)  # nothing is between the two
            if dump.after:
                self.at = replace(self.at, pos=FIRST_EVENT)  # the whole file is sent
            try:
                for found in Events(recording, (), None, Timeline(), after=dump.after).read():
                    if isinstance(found, TransactionEnd):
                        recording.passed(found)
            except Exception:
                recording.close_at_last_end()
                raise
        finally:
            recording.close()
            dump.abandon()

    def _wait(self, seconds: float) -> None:
        self._stopped.wait(seconds)

    def check(self) -> None:
        """End the thread if it has to stop."""
        if self._stopped.is_set():
            raise ConnectionAbortedError

    def retrying(self, put: Callable[[], bool]) -> bool:
        """Write a segment, with as many attempts as for the server; not once it is stopped."""
        retries = Retries(self._options, self._wait)
        while True:
            self.check()
            try:
                return put()
            except (BacklogError, OSError):  # an object store cannot be reached, or a disk is full
                if not retries.again():
                    raise


def _told(error: Exception, at: BinlogPosition) -> str:
    if isinstance(error, BacklogError):
        return error.problem
    return explained(error, at).problem if isinstance(error, pymysql.err.MySQLError) else repr(error)


class Recording:
    """A dump's packets, as `Events` reads them. Those to stage go to a segment, which ends with a transaction."""

    source: Any = None

    def __init__(self, copying: Copying, segments: Segments, kept: KeptEvents, most: int) -> None:
        self._copying = copying
        self._segments = segments
        self._kept = kept
        self._most = most
        gtids = copying.at.gtids
        self._gtids: GtidSet | MariaDbGtids | None = None
        if copying.server.startswith("mariadb-"):
            self._gtids = MariaDbGtids(gtids)
        elif gtids:
            self._gtids = GtidSet(gtids)
        self._position = DumpPosition()
        self._next_file: BinlogPosition | None = None
        self._format = b""
        self._last_end: tuple[BinlogPosition, int] | None = None  # and the bytes of the records up to there
        self._writer = SegmentWriter()

    def _read_packet(self) -> Any:
        if self._next_file is not None:  # only now: `Events` has taken what is before
            self.close_segment(self._next_file)
            self._next_file = None
        self._copying.check()
        packet = self.source._read_packet()  # at least a heartbeat
        data = b"" if packet.is_eof_packet() else packet.get_all_data()
        if data and not data[0]:
            self._record(data)
        return packet

    def _record(self, data: bytes) -> None:
        kind, size, told, flags = header_of(data)
        file = self._position.file
        self._position.moved(data, kind, size, told, flags)
        if kind == FORMAT:
            self._format = data
        if file and self._position.file != file:
            self._next_file = BinlogPosition(self._position.file, FIRST_EVENT)
        if kind == ROTATE and flags & _ARTIFICIAL:
            return  # a reader gets one at the beginning of each segment
        kept = self._kept.of(data)
        if kept is not None:
            self._writer.append(kept)

    def passed(self, end: TransactionEnd) -> None:
        """Note the end of a transaction, up to which everything was recorded."""
        if end.uuid and self._gtids is not None:
            self._gtids.passed(end.uuid, end.number)
        if end.position.pos >= FAR or end.position.file != self._copying.at.file:
            return  # no dump can begin beyond 4 GiB
        self._last_end = end.position, self._writer.bytes
        if self._writer.bytes >= _SEGMENT_BYTES:
            self.close_at_last_end()

    def close_at_last_end(self) -> None:
        """Write what there is of whole transactions."""
        if self._last_end is not None:
            self.close_segment(*self._last_end)
            self._writer.append(self._format)

    def close_segment(self, end: BinlogPosition, size: int | None = None) -> None:
        """Write the segment up to ``end``, or its first ``size`` bytes, and begin another one there."""
        begin, after = self._copying.at, "" if self._gtids is None else str(self._gtids) or NO_GTIDS
        told = Trailer(begin.gtids, after, self._writer.bytes if size is None else size)
        if not self._copying.retrying(lambda: self._segments.put(self._writer, begin, end, told, self._most)):
            self._last_end = None
            raise NotStaged(f"all of it would have more than the {self._most:,} bytes of stagingMaxBytes")
        self._copying.at = replace(end, gtids=after)
        self.close()
        self._last_end, self._writer = None, SegmentWriter()

    def close(self) -> None:
        """Remove the temporary file."""
        self._writer.close()
