"""ALTERs between changes on real servers. The log has no column names, so it is read with the derived layouts."""

from __future__ import annotations

import pymysql
import pytest

from backlog_spark.connectors.mysql_cdc.schema.columns import columns_from_json, columns_to_json
from backlog_spark.connectors.mysql_cdc.schema.ddl.alters import after, column_steps
from backlog_spark.connectors.mysql_cdc.schema.ddl.history import Layout, layouts
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged, TableSchema
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.kinds import KINDS
from tests.connectors.mysql_cdc.logged import columns_of, end, log_of
from tests.connectors.mysql_cdc.replay import is_mariadb
from tests.connectors.mysql_cdc.schema.test_values import COLUMNS as VALUE_COLUMNS
from tests.connectors.mysql_cdc.schema.test_values import quoted

from .test_alters import COLUMNS, IF_EXISTS, IMPOSSIBLE, TOGETHER

# -- where columns stand -----------------------------------------------------------------------------------


def test_the_clauses_of_one_statement_together(nameless: MySQLServer) -> None:
    """The expected results in `test_alters` are those of the server."""
    cases = [*TOGETHER, *(IF_EXISTS if is_mariadb(nameless) else [])]
    with nameless.connect(database="alters") as connection, connection.cursor() as cursor:
        for clauses, expected in [*cases, *((clauses, "") for clauses in IMPOSSIBLE)]:
            cursor.execute("DROP TABLE IF EXISTS t")
            cursor.execute("CREATE TABLE t (a INT, b INT, c INT, d INT, k INT)")
            cursor.execute("INSERT INTO t VALUES (1, 2, 3, 4, 5)")
            try:
                cursor.execute(f"ALTER TABLE t {clauses}")
            except pymysql.Error:
                assert not expected, clauses
                continue
            cursor.execute("SELECT * FROM t")
            names = [d[0] for d in cursor.description]
            row = cursor.fetchone()
            found = [n if v is None else f"{n}={COLUMNS[v - 1]}" for n, v in zip(names, row, strict=True)]
            assert " ".join(found) == expected, clauses


def test_columns_survive_json(nameless: MySQLServer) -> None:
    """Every type, as each server's information_schema has it, and short."""
    with nameless.connect(database="alters") as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        for kind in [
            *(k.columns for k in KINDS.values()),
            ", ".join(f"{quoted(k)} {v}" for k, v in VALUE_COLUMNS.items()),
        ]:
            of_mariadb = kind.replace("utf8mb4_0900_ai_ci", "utf8mb4_uca1400_nopad_ai_ci")
            cursor.execute("DROP TABLE IF EXISTS j")
            cursor.execute(f"CREATE TABLE j ({of_mariadb if is_mariadb(nameless) else kind}, z JSON, g POINT)")
            columns = columns_of(nameless, "j")
            data = columns_to_json(columns)
            assert columns_from_json(data) == columns
            assert all(len(entry) == 2 + bool(c.collation) + (not c.nullable) * (1 + (not c.collation)) for entry, c in
                       zip(data, columns, strict=True))  # fmt: skip


# -- values ------------------------------------------------------------------------------------------------

# A definition, another one, values of the first.
CONVERSIONS = [
    ("TINYINT", "INT", ["-128", "127"]),
    ("MEDIUMINT UNSIGNED", "INT", ["0", "16777215"]),
    ("INT(5) ZEROFILL", "BIGINT", ["7", "4294967295"]),
    ("YEAR", "SMALLINT UNSIGNED", ["0", "1901", "2155"]),
    ("YEAR", "DECIMAL(6,2)", ["0", "2155"]),
    ("BIT(4)", "BIT(9)", ["b'1010'"]),
    ("BIT(4)", "INT", ["b'1010'"]),
    ("INT", "DECIMAL(12,2)", ["-7", "2147483647"]),
    ("BIGINT UNSIGNED", "DECIMAL(40,1)", ["18446744073709551615"]),
    ("DECIMAL(5,2)", "DECIMAL(7,4)", ["-1.25", "999.99"]),
    ("DECIMAL(5,2)", "DECIMAL(40,20)", ["-1.25", "0"]),
    ("DECIMAL(40,0)", "DECIMAL(43,2)", ["-7"]),
    ("INT", "DOUBLE", ["-7"]),
    ("FLOAT", "DOUBLE", ["0.1", "16777217", "3.4e38", "1e-38"]),
    ("FLOAT(7,4)", "FLOAT", ["0.1", "123.4567"]),
    ("FLOAT(7,4)", "DOUBLE", ["0.1", "123.4567"]),
    ("DOUBLE(10,3)", "DOUBLE", ["0.1"]),
    ("VARCHAR(9)", "CHAR(9)", ["'a  '", "'  '", r"'a\t '"]),
    ("CHAR(9)", "VARCHAR(9)", ["'a  '"]),
    ("TINYTEXT", "LONGTEXT", ["'a '"]),
    ("VARCHAR(9) CHARACTER SET latin1", "TEXT CHARACTER SET utf8mb4", ["'é '"]),
    ("ENUM('a','b')", "ENUM('c','b','a')", ["'a'", "'b'"]),
    ("ENUM('é') CHARACTER SET latin1", "VARCHAR(9) CHARACTER SET utf8mb4", ["'é'"]),
    ("SET('x','y','z')", "SET('z','y','x')", ["'x,z'", "''", "'y'"]),
    ("SET('x','y','z')", "CHAR(9)", ["'x,z'", "''"]),
    ("BINARY(4)", "BINARY(8)", ["'ab'", "x'6100'"]),
    ("BINARY(4)", "VARBINARY(8)", ["'ab'", "x'00000000'"]),
    ("BINARY(4)", "BLOB", ["'ab'"]),
    ("VARBINARY(4)", "BINARY(8)", ["'ab'", "''"]),
    ("BLOB", "VARBINARY(9)", ["'ab'", "x'6100'"]),
    ("TIME", "TIME(3)", ["'-12:00:00'", "'838:59:59'"]),
    ("TIME(1)", "TIME(6)", ["'-12:00:00.5'", "'-00:00:00.1'"]),
    ("DATE", "DATETIME(3)", ["'2020-01-02'", "'0001-01-01'", "'9999-12-31'"]),
    ("DATETIME", "DATETIME(6)", ["'2020-01-02 03:04:05'"]),
    ("TIMESTAMP NULL", "TIMESTAMP(6) NULL", ["'2020-01-02 03:04:05'"]),
    ("POINT", "GEOMETRY", ["ST_GeomFromText('POINT(1 2)')"]),
]


