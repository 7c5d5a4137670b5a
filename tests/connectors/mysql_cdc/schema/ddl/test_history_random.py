"""Random ALTERs on real servers, with rows between them, read from a log without column names."""

from __future__ import annotations

import random
import re
from typing import Any

import pymysql
import pytest

from backlog_spark.connectors.mysql_cdc.schema.columns import Column
from backlog_spark.connectors.mysql_cdc.schema.ddl.history import Layout, layouts
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.connectors.mysql_cdc.schema.widening import conversion
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.logged import columns_of, end, log_of
from tests.connectors.mysql_cdc.replay import is_mariadb

# Types that hold a small number each, and what the log has for it.
NUMBERS: dict[str, Any] = {
    "TINYINT UNSIGNED": int,
    "SMALLINT": int,
    "MEDIUMINT UNSIGNED": int,
    "INT": int,
    "BIGINT": int,
    "BIGINT UNSIGNED": int,
    "BIT(13)": int,
    "DECIMAL(12,2)": lambda n: n * 100,
    "DECIMAL(20,4)": lambda n: n * 10_000,
    "DECIMAL(45,1)": lambda n: f"{n}.0",
    "DOUBLE": float,
    "FLOAT": float,
    "VARCHAR(20)": str,
    "VARCHAR(300) CHARACTER SET latin1": str,
    "CHAR(200)": str,
    "TEXT": str,
    "VARBINARY(30)": lambda n: str(n).encode(),
    "BLOB": lambda n: str(n).encode(),
}
# Others, and a value: read past.
OTHERS = {
    "JSON": """'{"a": [1, 2.5]}'""",
    "GEOMETRY": "ST_GeomFromText('POINT(1 2)')",
    "ENUM('a','b')": "'b'",
    "SET('a','b','c')": "'a,c'",
    "TIMESTAMP(3) NULL": "'2020-01-02 03:04:05.678'",
    "TIME(2)": "'-01:02:03.45'",
    "DATETIME(5)": "'2020-01-02 03:04:05.678'",
    "DATE": "'2020-01-02'",
    "YEAR": "2020",
    "BINARY(5)": "'ab'",
    "MEDIUMBLOB": "REPEAT('x', 70000)",
    "VARCHAR(300)": "REPEAT('x', 300)",
    "INT AS (7) STORED": "DEFAULT",
    "INT AS (7) VIRTUAL": "DEFAULT",
}
OF_MARIADB = {
    "VARCHAR(300) COMPRESSED": "REPEAT('x', 300)",
    "BLOB COMPRESSED": "REPEAT('x', 300)",
    "UUID": "'ffffffff-0000-0000-0000-000000000000'",
    "INET6": "'::1'",
}


KINDS_OF_CLAUSE = [
    *("add", "add", "drop", "rename", "rename", "swap", "change", "modify", "modify", "move", "index", "convert"),
]


