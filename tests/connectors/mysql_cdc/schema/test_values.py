"""Every supported type: SELECT and the binary log give the same, correct value."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pymysql
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.binlog.reading import RowsChange, read_changes
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.schema.types import type_table
from backlog_spark.connectors.mysql_cdc.server import prepared
from backlog_spark.connectors.mysql_cdc.server import worker_connection as workers
from backlog_spark.connectors.mysql_cdc.server.watermark import resume_after
from backlog_spark.connectors.mysql_cdc.snapshot import reading as snapshot
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.connectors.mysql_cdc.source import check
from backlog_spark.errors import BacklogError
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import is_mariadb, options, read, reader, take

pytestmark = pytest.mark.both

COLUMNS = {
    "id": "BIGINT PRIMARY KEY",
    "ti": "TINYINT",
    "tu": "TINYINT UNSIGNED",
    "si": "SMALLINT",
    "su": "SMALLINT UNSIGNED",
    "mi": "MEDIUMINT",
    "mu": "MEDIUMINT UNSIGNED",
    "ii": "INT",
    "iu": "INT UNSIGNED",
    "bi": "BIGINT",
    "bu": "BIGINT UNSIGNED",
    "d1": "DECIMAL(12,2)",
    "d2": "DECIMAL(38,10)",
    "d3": "DECIMAL(5,0) UNSIGNED",
    "d65": "DECIMAL(65,30)",
    "d40": "DECIMAL(40,0)",
    "dz": "DECIMAL(9,2) ZEROFILL",
    "dz50": "DECIMAL(50,3) ZEROFILL",
    "iz": "INT(7) ZEROFILL",
    "f": "FLOAT",
    "d": "DOUBLE",
    "dm": "DOUBLE(10,3)",
    "b1": "BIT(1)",
    "b9": "BIT(9)",
    "b64": "BIT(64)",
    "y": "YEAR",
    "da": "DATE",
    "dt0": "DATETIME",
    "dt6": "DATETIME(6)",
    "ts0": "TIMESTAMP NULL",
    "ts3": "TIMESTAMP(3) NULL",
    "t0": "TIME",
    "t1": "TIME(1)",
    "t6": "TIME(6)",
    "c": "CHAR(10)",
    "c300": "CHAR(200) CHARACTER SET utf8mb4",
    "v": "VARCHAR(100) CHARACTER SET utf8mb4",
    "v3": "VARCHAR(2000) CHARACTER SET utf8mb4",
    "l1": "VARCHAR(50) CHARACTER SET latin1",
    "u16": "VARCHAR(50) CHARACTER SET utf16",
    "gb": "VARCHAR(50) CHARACTER SET gbk",
    "tx": "TEXT CHARACTER SET utf8mb4",
    "lt": "LONGTEXT CHARACTER SET latin1",
    "bin": "BINARY(8)",
    "vb": "VARBINARY(300)",
    "bl": "BLOB",
    "e": "ENUM('a','b,c','d''e','é')",
    "e2": r"ENUM('b\\c','x\ny','n\0u','漢','\'\'','\\')",
    "s": "SET('x','y','z')",
    "odd % name`": "INT",
}
TEXT = "quote \" comma , back \\ nl \n tab \t €é漢😀 'x' \x00 end"
ROWS: list[dict[str, Any]] = [
    {"ti": -128, "tu": 255, "si": -32768, "su": 65535, "mi": -(2**23), "mu": 2**24 - 1, "ii": -(2**31),
     "iu": 2**32 - 1, "bi": -(2**63), "bu": 2**64 - 1},
    {"ti": 127, "tu": 0, "si": 32767, "su": 0, "mi": 2**23 - 1, "mu": 0, "ii": 2**31 - 1, "iu": 0, "bi": 2**63 - 1,
     "bu": 0, "odd % name`": 7},
    {"d1": "-9999999999.99", "d2": "1234567890123456789012345678.0123456789", "d3": 99999},
    {"d65": "-" + "9" * 35 + "." + "9" * 30, "d40": "9" * 40},
    {"d65": "0.000000000000000000000000000001", "d40": "0"},
    {"dz": "1.5", "dz50": "1.5", "iz": 7},
    {"d65": "-0.5", "d40": "-7"},
    {"d1": "0.01", "d2": "-0.0000000001", "d3": 0},
    {"f": 1.17549e-38, "d": 1.7976931348623157e308, "dm": 1234567.891},
    {"f": 0.1, "d": 5e-324, "dm": -0.001},
    {"f": 16777217, "d": 0.1 + 0.2},
    {"b1": 1, "b9": 257, "b64": 2**64 - 1, "y": 2155},
    {"b1": 0, "b9": 0, "b64": 0, "y": 1901},
    {"y": 0, "da": "0000-00-00", "dt0": "0000-00-00 00:00:00", "ts0": "0000-00-00 00:00:00"},
    {"da": "2020-02-30", "dt6": "2020-00-10 01:02:03.4"},
    {"da": "0001-01-01", "dt6": "0001-01-01 00:00:00.000001", "dt0": "9999-12-31 23:59:59"},
    {"da": "9999-12-31", "dt6": "9999-12-31 23:59:59.999999", "ts3": "2038-01-19 03:14:07.999"},
    {"ts0": "1970-01-01 00:00:01", "ts3": "1999-12-31 23:59:59.001", "t0": "838:59:59", "t6": "-838:59:58.000001"},
    {"t0": "-00:00:01", "t1": "-00:00:00.5", "t6": "-01:02:03.999999"},
    {"t0": "00:00:00", "t1": "12:34:56.7", "t6": "100:00:00.123456"},
    {"c": "padded   ", "c300": TEXT[:40], "v": TEXT, "v3": TEXT * 20, "l1": "ÿ€\x81é\"", "u16": "ü漢😀", "gb": "漢字,"},
    {"c": "", "c300": "", "v": "", "v3": "", "l1": "", "u16": "", "gb": "", "tx": "", "lt": "", "vb": b"", "bl": b""},
    {"tx": TEXT * 50, "lt": "é" * 70000, "bl": bytes(range(256)) * 3},
    {"bin": b"ab\0\0", "vb": b'\0\xff",\n' * 30, "bl": b"\0"},
    {"bin": b"\0" * 8, "v": "NULL", "v3": "\\N"},
    {"e": "a", "s": "x"},
    {"e": "b,c", "s": "z,x"},
    {"e": "d'e", "s": "", "e2": "b\\c"},
    {"e2": "x\ny"},
    {"e2": "n\0u"},
    {"e2": "漢"},
    {"e2": "''"},
    {"e2": "\\"},
    {"e": "é", "s": "x,y,z", "v": '"', "l1": ","},
]  # fmt: skip
EXPECTED: dict[str, list[tuple[Any, Any]]] = {
    # what was written (None: whatever the row has) -> what Spark must see
    "bu": [(2**64 - 1, Decimal(2**64 - 1))],
    "d2": [("-0.0000000001", Decimal("-0.0000000001"))],
    "d65": [
        ("-" + "9" * 35 + "." + "9" * 30, "-" + "9" * 35 + "." + "9" * 30),
        ("-0.5", "-0.5" + "0" * 29),
    ],
    "d40": [("9" * 40, "9" * 40), ("0", "0"), ("-7", "-7")],
    "dz": [("1.5", Decimal("1.50"))],
    "dz50": [("1.5", "1.500")],
    "iz": [(7, 7)],
    "dm": [(1234567.891, 1234567.891)],
    "b64": [(2**64 - 1, Decimal(2**64 - 1))],
    "y": [(0, 0), (2155, 2155)],
    "da": [("0000-00-00", None), ("2020-02-30", None), ("0001-01-01", dt.date(1, 1, 1))],
    "dt0": [("0000-00-00 00:00:00", None), ("9999-12-31 23:59:59", dt.datetime(9999, 12, 31, 23, 59, 59))],
    "dt6": [("2020-00-10 01:02:03.4", None)],
    "ts0": [
        ("0000-00-00 00:00:00", None),
        ("1970-01-01 00:00:01", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)),
    ],
    "t0": [("-00:00:01", "-00:00:01"), ("838:59:59", "838:59:59")],
    "t1": [("-00:00:00.5", "-00:00:00.5")],
    "t6": [("-838:59:58.000001", "-838:59:58.000001"), ("100:00:00.123456", "100:00:00.123456")],
    "c": [("padded   ", "padded")],
    "bin": [(b"ab\0\0", b"ab" + b"\0" * 6)],
    "s": [("z,x", "x,z"), ("", "")],
    "e2": [("b\\c", "b\\c"), ("x\ny", "x\ny"), ("n\0u", "n\0u"), ("\\", "\\")],
    "v": [(TEXT, TEXT), ("NULL", "NULL"), ("", "")],
    "l1": [('ÿ€\x81é"', 'ÿ€\x81é"')],
}


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def random_row(chance: random.Random) -> dict[str, Any]:
    """A row of random values for the types where the space is large."""
    seconds, micros = chance.randrange(9998 * 365 * 86400), chance.randrange(10**6)
    day = dt.datetime(1, 1, 1) + dt.timedelta(seconds=seconds, microseconds=micros)
    ranges = [range(32, 127), range(0xA1, 0x2FF), range(0x1F600, 0x1F601)]
    text = "".join(chr(chance.choice(chance.choice(ranges))) for _ in range(20))
    return {
        "bi": chance.randrange(-(2**63), 2**63),
        "bu": chance.randrange(2**64),
        "d1": Decimal(chance.randrange(-(10**12) + 1, 10**12)).scaleb(-2),
        "d2": str(chance.randrange(10**28)) + "." + str(chance.randrange(10**10)).zfill(10),
        "f": chance.uniform(-1e6, 1e6),
        "d": chance.uniform(-1, 1) * 10 ** chance.randrange(-300, 300),
        "b64": chance.randrange(2**64),
        "da": day.date().isoformat(),
        "dt6": day.isoformat(sep=" "),
        "t6": f"{chance.choice(['', '-'])}{chance.randrange(838)}:{chance.randrange(60)}:7.{micros:06d}",
        "v": text,
        "tx": text,
        "vb": chance.randbytes(chance.randrange(300)),
        "e": chance.choice(["a", "b,c", "d'e", "é"]),
    }


def test_snapshot_and_binary_log_agree_on_every_type(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS vals")
    mysql.execute("DROP TABLE IF EXISTS vals.t")
    columns = ", ".join(f"{quoted(k)} {v}" for k, v in COLUMNS.items())
    mysql.execute(f"CREATE TABLE vals.t ({columns}) CHARACTER SET utf8mb4")
    mysql.execute("INSERT INTO vals.t (id) VALUES (0)")
    chance = random.Random(5)
    rows = ROWS + [random_row(chance) for _ in range(200)]
    stream = reader(options(mysql, "vals.t"))
    before = stream.latestOffset(stream.initialOffset(), ReadMaxRows(10**6))  # the snapshot: one row of NULLs
    with mysql.connect(charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        for number, row in enumerate(rows, 1):
            names = ", ".join(quoted(k) for k in row).replace("%", "%%")
            marks = ", ".join(["%s"] * len(row))
            cursor.execute(f"INSERT INTO vals.t (id, {names}) VALUES ({number}, {marks})", list(row.values()))
            assert not connection.show_warnings() or "da" in row or "dt6" in row or "f" in row, (
                connection.show_warnings()
            )

    after = stream.latestOffset(before, ReadMaxRows(10**6))
    from_log = {r[0]: r[:-3] for p in stream.partitions(before, after) for r in read(stream, p)}
    other = reader(options(mysql, "vals.t", chunkSize=50))
    start = other.initialOffset()
    end = other.latestOffset(start, ReadMaxRows(10**6))
    from_select = {r[0]: r[:-3] for p in other.partitions(start, end) for r in read(other, p)}
    null_row = from_select.pop(0)
    assert all(v is None for v in null_row[1:])
    assert from_log.keys() == from_select.keys() == set(range(1, len(rows) + 1))
    names = list(COLUMNS)
    for number in from_log:
        for name, a, b in zip(names, from_log[number], from_select[number], strict=True):
            assert (a, type(a)) == (b, type(b)), (number, name)

    for name, cases in EXPECTED.items():
        for written, seen in cases:
            number = next(i for i, row in enumerate(rows, 1) if row.get(name) == written)
            assert from_log[number][names.index(name)] == seen, (name, written)

    # … and the third way: the row as the rewind log keeps it
    mysql.execute("UPDATE vals.t SET `odd % name``` = 99")
    discard_rewind_log()
    rewound = {r[0]: r[:-3] for p in other.partitions(start, end) for r in read(other, p)}
    assert rewound == {0: null_row, **from_select}

    # … and rows that are counted without their values: each event must end where its last row does
    def counted(counts: Callable[[int], bool] | None) -> list[tuple[str, int]]:
        changes = read_changes(
            MySqlOptions.parse(options(mysql, "vals.t")),
            stream._planner.tables.every(),
            resume_after(before["start"]),
            counts=counts,
        )
        return [(change.kind, len(change.rows)) for change in changes if isinstance(change, RowsChange)]

    assert counted(lambda _: True) == counted(None)
    assert sum(rows for kind, rows in counted(None) if kind == "update") == len(rows) + 1


def test_values_do_not_depend_on_the_servers_time_zone_or_sql_mode(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS vals")
    mysql.execute("DROP TABLE IF EXISTS vals.zone")
    mysql.execute("CREATE TABLE vals.zone (id INT PRIMARY KEY, ts TIMESTAMP(6) NULL, c CHAR(5))")
    try:
        mysql.execute("SET GLOBAL time_zone = '+05:30'")
        mysql.execute("SET GLOBAL sql_mode = 'PAD_CHAR_TO_FULL_LENGTH,ANSI_QUOTES,NO_BACKSLASH_ESCAPES'")
        with mysql.connect() as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO vals.zone VALUES (1, '2024-06-01 12:00:00.5', 'ab')")
        stream = reader(options(mysql, "vals.zone"))
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadMaxRows(10))
        (row,) = [r for p in stream.partitions(start, end) for r in read(stream, p)]
    finally:
        mysql.execute("SET GLOBAL time_zone = 'SYSTEM'")
        mysql.execute("SET GLOBAL sql_mode = DEFAULT")
    assert row[:3] == (1, dt.datetime(2024, 6, 1, 6, 30, 0, 500000, tzinfo=dt.UTC), "ab")


def test_a_chunk_that_is_large_goes_on_as_it_is_read(mysql: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction of a chunk that is not large ends before Spark gets its first row."""
    mysql.execute("CREATE DATABASE IF NOT EXISTS vals")
    mysql.execute("DROP TABLE IF EXISTS vals.long")
    mysql.execute("CREATE TABLE vals.long (id INT PRIMARY KEY, v VARCHAR(100))")
    mysql.execute("INSERT INTO vals.long VALUES " + ",".join(f"({n}, REPEAT('x', {n}))" for n in range(100)))
    stream = reader(options(mysql, "vals.long"))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(10**6))
    (partition,) = stream.partitions(start, end)
    monkeypatch.setattr(prepared, "PIECE_BYTES", 100)
    for ahead, is_over in ((10**6, True), (10, False)):
        monkeypatch.setattr(snapshot, "_AHEAD", ahead)
        monkeypatch.setattr(snapshot, "_large", [])
        monkeypatch.setattr(workers, "_idle", {})
        batches = stream.read(partition)
        found = next(batches).to_pylist()
        assert reads(mysql, "vals.long") is not is_over
        for batch in batches:
            found += batch.to_pylist()
        assert [(row["id"], row["v"]) for row in found] == [(n, "x" * n) for n in range(100)]
        assert not reads(mysql, "vals.long")


