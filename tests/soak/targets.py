"""What is in the two targets: how far they are, and whether they are equal to what was written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from servers.mysql import MySQLServer

from .changes import BEAT, TABLE
from .records import sums
from .stage import Load

_SHOWN = 5


def beat(target: Path) -> int | None:
    """The time, in milliseconds since 1970, that the row of the writer's clock has in the target."""
    if (table := _open(target)) is None:
        return None
    rows = table.to_pyarrow_table(filters=[("id", "=", BEAT)], columns=["n"])
    return int(rows["n"][0].as_py()) if rows.num_rows else None


def counted(target: Path) -> int:
    """How many rows and records the sums in the target are of."""
    if (table := _open(target)) is None:
        return 0
    return int(np.sum(table.to_pyarrow_table(columns=["records"])["records"].to_numpy()))


def tidy(target: Path) -> None:
    """Remove files that the table has not had for a while. The sink leaves that to its owner."""
    if (table := _open(target)) is not None:
        table.vacuum(dry_run=False, full=True)


def differences_of_table(server: MySQLServer, target: Path) -> list[str]:
    """Rows that only one of the two has, each as often as it has them; the first few."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {TABLE}")
        names = [column[0] for column in cursor.description]
        source = Counter(tuple(map(_plain, row)) for row in cursor.fetchall())
    table = DeltaTable(target).to_pyarrow_table(columns=names)
    found = Counter(zip(*([_plain(value) for value in table[name].to_pylist()] for name in names), strict=True))
    return _told(names, source, found)


def differences_of_sums(load: Load, sent: int, target: Path) -> list[str]:
    """The same for the sums, with those that follow from the number of rows and records."""
    wanted: Counter[tuple[Any, ...]] = Counter()
    totals, records = (
        a + b
        for a, b in zip(
            sums(load.seed, load.sums, load.before, -load.before), sums(load.seed, load.sums, sent), strict=True
        )
    )
    for key in np.flatnonzero(records):
        wanted[int(key), int(totals[key]), int(records[key])] += 1
    names = ["k", "total", "records"]
    table = DeltaTable(target).to_pyarrow_table(columns=names)
    return _told(names, wanted, Counter(zip(*(table[name].to_pylist() for name in names), strict=True)))


def _told(names: Sequence[str], source: Counter[Any], target: Counter[Any]) -> list[str]:
    less, more = source - target, target - source
    told = [f"only in the source: {dict(zip(names, row, strict=True))}" for row in list(less)[:_SHOWN]]
    told += [f"only in the target: {dict(zip(names, row, strict=True))}" for row in list(more)[:_SHOWN]]
    count = less.total() + more.total()
    return (
        [f"{count} rows differ, of {source.total()} in the source and {target.total()} in the target", *told]
        if count
        else []
    )


def _plain(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def _open(target: Path) -> DeltaTable | None:
    try:
        return DeltaTable(target)
    except TableNotFoundError:
        return None
