"""Makes records of the sorted changes of keys (pure).

All changes of a key come one after the other, oldest first. Each function yields steps: how many changes a step takes
and the records that they become. A transaction may end between two steps.

Source of the envelopes: Debezium documentation, "Debezium connector for MySQL", "Data change events".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import INSERT, POSTIMAGE, PREIMAGE, TABLE_EVENTS, TYPES
from backlog_spark.sinks.newest_changes import DELETES

__all__ = ["Change", "Record", "Step", "added", "envelopes", "passed_on", "upserts"]

_TRUNCATE: Final = TABLE_EVENTS[0]


class Change(NamedTuple):
    """A row of the batch.

    Parameters
    ----------
    key : str or None
        The key columns as JSON.
    database, table : str or None
        The row's table, if the stream says it.
    kind : str or None
        The change type.
    image : Any
        The stored columns: as JSON, or as a dict.
    source : str
        ``source`` of an envelope, as JSON.
    at_ms : int or None
        ``ts_ms`` of an envelope.
    is_snapshot : bool
    """

    key: str | None
    database: str | None
    table: str | None
    kind: str | None
    image: Any
    source: str = ""
    at_ms: int | None = None
    is_snapshot: bool = False

    def is_of(self, other: Change) -> bool:
        """Whether it has the same key of the same table."""
        return self[:3] == other[:3]


class Record(NamedTuple):
    """A record: the change whose key it has, and its value. Only the record of a truncated table has no key."""

    change: Change
    value: Any
    has_key: bool = True


Step = tuple[int, list[Record]]


def upserts(changes: Iterable[Change], *, has_order: bool) -> Iterator[Step]:
    """One record for each key: its newest image, or none if it was deleted.

    Parameters
    ----------
    has_order : bool
        Whether the stream says which of two changes is newer.

    Raises
    ------
    BacklogError
        For an unknown change type, a truncated or dropped table, or two upserts of a key without an order.
    """
    newest: Change | None = None
    taken = added = 0
    for change in changes:
        if newest is not None and not change.is_of(newest):
            yield taken, [_upsert(newest)]
            taken = added = 0
        added += not _is_delete(change)
        if added > 1 and not has_order:
            raise BacklogError(
                "KafkaSink: two rows of one key in a batch.", "Name a sequence column, which orders them."
            )
        newest, taken = change, taken + 1
    if newest is not None:
        yield taken, [_upsert(newest)]


def added(changes: Iterable[Change]) -> Iterator[Step]:
    """One record without a key for each row."""
    for change in changes:
        yield 1, [Record(change, change.image, has_key=False)]


def envelopes(changes: Iterable[Change], *, has_order: bool = True) -> Iterator[Step]:
    """An envelope for each change, as Debezium's JSON without schemas. A delete is followed by a tombstone.

    Parameters
    ----------
    has_order : bool
        As of `upserts`.

    Raises
    ------
    BacklogError
        For an unknown change type, a dropped table, or two changes of a key without an order.
    """
    before: Change | None = None
    last: Change | None = None
    for change in changes:
        is_second = last is not None and change.key is not None and change.is_of(last)
        if is_second and not has_order and not (last is not None and (last.kind, change.kind) == (PREIMAGE, POSTIMAGE)):
            raise BacklogError(
                "KafkaSink: two changes of one key in a batch.", "Name a sequence column, which orders them."
            )
        last = change
        if before is not None:
            is_update = change.kind == POSTIMAGE and change.is_of(before)
            yield (2, [_record(change, "u", before.image, change.image)]) if is_update else (1, _deleted(before))
            before = None
            if is_update:
                continue
        if change.kind == PREIMAGE:
            before = change
        elif change.kind == _TRUNCATE:
            yield 1, [_record(change, "t", None, None)._replace(has_key=False)]
        elif _is_delete(change):
            yield 1, _deleted(change)
        else:
            # An after-image without a before-image has a new key, or comes from a filter or from a row read again.
            yield 1, [_record(change, "r" if change.is_snapshot else "c", None, change.image)]
    if before is not None:
        yield 1, _deleted(before)


def passed_on(changes: Iterable[Change]) -> Iterator[Step]:
    """Envelopes of the source as they are. A delete is followed by a tombstone.

    Raises
    ------
    BacklogError
        For a dropped table.
    """
    for change in changes:
        if change.kind == _TRUNCATE:
            yield 1, [Record(change, change.image, has_key=False)]
            continue
        record = Record(change, change.image, has_key=change.key is not None)
        yield 1, [record, Record(change, None)] if _is_delete(change) and record.has_key else [record]


def _upsert(change: Change) -> Record:
    if change.key is None:
        raise BacklogError(
            f"KafkaSink: {change.database}.{change.table} has no primary key, so its rows are no upserts.",
            "Name a unique key with messageKeyColumns, leave the table out with tables.exclude, or set "
            "format='debezium'.",
        )
    if _is_delete(change):
        return Record(change, None)
    if change.image is None:
        # Never as a tombstone: Spark gives no value if a text is longer than Jackson takes.
        raise BacklogError(
            f"KafkaSink: the envelope of {change.database}.{change.table} with the key {change.key} cannot be read.",
            "Set format='debezium', which does not read it, or leave out large columns with columns.exclude.",
        )
    return Record(change, change.image)


def _deleted(change: Change) -> list[Record]:
    return [_record(change, "d", change.image, None), Record(change, None)]


def _record(change: Change, operation: str, before: str | None, after: str | None) -> Record:
    at = "null" if change.at_ms is None else change.at_ms
    return Record(
        change,
        f'{{"before":{before or "null"},"after":{after or "null"},"source":{change.source},"op":"{operation}",'
        f'"ts_ms":{at},"transaction":null}}',
    )


def _is_delete(change: Change) -> bool:
    kind = change.kind
    if kind in (INSERT, POSTIMAGE):
        return False
    if kind in DELETES:
        return True
    if kind in TABLE_EVENTS:
        table = f"{change.database}.{change.table}" if change.table else "a table"
        raise BacklogError(
            f"KafkaSink: {table} has a {kind}, and no record says this of all keys of a topic.",
            "Set the source's option tableEvents=skip. With format='debezium' a truncate is a message with op t.",
        )
    raise BacklogError(
        f"KafkaSink: unknown change type {'NULL' if kind is None else kind}.",
        f"Known: {', '.join(TYPES)}. With change_type=None each row is an upsert.",
    )