def reads(mysql: MySQLServer, table: str) -> bool:
    """Whether a transaction has the table."""
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION lock_wait_timeout = 1")
        try:
            cursor.execute(f"LOCK TABLES {table} WRITE")
        except pymysql.err.OperationalError as error:
            if error.args[0] != 1205:
                raise
            return True
        cursor.execute("UNLOCK TABLES")
        return False


def test_null_alone_in_a_line(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS vals")
    mysql.execute("DROP TABLE IF EXISTS vals.alone")
    mysql.execute("CREATE TABLE vals.alone (n INT)")
    mysql.execute("INSERT INTO vals.alone VALUES (NULL), (1), (NULL)")
    stream = reader(options(mysql, "vals.alone"))
    _, rows = take(stream, stream.initialOffset())
    assert [row[0] for row in rows] == [None, 1, None]


def test_unsigned_bigint_keys_beyond_the_signed_range(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS vals")
    mysql.execute("DROP TABLE IF EXISTS vals.big")
    mysql.execute("CREATE TABLE vals.big (id BIGINT UNSIGNED PRIMARY KEY, n INT)")
    keys = [1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
    for key in keys:
        mysql.execute("INSERT INTO vals.big VALUES (%s, 0)", (key,))
    stream = reader(options(mysql, "vals.big", chunkSize=2))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(100))
    mysql.execute("UPDATE vals.big SET n = 1")
    mysql.execute("DELETE FROM vals.big WHERE id = %s", (2**64 - 1,))
    rows = [r for p in stream.partitions(start, end) for r in read(stream, p)]
    assert sorted((int(r[0]), r[1]) for r in rows) == [(k, 0) for k in keys]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("s ENUM('a') CHARACTER SET binary", "binary"),
    ],
)
def test_what_is_not_read_is_refused_by_column(mysql: MySQLServer, column: str, said: str) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS vals")
    mysql.execute("DROP TABLE IF EXISTS vals.refused")
    mysql.execute(f"CREATE TABLE vals.refused (id INT PRIMARY KEY, {column})")
    with pytest.raises(BacklogError, match=said) as error:
        check(options(mysql, "vals.refused"))
    assert repr(column[0]) in str(error.value)


