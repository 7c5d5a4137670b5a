"""Copies of a table of many types in Iceberg and in databases, and another writer that damages them."""

from __future__ import annotations

import datetime as dt
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, ValidationException

import backlog_spark as bs
from tests.sinks.database.targets import Target
from tests.sinks.iceberg.places import TABLE, catalog_at, table_at

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from servers.mysql import MySQLServer

KEYS = ("code", "id")
COLUMNS = {
    # It tells apart letter cases, and blanks at the end.
    "code": "VARCHAR(8) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_as_cs NOT NULL",
    "id": "BIGINT UNSIGNED NOT NULL",
    "ti": "TINYINT",
    "si": "SMALLINT",
    "ii": "INT",
    "bi": "BIGINT",
    "bu": "BIGINT UNSIGNED",
    "bo": "TINYINT(1)",
    "de": "DECIMAL(20,4)",
    "fl": "FLOAT",
    "db": "DOUBLE",
    "vc": "VARCHAR(40)",
    "tx": "TEXT",
    "vb": "VARBINARY(40)",
    "bl": "BLOB",
    "da": "DATE",
    "dt": "DATETIME(6)",
    "ts": "TIMESTAMP(6) NULL",
    "tm": "TIME(3)",
    "js": "JSON",
}
Row = dict[str, Any]
Key = tuple[str | None, int | None]
Found = dict[tuple[str, Key], tuple[str, ...]]


def random_row(chance: random.Random) -> Row:
    """Values of all columns but the keys. One in eight is NULL."""
    day = dt.datetime(1, 1, 1) + dt.timedelta(days=chance.randrange(3_600_000), microseconds=chance.randrange(10**11))
    since_1970 = dt.datetime(1970, 1, 2) + dt.timedelta(microseconds=chance.randrange(2 * 10**15))
    text = "".join(chance.choice(" aAéß漢😀'\"\\%") for _ in range(chance.randrange(12)))
    found: Row = {
        "ti": chance.choice([-128, 127, 0]),
        "si": chance.choice([-32768, 32767, 7]),
        "ii": chance.choice([-(2**31), 2**31 - 1, 7]),
        "bi": chance.choice([-(2**63), 2**63 - 1, 7]),
        "bu": chance.choice([0, 2**63, 2**64 - 1]),
        "bo": chance.randrange(2),
        "de": Decimal(chance.randrange(-(10**20) + 1, 10**20)).scaleb(-4),
        "fl": chance.choice([-0.0, 0.1, 16777217.0, 1.17549e-38, chance.uniform(-1e6, 1e6)]),
        "db": chance.choice([-0.0, 5e-324, 0.1 + 0.2, chance.uniform(-1, 1) * 10 ** chance.randrange(-300, 300)]),
        "vc": text,
        "tx": text + " ",
        "vb": chance.randbytes(chance.randrange(40)),
        "bl": chance.randbytes(chance.randrange(40)),
        "da": day.date(),
        "dt": day,
        "ts": since_1970,
        "tm": f"{chance.choice(['', '-'])}{chance.randrange(838)}:07:08.{chance.randrange(1000):03}",
        "js": chance.choice(['{"a": 1}', "[1, 2.5, null]", '"é"']),
    }
    return {name: None if chance.random() < 0.125 else value for name, value in found.items()}


def fill(server: MySQLServer, table: str, chance: random.Random, first: int, rows: int, blank: str) -> None:
    """Add rows, whose keys differ in letter cases and blanks alone. ``blank``: as of `Copy`."""
    with server.connect(charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        for number in range(first, first + rows):
            row = {"code": ("a", "A", f"a{blank}", "é")[number % 4], "id": 2**63 + number // 4, **random_row(chance)}
            names = ", ".join(row)
            marks = ", ".join(["%s"] * len(row))
            cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))
        connection.commit()


def other(column: str, old: Any, *, has_nan: bool) -> Any:
    """Another value of a column, as near as one can be."""
    if column == "fl":
        return math.nan if has_nan else 1.5
    if column == "db":
        return math.nextafter(old, 1e308) if old else 1e-300
    if column in ("da", "dt", "ts"):
        step = dt.timedelta(days=1) if column == "da" else dt.timedelta(microseconds=1)
        return dt.date(1999, 1, 1) if old is None and column == "da" else (old or dt.datetime(1999, 1, 1)) + step
    if column == "vc":
        return old.swapcase() if old and old.swapcase() != old else f"{old or ''} "
    if column in ("tx", "tm", "js"):
        return "" if old is None else f"{old} "
    if column in ("vb", "bl"):
        return (old or b"") + b"\0"
    if column == "de":
        return Decimal("0.0001") if old != Decimal("0.0001") else Decimal(0)
    if column == "bo":
        return not old
    return 1 if old is None else int(old) ^ 1


