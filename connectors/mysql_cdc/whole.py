"""Whole transactions: what MariaDB has in its log of one that was never committed does not come out (pure).

MySQL cuts its log to the last whole transaction when it recovers. MariaDB begins a new file and leaves the old one as
it is, with a part of the transaction whose writing was interrupted; it rolled that one back. Replicas are expected to
do the same (MariaDB source, `Format_description_log_event::do_apply_event`). Of a transaction that had to do with
temporary tables, or others that are not transactional, it also logs what was rolled back, and that it was.
"""

from __future__ import annotations

import unicodedata
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
        A part of a transaction that is too large to hold was rolled back, or what was is not known.
    """
    held: list[RowsChange] = []
    rows = size = seen = 0
    savepoints: dict[str, int] = {}  # how many changes of rows there had been
    is_whole: bool | None = None  # None: not known yet
    for change in changes:
        if isinstance(change, TransactionBroken | TransactionEnd):
            if isinstance(change, TransactionEnd):
                yield from () if change.is_rolled_back else held
                yield change
                start = change.position
            held, rows, size, seen, savepoints, is_whole = [], 0, 0, 0, {}, None
        elif isinstance(change, Savepoint):
            if not change.is_back:
                savepoints[_compared(change.name)] = seen
                continue
            before = _seen_before(change.name, savepoints) if seen else 0
            if is_whole and before < seen:
                raise BacklogError(
                    f"The binary log has a transaction of more than {_MOST_HELD:,} rows, of which a part was rolled "
                    f"back, to the savepoint {change.name}.",
                    "Start with a new checkpoint. Where savepoints of large transactions are gone back to, do not drop "
                    "temporary tables behind them, nor write to tables that are not transactional.",
                )
            seen = before
            del held[before:]
            rows, size = sum(len(each.rows) for each in held), sum(each.size for each in held)
        elif not isinstance(change, RowsChange) or len(change.uuid) in (0, _UUID):
            yield change
        elif is_whole is not None:
            seen += 1
            yield from [change] if is_whole else []
        else:
            seen += 1
            held.append(change)
            rows += len(change.rows)
            size += change.size
            if rows > _MOST_HELD or size > PIECE_BYTES:
                is_whole = ends(start, change)
                if is_whole:
                    yield from held
                held = []


def _compared(name: str) -> str:
    """A savepoint's name as MariaDB compares them: without quotes, which are those of the moment, case and accents."""
    if name[:1] in ("`", '"') and name[-1:] == name[:1]:
        name = name[1:-1].replace(name[0] * 2, name[0])
    return "".join(c for c in unicodedata.normalize("NFD", name) if not unicodedata.combining(c)).upper()


def _seen_before(name: str, savepoints: dict[str, int]) -> int:
    """What there was at a savepoint."""
    found = savepoints.get(_compared(name))
    if found is None and len(savepoints) == 1:
        (found,) = savepoints.values()
    if found is None:
        raise BacklogError(
            f"The binary log has a transaction of which a part was rolled back, to the savepoint {name}, which it has "
            f"not told of; it has told of {', '.join(savepoints) or 'none'}.",
            "Start with a new checkpoint. Write savepoints the same in SAVEPOINT and in ROLLBACK TO.",
        )
    return found
