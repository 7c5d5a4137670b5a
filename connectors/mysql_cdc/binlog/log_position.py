"""Follows the position of a dump's events in the binary log, also beyond 4 GiB (pure).

An event gives its end in 32 bits. A transaction is always in one file, so a large one makes a file of any size, and the
32 bits wrap around. So the position is followed by adding up the sizes of the events, and the end that an event gives
corrects the sum.

Sources: MySQL source documentation, "Binlog Event"; MySQL source, sql/rpl_binlog_sender.cc.
"""

from __future__ import annotations

import struct
import zlib

from ..server.log_gone import LogGone
from .positions import FIRST_EVENT, file_number

__all__ = ["FORMAT", "HEADER", "ROTATE", "DumpPosition", "LargeFile", "header_of"]

HEADER = 20
"""Bytes before an event's body: one OK byte, then a header of 19."""

header_of = struct.Struct("<5xB4xIIH").unpack_from
"""From an event to its type, its size, its end in the file, and its flags."""

ROTATE, FORMAT = 4, 15
_HEARTBEATS = {27, 41}
# Format, previous GTIDs, MariaDB's GTID list and start of encryption. They stand at a file's beginning and are sent
# again elsewhere.
_AT_BEGINNING = {FORMAT, 35, 163, 164}
_ARTIFICIAL = 0x20  # flag of an event that the server makes up: it is not in the file
_TOLD_BITS = 32
_LOW_BITS = (1 << _TOLD_BITS) - 1


class LargeFile(Exception):
    """A dump by GTID has reached a file of 4 GiB or more. Transactions that it skips make offsets there ambiguous."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.file = file


class DumpPosition:
    """The position that a dump has reached.

    Parameters
    ----------
    large : set of str, optional
        The files of 4 GiB or more, for a dump that skips transactions. None: the dump sends everything from its
        beginning on.
    after : int
        Events that end at or before this offset of the first file are skipped. A dump cannot begin beyond 4 GiB, so it
        begins at the file's beginning instead. As an attribute, 0 from the first wanted event on.

    Attributes
    ----------
    file, number : str, int
        The file and its number.
    sent : int
        Up to this offset the server has sent the file, or skipped what was not wanted.
    is_told : bool
        The last event gave its own end.
    """

    def __init__(self, large: frozenset[str] | None = None, after: int = 0) -> None:
        self._large = large
        self.after = after
        self.file = ""
        self.number = self.sent = 0
        self.is_told = True
        self._end = 0
        self._at_beginning = False

    def moved(self, data: bytes, kind: int, size: int, told: int, flags: int) -> int:
        """Move past an event with this header; returns its end in the file.

        An artificial event is not in the file: the position stays.

        MariaDB 11.4 gives no end for events inside a transaction; they follow one another. If it does not send one of
        them (annotated rows), those behind it get a position that is too low. It is never the position of another
        event, because the transaction's first and last event give theirs.
        """
        if kind == ROTATE:
            # A real rotate event ends its file. An artificial one with the same content follows it.
            self._rotate(data)
            return self._end
        self._at_beginning = self._at_beginning and kind in _AT_BEGINNING
        if flags & _ARTIFICIAL or (kind in _AT_BEGINNING and not self._at_beginning):
            return self._end
        end = self._end if kind in _HEARTBEATS else self._end + size
        self.is_told = told > 0
        if told and self._large is not None:
            end = told
        elif told and end & _LOW_BITS != told:
            end = nearest(end, told)
        self._end = end
        if end > self.sent:
            self.sent = end
        return end

    def is_before(self, end: int, size: int) -> bool:
        """Whether an event lies before ``after``, where the wanted part begins.

        Raises
        ------
        LogGone
            No event begins there.
        """
        if end <= self.after:
            return True
        self._arrive(end - size)
        return False

    def _arrive(self, at: int) -> None:
        if self.after and at != self.after:
            raise LogGone(
                f"The binary log has no transaction's end at {self.file}:{self.after}, up to which it was read.",
                "If the server was restored or replaced, start with a new checkpoint.",
            )
        self.after = 0

    def _rotate(self, data: bytes) -> None:
        if self.file:
            self._arrive(self._end)
        # The rotate event that opens a file is artificial and comes before the format event, which would say whether
        # there are checksums. So the checksum itself is tried.
        checked = zlib.crc32(data[1:-4]) == int.from_bytes(data[-4:], "little")
        self.file = data[HEADER + 8 : len(data) - (4 if checked else 0)].decode()
        self.number = file_number(self.file)
        # In 64 bits: the offset from which on the file is sent.
        self.sent = self._end = int.from_bytes(data[HEADER : HEADER + 8], "little")
        self._at_beginning = self._end == FIRST_EVENT
        if self._large and self.file in self._large:
            raise LargeFile(self.file)


def nearest(followed: int, told: int) -> int:
    """The offset nearest to ``followed`` whose lower 32 bits are ``told``."""
    half = 1 << (_TOLD_BITS - 1)
    return followed + (told - followed + half) % (1 << _TOLD_BITS) - half
