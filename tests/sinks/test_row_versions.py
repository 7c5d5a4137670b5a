"""Versions of rows in Arrow, merged into a table, against a replay in plain Python."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.delta.deltars.commits import DirectTable
from backlog_spark.sinks.row_versions import CLOSING, DELETED, FIRST, KIND, LATER, versions_of

from .keeping_rows import Change, cut, plain_rows, random_log, versions

COLUMNS = ("valid_from", "valid_to", "is_current")
TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("a", pa.string()), ("b", pa.float64()), ("valid_from", TIME), ("valid_to", TIME),
        ("is_current", pa.bool_()), ("_change_type", pa.string()), ("_commit_seq", pa.int64()),
    ]
)  # fmt: skip
STORED = SCHEMA.names[:6]


def batch_of(changes: list[Change]) -> pa.Table:
    rows: list[tuple[Any, ...]] = [(c.id, c.a, c.b, c.time, None, True, c.kind, c.sequence) for c in changes]
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    return pa.table([pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], SCHEMA)


def source_of(changes: list[Change], tracked: tuple[str, ...] = ("a", "b")) -> pa.Table:
    return versions_of(batch_of(changes), ["id"], "_change_type", "_commit_seq", COLUMNS, tracked, "sink")


def applied(table: list[dict[str, Any]], source: pa.Table, tracked: tuple[str, ...]) -> list[dict[str, Any]]:
    """A MERGE in plain Python. A row of the table that matches twice is an error, as in Delta."""
    rows, made = [dict(row) for row in table], []
    matched: Counter[int] = Counter()
    for new in source.to_pylist():
        kind, has_matched = new.pop(KIND), False
        new = {name: new[name] for name in STORED}
        for number, old in enumerate(table):
            is_same = all(plain_rows([(old[n],)]) == plain_rows([(new[n],)]) for n in tracked)
            matches = {FIRST: is_same, CLOSING: not is_same, DELETED: True, LATER: False}[kind]
            if old["id"] == new["id"] and old["is_current"] and matches:
                matched[number] += 1
                has_matched = True
                if kind == FIRST:
                    rows[number] |= {name: value for name, value in new.items() if name != "valid_from"}
                else:
                    rows[number] |= {"valid_to": new["valid_from"], "is_current": False}
        if not has_matched and kind in (FIRST, LATER):
            made.append(new)
    assert not matched or max(matched.values()) == 1
    return rows + made


def as_counter(table: list[dict[str, Any]]) -> Counter[tuple[object, ...]]:
    naive = [
        {
            name: value.replace(tzinfo=None) if name.startswith("valid") and value else value
            for name, value in row.items()
        }
        for row in table
    ]
    return plain_rows([tuple(row[name] for name in STORED) for row in naive])


@pytest.mark.parametrize("tracked", [("a", "b"), ("a",), ()])
def test_random_batches(tracked: tuple[str, ...]) -> None:
    for seed in range(60):
        chance = random.Random(seed)
        log = random_log(chance, chance.choice([5, 40, 120]), truncates=False)
        table: list[dict[str, Any]] = []
        for batch in cut(chance, log, chance.choice([1, 2, 5, 20])):
            table = applied(table, source_of(batch, tracked), tracked)
        assert as_counter(table) == versions(log, tracked), seed


@pytest.mark.parametrize("seed", range(3))
def test_random_batches_in_delta_rs(tmp_path: Path, seed: int) -> None:
    write_deltalake(tmp_path / "t", batch_of([]).select(STORED))
    path = f"file:{tmp_path}/t"
    table, chance = DirectTable(path, {}), random.Random(seed)
    tracked = chance.choice([("a", "b"), ("a",), ("b",), ()])
    log = random_log(chance, 60, truncates=False)
    for number, batch in enumerate(cut(chance, log, 6)):
        assert table.state("app").batch == (number - 1 if number else None)
        source = source_of(batch, tracked)
        table.merge_versions(source.select(STORED), source[KIND], ["id"], COLUMNS, tracked, "app", number)
    read = QueryBuilder().register("t", DeltaTable(tmp_path / "t")).execute("SELECT * FROM t").read_all()
    assert as_counter(pa.table(read).to_pylist()) == versions(log, tracked)


def test_an_unknown_change_type_is_refused() -> None:
    change = Change(1, "x", 1.0, "upsert", random_log(random.Random(0), 1)[0].time, 1)
    with pytest.raises(BacklogError, match="sink: unknown _change_type = upsert"):
        source_of([change])
    assert source_of([]).num_rows == 0