class Alterer:
    """Random statements on alters.t. Its row 0 holds a number in each column of `NUMBERS`, by which it is known."""

    def __init__(self, server: MySQLServer, cursor: Any, seed: int) -> None:
        self.server, self.cursor, self.chance = server, cursor, random.Random(seed)
        self.others = OTHERS | (OF_MARIADB if is_mariadb(server) else {})
        self.types: dict[str, str] = {}
        self.fresh = 0
        cursor.execute("DROP TABLE IF EXISTS t")
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, n1 INT, n2 VARCHAR(20), n3 INT) CHARACTER SET utf8mb4")
        cursor.execute("INSERT INTO t VALUES (0, 101, 102, 103)")
        self.types |= {"n1": "INT", "n2": "VARCHAR(20)", "n3": "INT"}
        self.number = 200

    def position(self) -> str:
        if self.chance.random() < 0.5:
            return ""
        return self.chance.choice([" FIRST", *(f" AFTER {name}" for name in ("id", *self.types))])

    def clause(self, types: dict[str, str]) -> str:
        chance = self.chance
        # Those before the statement: MariaDB lets it MODIFY a column that it adds, which `after` refuses.
        numbers = [name for name in self.types if name.lower().startswith("n")]
        name = chance.choice(numbers or ["n1"])
        what = chance.choice(KINDS_OF_CLAUSE)
        self.fresh += 1
        # At times a name that another column had
        new = chance.choice([f"n{self.fresh + 10}", f"n{chance.randint(1, 5)}", name.upper()])
        if what == "add":
            kind = chance.choice([*NUMBERS, *self.others])
            new = new.lower() if kind in NUMBERS else f"o{self.fresh}"
            types[new] = kind
            return f"ADD {new} {kind}{self.position()}"
        if what == "drop":
            gone = chance.choice([*types]) if len(numbers) > 2 else "none"
            types.pop(gone, None)
            return f"DROP COLUMN {gone}"
        if what == "rename":
            types[new] = types.pop(name, "")
            return f"RENAME COLUMN {name} TO {new}"
        if what == "swap":
            other = chance.choice(numbers or ["n1"])
            types[name], types[other] = types.get(other, ""), types.get(name, "")
            return f"RENAME COLUMN {name} TO {other}, RENAME COLUMN {other} TO {name}"
        if what == "change":
            types[new] = self.wider(types.pop(name, "INT"))
            return f"CHANGE {name} {new} {types[new]}{self.position()}"
        if what in ("modify", "move"):
            types[name] = types.get(name, "INT") if what == "move" else self.wider(types.get(name, "INT"))
            return f"MODIFY {name} {types[name]}{self.position()}"
        if what == "convert":
            return f"CONVERT TO CHARACTER SET {chance.choice(['utf8mb4', 'latin1'])}"
        return chance.choice([f"ADD INDEX ({name}(3))", "COMMENT 'it''s, DROP n1'", "FORCE"])

    def wider(self, kind: str) -> str:
        """Mostly a definition that values can be converted to."""
        if kind.startswith(("VARCHAR", "CHAR", "TEXT")):
            wider = ["TEXT", "VARCHAR(300) CHARACTER SET latin1"]
        else:
            wider = ["BLOB"] if kind.startswith("VARB") else ["BIGINT", "DECIMAL(45,1)"]
        return self.chance.choice([*wider * 4, *NUMBERS])

    def alter(self) -> bool:
        """Run a statement; whether the server took it."""
        types = dict(self.types)
        clauses = [self.clause(types) for _ in range(self.chance.choice([1, 1, 2, 3]))]
        clauses += self.chance.choice([[], [], ["ALGORITHM=COPY"], ["ALGORITHM=INPLACE"]])
        try:
            self.cursor.execute(f"ALTER TABLE t {', '.join(clauses)}")
        except pymysql.Error:
            return False
        names = [c.name for c in columns_of(self.server)]
        by_name = {name.lower(): kind for name, kind in types.items()}
        self.types = {name: by_name[name.lower()] for name in names if name != "id"}
        return True

    def identify(self) -> dict[str, int]:
        """Give new columns a number in row 0; the number of each."""
        self.cursor.execute("SELECT * FROM t WHERE id = 0")
        row = dict(zip([d[0] for d in self.cursor.description], self.cursor.fetchone(), strict=True))
        found = {}
        for name, kind in self.types.items():
            if kind not in NUMBERS:
                continue
            value = row[name]
            if value is None:
                self.number += 1 if self.number < 250 else -249
                value = self.number
                self.cursor.execute(f"UPDATE t SET {name} = {value} WHERE id = 0")
            elif kind.startswith("BIT"):
                value = int.from_bytes(value, "big")
            found[name] = int(float(value))
        return found

    def insert(self, key: int) -> dict[str, int | None]:
        """A row of random numbers; these."""
        row = {
            name: self.chance.choice([None, self.chance.randrange(200)])
            for name, kind in self.types.items()
            if kind in NUMBERS
        }
        others = {n: self.chance.choice(["NULL", self.others[k]]) for n, k in self.types.items() if k in self.others}
        given = {n: "NULL" if v is None else str(v) for n, v in row.items()}
        given |= {n: v if "AS (7)" not in self.types[n] else "DEFAULT" for n, v in others.items()}
        names, values = ", ".join(["id", *given]), ", ".join([str(key), *given.values()])
        self.cursor.execute(f"INSERT INTO t ({names}) VALUES ({values})")
        return row


