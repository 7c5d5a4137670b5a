"""Tables with every kind of key, writers that change them, and their rows at a low watermark."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from backlog_spark.connectors.mysql_cdc.binlog.reading import TransactionEnd, read_changes
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.schema.keys import Key, key_kind, key_range
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.connectors.mysql_cdc.server.mysql import low_watermark
from backlog_spark.connectors.mysql_cdc.server.watermark import resume_after, watermark
from servers.mysql import MySQLServer

from .replay import Writers, is_mariadb

KEYS = 240
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Kind:
    """A table whose rows are key columns, then ``n INT`` and ``v VARCHAR(20)``.

    Parameters
    ----------
    columns : str
        Definitions of the key columns.
    key : callable
        Values of the key columns from a number below `KEYS`, by chance one of several that the server holds equal.
    rest : str
        Further definitions: the primary key, indexes.
    unique : bool
        The key columns are the primary key.
    options : dict
        Of the source.
    batches : bool
        The snapshot may be of several batches.
    """

    columns: str
    key: Callable[[int, random.Random], Row]
    rest: str
    unique: bool = True
    options: dict[str, object] = field(default_factory=dict)
    batches: bool = True


def _spelt(n: int, chance: random.Random) -> Row:
    """One of the spellings that an accent- and case-insensitive collation holds equal."""
    text = f"{chance.choice('aAáÀ')}{chance.choice('sS')}{n % 40:02d}{chance.choice(['ß', 'SS', 'ss'])}{n // 40}"
    return (text,)


def _padded(n: int, chance: random.Random) -> Row:
    """Trailing blanks do not count; a trailing tab does, and sorts before nothing at all."""
    return ("x" * (n % 7) + f"{n // 20}" + "\t" * (n % 3) + " " * chance.randrange(3),)


def _moment(n: int, chance: random.Random) -> Row:
    return (dt.datetime(2024, 2, 27) + n * dt.timedelta(hours=7, microseconds=n * 1_000),)


KINDS = {
    "bigint unsigned": Kind(
        "k BIGINT UNSIGNED", lambda n, c: (min(2**64 - 1, n * (2**64 // (KEYS - 1))),), "PRIMARY KEY (k)"
    ),
    "negative bigint": Kind("k BIGINT", lambda n, c: (-(2**63) + n**7,), "PRIMARY KEY (k)"),
    "decimal": Kind("k DECIMAL(38,10)", lambda n, c: (f"{(n - 100) ** 5 * 10**15}.{n:010d}",), "PRIMARY KEY (k)"),
    "decimal of 60 digits, not cut": Kind(
        "k DECIMAL(60,10)", lambda n, c: (f"{(n - 100) * 10**40 + 10**39}.{n:010d}",), "PRIMARY KEY (k)", batches=False
    ),
    "date": Kind("k DATE", lambda n, c: (dt.date(1, 1, 1) + n * dt.timedelta(days=15_000),), "PRIMARY KEY (k)"),
    "datetime": Kind("k DATETIME(6)", _moment, "PRIMARY KEY (k)"),
    "timestamp": Kind("k TIMESTAMP(3)", _moment, "PRIMARY KEY (k)"),
    "binary": Kind("k BINARY(3)", lambda n, c: (bytes([n % 4, n // 4, 0]),), "PRIMARY KEY (k)"),
    "varbinary": Kind("k VARBINARY(9)", lambda n, c: (b"\0" * (n % 5) + bytes([n]) * (n % 3),), "PRIMARY KEY (k)"),
    "text, no pad": Kind("k VARCHAR(20) COLLATE utf8mb4_0900_ai_ci", _spelt, "PRIMARY KEY (k)"),
    "text, pad": Kind("k VARCHAR(20) COLLATE utf8mb4_general_ci", _padded, "PRIMARY KEY (k)"),
    "text, latin1": Kind("k CHAR(20) CHARACTER SET latin1 COLLATE latin1_german2_ci", _spelt, "PRIMARY KEY (k)"),
    "composite": Kind(
        "a INT, b VARCHAR(20) COLLATE utf8mb4_unicode_ci, c DATE",
        lambda n, ch: (n % 3, *_spelt(n // 2 % 80, ch), dt.date(2024, 1, 1 + n % 2)),
        "PRIMARY KEY (a, b, c)",
    ),
    "composite in another order": Kind(
        "a VARBINARY(4), b INT UNSIGNED", lambda n, c: (bytes([n % 7]), 2**32 - 1 - n), "PRIMARY KEY (b, a)"
    ),
    "composite, cut by the first": Kind(
        "a INT, b ENUM('z', 'y', 'x'), c TIME",
        lambda n, c: (n // 3, "xyz"[n % 3], "-01:00:00"),
        "PRIMARY KEY (a, b, c)",
    ),
    "composite, cut by the second": Kind(
        "a INT, b INT",
        lambda n, c: (n % 5, n // 5),
        "PRIMARY KEY (a, b), KEY (b)",
        options={"chunkKeyColumn": "b"},
    ),
    "enum, not cut": Kind("k ENUM('b', 'a', 'c')", lambda n, c: ("abc"[n % 3],), "PRIMARY KEY (k)", batches=False),
    "prefix of a text, not cut": Kind("k TEXT", _spelt, "PRIMARY KEY (k(9))", batches=False),
    "cut outside of the key": Kind(
        "k VARCHAR(20)",
        lambda n, c: (f"k{n}",),
        "PRIMARY KEY (k), KEY (n)",
        options={"chunkKeyColumn": "n"},
        batches=False,
    ),
    "no key": Kind("a INT, b VARCHAR(20)", lambda n, c: (n % 9, *_spelt(n, c)), "KEY (a)", unique=False, batches=False),
    "no key, cut": Kind(
        "a INT, b VARCHAR(20) COLLATE utf8mb4_0900_ai_ci",
        lambda n, c: (n % 3, *(_spelt(n % 80, c) if n % 5 else (None,))),
        "KEY (b)",
        unique=False,
        options={"chunkKeyColumn": "b"},
        batches=False,
    ),
}


def create(server: MySQLServer, table: str, kind: Kind) -> str:
    """Make the table with every other key, and return the low watermark from before."""
    server.execute("CREATE DATABASE IF NOT EXISTS kinds")
    server.execute(f"DROP TABLE IF EXISTS {table}")
    columns = kind.columns
    if is_mariadb(server):  # its own name of MySQL's default
        columns = columns.replace("utf8mb4_0900_ai_ci", "utf8mb4_uca1400_nopad_ai_ci")
    server.execute(f"CREATE TABLE {table} ({columns}, n INT, v VARCHAR(20), {kind.rest}) CHARACTER SET utf8mb4")
    with server.connect() as connection:
        before, _ = low_watermark(connection)
    chance = random.Random(0)
    rows = [(*kind.key(n, chance), n, f"s{n}") for n in range(0, KEYS, 2)]
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.executemany(f"INSERT IGNORE INTO {table} VALUES ({', '.join(['%s'] * len(rows[0]))})", rows)
    return before


class KindWriters(Writers):
    """As `Writers`, for a table of a kind."""

    def __init__(self, server: MySQLServer, table: str, kind: Kind, names: list[str], seed: int) -> None:
        super().__init__(server, table, seed, threads=3, pause=0.01)
        self._kind = kind
        self._columns = names
        self._here = " AND ".join(f"{name} <=> %s" for name in names)
        self._set = ", ".join(f"{name} = %s" for name in names)

    def _statement(self, cursor: Any, chance: random.Random) -> None:
        table, kind, what = self._table, self._kind, chance.random()
        key, other = (kind.key(chance.randrange(KEYS), chance) for _ in range(2))
        n, v = chance.randrange(KEYS), f"v{chance.randrange(5)}"
        marks = ", ".join(["%s"] * len(key))
        if what < 0.3:
            cursor.execute(
                f"INSERT INTO {table} VALUES ({marks}, %s, %s) ON DUPLICATE KEY UPDATE n = n + 1", (*key, n, v)
            )
        elif what < 0.5:
            first = self._columns[0]
            cursor.execute(
                f"UPDATE {table} SET n = %s, v = %s WHERE {first} >= %s ORDER BY {first} LIMIT {chance.randint(1, 4)}",
                (n, v, key[0]),
            )
        elif what < 0.65:
            cursor.execute(f"DELETE FROM {table} WHERE {self._here} LIMIT 1", key)
        elif what < 0.75:
            cursor.execute(f"REPLACE INTO {table} VALUES ({marks}, %s, %s)", (*key, n, "r"))
        elif what < 0.95:  # another key, or another spelling of it
            cursor.execute(f"UPDATE IGNORE {table} SET {self._set} WHERE {self._here} LIMIT 1", (*other, *key))
        else:
            cursor.execute("SAVEPOINT a")
            cursor.execute(f"DELETE FROM {table} WHERE {self._here}", key)
            if chance.random() < 0.7:
                cursor.execute("ROLLBACK TO SAVEPOINT a")

    def _begin(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00', sql_mode = 'NO_ENGINE_SUBSTITUTION'")


def tables_at(
    server: MySQLServer, options: MySqlOptions, schema: TableSchema, before: str, lows: list[str]
) -> list[Counter[tuple[Any, ...]]]:
    """The rows, as storage values, at each low watermark: all changes of its transactions, one after the other."""
    marks = [watermark(low) for low in lows]
    tables: list[Counter[tuple[Any, ...]]] = [Counter() for _ in lows]
    for change in read_changes(options, (schema,), resume_after(before)):
        if isinstance(change, TransactionEnd):
            continue
        told = change.uuid, change.number, change.rows[0][0]
        inside = [t for t, mark in zip(tables, marks, strict=True) if mark.includes(*told)]
        for _, old, new in change.rows:
            for table in inside:
                table.update([tuple(new)] if new is not None else [])
                table.subtract([tuple(old)] if old is not None else [])
    assert all(n >= 0 for table in tables for n in table.values())
    return [+table for table in tables]


def in_range(
    server: MySQLServer, schema: TableSchema, rows: Counter[tuple[Any, ...]], first: Key | None, last: Key | None
) -> Counter[Row]:
    """The rows that the server itself finds in a range of keys."""
    scratch = f"{schema.database}.scratch"
    server.execute(f"DROP TABLE IF EXISTS {scratch}")
    server.execute(f"CREATE TABLE {scratch} LIKE {schema.qualified}")
    if rows:
        literals = [f"({', '.join(_literals(schema, row))})" for row in rows.elements()]
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(f"INSERT INTO {scratch} VALUES {', '.join(literals)}")
    return now(server, scratch, key_range(schema.chunk_columns, first, last))


def _literals(schema: TableSchema, row: tuple[Any, ...]) -> Iterator[str]:
    for column, value in zip(schema.columns, row, strict=True):
        kind = key_kind(column)
        yield "NULL" if value is None else kind.literal(column, value) if kind else f"'{value}'"


def now(server: MySQLServer, table: str, where: str = "") -> Counter[Row]:
    """A table's rows as they are."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT * FROM {table}{where}")
        return Counter(plain(row) for row in cursor.fetchall())


def plain(row: Row) -> Row:
    """Values that compare, whether PyMySQL or the source gave them."""

    def value(v: Any) -> Any:
        if isinstance(v, dt.datetime):
            return v.replace(tzinfo=None)
        if isinstance(v, Decimal) and len(v.as_tuple().digits) > 38:
            return f"{v:f}"  # text in the source
        # A TIME is text in the source.
        return f"-{str(-v).rjust(8, '0')}" if isinstance(v, dt.timedelta) else v

    return tuple(value(v) for v in row)