def test_json_is_text_on_mariadb(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS vals")
    mysql.execute("DROP TABLE IF EXISTS vals.json")
    mysql.execute("CREATE TABLE vals.json (id INT PRIMARY KEY, j JSON)")
    assert check(options(mysql, "vals.json"))[0].columns[1].data_type == ("longtext" if is_mariadb(mysql) else "json")


SHAPES = [
    "ST_GeomFromText('POINT(1.5 -2)')",
    "ST_GeomFromText('LINESTRING(0 0, 1 1, 2 5)', 4326)",
    "ST_GeomFromText('POLYGON((0 0, 4 0, 4 4, 0 4, 0 0), (1 1, 2 1, 2 2, 1 2, 1 1))')",
    "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1), LINESTRING(0 0, 1 1))')",
    "NULL",
]


def test_geometry_is_its_srid_and_wkb(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS vals")
    mysql.execute("DROP TABLE IF EXISTS vals.shapes")
    mysql.execute("CREATE TABLE vals.shapes (id INT PRIMARY KEY, g GEOMETRY, p POINT)")
    stream = reader(options(mysql, "vals.shapes"))
    before = stream.latestOffset(stream.initialOffset(), ReadMaxRows(100))
    for number, shape in enumerate(SHAPES):
        mysql.execute(f"INSERT INTO vals.shapes VALUES ({number}, {shape}, {SHAPES[0]})")
    after = stream.latestOffset(before, ReadMaxRows(100))
    from_log = sorted(r[:3] for p in stream.partitions(before, after) for r in read(stream, p))
    other = reader(options(mysql, "vals.shapes"))
    start = other.initialOffset()
    end = other.latestOffset(start, ReadMaxRows(100))
    assert sorted(r[:3] for p in other.partitions(start, end) for r in read(other, p)) == from_log
    expected = mysql.execute("SELECT id, ST_AsWKB(g), ST_SRID(g), ST_AsWKB(p) FROM vals.shapes ORDER BY id")
    for (_, g, p), (_, wkb, srid, point) in zip(from_log, expected, strict=True):
        assert p == b"\0\0\0\0" + point
        if wkb is None:
            assert g is None
        elif srid != 4326:  # there MySQL's function swaps the axes
            assert g == b"\0\0\0\0" + wkb
        else:
            assert (g[:4], len(g)) == ((4326).to_bytes(4, "little"), 4 + len(wkb))


def test_the_documented_type_table_names_every_type() -> None:
    table = type_table()
    assert "| bigint | bigint; unsigned: decimal(20,0) |" in table
    assert "| datetime | timestamp_ntz |" in table
