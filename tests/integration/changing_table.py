"""A table with many types in MySQL, random changes of it, and its rows as a stream must have them."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from servers.mysql import MySQLServer

__all__ = ["ARROW", "SCHEMA", "ChangingTable"]

# Name, type in MySQL, type in Spark, type in Arrow.
_COLUMNS: Sequence[tuple[str, str, str, pa.DataType]] = (
    ("id", "INT NOT NULL PRIMARY KEY", "INT", pa.int32()),
    ("tiny", "TINYINT", "TINYINT", pa.int8()),
    ("small", "SMALLINT UNSIGNED", "INT", pa.int32()),
    ("big", "BIGINT", "BIGINT", pa.int64()),
    ("price", "DECIMAL(12,2)", "DECIMAL(12,2)", pa.decimal128(12, 2)),
    ("wide", "DECIMAL(38,10)", "DECIMAL(38,10)", pa.decimal128(38, 10)),
    ("ratio", "DOUBLE", "DOUBLE", pa.float64()),
    ("name", "VARCHAR(40) CHARACTER SET utf8mb4", "STRING", pa.string()),
    ("code", "VARBINARY(20)", "BINARY", pa.binary()),
    ("bits", "BIT(12)", "BIGINT", pa.int64()),
    ("flag", "BIT(1)", "BOOLEAN", pa.bool_()),
    ("day", "DATE", "DATE", pa.date32()),
    ("at_ms", "DATETIME(3)", "TIMESTAMP_NTZ", pa.timestamp("us")),
    ("at_us", "DATETIME(6)", "TIMESTAMP_NTZ", pa.timestamp("us")),
    ("instant", "TIMESTAMP(6) NULL", "TIMESTAMP", pa.timestamp("us", "UTC")),
    ("span", "TIME(6)", "BIGINT", pa.int64()),
    ("year", "YEAR", "INT", pa.int32()),
    ("kind", "ENUM('a','b','ç')", "STRING", pa.string()),
)
SCHEMA = ", ".join(f"{name} {kind}" for name, _, kind, _ in _COLUMNS)
"""For the option ``schema``. `span` is microseconds, as Debezium has a TIME."""

_UTC = "SET time_zone = '+00:00'"
_NAMES = [name for name, *_ in _COLUMNS]
ARROW = pa.schema([(name, kind) for name, _, _, kind in _COLUMNS])


class ChangingTable:
    """A new table.

    Parameters
    ----------
    server : MySQLServer
    database : str
        A new one.
    chance : random.Random
    """

    table = "orders"

    def __init__(self, server: MySQLServer, database: str, chance: random.Random) -> None:
        self.server, self.database, self._chance = server, database, chance
        columns = ", ".join(f"{name} {kind}" for name, kind, *_ in _COLUMNS)
        server.execute(f"CREATE DATABASE {database}")
        server.execute(f"CREATE TABLE {database}.{self.table} ({columns})")

    def change(self, transactions: int, *, ids: int = 60) -> None:
        """Random transactions: inserts, updates, updates of the key, deletes."""
        chance, name = self._chance, f"{self.database}.{self.table}"
        with self.server.connect(autocommit=False, init_command=_UTC) as connection, connection.cursor() as cursor:
            for _ in range(transactions):
                for _ in range(chance.choice([1, 1, 3])):
                    id = chance.randint(1, ids)
                    what = chance.random()
                    if what < 0.6:
                        row = (id, *self._values())
                        cursor.execute(f"REPLACE INTO {name} VALUES ({', '.join(['%s'] * len(row))})", row)
                    elif what < 0.8:
                        changed = chance.choice(_NAMES[1:])
                        value = self._values()[_NAMES.index(changed) - 1]
                        cursor.execute(
                            f"UPDATE {name} SET {changed} = %s WHERE id BETWEEN %s AND %s", (value, id, id + 3)
                        )
                    elif what < 0.85:
                        cursor.execute(f"UPDATE IGNORE {name} SET id = %s WHERE id = %s", (chance.randint(1, ids), id))
                    else:
                        cursor.execute(f"DELETE FROM {name} WHERE id = %s", (id,))
                connection.commit()

    def truncate(self) -> None:
        """Empty the table."""
        self.server.execute(f"TRUNCATE TABLE {self.database}.{self.table}")

    def _values(self) -> tuple[Any, ...]:
        c = self._chance
        day = dt.datetime(1970, 1, 1) + dt.timedelta(days=c.randint(-20_000, 40_000), microseconds=c.randrange(10**10))
        values: list[Any] = [
            c.randint(-128, 127), c.randint(0, 65535), c.choice([-(2**63), 2**63 - 1, c.randint(-9, 9)]),
            Decimal(c.randint(-(10**12) + 1, 10**12 - 1)).scaleb(-2),
            Decimal((c.randint(0, 1), tuple(c.randint(0, 9) for _ in range(c.randint(1, 38))), -10)),
            c.choice([0.0, -1.5, c.uniform(-1e9, 1e9)]), c.choice(["", "é漢😀", 'a "b"\n', "null", f"n{c.random()}"]),
            c.randbytes(c.randint(0, 20)), c.randint(0, 4095), c.randint(0, 1), day.date(),
            day.replace(microsecond=day.microsecond // 1000 * 1000), day,
            dt.datetime(2000, 1, 1) + dt.timedelta(microseconds=c.randrange(10**15)),
            dt.timedelta(microseconds=c.randint(-3_020_399_000_000, 3_020_399_000_000)), c.randint(1901, 2155),
            c.choice(["a", "b", "ç"]),
        ]  # fmt: skip
        return tuple(None if c.random() < 0.15 else value for value in values)

    def rows(self) -> list[dict[str, Any]]:
        """The rows as the stream must have them, by id."""
        with self.server.connect(init_command=_UTC) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(_NAMES)} FROM {self.database}.{self.table} ORDER BY id")
            return [self._row(row) for row in cursor.fetchall()]

    @staticmethod
    def _row(values: Sequence[Any]) -> dict[str, Any]:
        row = dict(zip(_NAMES, values, strict=True))
        for name, convert in (
            ("bits", lambda v: int.from_bytes(v, "big")), ("flag", lambda v: v != b"\0"),
            ("instant", lambda v: v.replace(tzinfo=dt.UTC)), ("span", lambda v: v // dt.timedelta(microseconds=1)),
        ):  # fmt: skip
            if row[name] is not None:
                row[name] = convert(row[name])
        return row

    def dump(self, path: Path) -> str:
        """Write the rows to a Parquet file. Returns their place in the binary log, as a dump of MySQL's has it."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("FLUSH TABLES WITH READ LOCK")
            file, position = self.server.binlog_end()
            rows = self.rows()
        path.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=ARROW), path / "dump.parquet")
        return f"{file}:{position}"

    @staticmethod
    def of_target(rows: Sequence[Any]) -> list[dict[str, Any]]:
        """Rows that Spark collected, in the same form."""
        found = []
        for row in rows:
            values = row.asDict()
            for name in ("code",):
                values[name] = None if values[name] is None else bytes(values[name])
            if values["instant"] is not None:
                values["instant"] = values["instant"].astimezone(dt.UTC)
            found.append({name: values[name] for name in _NAMES})
        return found
