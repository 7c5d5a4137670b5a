"""The staged log: segments of one server's binary log, each a compressed file that ends with a transaction.

A segment's name has its begin and its end, so a listing shows what is staged. A segment appears whole and never
changes. Two drivers may write overlapping segments: both are right, and a reader takes the one that reaches farthest.

A file has frames of zstd with the records, each a length and a packet of the log. Then follows a trailer in JSON,
with the GTIDs before and after the segment and the bytes of the records, then the length of the trailer.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import logging
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from backlog_spark.common.stored_values import check_version
from backlog_spark.common.stores import Store, arguments_for, store_of
from backlog_spark.errors import BacklogError

from ..binlog.positions import BinlogPosition
from ..options import MySqlOptions
from ..server.gtid import GtidSet

__all__ = ["Segment", "SegmentWriter", "Segments", "Trailer", "staged_in"]

_log = logging.getLogger(__name__)

_VERSION = 1
_WRITER = "Use the version of backlog_spark that wrote it. Or remove its file, if the server still has the log."
_FOLDER, _SUFFIX = "binlog", ".zst"
_LENGTH = struct.Struct("<I")
# Records are small. About so many bytes are compressed at a time, as one frame.
_PIECE = 1 << 20


@dataclass(frozen=True)
class Segment:
    """The log after ``begin`` up to ``end``, positions without GTIDs. ``size``: bytes of the file."""

    path: str
    begin: BinlogPosition
    end: BinlogPosition
    size: int


class Trailer(NamedTuple):
    """The GTIDs before and after a segment, as `BinlogPosition` has them, and the bytes of its records."""

    before: str
    after: str
    bytes: int


class SegmentWriter:
    """Collects the records of a segment in a temporary file without a name.

    Attributes
    ----------
    bytes : int
        Those of the records so far, before compression.
    """

    def __init__(self) -> None:
        self.file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  closed with the segment
        self._held = bytearray()
        self._is_finished = False
        self.bytes = 0

    def append(self, packet: bytes) -> None:
        """Add a packet of the log."""
        self._held += _LENGTH.pack(len(packet))
        self._held += packet
        self.bytes += _LENGTH.size + len(packet)
        if len(self._held) >= _PIECE:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self.file.write(pa.compress(bytes(self._held), "zstd", asbytes=True))
            self._held.clear()

    def finish(self, trailer: Trailer) -> int:
        """Complete the file, if it is not yet, and go to its beginning; returns its size."""
        if not self._is_finished:
            self._flush()
            told = json.dumps({"version": _VERSION, **trailer._asdict()}).encode()
            self.file.write(told + _LENGTH.pack(len(told)))
            self._is_finished = True
        size = self.file.seek(0, os.SEEK_END)
        self.file.seek(0)
        return size

    def close(self) -> None:
        """Remove the file."""
        self.file.close()


class Segments:
    """The segments of a server.

    Parameters
    ----------
    options : MySqlOptions
        With ``metadataLocation``.
    server : str
        Its identity. Positions of another server have no meaning here.
    """

    def __init__(self, options: MySqlOptions, server: str) -> None:
        location = options.metadata_location
        self._store: Store
        self._store, root = store_of(location, arguments_for(location, dict(options.storage)))
        self._directory = f"{root.rstrip('/')}/{_FOLDER}/{server}"
        self._trailers: dict[str, Trailer] = {}

    @property
    def name(self) -> str:
        """The directory as a user writes it."""
        return self._store.name(self._directory)

    def every(self) -> list[Segment]:
        """All segments, in the order of the log."""
        found = []
        for each in self._store.children(self._directory):
            name = each.path.rstrip("/").rpartition("/")[2]
            if name.endswith(_SUFFIX) and not name.startswith("."):
                file, begin, number, end = name.removesuffix(_SUFFIX).rsplit("_", 3)
                base = file.rpartition(".")[0]
                ends = BinlogPosition(f"{base}.{number}", int(end))
                found.append(Segment(each.path, BinlogPosition(file, int(begin)), ends, each.size))
        return sorted(found, key=lambda s: (s.begin.sort_key(), s.end.sort_key()))

    def after(self, at: BinlogPosition, among: list[Segment] | None = None) -> Segment | None:
        """The segment that reaches farthest of those that have the log directly after a position; None for none."""
        every = self.every() if among is None else among
        those = [s for s in every if s.begin.sort_key() <= at.sort_key() < s.end.sort_key()]
        return max(those, key=lambda s: s.end.sort_key(), default=None)

    def place(self, start: BinlogPosition | str) -> BinlogPosition | None:
        """The position in the staged log from which on it has all that follows ``start``; None if it does not have it.

        Parameters
        ----------
        start : BinlogPosition or str
            As for `read_changes`. After a GTID set, transactions of the set may follow the position.
        """
        every = self.every()
        if isinstance(start, str):
            wanted = GtidSet(start)
            # Those before a segment are more from segment to segment.
            at = bisect.bisect_left(every, True, key=lambda s: not self._begins_within(s, wanted)) - 1
            return replace(every[at].begin, gtids=self.trailer(every[at]).before) if at >= 0 else None
        if not every or start.sort_key() < every[0].begin.sort_key():
            return None
        return start if start.sort_key() <= max(s.end.sort_key() for s in every) else None

    def _begins_within(self, segment: Segment, wanted: GtidSet) -> bool:
        return wanted.issuperset(GtidSet(self.trailer(segment).before))

    def end(self, at: BinlogPosition) -> BinlogPosition:
        """Where the log that is staged from a position on ends, with the GTIDs there."""
        every = self.every()
        last: Segment | None = None
        while (found := self.after(at, every)) is not None:
            last, at = found, found.end
        if last is not None:
            return replace(at, gtids=self.trailer(last).after)
        there = next((s for s in every if s.end == at), None)
        return at if there is None or at.gtids else replace(at, gtids=self.trailer(there).after)

    def trailer(self, segment: Segment) -> Trailer:
        """What the end of its file says."""
        if segment.path not in self._trailers:
            with self._reading(segment), closing(self._store.open(segment.path)) as file:
                self._trailers[segment.path] = _trailer(file)[0]
        return self._trailers[segment.path]

    def records(self, segment: Segment) -> Iterator[bytes]:
        """Its packets."""
        with self._reading(segment), closing(self._store.open(segment.path)) as file:
            trailer, size = _trailer(file)
            stream = pa.CompressedInputStream(file.get_stream(0, size), "zstd")
            left = trailer.bytes
            while left:
                (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
                data = stream.read(length)
                if len(data) < length:
                    raise struct.error("its records are incomplete")
                left -= _LENGTH.size + length
                yield data

    @contextlib.contextmanager
    def _reading(self, segment: Segment) -> Iterator[None]:
        # An OSError would pass for a lost connection to the server.
        try:
            yield
        except (OSError, pa.ArrowException, struct.error, ValueError) as error:
            raise BacklogError(
                f"The staged log {self._store.name(segment.path)} cannot be read: {error}.",
                "Restore it from a backup. If the server still has the log, remove the file.",
            ) from None

    def put(
        self, writer: SegmentWriter, begin: BinlogPosition, end: BinlogPosition, trailer: Trailer, most: int
    ) -> bool:
        """Add a segment; returns False, without it, if all of them had more than ``most`` bytes then."""
        size = writer.finish(trailer)
        if size + sum(s.size for s in self.every()) > most:
            return False
        number = end.file.rpartition(".")[2]
        self._store.put(f"{self._directory}/{begin.file}_{begin.pos}_{number}_{end.pos}{_SUFFIX}", writer.file)
        return True

    def mark(self, begin: BinlogPosition) -> None:
        """Add a segment without records, which shows that the log is staged from a position on."""
        with contextlib.closing(SegmentWriter()) as writer:
            self.put(writer, begin, begin, Trailer(begin.gtids, begin.gtids, 0), 1 << 62)

    def remove(self, until: BinlogPosition | None) -> bool:
        """Remove the segments that end at or before a position; all for None. Returns whether others are left."""
        every = self.every()
        gone = [s for s in every if until is None or s.end.sort_key() <= until.sort_key()]
        for segment in gone:
            self._store.delete(segment.path)
        return len(gone) < len(every)


def staged_in(options: MySqlOptions, server: str) -> Segments | None:
    """The staged log of a server; None without a location that this machine can use."""
    if not options.metadata_location or not server:
        return None
    try:
        return Segments(options, server)
    except Exception as error:  # packages of file systems raise what they like
        _log.debug("Nothing is staged in %s: %r", options.metadata_location, error)
        return None


def _trailer(file: pa.NativeFile) -> tuple[Trailer, int]:
    """The trailer, and the bytes before it."""
    size = file.size()
    file.seek(size - _LENGTH.size)
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    file.seek(size - _LENGTH.size - length)
    told = json.loads(file.read(length))
    check_version("The staged log", told["version"], _VERSION, _WRITER)
    return Trailer(told["before"], told["after"], told["bytes"]), size - _LENGTH.size - length
