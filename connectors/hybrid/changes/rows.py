"""Changes of some records, and the rows that they become (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

__all__ = ["DELETE", "DROP", "INSERT", "TRUNCATE", "UPDATE", "Changes", "Rows", "rows_of", "united"]

INSERT, UPDATE, DELETE, TRUNCATE, DROP, _MALFORMED = range(6)
# By the number of a kind; an update is a before- and an after-image.
_KINDS = pa.array(["insert", "update_postimage", "delete", "truncate", "drop", None, "update_preimage"], pa.string())
_PREIMAGE = 6
_BEFORE, _AFTER = 0, 1


@dataclass(frozen=True)
class Changes:
    """Changes, one after the other.

    Parameters
    ----------
    of : numpy.ndarray
        For each change the index of its record; sorted. A record may have several changes, or none.
    kinds : numpy.ndarray
        `INSERT` and so on.
    before, after : list of pyarrow.Array
        The declared columns of the images.
    has_before, has_after : numpy.ndarray
        Whether there is such an image.
    sequence : numpy.ndarray
        Orders the changes; even numbers, each row of a change gets one of its own.
    at : pyarrow.Array
        When the change was made.
    database, table : pyarrow.Array
    bad : mapping of int to str
        Records that cannot be read, and why. They have no changes.
    """

    of: np.ndarray
    kinds: np.ndarray
    before: list[pa.Array]
    after: list[pa.Array]
    has_before: np.ndarray
    has_after: np.ndarray
    sequence: np.ndarray
    at: pa.Array
    database: pa.Array
    table: pa.Array
    bad: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def none(cls, schema: pa.Schema, bad: Mapping[int, str]) -> Changes:
        """No change, and some records that cannot be read."""
        columns = [pa.nulls(0, field.type) for field in schema]
        empty, no = np.zeros(0, np.int64), np.zeros(0, bool)
        text, time = pa.nulls(0, pa.string()), pa.nulls(0, pa.timestamp("us", "UTC"))
        return cls(empty, empty, columns, columns, no, no, empty, time, text, text, bad)

    def where(self, keep: np.ndarray, bad: Mapping[int, str] | None = None) -> Changes:
        """Some of the changes, by a mask or by their indices. ``bad`` replaces that of all."""
        at = np.flatnonzero(keep) if keep.dtype == bool else keep
        rows = pa.array(at, pa.int64())
        return Changes(
            self.of[at], self.kinds[at], [c.take(rows) for c in self.before], [c.take(rows) for c in self.after],
            self.has_before[at], self.has_after[at], self.sequence[at], self.at.take(rows), self.database.take(rows),
            self.table.take(rows), self.bad if bad is None else bad,
        )  # fmt: skip

    def at_records(self, records: np.ndarray) -> Changes:
        """The same with other indices of records."""
        bad = {int(records[index]): reason for index, reason in self.bad.items()}
        return Changes(
            records[self.of], self.kinds, self.before, self.after, self.has_before, self.has_after, self.sequence,
            self.at, self.database, self.table, bad,
        )  # fmt: skip


def united(parts: Sequence[Changes]) -> Changes:
    """All changes in the order of their records."""
    if len(parts) == 1:
        return parts[0]
    bad = {index: reason for part in parts for index, reason in part.bad.items()}

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])

    def columns(name: str) -> list[pa.Array]:
        return [pa.concat_arrays(column) for column in zip(*(getattr(part, name) for part in parts), strict=True)]

    def column(name: str) -> pa.Array:
        return pa.concat_arrays([getattr(part, name) for part in parts])

    whole = Changes(
        joined("of"), joined("kinds"), columns("before"), columns("after"), joined("has_before"), joined("has_after"),
        joined("sequence"), column("at"), column("database"), column("table"), bad,
    )  # fmt: skip
    return whole.where(np.argsort(whole.of, kind="stable"))


@dataclass(frozen=True)
class Rows:
    """Rows, and for each the index of its record.

    Parameters
    ----------
    columns : list of pyarrow.Array
        The declared columns.
    of : numpy.ndarray
        Sorted.
    metadata : mapping of str to pyarrow.Array
    """

    columns: list[pa.Array]
    of: np.ndarray
    metadata: Mapping[str, pa.Array]


def rows_of(changes: Changes, *, with_bad: bool) -> Rows:
    """The rows of changes. A malformed record is a row of NULLs, or none."""
    count = len(changes.of)
    pairs = (changes.kinds == UPDATE) & changes.has_before & changes.has_after
    index = np.repeat(np.arange(count), 1 + pairs)
    kinds = changes.kinds[index]
    second = np.zeros(len(index), bool)
    second[1:] = index[1:] == index[:-1]
    first_of_pair = pairs[index] & ~second
    side = np.where((kinds == DELETE) | first_of_pair, _BEFORE, _AFTER)
    has_image = (kinds == INSERT) | (kinds == UPDATE) | (kinds == DELETE)
    kinds = np.where(first_of_pair, _PREIMAGE, kinds)
    of, sequence = changes.of[index], changes.sequence[index] + (kinds == UPDATE)
    is_null = np.zeros(len(index), bool)
    if with_bad and changes.bad:
        wrong = np.array(sorted(changes.bad))
        order = np.argsort(np.concatenate([of, wrong]), kind="stable")
        of = np.concatenate([of, wrong])[order]
        more = len(wrong)

        def extended(values: np.ndarray, value: int) -> np.ndarray:
            return np.concatenate([values, np.full(more, value, values.dtype)])[order]

        index, kinds, side = extended(index, 0), extended(kinds, _MALFORMED), extended(side, _AFTER)
        has_image, sequence = extended(has_image, 0), extended(sequence, 0)
        is_null = kinds == _MALFORMED
    source = pa.array(index + side * count, pa.int64(), mask=~has_image)
    change = pa.array(index, pa.int64(), mask=is_null)
    columns = [
        pa.concat_arrays([before, after]).take(source)
        for before, after in zip(changes.before, changes.after, strict=True)
    ]
    metadata = {
        "_change_type": _KINDS.take(pa.array(kinds, pa.int64())),
        "_commit_timestamp": changes.at.take(change),
        "_commit_seq": pa.array(sequence, pa.int64(), mask=is_null),
        "_database": changes.database.take(change),
        "_table": changes.table.take(change),
    }
    return Rows(columns, of, metadata)
