"""Positions in a server's binary log, and the numbers that order its rows (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from backlog_spark.errors import BacklogError

__all__ = ["FAR", "FIRST_EVENT", "BinlogPosition", "byte_at", "bytes_at", "file_number", "sequence_at"]

FIRST_EVENT = 4
"""Offset of the first event in a binary log file."""

FAR = 1 << 32
"""4 GiB. An event's 32 bits cannot hold this offset or a later one, and no dump can begin there."""

# Files of 256 GiB, 33 million of them: one a minute for 63 years.
_POS_BITS, _FILE_BITS = 38, 25
_DIGITS = 18  # of a file's number
_POS_MASK = (1 << _POS_BITS) - 1


@dataclass(frozen=True)
class BinlogPosition:
    """A position in one server's binary log. In an offset it is always the end of a transaction.

    ``gtids``: the transactions before it, as an offset keeps them; "" if they are not known. They show whether anything
    is missing when the file has been purged (`server.purged`), and are no part of the position's identity.
    """

    file: str
    pos: int
    gtids: str = field(default="", compare=False, repr=False)

    @property
    def file_number(self) -> int:
        """The number at the end of the file name. It orders the files of one server."""
        return file_number(self.file)

    def sort_key(self) -> tuple[int, int]:
        """Orders the positions of one server."""
        return self.file_number, self.pos

    def __str__(self) -> str:
        return f"{self.file}:{self.pos}"


def file_number(file: str) -> int:
    """The number in a binary log file's name: 12 for ``binlog.000012``."""
    suffix = file.rpartition(".")[2]
    if not suffix.isdecimal() or len(suffix) > _DIGITS:
        raise BacklogError(f"{file[:200]!r} is not the name of a binary log file.", "Expected name.number.")
    return int(suffix)


def sequence_at(file: int, pos: int) -> int:
    """A file's number and an offset in the file as one number, which grows along the log.

    Raises
    ------
    BacklogError
        There are too many files, or the file is too large.
    """
    if pos >> _POS_BITS or file >> _FILE_BITS:
        raise BacklogError(
            f"Byte {pos} of binary log file number {file} does not fit into _commit_seq, which has room for "
            f"{1 << _FILE_BITS} files of {1 << _POS_BITS} bytes.",
            "Write smaller transactions, or reset the server's file numbers and start with a new checkpoint.",
        )
    return (file << _POS_BITS) + pos


def byte_at(sequence: int) -> int:
    """The offset in its file that `sequence_at` put into the number."""
    return sequence & _POS_MASK


def bytes_at(sequences: Iterable[int]) -> list[int]:
    """`byte_at` of each."""
    return [sequence & _POS_MASK for sequence in sequences]