def test_values_become_what_the_server_makes_of_them(nameless: MySQLServer) -> None:
    """A row logged before an ALTER, as the stream converts it, is the row that is logged after it."""
    with nameless.connect(database="alters") as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS t")
        given = ", ".join(f"c{i} {old}" for i, (old, _, _) in enumerate(CONVERSIONS))
        cursor.execute(f"CREATE TABLE t ({given}) CHARACTER SET utf8mb4")
        before, start = columns_of(nameless), end(nameless)
        for row in range(4):
            values = [values[row] if row < len(values) else "NULL" for _, _, values in CONVERSIONS]
            cursor.execute(f"INSERT INTO t VALUES ({', '.join(values)})")
        cursor.execute("ALTER TABLE t " + ", ".join(f"MODIFY c{i} {new}" for i, (_, new, _) in enumerate(CONVERSIONS)))
        cursor.execute("DELETE FROM t")
    now = columns_of(nameless)
    statements, rows = log_of(nameless, start)
    found = layouts(before, statements, now)
    schema = TableSchema("alters", "t", now)
    read = [
        [row for event in rows if event.stage == stage for row in event.read(schema, found[stage])] for stage in (0, 1)
    ]
    assert len(read[0]) == len(read[1]) == 4
    for was, is_now in zip(*read, strict=True):
        for column, a, b in zip(CONVERSIONS, was, is_now, strict=True):
            assert (a, type(a)) == (b, type(b)), column


def test_fewer_digits_of_a_double_are_only_shown(nameless: MySQLServer) -> None:
    """The server keeps what it had, so a target that keeps it has the table's values."""
    nameless.execute("CREATE TABLE alters.digits (id INT PRIMARY KEY, d DOUBLE)")
    nameless.execute("INSERT INTO alters.digits VALUES (1, 1.23456)")
    nameless.execute("ALTER TABLE alters.digits MODIFY d DOUBLE(10,2)")
    assert nameless.execute("SELECT d, d = 1.23456 FROM alters.digits") == ((1.23, 1),)


def test_the_log_without_its_alters_is_refused(nameless: MySQLServer) -> None:
    """A layout of another stretch does not pass for the one of these rows where the log can tell."""
    with nameless.connect(database="alters") as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS t")
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(10), b DECIMAL(9,2), c TIME(2))")
        before, start = columns_of(nameless), end(nameless)
        cursor.execute("INSERT INTO t VALUES (1, 'a', 1.5, '01:02:03')")
        for clause in ("MODIFY a VARCHAR(11)", "MODIFY b DECIMAL(9,3)", "MODIFY c TIME(3)", "ADD d INT", "DROP b"):
            cursor.execute(f"ALTER TABLE t {clause}")
            cursor.execute("INSERT INTO t SELECT MAX(id) + 1, 'a', " + ("1.5, '01:02:03'" if clause != "DROP b" else
                           "'01:02:03', 4") + (", 4" if clause == "ADD d INT" else "") + " FROM t")  # fmt: skip
    _, rows = log_of(nameless, start)
    layout = Layout(before, tuple(c.name for c in before))
    narrow = TableSchema("alters", "t", before[:1])  # all but the key is read past
    assert rows[0].read(narrow, layout) == [[1]]
    for event in rows[1:]:
        with pytest.raises(SchemaChanged, match=r"alters\.t was altered"):
            event.read(narrow, layout)


def test_steps_are_those_of_the_statement_as_logged(nameless: MySQLServer) -> None:
    start = end(nameless)
    with nameless.connect(database="alters") as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS t")
        cursor.execute("CREATE TABLE t (a INT, b INT)")
        cursor.execute("SET sql_mode = 'ANSI_QUOTES'")
        cursor.execute("""ALTER TABLE "t" /* x */ ADD "a`b" INT COMMENT 'it\\'s, DROP b' AFTER "a", COMMENT 'x'""")
    (statement,), _ = log_of(nameless, start)
    assert [p.name for p in after(["a", "b"], column_steps(statement))] == [c.name for c in columns_of(nameless)]