def stored(column: Column, number: int | None) -> object:
    """The storage value in the log for a number in a column of `NUMBERS`."""
    if number is None:
        return None
    if column.data_type == "decimal":
        return f"{number}.0" if column.is_wide_decimal else number * 10**column.scale
    if column.data_type.endswith("text"):  # CONVERT TO makes it longer
        return str(number)
    if column.data_type.endswith("blob"):  # MySQL 8.0.15 makes TINYBLOB of it with a CONVERT TO in one statement
        return str(number).encode()
    kind = next(k for k in NUMBERS if re.split(r"\W", k.lower())[0] == column.data_type)
    return NUMBERS[kind](number)


@pytest.mark.parametrize("seed", range(2))
def test_random_statements(nameless: MySQLServer, seed: int) -> None:
    """Names, definitions and values of every stretch, in its own columns and in those of the end."""
    with nameless.connect(database="alters") as connection, connection.cursor() as cursor:
        alterer = Alterer(nameless, cursor, seed)
        start = end(nameless)
        true = [columns_of(nameless)]
        identities, inserted = [alterer.identify()], [alterer.insert(1)]
        for _ in range(40):  # of which the server refuses some
            if len(true) < 14 and alterer.alter():
                true.append(columns_of(nameless))
                identities.append(alterer.identify())
                inserted.append(alterer.insert(len(true)))
    statements, rows = log_of(nameless, start)
    assert [event.stage for event in rows] == [*range(len(true))]
    assert not any(event.table_map.names for event in rows)
    found = layouts(true[0], statements, true[-1], key=["id"])
    unknown = past = read = 0
    for stage, layout in enumerate(found):
        columns = true[stage]
        assert [c.name for c in layout.columns] == [c.name for c in columns]
        for derived, column in zip(layout.columns, columns, strict=True):
            if derived.data_type:
                assert (derived.data_type, derived.column_type, derived.charset) == (
                    column.data_type, column.column_type, column.charset,
                )  # fmt: skip
            unknown += not derived.data_type
        # Which each is at the end
        last = {number: name for name, number in identities[-1].items()}
        for column, now in zip(columns, layout.now, strict=True):
            if column.name in identities[stage]:
                assert now == last.get(identities[stage][column.name]), column.name
        # Its own columns, as far as they are known, in any order: the rest is read past.
        known = [c for c in layout.columns if c.data_type and c.name in inserted[stage]]
        some = random.Random(stage).sample(known, len(known))
        own = Layout(layout.columns, (None,) * len(columns))
        (row,) = rows[stage].read(TableSchema("alters", "t", tuple(some)), own)
        assert row == [stored(c, inserted[stage][c.name]) for c in some]
        past += len(columns) - len(some)
        # Those of the end, as far as values can become theirs
        declared, expected = [], []
        for column in true[-1]:
            # The column that has this name today, else one of this name that is gone
            pairs = [*zip(layout.columns, layout.now, strict=True)]
            source = next((c for c, now in pairs if now == column.name), None) or next(
                (c for c, now in pairs if now is None and c.name.lower() == column.name.lower()), None
            )
            convert = conversion(source, column) if source and source.data_type else None
            if column.name in identities[-1] and (source is None or (convert and source.name in inserted[stage])):
                declared.append(column)
                expected.append(stored(column, inserted[stage][source.name]) if source else None)
            (row,) = rows[stage].read(TableSchema("alters", "t", tuple(declared)), layout)
        assert row == expected
        read += len(row) - row.count(None)
    assert min(unknown, past, read) > 0, "nothing was tested"
