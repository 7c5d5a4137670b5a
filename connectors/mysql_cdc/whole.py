"""Whole transactions: what a killed MariaDB left in its log of one that it never committed does not come out (pure).

MySQL cuts its log to the last whole transaction when it recovers. MariaDB begins a new file and leaves the old one as
it is, with a part of the transaction whose writing was interrupted; it rolled that one back. Replicas are expected to
do the same (MariaDB source, `Format_description_log_event::do_apply_event`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .events import Change, RowsChange, TransactionBroken, TransactionEnd
from .offsets import BinlogPosition
from .pieces import PIECE_BYTES

__all__ = ["whole_transactions"]

# Rows that are held back until the transaction's end is there; of a larger one the end is looked for first.
_MOST_HELD = 10_000
_UUID = 36  # letters of MySQL's; MariaDB has domain-server in its place


def whole_transactions(
    changes: Iterator[Change | TransactionBroken],
    start: BinlogPosition | str,
    ends: Callable[[BinlogPosition | str, RowsChange], bool],
) -> Iterator[Change]:
    """Changes of transactions that have an end; MySQL's as they come.

    Parameters
    ----------
    changes : iterator
        As `Events` gives them.
    start : BinlogPosition or str
        Where they start.
    ends : callable
        Whether the transaction after a place, of which a change is, has an end; found by reading ahead.
    """
    held: list[Change] = []
    rows = size = 0
    is_whole: bool | None = None  # None: not known yet
    for change in changes:
        if isinstance(change, TransactionBroken | TransactionEnd):
            if isinstance(change, TransactionEnd):
                yield from held
                yield change
                start = change.position
            held, rows, size, is_whole = [], 0, 0, None
        elif is_whole or not isinstance(change, RowsChange) or len(change.uuid) in (0, _UUID):
            yield change
        elif is_whole is None:
            held.append(change)
            rows += len(change.rows)
            size += change.size
            if rows > _MOST_HELD or size > PIECE_BYTES:
                is_whole = ends(start, change)
                if is_whole:
                    yield from held
                held = []
