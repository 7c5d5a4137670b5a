"""Reads many rows with a prepared statement, whose rows come in the server's binary protocol.

For such rows a server needs a third of the processor time that it needs for text, and the values are exact. PyMySQL
makes the connection, but has no prepared statements.

Source: MySQL source documentation, "Prepared Statements".
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pymysql
from pymysql.connections import Connection
from pymysql.constants import COMMAND, CR, FLAG
from pymysql.protocol import FieldDescriptorPacket

from backlog_spark.errors import SettingError

from .bounded import PIECE_BYTES, RowTooLarge
from .wire import HEADER, SLACK, RowDecoder, WireColumn, whole_rows

__all__ = ["fetch"]

_LARGEST = 0xFFFFFF  # bytes of a packet; a longer row continues in the next packet
_TOO_MANY = 1461
_MOST_BYTES = 1 << 30
# Most cells of a piece: a NULL takes one bit in a row, but up to 16 bytes in a column.
_CELLS = 2_000_000
_END, _ERROR = 0xFE, 0xFF
_Read = TypeVar("_Read", int, bytes)


def fetch(
    connection: Connection[Any],
    statement: str,
    check: Callable[[Sequence[WireColumn]], None],
    most_bytes: int = _MOST_BYTES,
) -> Iterator[list[pa.Array]]:
    """The columns of a statement's rows, in pieces of at most `PIECE_BYTES`, or of one row that is larger.

    Until all pieces are read, the connection can only be closed, not used.

    Parameters
    ----------
    connection : Connection
    statement : str
        Without parameters.
    check : callable
        Called with the columns before any row is decoded.
    most_bytes : int
        Most bytes of a row, at least those of a packet (16 MiB).

    Raises
    ------
    RowTooLarge
        A row is larger than ``most_bytes``.
    BacklogError
        A value is longer than its row.
    SettingError
        The server allows no more prepared statements.
    pymysql.err.MySQLError
    """
    number = _prepare(connection, statement)
    connection._execute_command(COMMAND.COM_STMT_EXECUTE, struct.pack("<IBI", number, 0, 1))
    columns = _columns(connection, connection._read_packet().read_length_encoded_integer())
    check(columns)
    decoder = RowDecoder(columns)
    most = max(1, _CELLS // len(columns))
    for data, starts in _Packets(connection, most_bytes).pieces():
        for at in range(0, len(starts), most):
            yield decoder.decode(data, starts[at : at + most])
    connection._execute_command(COMMAND.COM_STMT_CLOSE, struct.pack("<I", number))


def _prepare(connection: Connection[Any], statement: str) -> int:
    """Prepare a statement; returns its number."""
    try:
        connection._execute_command(COMMAND.COM_STMT_PREPARE, statement)
        number, columns, parameters = struct.unpack_from("<IHH", connection._read_packet().get_all_data(), 1)
    except pymysql.err.MySQLError as error:
        if error.args[0] != _TOO_MANY:
            raise
        raise SettingError(
            "max_prepared_stmt_count", "reached", f"{error.args[1]}.",
            "Raise it on the server: a snapshot has one prepared statement open in each of its tasks.",
        ) from None  # fmt: skip
    assert parameters == 0
    _columns(connection, columns)
    return int(number)


def _columns(connection: Connection[Any], count: int) -> list[WireColumn]:
    described = [connection._read_packet(FieldDescriptorPacket) for _ in range(count)]
    if count:
        connection._read_packet()  # the end of the columns
    return [WireColumn(each.type_code, bool(each.flags & FLAG.UNSIGNED)) for each in described]


class _Packets:
    """The packets of a result's rows."""

    def __init__(self, connection: Connection[Any], most_bytes: int) -> None:
        self._connection = connection
        self._most_bytes = most_bytes
        # Bytes that came with the columns are in the buffered file. The rest is read directly into the memory here.
        first = self._reading(lambda: connection._rfile.read1(io.DEFAULT_BUFFER_SIZE))
        self._data = bytearray(max(PIECE_BYTES, len(first)) + SLACK)
        self._data[: len(first)] = first
        self._filled = len(first)

    def pieces(self) -> Iterator[tuple[bytes | bytearray, list[int]]]:
        """Memory, and the offsets in it where packets of rows begin. Decode them before asking for the next piece.

        Ends after the last row. The server's last packet, which ends the rows or is an error, has been read then.
        """
        starts: list[int] = []
        at = 0
        while True:
            found = whole_rows(self._data, at, self._filled)
            starts += found.starts
            at = found.end
            ended = bool(starts) and self._is_over(starts[-1])
            if ended:
                del starts[-1]
            is_full = self._filled == len(self._data) - SLACK
            if starts and (ended or is_full):
                yield self._data, starts
            if ended:
                return
            if is_full:
                self._keep_from(at)
                starts, at = [], 0
            if self._filled and self._is_continued(at):
                if starts:
                    yield self._data, starts
                yield self._joined(at)
                starts, at = [], 0
                continue
            self._fill()

    def _is_over(self, start: int) -> bool:
        """Whether a packet is the last one of the result. Raises if it is an error."""
        first = self._data[start + HEADER]
        if first == 0:
            return False
        packet = self._data[start + HEADER : start + HEADER + int.from_bytes(self._data[start : start + 3], "little")]
        if first == _ERROR:
            pymysql.err.raise_mysql_exception(bytes(packet))
        if first != _END:
            raise pymysql.err.InternalError(f"a row begins with {first}, not with 0")
        return True

    def _is_continued(self, at: int) -> bool:
        """Whether the packet at an offset continues in the next one."""
        return self._filled - at >= HEADER and int.from_bytes(self._data[at : at + 3], "little") == _LARGEST

    def _joined(self, at: int) -> tuple[bytes, list[int]]:
        """Join a row of several packets into one. The bytes after it are kept."""
        self._keep_from(at)
        parts = [bytes(HEADER)]
        size, total = _LARGEST, 0
        while size == _LARGEST:
            self._have(HEADER)
            size = int.from_bytes(self._data[:3], "little")
            total += size
            if total > self._most_bytes:
                raise RowTooLarge(total)
            self._have(HEADER + size)
            parts.append(bytes(memoryview(self._data)[HEADER : HEADER + size]))
            self._keep_from(HEADER + size)
        return b"".join([*parts, bytes(SLACK)]), [0]

    def _have(self, size: int) -> None:
        if len(self._data) < size + SLACK:
            self._grow(size)
        while self._filled < size:
            self._fill()

    def _keep_from(self, at: int) -> None:
        """Move the bytes that are not decoded yet to the front, and make room for more."""
        left = self._filled - at
        if left < PIECE_BYTES < len(self._data) - SLACK:
            # Shrink the memory that a large row needed.
            self._data, rest = bytearray(PIECE_BYTES + SLACK), memoryview(self._data)[at : self._filled]
            self._data[:left], self._filled = rest, left
        elif at:
            self._data[:left] = self._data[at : self._filled]
            self._filled = left
        elif left == len(self._data) - SLACK:
            self._grow(2 * left)

    def _grow(self, size: int) -> None:
        # Resizing the old memory is not possible: columns of earlier rows may still refer to it.
        data = bytearray(size + SLACK)
        data[: self._filled] = memoryview(self._data)[: self._filled]
        self._data = data

    def _fill(self) -> None:
        """Read the available bytes, at least one."""
        room = memoryview(self._data)[self._filled : len(self._data) - SLACK]
        self._filled += self._reading(lambda: self._connection._rfile.raw.readinto(room))

    def _reading(self, read: Callable[[], _Read]) -> _Read:
        try:
            found = read()
        except OSError as error:
            raise self._lost(f" ({error})") from None
        if not found:
            raise self._lost("")
        return found

    def _lost(self, why: str) -> pymysql.err.OperationalError:
        self._connection._force_close()
        return pymysql.err.OperationalError(CR.CR_SERVER_LOST, f"Lost connection to MySQL server during query{why}")
