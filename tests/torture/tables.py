"""The tables under torture: what columns they have, and had after each ALTER TABLE.

A column's name says what it holds and what may happen to it, so that rows of any time can be compared: a letter of
`KINDS`, one of `FATES`, a number, and after each RENAME ``_r`` with another. What comes before the ``_`` is its family,
which is the same for one column under all its names.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from servers.mysql import MySQLServer

DATABASE = "torture"
TABLES = ("t_1", "t_2")
PATTERN = rf"{DATABASE}\.t_\d"
KEYS = 300
READER = "reader"
SIGNALS = f"{DATABASE}.signals"

# Each kind's types, each wider than the one before.
KINDS = {
    "w": ("SMALLINT", "INT", "BIGINT"),
    "t": ("VARCHAR(12)", "VARCHAR(300)", "TEXT"),
    "d": ("DECIMAL(6,2)", "DECIMAL(12,2)", "DECIMAL(24,4)"),
    "b": ("VARBINARY(8)", "VARBINARY(400)", "BLOB"),
    "m": ("DATETIME", "DATETIME(3)", "DATETIME(6)"),
}
BEGINNING = BinlogPosition("none.0", 0)
RENAMED, COMES_BACK, HAS_DEFAULT = FATES = "xyz"
DEFAULTS = {"w": 7, "t": "seven", "d": Decimal("7.50"), "b": "seven", "m": "2007-07-07T07:07:07"}
"""By kind, as `plain` has them."""

_KEY_COLUMNS = {
    "int": "id INT PRIMARY KEY",
    "pair": "g INT NOT NULL, id INT NOT NULL, PRIMARY KEY (g, id), KEY (id)",
    "text": "id VARCHAR(30) COLLATE utf8mb4_general_ci PRIMARY KEY",
}
# Writers reach the captured tables by these as well; they only know columns that stay.
_WAYS = {
    "int": ("id", "NEW.id"),
    "pair": ("g, id", "NEW.id % 5, NEW.id"),
    "text": ("id", "CONCAT('k', LPAD(NEW.id, 5, '0'))"),
}


def family(name: str) -> str:
    """What a column is called before all renames."""
    return name.partition("_")[0]


def following(table: str) -> str:
    """The name of the table that is to take a table's name, with other rows."""
    return f"{table}_next"


def preceding(table: str) -> str:
    """The captured table whose columns a table has."""
    return table.removesuffix("_next")


def fate(name: str) -> str:
    """What may happen to a column; "" for those that the tables begin with."""
    return name[1] if len(name) > 2 and name[0] in KINDS and name[1] in FATES else ""


def plain(value: Any) -> Any:
    """A value in the one form in which all readers have it."""
    if isinstance(value, bytes | bytearray):
        return value.decode()
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    return value


