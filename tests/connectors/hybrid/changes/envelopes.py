"""A model of Debezium: random changes of a table, as records and as the rows that they mean."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ..decode.plain import plain
from .columns import COLUMNS, Written, rows_of

__all__ = ["Change", "Expected", "Table", "changes_of", "compared", "expected_of"]


@dataclass
class Table:
    """A table: its columns, and how the connector writes each."""

    names: list[str]
    written: dict[str, Written]

    @classmethod
    def random(cls, chance: random.Random, *, for_avro: bool = False) -> Table:
        names = ["id", *chance.sample(sorted(COLUMNS.keys() - {"id"}), chance.randint(1, 8))]
        written = {}
        for name in names:
            modes = [w for w in COLUMNS[name].debezium if not (for_avro and name == "unsigned" and w.type == "int64")]
            written[name] = chance.choice(modes)
        return cls(names, written)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, COLUMNS[name].declared) for name in self.names])

    def row(self, chance: random.Random, id: int) -> dict[str, Any]:
        more = {n: None if chance.random() < 0.2 else COLUMNS[n].value(chance) for n in self.names if n != "id"}
        return {"id": id, **more}

    def image(self, row: dict[str, Any] | None, *, avro: bool = False) -> dict[str, Any] | None:
        if row is None:
            return None
        found = {}
        for name, value in row.items():
            how = self.written[name]
            write = how.avro if avro and how.avro is not None else how.json
            found[name] = None if value is None else write(value)
        return found


@dataclass
class Change:
    """A change: Debezium's operation, the images, and its place in the log."""

    op: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    pos: int
    row: int
    at_ms: int


def changes_of(table: Table, chance: random.Random, count: int) -> list[Change]:
    """Random changes of a few keys."""
    rows: dict[int, dict[str, Any]] = {}
    found: list[Change] = []
    pos = 157
    for _ in range(count):
        pos, row = (pos, found[-1].row + 1) if found and chance.random() < 0.3 else (pos + 1000, 0)
        id = chance.randint(1, 9)
        old, new = rows.get(id), table.row(chance, id)
        if old is None:
            op, before, after = chance.choice("rc"), None, new
        elif chance.random() < 0.3:
            op, before, after = "d", old, None
        elif chance.random() < 0.05:
            op, before, after = "t", None, None
        else:
            op, before, after = "u", old, new
        if op == "t":
            rows.clear()
        elif after is None:
            rows.pop(id)
        else:
            rows[id] = after
        found.append(Change(op, before, after, pos, row, 1_700_000_000_000 + pos))
    return found


@dataclass
class Expected:
    """Rows, in order."""

    of: list[int] = field(default_factory=list)
    kinds: list[str | None] = field(default_factory=list)
    rows: list[dict[str, Any] | None] = field(default_factory=list)
    sequence: list[int | None] = field(default_factory=list)
    at_us: list[int | None] = field(default_factory=list)

    def add(self, of: int, kind: str | None, row: dict[str, Any] | None, sequence: int | None, us: int | None) -> None:
        self.of.append(of)
        self.kinds.append(kind)
        self.rows.append(row)
        self.sequence.append(sequence)
        self.at_us.append(us)

    def change(self, of: int, change: Change, sequence: int) -> None:
        """The rows of a change."""
        us = change.at_ms * 1000
        if change.op == "u" and change.before is not None:
            self.add(of, "update_preimage", change.before, sequence, us)
        kind = {"r": "insert", "c": "insert", "u": "update_postimage", "d": "delete", "t": "truncate"}[change.op]
        row = change.before if change.op == "d" else change.after
        self.add(of, kind, row, sequence + (change.op == "u"), us)


def expected_of(changes: Sequence[tuple[int, Change]], file: int) -> Expected:
    """The rows of changes at records, ordered by their places in a log."""
    found = Expected()
    for of, change in changes:
        found.change(of, change, (file << 38) + change.pos + 2 * change.row)
    return found


def compared(decoded: Any, expected: Expected, names: list[str]) -> None:
    """Assert that the rows are those expected."""
    for array in (*decoded.columns, *decoded.metadata.values()):
        array.validate(full=True)
    assert decoded.kept.to_pylist() == expected.of
    assert decoded.metadata["_change_type"].to_pylist() == expected.kinds
    assert decoded.metadata["_commit_seq"].to_pylist() == expected.sequence
    assert plain(decoded.metadata["_commit_timestamp"]) == expected.at_us
    wanted = rows_of(names, expected.rows)
    for name, column, values in zip(names, decoded.columns, wanted, strict=True):
        assert column.type == values.type, name
        assert plain(column) == plain(values), name
