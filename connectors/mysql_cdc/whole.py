"""Whole transactions: what MariaDB has in its log of one that was never committed does not come out (pure).

MySQL cuts its log to the last whole transaction when it recovers. MariaDB begins a new file and leaves the old one as
it is, with a part of the transaction whose writing was interrupted; it rolled that one back. Replicas are expected to
do the same (MariaDB source, `Format_description_log_event::do_apply_event`). Of a transaction that had to do with
temporary tables, or others that are not transactional, it also logs what was rolled back, and that it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from backlog_spark.errors import BacklogError

from .events import Change, RowsChange, Savepoint, TransactionBroken, TransactionEnd
from .offsets import BinlogPosition
from .pieces import PIECE_BYTES

__all__ = ["whole_transactions"]

# Rows that are held back until the transaction's end is there; of a larger one the end is looked for first.
_MOST_HELD = 10_000
_UUID = 36  # letters of MySQL's; MariaDB has domain-server in its place


def whole_transactions(
    changes: Iterator[Change | Savepoint | TransactionBroken],
    start: BinlogPosition | str,
    ends: Callable[[BinlogPosition | str, RowsChange], bool],
) -> Iterator[Change]:
    """Changes of transactions that were committed; MySQL's as they come.

    Parameters
    ----------
    changes : iterator
        As `Events` gives them.
    start : BinlogPosition or str
        Where they start.
    ends : callable
        Whether the transaction after a place, of which a change is, was committed; found by reading ahead.

    Raises
    ------
    BacklogError
        A part of a transaction that is too large to hold was rolled back.
    """
    held: list[RowsChange] = []
    rows = size = 0
    savepoints: dict[str, int] = {}
    is_whole: bool | None = None  # None: not known yet
    for change in changes:
        if isinstance(change, TransactionBroken | TransactionEnd):
            if isinstance(change, TransactionEnd):
                yield from () if change.is_rolled_back else held
                yield change
                start = change.position
            held, rows, size, savepoints, is_whole = [], 0, 0, {}, None
        elif isinstance(change, Savepoint):
            if not change.is_back:
                savepoints[change.name] = len(held)
            elif is_whole:
                raise BacklogError(
                    f"The binary log has a transaction of more than {_MOST_HELD:,} rows, of which a part was rolled "
                    f"back, to the savepoint {change.name}.",
                    "Start with a new checkpoint, and do not drop temporary tables behind the savepoints of large "
                    "transactions.",
                )
            else:
                del held[savepoints.get(change.name, 0) :]
                rows, size = sum(len(each.rows) for each in held), sum(each.size for each in held)
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