def damage(copy: Copy, chance: random.Random) -> Found:
    """Delete, add and change rows: one key for each column, and one that becomes NULL or gets a value.

    Returns
    -------
    dict
        What a verification must find: columns by kind and key.
    """
    rows = {key_of(row): row for row in copy.rows()}
    values = [name for name in COLUMNS if name not in KEYS]
    chosen = chance.sample(sorted(rows), 2 * len(values) + 5)
    gone, changed, expected = chosen[:3], {}, Found()
    for number, key in enumerate(chosen[5:]):
        column = values[number % len(values)]
        old = rows[key][column]
        to_null = number >= len(values) and old is not None
        changed[key] = {column: None if to_null else other(column, old, has_nan=copy.has_nan)}
        expected["different", key] = (column,)
    empty: Row = dict.fromkeys(values)
    added: list[Row] = [{"code": "b", "id": 2**63, **empty}, {"code": f"a{2 * copy.blank}", "id": 2**63, **empty}]
    expected |= {("missing", key): () for key in gone}
    if copy.takes_anything:
        added += [rows[key] for key in chosen[3:5]] + [{"code": None, "id": None, **empty}]
        expected |= {("doubled", key): () for key in chosen[3:5]}
    expected |= {("extra", key_of(row)): () for row in added if key_of(row) not in rows}
    copy.damage(gone, added, changed)
    return expected


def key_of(row: Mapping[str, Any]) -> Key:
    return row["code"], None if row["id"] is None else int(row["id"])


def found(result: bs.Verification) -> Found:
    """The differences as `damage` tells them."""
    return {(d.kind, key_of(d.key)): d.columns for d in result.differences}


class Copy(ABC):
    """A copy of the table."""

    has_nan = True
    blank = " "
    """A letter at the end of a key. MySQL's older collations do not tell apart blanks there."""
    takes_anything = False
    """Whether rows may have equal keys, or NULL in them."""

    @abstractmethod
    def sink(self, keys: Sequence[str] = KEYS) -> bs.Sink:
        """The sink that keeps it."""

    @abstractmethod
    def rows(self) -> list[Row]:
        """All rows, read without this package."""

    @abstractmethod
    def damage(self, gone: Sequence[Key], added: Sequence[Row], changed: Mapping[Key, Row]) -> None:
        """Change rows as another writer does."""


class IcebergCopy(Copy):
    """In a catalog in SQLite."""

    takes_anything = True

    def __init__(self, root: Path) -> None:
        self.root = root / "lake"

    def sink(self, keys: Sequence[str] = KEYS) -> bs.IcebergUpsert:
        return bs.IcebergUpsert(TABLE, list(keys), catalog_at(self.root))

    @property
    def table(self) -> Table:
        return table_at(self.root)

    def rows(self) -> list[Row]:
        return self.table.scan().to_arrow().to_pylist()

    def damage(self, gone: Sequence[Key], added: Sequence[Row], changed: Mapping[Key, Row]) -> None:
        def damaged(row: Row) -> Row | None:
            return None if key_of(row) in gone else {**row, **changed.get(key_of(row), {})}

        self.rewrite(damaged, added)

    def rewrite(self, change: Callable[[Row], Row | None], added: Sequence[Row] = ()) -> None:
        """Write the whole table again, with other rows. None: the row goes."""
        for _ in range(50):
            table = self.table
            old = table.scan().to_arrow()
            rows = [row for row in map(change, old.to_pylist()) if row is not None]
            try:
                table.overwrite(pa.Table.from_pylist([*rows, *added], old.schema))
                return
            except (CommitFailedException, ValidationException):
                pass  # the query was faster
        raise AssertionError("the query is always faster")


class DatabaseCopy(Copy):
    """In a database on a real server."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.has_nan = target.is_postgres
        self.blank = " " if target.is_postgres else "-"

    def sink(self, keys: Sequence[str] = KEYS) -> bs.JdbcUpsert:
        return self.target.sink("t", keys)

    def rows(self) -> list[Row]:
        # The client library rounds MySQL's FLOAT: all that matters here is that it stays the same.
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        return [dict(zip(COLUMNS, row, strict=True)) for row in self.target.run(f'SELECT {names} FROM "t"')]

    def damage(self, gone: Sequence[Key], added: Sequence[Row], changed: Mapping[Key, Row]) -> None:
        which = '"code" = %s AND "id" = %s'
        for key in gone:
            self.target.run(f'DELETE FROM "t" WHERE {which}', key)
        for row in added:
            names = ", ".join(f'"{name}"' for name in row)
            self.target.run(f'INSERT INTO "t" ({names}) VALUES ({", ".join(["%s"] * len(row))})', list(row.values()))
        for key, values in changed.items():
            ((name, value),) = values.items()
            self.target.run(f'UPDATE "t" SET "{name}" = %s WHERE {which}', (value, *key))
