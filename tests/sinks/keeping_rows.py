"""A random change log, and its replays in plain Python: what a table with versions, or with marks, has afterwards."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import NamedTuple

Key = int | None
Values = tuple[str | None, float | None]
BEGIN = datetime(2024, 5, 1, 12)
EVENTS = ("truncate", "drop")
DELETES = ("delete", "update_preimage")


class Change(NamedTuple):
    """A row of the stream, in the order of its columns."""

    id: Key
    a: str | None
    b: float | None
    kind: str
    time: datetime
    sequence: int


def random_log(chance: random.Random, statements: int, *, truncates: bool = True, snapshot: int = 0) -> list[Change]:
    """Changes as a binary log has them, of few keys with few values. A snapshot's rows come first, with sequence 0."""
    rows: dict[Key, Values] = {}
    log: list[Change] = []
    time = BEGIN
    keys: Sequence[Key] = [None, *range(6)]

    def values() -> Values:
        return chance.choice(["x", "y", None]), chance.choice([1.0, 2.5, 0.0, -0.0, float("nan"), None])

    for key in keys[:snapshot]:
        rows[key] = values()
        log.append(Change(key, *rows[key], "insert", time, 0))
    for sequence in range(1, statements + 1):
        time += timedelta(microseconds=chance.choice([0, 1, 1_000_000]))
        free, taken = [key for key in keys if key not in rows], list(rows)
        draw = chance.random()
        if truncates and draw < 0.03:
            log.append(Change(None, None, None, chance.choice(EVENTS), time, sequence))
            rows.clear()
        elif taken and draw < 0.2:
            key = chance.choice(taken)
            log.append(Change(key, *rows.pop(key), "delete", time, sequence))
        elif taken and free and draw < 0.3:  # the update of a key
            old, new = chance.choice(taken), chance.choice(free)
            before, after = rows.pop(old), chance.choice([values(), values()])
            log.append(Change(old, *before, "update_preimage", time, sequence))
            log.append(Change(new, *after, "update_postimage", time, sequence))
            rows[new] = after
        elif taken and (draw < 0.75 or not free):
            key = chance.choice(taken)
            before, drawn = rows[key], values()
            after = chance.choice([drawn, before, (before[0], drawn[1]), (drawn[0], before[1])])
            log.append(Change(key, *before, "update_preimage", time, sequence))
            log.append(Change(key, *after, "update_postimage", time, sequence))
            rows[key] = after
        else:
            key = chance.choice(free)
            rows[key] = values()
            log.append(Change(key, *rows[key], "insert", time, sequence))
    return log


def cut(chance: random.Random, log: Sequence[Change], batches: int) -> list[list[Change]]:
    """The log, without a snapshot, in batches. A statement stays in one; rows of a batch come in any order."""
    last = log[-1].sequence
    ends = [*sorted(chance.randrange(last + 1) for _ in range(batches - 1)), last]
    made: list[list[Change]] = []
    begin = 0
    for end in ends:
        made.append([change for change in log if begin < change.sequence <= end])
        chance.shuffle(made[-1])
        begin = max(begin, end)
    return made


def _statements(log: Iterable[Change]) -> Iterable[tuple[str | None, dict[Key, Change]]]:
    """Of each statement: its kind if it empties the table, and the change of each of its keys."""
    for _, group in groupby(sorted(log, key=lambda each: each.sequence), key=lambda each: each.sequence):
        changes = list(group)
        if changes[0].kind in EVENTS:
            yield changes[0].kind, {None: changes[0]}
            continue
        of_keys: dict[Key, Change] = {}
        for change in changes:
            if change.id not in of_keys or change.kind not in DELETES:
                of_keys[change.id] = change
        yield None, of_keys


def _plain(value: object) -> object:
    """NaN equals NaN, and one zero the other."""
    return "NaN" if value != value else value


def versions(log: Iterable[Change], tracked: Sequence[str] = ("a", "b")) -> Counter[tuple[object, ...]]:
    """id, a, b, begin, end and flag of each version."""
    closed: list[tuple[object, ...]] = []
    current: dict[Key, tuple[Values, datetime]] = {}

    def close(key: Key, time: datetime) -> None:
        if key in current:
            (a, b), begin = current.pop(key)
            closed.append((key, a, _plain(b), begin, time, False))

    for event, changes in _statements(log):
        if event is not None:
            for key in list(current):
                close(key, changes[None].time)
            continue
        for key, change in changes.items():
            if change.kind in DELETES:
                close(key, change.time)
                continue
            found = current.get(key)
            if found is not None:
                now = {"a": change.a, "b": _plain(change.b)}
                before = {"a": found[0][0], "b": _plain(found[0][1])}
                if all(now[name] == before[name] for name in tracked):
                    current[key] = (change.a, change.b), found[1]
                    continue
            close(key, change.time)
            current[key] = (change.a, change.b), change.time
    still = [(key, a, _plain(b), begin, None, True) for key, ((a, b), begin) in current.items()]
    return Counter([*closed, *still])


def marked(log: Iterable[Change]) -> Counter[tuple[object, ...]]:
    """id, a, b, whether it is deleted, and when, of each row."""
    rows: dict[Key, tuple[object, ...]] = {}
    for event, changes in _statements(log):
        if event is not None:
            time = changes[None].time
            rows = {key: row if row[2] else (*row[:2], True, time) for key, row in rows.items()}
            continue
        for key, change in changes.items():
            is_delete = change.kind in DELETES
            rows[key] = (change.a, _plain(change.b), is_delete, change.time if is_delete else None)
    return Counter((key, *row) for key, row in rows.items())


def kept(log: Iterable[Change]) -> Counter[tuple[object, ...]]:
    """id, a and b of each row of an archive, in which nothing is deleted."""
    rows: dict[Key, tuple[object, ...]] = {}
    for event, changes in _statements(log):
        for key, change in changes.items() if event is None else ():
            if change.kind not in DELETES:
                rows[key] = (change.a, _plain(change.b))
    return Counter((key, *row) for key, row in rows.items())


def plain_rows(rows: Iterable[Sequence[object]]) -> Counter[tuple[object, ...]]:
    """Rows of a table, as the replays have them."""
    return Counter(tuple(_plain(value) for value in row) for row in rows)
