"""Requests to read ranges of captured tables again while the stream follows the log, as the offset keeps them (pure).

A range is read as of the *start* of a batch of the log phase (`snapshot.rereading`). So its rows are older than every
change of that batch and newer than every change before. Nothing has to be filtered, and the state is small: what is
left to read, and what the newest batch reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..schema.keys import Key, key_from_json, key_to_json

__all__ = ["ALTERED", "RangeRead", "RangeRequest", "Requests"]

_Name = tuple[str, str]
ALTERED = "ALTER TABLE"
"""The `RangeRequest.id` of a table that a statement has rewritten."""


@dataclass(frozen=True)
class RangeRequest:
    """Rows of a table to be read again: those with a chunk key after ``after`` up to and including ``last``.

    Parameters
    ----------
    id : str
        Of the signal that asked, or `ALTERED`.
    table : (str, str)
        Database and name.
    after, last : tuple or None
        Chunk keys; None is open. ``after`` moves along while the range is read.
    condition : str
        SQL; only rows that meet it are read. "" for all.
    in_target : tuple of keys
        Primary keys in the range that the target has and the table perhaps not. For those that the table has not, the
        batch that reads their place has a delete.
    """

    id: str
    table: _Name
    after: Key | None = None
    last: Key | None = None
    condition: str = ""
    in_target: tuple[Key, ...] = ()


@dataclass(frozen=True)
class RangeRead:
    """What one batch reads of a request, as of the batch's start offset.

    ``at_ms``: server time when it was planned; it becomes ``_commit_timestamp``. The rest is as in `RangeRequest`.
    """

    table: _Name
    after: Key | None
    last: Key | None
    condition: str
    in_target: tuple[Key, ...]
    at_ms: int


@dataclass(frozen=True)
class Requests:
    """The state of all requests.

    Parameters
    ----------
    queue : tuple of RangeRequest
        What is left, in order.
    reads : tuple of RangeRead
        What the batch that ended here has read.
    is_paused : bool
    heard : int
        Number of the newest signal that was taken from the query itself.
    """

    queue: tuple[RangeRequest, ...] = ()
    reads: tuple[RangeRead, ...] = ()
    is_paused: bool = False
    heard: int = 0

    @property
    def is_backlog(self) -> bool:
        """Whether a table is read again whose old rows were rewritten."""
        return not self.is_paused and any(request.id == ALTERED for request in self.queue)

    def altered(self, tables: Collection[_Name]) -> Requests:
        """With tables that have been rewritten. What was read of them before does not count any more."""
        kept = self.kept(lambda request: request.id != ALTERED or request.table not in tables)
        return kept.added([RangeRequest(ALTERED, table) for table in sorted(tables)])

    def without_reads(self) -> Requests:
        """The state for a batch that reads nothing again."""
        return replace(self, reads=()) if self.reads else self

    def added(self, more: Sequence[RangeRequest]) -> Requests:
        """With more requests. One that is already waiting, and has read nothing, is not repeated."""
        new = [request for request in dict.fromkeys(more) if request not in self.queue]
        return replace(self, queue=(*self.queue, *new))

    def kept(self, keep: Callable[[RangeRequest], bool]) -> Requests:
        """With those requests of the queue alone."""
        queue = tuple(filter(keep, self.queue))
        return self if queue == self.queue else replace(self, queue=queue)

    def without_tables(self, names: Collection[_Name]) -> Requests:
        """Without the requests of tables that leave the stream."""
        return self.kept(lambda request: request.table not in names)

    def to_json(self) -> dict[str, Any]:
        """The form in the offset, without ``heard``; empty if there is nothing to keep."""
        out: dict[str, Any] = {}
        if self.queue:
            out["queue"] = [[r.id, *_range_to_json(r)] for r in self.queue]
        if self.reads:
            out["reads"] = [[r.at_ms, *_range_to_json(r)] for r in self.reads]
        if self.is_paused:
            out["paused"] = True
        return out

    @classmethod
    def from_json(cls, data: dict[str, Any], heard: int) -> Requests:
        """Read back what `to_json` wrote."""
        return cls(
            tuple(RangeRequest(id_, *_range_from_json(rest)) for id_, *rest in data.get("queue", ())),
            tuple(RangeRead(*_range_from_json(rest), at_ms) for at_ms, *rest in data.get("reads", ())),
            data.get("paused", False),
            heard,
        )


def _range_to_json(of: RangeRequest | RangeRead) -> list[Any]:
    keys = [key_to_json(key) for key in of.in_target]
    return [*of.table, key_to_json(of.after), key_to_json(of.last), of.condition, *([keys] if keys else [])]


def _range_from_json(data: Sequence[Any]) -> tuple[_Name, Key | None, Key | None, str, tuple[Key, ...]]:
    database, table, after, last, condition, *keys = data
    in_target = [key_from_json(key) for key in (keys[0] if keys else ())]
    found = tuple(key for key in in_target if key is not None)
    return (database, table), key_from_json(after), key_from_json(last), condition, found
