"""Low watermarks: the transactions that a snapshot range includes, and where reading the log after them starts (pure).

An offset keeps a low watermark as text. MySQL's is a GTID set. MariaDB's is a log position, ``GTIDs@file:position``:
the position decides, the GTIDs later show whether it is still the same log. MySQL without GTIDs has only a position.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from backlog_spark.errors import BacklogError

from ..binlog.positions import BinlogPosition, sequence_at
from ..offsets import Offset
from .gtid import GtidSet, MariaDbGtids

__all__ = [
    "NO_GTIDS",
    "GtidWatermark",
    "PositionWatermark",
    "Watermark",
    "as_of",
    "gtids_at",
    "origin",
    "resume_after",
    "shows",
    "watermark",
]


NO_GTIDS = ","
"""The low watermark of a server without any transaction. It parses as the empty set; "" means that there is no mark."""


@dataclass(frozen=True)
class GtidWatermark:
    """All transactions of MySQL's GTID set."""

    gtids: GtidSet

    def includes(self, uuid: str, number: int, sequence: int) -> bool:
        """Whether the transaction with this GTID, one of whose changes has this sequence, is below the watermark.

        Raises
        ------
        BacklogError
            The transaction has no GTID.
        """
        if not uuid:
            raise BacklogError("The binary log has a change of the table without a GTID.", "Keep gtid_mode=ON.")
        return self.gtids.contains(uuid, number)


@dataclass(frozen=True)
class PositionWatermark:
    """All transactions before a log position of MariaDB, or of MySQL without GTIDs.

    MySQL's also has GTIDs if it stands for a place of the log that a stream with GTIDs has reached.
    """

    position: BinlogPosition
    gtids: GtidSet | MariaDbGtids

    def includes(self, uuid: str, number: int, sequence: int) -> bool:
        """As `GtidWatermark.includes`. No transaction spans the position, because it is the end of one."""
        return sequence < sequence_at(self.position.file_number, self.position.pos)

    def __str__(self) -> str:
        return f"{self.gtids}@{self.position.file}:{self.position.pos}"


Watermark = GtidWatermark | PositionWatermark


def watermark(text: str) -> Watermark:
    """Parse the text that an offset keeps.

    Raises
    ------
    BacklogError
        The text has neither form.
    """
    gtids, at, position = text.partition("@")
    if not at:
        return GtidWatermark(GtidSet(text))
    file, _, pos = position.rpartition(":")
    if not file or not pos.isdecimal():
        raise BacklogError(f"{text!r} is not a low watermark.", "Expected GTIDs@file:position.")
    of_mysql = ":" in gtids
    return PositionWatermark(BinlogPosition(file, int(pos)), GtidSet(gtids) if of_mysql else MariaDbGtids(gtids))


def resume_after(text: str) -> BinlogPosition | str:
    """Where `read_changes` starts after a low watermark: its log position, or MySQL's GTID set."""
    low = watermark(text)
    return replace(low.position, gtids=str(low.gtids)) if isinstance(low, PositionWatermark) else text


def origin(offset: Offset) -> BinlogPosition | str:
    """Where `read_changes` continues after an offset of the binary log phase."""
    if offset.position is None:
        return resume_after(offset.start)
    return offset.gtid if offset.gtid_until else replace(offset.position, gtids=offset.gtid)


def gtids_at(offset: Offset) -> GtidSet | MariaDbGtids | None:
    """The GTIDs at an offset of the binary log phase; None if they are not known."""
    of_mariadb = offset.server.startswith("mariadb-")
    if offset.position:
        if of_mariadb:
            return MariaDbGtids(offset.gtid)
        return GtidSet(offset.gtid) if offset.gtid else None
    low = watermark(offset.start)
    if isinstance(low, GtidWatermark):
        return low.gtids
    return low.gtids if of_mariadb else None


def as_of(offset: Offset, low: str = "") -> str:
    """The transactions that rows contain at an offset of the binary log phase, in the form of a low watermark.

    Parameters
    ----------
    low : str
        The low watermark of the rows' snapshot range. "" if the offset no longer has ranges.
    """
    reached = _reached(offset)
    if not low:
        return str(reached) if isinstance(reached, PositionWatermark) else str(reached.gtids)
    mark = watermark(low)
    if isinstance(mark, GtidWatermark) and isinstance(reached, GtidWatermark):
        both = GtidSet(str(mark.gtids))
        both.update(reached.gtids)
        return str(both)
    if isinstance(mark, PositionWatermark) and isinstance(reached, PositionWatermark):
        return str(max(mark, reached, key=lambda m: m.position.sort_key()))
    raise BacklogError(
        "The checkpoint has watermarks with and without GTIDs.", "Verify again when the query has read more of the log."
    )


def _reached(offset: Offset) -> Watermark:
    if offset.position is None:
        return watermark(offset.start)
    if offset.server.startswith("mariadb-"):
        return PositionWatermark(offset.position, MariaDbGtids(offset.gtid))
    if offset.gtid:
        return GtidWatermark(GtidSet(offset.gtid))
    return PositionWatermark(offset.position, MariaDbGtids(""))


def shows(shown: Watermark, wanted: Watermark) -> bool:
    """Whether the first watermark includes every transaction of the second.

    Raises
    ------
    BacklogError
        One has GTIDs and the other not.
    """
    if isinstance(shown, GtidWatermark) and isinstance(wanted, GtidWatermark):
        return shown.gtids.issuperset(wanted.gtids)
    if isinstance(shown, PositionWatermark) and isinstance(wanted, PositionWatermark):
        return shown.position.sort_key() >= wanted.position.sort_key()
    raise BacklogError(
        "The server's GTIDs were turned on or off since the query read its log.",
        "Verify again when the query has read more of the log.",
    )
