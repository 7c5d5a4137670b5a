"""Drops transactions, and parts of them, that MariaDB has in its log but never committed (pure).

When MySQL recovers, it cuts its log to the last whole transaction. MariaDB begins a new file and leaves the old one as
it is, with a part of the transaction that it was writing and then rolled back. Replicas are expected to roll it back
too (MariaDB source, `Format_description_log_event::do_apply_event`). If a transaction uses temporary tables, or others
that are not transactional, MariaDB also logs the changes that were rolled back, followed by the ROLLBACK.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator

from backlog_spark.errors import BacklogError

from ..server.bounded import PIECE_BYTES
from ..server.gtid import is_mariadb_source
from .positions import BinlogPosition
from .records import Change, RowsChange, Savepoint, TransactionBroken, TransactionEnd

__all__ = ["whole_transactions"]

# Rows that are held back until the transaction's end is read. For a larger one the end is searched first.
_MOST_HELD = 10_000
_ENDS = (TransactionBroken, TransactionEnd)


def whole_transactions(
    changes: Iterator[Change | Savepoint | TransactionBroken],
    start: BinlogPosition | str,
    ends: Callable[[BinlogPosition | str, RowsChange], bool],
) -> Iterator[Change]:
    """Changes of transactions that were committed. MySQL's are passed on as they come.

    Parameters
    ----------
    changes : iterator
        As `Events` yields them.
    start : BinlogPosition or str
        Where they start.
    ends : callable
        Whether the transaction after a position, to which a change belongs, was committed; found by reading ahead.

    Raises
    ------
    BacklogError
        A part of a transaction that is too large to hold was rolled back, or the rolled back part is not known.
    """
    held: list[RowsChange] = []
    rows = size = seen = 0
    savepoints = _Savepoints()
    is_whole: bool | None = None  # None: not known yet
    for change in changes:
        if isinstance(change, _ENDS):
            if isinstance(change, TransactionEnd):
                yield from () if change.is_rolled_back else held
                yield change
                start = change.position
            held, rows, size, seen, is_whole = [], 0, 0, 0, None
            savepoints.clear()
        elif isinstance(change, Savepoint):
            if not change.is_back:
                savepoints.tell(change.name, seen)
                continue
            before = savepoints.go_back(change.name) if seen else 0
            if is_whole and before < seen:
                raise BacklogError(
                    f"The binary log has a transaction of more than {_MOST_HELD:,} rows, a part of which was rolled "
                    f"back to the savepoint {change.name}.",
                    "Start with a new checkpoint. After a savepoint of a large transaction that you may roll back to, "
                    "do not drop temporary tables or write to tables that are not transactional.",
                )
            seen = before
            del held[before:]
            rows, size = sum(len(each.rows) for each in held), sum(each.size for each in held)
        elif not isinstance(change, RowsChange) or not is_mariadb_source(change.uuid):
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
    """A transaction's savepoints, with the number of row changes before each.

    MariaDB compares their names with a collation. So names that are spelt differently may be equal to it, and then the
    later savepoint replaces the earlier one. Which letters it treats as equal is not fully known.
    """

    def __init__(self) -> None:
        self._told: dict[str, int] = {}  # by the name as written, in order

    def clear(self) -> None:
        """Forget all of them: the transaction has ended."""
        self._told.clear()

    def tell(self, name: str, seen: int) -> None:
        """Add a savepoint after ``seen`` changes."""
        self._told.pop(_unquoted(name), None)
        self._told[_unquoted(name)] = seen

    def go_back(self, name: str) -> int:
        """Roll back to a savepoint; returns the number of changes before it. Later savepoints are removed.

        Raises
        ------
        BacklogError
            More than one savepoint may be meant.
        """
        name = _unquoted(name)
        alike = [told for told in self._told if _compared(told) == _compared(name)] or list(self._told)
        # If several may be equal: the latest one, provided that it is written exactly so.
        found = alike[0] if len(alike) == 1 else name if alike[-1:] == [name] else None
        if found is None:
            raise BacklogError(
                f"The binary log has a transaction of which a part was rolled back to the savepoint {name}. It does "
                f"not tell which savepoint that is; it has {', '.join(self._told) or 'none'}.",
                "Start with a new checkpoint. Spell a savepoint the same in SAVEPOINT and in ROLLBACK TO.",
            )
        order = list(self._told)
        for later in order[order.index(found) + 1 :]:
            del self._told[later]
        return self._told[found]


def _unquoted(name: str) -> str:
    """A savepoint's name without quotes, which may differ from statement to statement."""
    if name[:1] in ("`", '"') and name[-1:] == name[:1]:
        return name[1:-1].replace(name[0] * 2, name[0])
    return name


def _compared(name: str) -> str:
    """A savepoint's name as MariaDB compares them: without case and accents."""
    return "".join(c for c in unicodedata.normalize("NFD", name) if not unicodedata.combining(c)).upper()