@dataclass
class Shape:
    """The columns of both tables, which one thread changes and all others read.

    Parameters
    ----------
    key : str
        ``"int"``, ``"pair"`` or ``"text"``.
    steps : dict
        For each column that may be altered, its place in its kind's types. Replaced, never changed.
    stages : dict
        The names of all columns, in order, after each ALTER TABLE by its number; 0 is the beginning.
    lock : Lock
        Held while the tables are altered: outside of it both are the same.
    gone : set
        Families that were dropped at some time.
    altered, swapped : BinlogPosition
        The end of the last ALTER TABLE, and of what emptied or replaced a table last, if there was one.
    gates : list of Lock
        One for each thread that writes rows, which holds it from a transaction's beginning to its end.
    """

    key: str
    steps: dict[str, int] = field(default_factory=dict)
    stages: dict[int, tuple[str, ...]] = field(default_factory=dict)
    lock: contextlib.AbstractContextManager[Any] = field(default_factory=threading.RLock)
    gone: set[str] = field(default_factory=set)
    gates: list[threading.Lock] = field(default_factory=list)
    altered: BinlogPosition = BEGINNING
    swapped: BinlogPosition = BEGINNING

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Nobody writes rows meanwhile."""
        with contextlib.ExitStack() as held:
            for gate in self.gates:
                held.enter_context(gate)
            yield

    def gate(self) -> threading.Lock:
        """A gate for another thread that writes rows."""
        self.gates.append(threading.Lock())
        return self.gates[-1]

    @property
    def key_columns(self) -> tuple[str, ...]:
        return ("g", "id") if self.key == "pair" else ("id",)

    def key_of(self, chance: random.Random, number: int) -> dict[str, Any]:
        """The key of a row."""
        if self.key == "int":
            return {"id": number}
        if self.key == "pair":
            return {"g": number % 5, "id": number}
        return {"id": f"{chance.choice('kK')}{number:05}"}

    def id_of(self, number: int) -> Any:
        """What the column ``id`` of a row compares with."""
        return f"k{number:05}" if self.key == "text" else number

    def values(self, chance: random.Random, stamp: int) -> dict[str, Any]:
        """A row without its key: ``n`` is unique, columns that may be altered are there or not."""
        row: dict[str, Any] = {"n": stamp, "v": chance.choice([None, "", "ä漢'\"\\", f"v{stamp}", "x" * 40])}
        for name, step in list(self.steps.items()):
            if chance.random() < 0.7:
                row[name] = value(chance, name[0], step)
        return row

    def create(self, server: MySQLServer) -> None:
        """Make the tables, the ways to them, and the user that the stream reads as."""
        columns, key = _WAYS[self.key]
        statements = [
            f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4",
            *(
                f"CREATE TABLE {DATABASE}.{t} ({_KEY_COLUMNS[self.key]}, n BIGINT, v VARCHAR(60), "
                "wx1 SMALLINT, tx2 VARCHAR(12), dx3 DECIMAL(6,2), wy4 SMALLINT, ty5 VARCHAR(12))"
                for t in TABLES
            ),
            f"CREATE TABLE {DATABASE}.other (id INT PRIMARY KEY AUTO_INCREMENT, n BIGINT)",
            f"CREATE TABLE {DATABASE}.feed (id INT, n BIGINT)",
            f"CREATE TABLE {SIGNALS} (id VARCHAR(42) PRIMARY KEY, type VARCHAR(32) NOT NULL, data VARCHAR(2048))",
            "CREATE DATABASE percona",
            "CREATE TABLE percona.checksums (id INT PRIMARY KEY, found BIGINT)",
            f"CREATE VIEW {DATABASE}.seen AS SELECT {columns}, n, v FROM {DATABASE}.t_1",
            f"CREATE TRIGGER {DATABASE}.fed AFTER INSERT ON {DATABASE}.feed FOR EACH ROW "
            f"INSERT INTO {DATABASE}.t_2 ({columns}, n, v) VALUES ({key}, NEW.n, 'fed') "
            "ON DUPLICATE KEY UPDATE n = NEW.n, v = 'fed again'",
            f"CREATE USER {READER}@'127.0.0.1'",
            f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT, RELOAD ON *.* TO {READER}@'127.0.0.1'",
        ]
        for statement in statements:
            server.execute(statement)
        self.steps = {"wx1": 0, "tx2": 0, "dx3": 0, "wy4": 0, "ty5": 0}
        self.stages[0] = columns_of(server)

    def fill(self, server: MySQLServer, chance: random.Random, rows: int) -> None:
        """The rows to begin with."""
        for table in TABLES:
            with server.connect() as connection, connection.cursor() as cursor:
                found = [{**self.key_of(chance, i), "n": i, "v": "first"} for i in chance.sample(range(KEYS), rows)]
                cursor.executemany(insert(table, found[0]), [list(row.values()) for row in found])


def insert(table: str, row: dict[str, Any], verb: str = "INSERT") -> str:
    """A statement that takes the values of such a row."""
    return f"{verb} INTO {DATABASE}.{table} ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})"


def columns_of(server: MySQLServer, table: str = TABLES[0]) -> tuple[str, ...]:
    """The columns of a table as they are now."""
    return tuple(
        row[0]
        for row in server.execute(
            "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s "
            "ORDER BY ORDINAL_POSITION",
            (DATABASE, table),
        )
    )


def value(chance: random.Random, kind: str, step: int) -> Any:
    """A value that fits a column's type, and often not the one before it."""
    if chance.random() < 0.1:
        return None
    if kind == "w":
        return chance.randint(-(1 << (15, 31, 63)[step]), (1 << (15, 31, 63)[step]) - 1)
    if kind == "d":
        return Decimal(chance.randint(-(10 ** (6, 12, 24)[step]) + 1, 10 ** (6, 12, 24)[step] - 1)).scaleb(
            (-2, -2, -4)[step]
        )
    if kind == "m":
        micros = chance.randrange(10**6) // (10**6, 10**3, 1)[step] * (10**6, 10**3, 1)[step]
        return datetime(2001, 1, 1) + timedelta(seconds=chance.randrange(10**9), microseconds=micros)
    length = chance.randrange((13, 301, 3000)[step] if kind == "t" else (9, 401, 3000)[step])
    return (f"{chance.randrange(10**6)}-" * (length // 2 + 1))[:length]
