"""Where the events of a dump lie in the binary log, also behind 4 GiB (pure).

An event tells its end in 32 bits. One transaction is never in two files, so a large one makes a file of any size, and
the number begins anew there. So places are followed by the sizes of the events, and what an event tells corrects that.

Sources: MySQL source documentation, "Binlog Event"; MySQL source, sql/rpl_binlog_sender.cc.
"""

from __future__ import annotations

import zlib

from backlog_spark.errors import BacklogError

from ..offsets import FIRST_EVENT, file_number

__all__ = ["FORMAT", "HEADER", "ROTATE", "DumpPosition", "LargeFile"]

HEADER = 20
"""Bytes before an event's own: one OK byte, then its header of 19."""

ROTATE, FORMAT = 4, 15
_HEARTBEATS = {27, 41}
# Format, previous GTIDs, MariaDB's GTID list and start of encryption: at a file's beginning, and sent again elsewhere.
_AT_BEGINNING = {FORMAT, 35, 163, 164}
_ARTIFICIAL = 0x20  # flag of what the server makes up: it is not in the file
_TOLD_BITS = 32


class LargeFile(Exception):
    """A dump that leaves transactions out is at a file of 4 GiB or more: nothing tells where in it the rest lies."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.file = file


class DumpPosition:
    """The place that a dump has come to.

    Parameters
    ----------
    large : set of str, optional
        The dump leaves transactions out, and these are the files of 4 GiB or more. None: it sends all from its
        beginning on.
    after : int
        What ends up to this byte of the first file is passed over: the dump begins at the file's beginning, as it
        cannot be asked to begin there.

    Attributes
    ----------
    file, number : str, int
        The file and its number.
    sent : int
        Up to here the server has sent the file, or left out what was not wanted.
    is_told : bool
        The last event said where it ends.
    """

    def __init__(self, large: frozenset[str] | None = None, after: int = 0) -> None:
        self._large = large
        self._after = after
        self.file = ""
        self.number = self.sent = 0
        self.is_told = True
        self._end = 0
        self._at_beginning = False

    def moved(self, data: bytes) -> int:
        """Take an event; returns where it ends in its file. A made-up event is nowhere: the place stays.

        MariaDB 11.4 leaves the end out of the events inside a transaction, which follow one another. One that it keeps
        to itself (annotated rows) shifts those behind it, so they are known by a place that is too low, yet never by
        that of another event: the transaction's first and last event say where they are.
        """
        kind = data[5]
        if kind == ROTATE:
            # A real one stands at the end of its file. What follows it is made up again and says the same.
            self._rotate(data)
            return self._end
        told, flags = int.from_bytes(data[14:18], "little"), int.from_bytes(data[18:20], "little")
        self._at_beginning = self._at_beginning and kind in _AT_BEGINNING
        if flags & _ARTIFICIAL or (kind in _AT_BEGINNING and not self._at_beginning):
            return self._end
        followed = self._end + (0 if kind in _HEARTBEATS else int.from_bytes(data[10:14], "little"))
        self.is_told = told > 0
        if not told:
            self._end = followed
        elif self._large is None:
            self._end = nearest(followed, told)
        else:
            self._end = told
        self.sent = max(self.sent, self._end)
        return self._end

    def is_before(self, end: int, size: int) -> bool:
        """Whether an event comes before the place from which on all is wanted.

        Raises
        ------
        BacklogError
            No event begins there.
        """
        if end <= self._after:
            return True
        self._arrive(end - size)
        return False

    def _arrive(self, at: int) -> None:
        if self._after and at != self._after:
            raise BacklogError(
                f"The binary log has no transaction's end at {self.file}:{self._after}, up to which it was read.",
                "If the server was restored or replaced, start with a new checkpoint.",
            )
        self._after = 0

    def _rotate(self, data: bytes) -> None:
        if self.file:
            self._arrive(self._end)
        # The one that opens a file is made up and comes before the format: whether it has a checksum, only that tells.
        checked = zlib.crc32(data[1:-4]) == int.from_bytes(data[-4:], "little")
        self.file = data[HEADER + 8 : len(data) - (4 if checked else 0)].decode()
        self.number = file_number(self.file)
        # Where what is sent of the file starts, in 64 bits
        self.sent = self._end = int.from_bytes(data[HEADER : HEADER + 8], "little")
        self._at_beginning = self._end == FIRST_EVENT
        if self._large and self.file in self._large:
            raise LargeFile(self.file)


def nearest(followed: int, told: int) -> int:
    """The place next to ``followed`` of which ``told`` is the lower 32 bits."""
    half = 1 << (_TOLD_BITS - 1)
    return followed + (told - followed + half) % (1 << _TOLD_BITS) - half
