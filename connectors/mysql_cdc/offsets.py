"""The offset of ``mysql_cdc``: all that fixes what a batch reads, in a small JSON object (pure).

A batch is the step from its start offset to its end offset. In the snapshot phase the end offset adds one
entry, the upper end of the key range and the low watermark (LW) at which that range is read; in the binary
log phase it moves the position. So a replay after a failure reads the same rows, whenever it runs.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from backlog_spark.errors import BacklogError

from .keys import Key, key_from_json, key_to_json

__all__ = ["FIRST_EVENT", "BinlogPosition", "KeyRanges", "Offset", "SnapshotBatch", "file_number"]

_VERSION = 1

FIRST_EVENT = 4
"""Where the events of a binary log file begin."""


@dataclass(frozen=True)
class BinlogPosition:
    """A place in one server's binary log; always the end of a transaction when kept in an offset."""

    file: str
    pos: int

    @property
    def file_number(self) -> int:
        """The numeric suffix of the file name, which orders the files of one server."""
        return file_number(self.file)

    def sort_key(self) -> tuple[int, int]:
        """Positions of one server compare by this."""
        return self.file_number, self.pos


def file_number(file: str) -> int:
    """The number in a binary log file's name: 12 for ``binlog.000012``."""
    suffix = file.rpartition(".")[2]
    if not suffix.isdigit():
        raise BacklogError(f"{file!r} is not the name of a binary log file.", "Expected name.number.")
    return int(suffix)


@dataclass(frozen=True)
class SnapshotBatch:
    """One snapshot batch: the keys after the previous batch's ``end``, up to and with ``end``, as of ``low``.

    Parameters
    ----------
    end : tuple or None
        Greatest chunk key of the range; None leaves the last range open.
    low : str
        The low watermark: all transactions that the rows include, no other, as in `watermark`: MySQL's GTID set or a
        place in MariaDB's log.
    at_ms : int
        Server time of the low watermark, milliseconds since 1970 (UTC). It becomes ``_commit_timestamp``.
    """

    end: Key | None
    low: str
    at_ms: int


