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

from ..bounded import PIECE_BYTES
from ..offsets import BinlogPosition
from .records import Change, RowsChange, Savepoint, TransactionBroken, TransactionEnd

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
    savepoints = _Savepoints()
    is_whole: bool | None = None  # None: not known yet
    for change in changes:
        if isinstance(change, TransactionBroken | TransactionEnd):
            if isinstance(change, TransactionEnd):
                yield from () if change.is_rolled_back else held
                yield change
                start = change.position
            held, rows, size, seen, savepoints, is_whole = [], 0, 0, 0, _Savepoints(), None
        elif isinstance(change, Savepoint):
            if not change.is_back:
                savepoints.tell(change.name, seen)
                continue
            before = savepoints.go_back(change.name) if seen else 0
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


class _Savepoints:
    """A transaction's savepoints, and how many changes of rows there had been at each.

    MariaDB compares their names by a collation, so those that it takes for one may be spelt otherwise, and the later
    one then takes the place of the earlier one. What it takes for one is not known of every letter.
    """

    def __init__(self) -> None:
        self._told: dict[str, int] = {}  # by what was written, in order

    def tell(self, name: str, seen: int) -> None:
        """There is one from here on."""
        self._told.pop(_unquoted(name), None)
        self._told[_unquoted(name)] = seen

    def go_back(self, name: str) -> int:
        """What there was at a savepoint; those behind it are gone.

        Raises
        ------
        BacklogError
            It cannot be told which one is meant.
        """
        name = _unquoted(name)
        alike = [told for told in self._told if _compared(told) == _compared(name)] or list(self._told)
        # Of two that may be one the later one, if it is also the one that was written so.
        found = alike[0] if len(alike) == 1 else name if alike[-1:] == [name] else None
        if found is None:
            raise BacklogError(
                f"The binary log has a transaction of which a part was rolled back, to the savepoint {name}, and does "
                f"not tell which one that is; it has told of {', '.join(self._told) or 'none'}.",
                "Start with a new checkpoint. Write savepoints the same in SAVEPOINT and in ROLLBACK TO.",
            )
        order = list(self._told)
        for later in order[order.index(found) + 1 :]:
            del self._told[later]
        return self._told[found]


def _unquoted(name: str) -> str:
    """A savepoint's name without quotes, which are those of the moment."""
    if name[:1] in ("`", '"') and name[-1:] == name[:1]:
        return name[1:-1].replace(name[0] * 2, name[0])
    return name


def _compared(name: str) -> str:
    """A savepoint's name as MariaDB compares them: without case and accents."""
    return "".join(c for c in unicodedata.normalize("NFD", name) if not unicodedata.combining(c)).upper()
