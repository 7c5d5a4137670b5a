"""Whether a stream said what the binary log says, and ended with the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from servers.mysql import MySQLServer

from .capture import EMPTIED, Row
from .oracle import Change, Image, Log, rows_of
from .tables import COMES_BACK, DATABASE, DEFAULTS, HAS_DEFAULT, TABLES, Shape, columns_of, family, fate, plain

_SHOWN = 5
Key = tuple[str, int, tuple[Any, ...]]


class Differences(AssertionError):
    """What differs."""


def compare(
    server: MySQLServer, shape: Shape, log: Log, rows: Iterable[Row], what: str, *, filled: bool = False
) -> None:
    """Compare a stream's rows, in its order, with the log and the tables as they are now.

    ``filled``: the rows have all columns, those that a stream had not been declared with as NULL.

    Raises
    ------
    Differences
        With the first few.
    """
    snapshots: dict[Key, list[Row]] = defaultdict(list)
    changes: dict[Key, list[Row]] = defaultdict(list)
    sequences = dict.fromkeys(TABLES, 0)
    found: list[str] = []
    emptied: dict[str, list[str]] = {table: [] for table in TABLES}
    for row in rows:
        of = snapshots if row.kind == "snapshot" else changes
        if row.kind in EMPTIED:
            emptied[row.table].append(row.kind)
        else:
            of[row.table, len(emptied[row.table]), row.key].append(row)
        if row.kind != "snapshot":
            if row.sequence <= sequences[row.table]:
                found.append(f"sequence {row.sequence} after {sequences[row.table]}: {row}")
            sequences[row.table] = row.sequence
    for table in TABLES:
        if emptied[table] != log.emptied[table]:
            found.append(f"{table} was emptied {emptied[table]} and not {log.emptied[table]}")
    last: dict[tuple[str, tuple[Any, ...]], Image] = {}
    for key in sorted({*log.changes, *log.bases, *snapshots, *changes}, key=repr):
        table, epoch, of_row = key
        said, was, logged = changes.get(key, []), snapshots.get(key, []), log.changes.get(key, [])
        found += [f"{key}: {one}" for one in _of_key(shape, filled, logged, log.bases.get(key), was, said)]
        if log.emptied[table][:epoch][-1:] == ["truncate"] and len(said) != len(logged):
            found.append(f"{key}: {len(said)} changes after a TRUNCATE, and {len(logged)} in the log")
        end = (was + said)[-1:]
        if epoch == len(emptied[table]) and end and end[0].kind != "delete":
            last[table, of_row] = end[0].values
    found += _of_tables(server, shape, last)
    if found:
        raise Differences(f"{what}: {len(found)} differences\n" + "\n".join(found[:_SHOWN]))


def _of_key(
    shape: Shape, filled: bool, logged: list[Change], base: Image | None, snapshot: list[Row], said: list[Row]
) -> list[str]:
    """What differs in one row's life in an epoch, which the row began as ``base``.

    The snapshot is where the log was somewhere, and then comes all the rest.
    """
    if len(snapshot) > 1:
        return [f"is in the snapshot {len(snapshot)} times"]
    if len(said) > len(logged):
        return [f"{len(said)} changes, and {len(logged)} in the log: {said[len(logged)]}"]
    split = len(logged) - len(said)
    row = rows_of(logged[:split], base)
    if (row is None) != (not snapshot):
        told = [kind for kind, _ in logged]
        return [f"snapshot {snapshot}, then {[r.kind for r in said]}, of {told}; then it was {row}"]
    found = _differ(shape, filled, row, snapshot[0].values, settled=False) if row is not None else []
    found = [f"in the snapshot {one}" for one in found]
    for (kind, image), change in zip(logged[split:], said, strict=True):
        if kind != change.kind:
            return [*found, f"{change} and not {kind} of {image}"]
        found += [
            f"{kind} at {change.sequence}: {one}" for one in _differ(shape, filled, image, change.values, settled=True)
        ]
    return found


def _differ(shape: Shape, filled: bool, expected: Image, values: Image, *, settled: bool) -> list[str]:
    """By column. An image of the log has all columns of its time; else one may have been added since, or again.

    What a column had that was dropped, to one that has its name today, is told as long as its definition is known.
    """
    found = []
    for name, value in values.items():
        right = [expected.get(name)]
        if not settled and name not in expected and fate(name) == HAS_DEFAULT:
            right.append(DEFAULTS[name[0]])
        if name in shape.gone and (filled or not settled or fate(name) == COMES_BACK):
            right.append(None)
        if value not in right:
            found.append(f"{name} is {value!r}, not {right[0]!r}")
    missing = expected.keys() - values.keys() - shape.gone
    return found + [f"there is no {name}" for name in missing]


def _of_tables(server: MySQLServer, shape: Shape, last: dict[tuple[str, tuple[Any, ...]], Image]) -> list[str]:
    """The end of every row's life and the tables, of which every row was changed last."""
    found = []
    for table in TABLES:
        names = [family(name) for name in columns_of(server, table)]
        there = 0
        for row in server.execute(f"SELECT * FROM {DATABASE}.{table}"):
            there += 1
            now = dict(zip(names, map(plain, row), strict=True))
            key = table, tuple(now[name] for name in shape.key_columns)
            if key not in last:
                found.append(f"{key} is missing")
            elif other := [name for name in names if last[key].get(name, ...) != now[name]]:
                found += [f"{key}: {name} is {last[key].get(name, ...)!r}, not {now[name]!r}" for name in other]
        kept = sum(of == table for of, _ in last)
        if kept != there:
            found.append(f"{table} has {there} rows, and the stream {kept}")
    return found