@dataclass(frozen=True)
class Offset:
    """A point between two batches.

    Parameters
    ----------
    server : str
        ``server_uuid`` that positions refer to, or what stands for it in MariaDB.
    schema : str
        Fingerprint of the columns that the query was started with, so that an ALTER while it was stopped shows.
    batches : tuple of SnapshotBatch
        The snapshot batches so far. In the binary log phase they say which changes the snapshot already
        holds; emptied once the log has passed ``filter_until``.
    complete : bool
        The snapshot has been read: the binary log phase.
    start : str
        Binary log phase before its first batch: what to start after (the first LW); else "".
    position : BinlogPosition or None
        Binary log phase: all transactions up to here have been read.
    gtid : str
        MariaDB: the last transaction of each domain at ``position``, by which a log that was reset or exchanged shows.
    filter_until : BinlogPosition or None
        A position that every transaction of the last LW lies at or before.
    rows, total : int
        Rows of the snapshot so far, as the planner counted them, and an estimate of all: for progress, never for
        reading.
    is_backlog : bool
        ``isProcessingBacklog`` at the start of the batch that ended here (FLIP-327's RecordAttributes).
    is_lagging : bool
        Binary log phase: so far behind the log's end that this is backlog.
    is_finished : bool
        Nothing comes any more: a snapshot that was all that was asked for (FLIP-147).
    """

    server: str
    schema: str = ""
    batches: tuple[SnapshotBatch, ...] = ()
    complete: bool = False
    start: str = ""
    position: BinlogPosition | None = None
    gtid: str = ""
    filter_until: BinlogPosition | None = None
    rows: int = 0
    total: int = 0
    is_backlog: bool = True
    is_lagging: bool = False
    is_finished: bool = False

    @property
    def is_undecided(self) -> bool:
        """Before the first batch of a stream without a snapshot, which decides where in the log it starts."""
        return self.complete and not self.start and self.position is None

    @property
    def is_processing_backlog(self) -> bool:
        """FLIP-309: the snapshot is backlog, the binary log only where it lags."""
        return not self.complete or self.is_lagging

    @property
    def last_key(self) -> Key | None:
        """Greatest key whose range has been read; None before the first batch and after an open range."""
        return self.batches[-1].end if self.batches else None

    def with_snapshot_batch(
        self, batch: SnapshotBatch, rows: int, total: int, until: BinlogPosition | None, *, is_lagging: bool = False
    ) -> Offset:
        """The end offset of a snapshot batch. ``until`` is given with the last batch, and only with it."""
        return replace(
            self,
            batches=(*self.batches, batch),
            complete=until is not None,
            start=(self.batches or (batch,))[0].low if until is not None else "",
            filter_until=until,
            rows=self.rows + rows,
            total=total,
            is_backlog=self.is_processing_backlog,
            is_lagging=is_lagging,
        )

    def at(self, position: BinlogPosition, gtid: str = "", *, is_lagging: bool = False) -> Offset:
        """The end offset of a binary log batch. What is needed no more is dropped."""
        passed = self.filter_until is None or position.sort_key() >= self.filter_until.sort_key()
        return replace(
            self,
            position=position,
            gtid=gtid,
            start="",
            batches=() if passed else self.batches,
            filter_until=None if passed else self.filter_until,
            is_backlog=self.is_processing_backlog,
            is_lagging=is_lagging,
        )

    def to_json(self) -> dict[str, Any]:
        """As kept in Spark's offset log. The order of keys is fixed: Spark compares offsets as text."""
        out: dict[str, Any] = {
            "version": _VERSION,
            "isProcessingBacklog": self.is_processing_backlog,
            "isBacklog": self.is_backlog,
            "phase": "start" if self.is_undecided else "binlog" if self.complete else "snapshot",
            "server": self.server,
            "schema": self.schema,
            "rows": self.rows,
            "total": self.total,
            "batches": [[key_to_json(b.end), b.low, b.at_ms] for b in self.batches],
        }
        if self.start:
            out["start"] = self.start
        if self.position:
            out["position"] = [self.position.file, self.position.pos]
        if self.gtid:
            out["gtid"] = self.gtid
        if self.is_lagging:
            out["isLagging"] = True
        if self.is_finished:
            out["isFinished"] = True
        if self.filter_until:
            out["filterUntil"] = [self.filter_until.file, self.filter_until.pos]
        return out

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Offset:
        """Read back what `to_json` wrote.

        Raises
        ------
        BacklogError
            When the offset is of another version or not one of ``mysql_cdc``.
        """
        if data.get("version") != _VERSION or "phase" not in data:
            raise BacklogError(
                f"An offset of version {data.get('version')!r} is not one that this mysql_cdc reads.",
                "Use the version of backlog_spark that wrote the checkpoint, or a new checkpoint.",
            )
        return cls(
            server=data["server"],
            schema=data["schema"],
            batches=tuple(SnapshotBatch(key_from_json(end), low, at) for end, low, at in data["batches"]),
            complete=data["phase"] != "snapshot",
            start=data.get("start", ""),
            position=BinlogPosition(*data["position"]) if "position" in data else None,
            gtid=data.get("gtid", ""),
            filter_until=BinlogPosition(*data["filterUntil"]) if "filterUntil" in data else None,
            rows=data["rows"],
            total=data["total"],
            is_backlog=data["isBacklog"],
            is_lagging=data.get("isLagging", False),
            is_finished=data.get("isFinished", False),
        )


class KeyRanges:
    """Which snapshot batch a key belongs to. Ranges follow one another; the first and the last are open.

    Parameters
    ----------
    ends : sequence of bytes
        Order bytes of the batches' ends (`places`), without that of an open one.
    """

    def __init__(self, ends: Sequence[bytes]) -> None:
        self._ends = ends

    def index(self, place: bytes) -> int:
        """Index of the batch that read the key with these order bytes, or past the last closed range."""
        return bisect.bisect_left(self._ends, place)
