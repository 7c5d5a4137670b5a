"""``format=debezium``: keys and envelopes like Debezium's, from the snapshot and from the log."""

from __future__ import annotations

import base64
import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.connectors.mysql_cdc.source import MySqlCdcDataSource
from tests.connectors.mysql_cdc.replay import is_mariadb, options, reader, take

if TYPE_CHECKING:
    from servers.mysql import MySQLServer

TYPES = {
    "id": ("INT", "7", 7),
    "big": ("BIGINT UNSIGNED", "18446744073709551615", 18446744073709551615),
    "amount": ("DECIMAL(12,3)", "-12.500", "-12.500"),
    "wide": ("DECIMAL(40,1)", f"'{'9' * 39}.5'", f"{'9' * 39}.5"),
    "f": ("FLOAT", "0.5", 0.5),
    "d": ("DOUBLE", "1e300", 1e300),
    "yes": ("BIT(1)", "b'1'", True),
    "bits": ("BIT(12)", "b'101000000001'", base64.b64encode(b"\x01\x0a").decode()),
    "born": ("DATE", "'1969-12-31'", -1),
    "seconds": ("DATETIME(3)", "'1970-01-01 00:00:01.250'", 1250),
    "micros": ("DATETIME(6)", "'1969-12-31 23:59:59.999999'", -1),
    "stamp": ("TIMESTAMP(6) NULL", "'2024-02-29 01:02:03.120000'", "2024-02-29T01:02:03.12Z"),
    "whole": ("TIMESTAMP NULL", "'2024-02-29 01:02:00'", "2024-02-29T01:02:00Z"),
    "clock": ("TIME(2)", "'-100:00:01.25'", -360_001_250_000),
    "y": ("YEAR", "1999", 1999),
    "text": ("TEXT", r"""'a "quoted" \\ line\nnext ü 💡'""", 'a "quoted" \\ line\nnext ü 💡'),
    "plain": ("VARCHAR(20)", "''", ""),
    "e": ("ENUM('x','y')", "'y'", "y"),
    "s": ("SET('x','y')", "'x,y'", "x,y"),
    "raw": ("VARBINARY(10)", "x'00ff'", base64.b64encode(b"\0\xff").decode()),
    'odd "name"': ("INT", "1", 1),
    "nothing": ("INT", "NULL", None),
}
WKB = base64.b64encode(struct.pack("<BIdd", 1, 1, 1.5, -2.0)).decode()


@pytest.fixture
def given(mysql: MySQLServer) -> dict[str, str]:
    mysql.execute("DROP DATABASE IF EXISTS envelope")
    mysql.execute("CREATE DATABASE envelope CHARACTER SET utf8mb4")
    mysql.execute("CREATE TABLE envelope.a (id INT, part VARCHAR(5), v TEXT, PRIMARY KEY (part, id))")
    mysql.execute("CREATE TABLE envelope.b (n INT)")
    mysql.execute("INSERT INTO envelope.a VALUES (1, 'x', 'one'), (2, 'x', NULL)")
    return options(mysql, "envelope.a,envelope.b", format="debezium", metadataColumns="_change_type,_table")


def envelopes(rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [json.loads(row[1]) for row in rows]


def test_the_stream_has_a_key_and_a_value(given: dict[str, str]) -> None:
    assert MySqlCdcDataSource(given).schema().simpleString() == (
        "struct<key:string,value:string,_change_type:string,_table:string>"
    )


def test_changes_of_two_tables(mysql: MySQLServer, given: dict[str, str]) -> None:
    stream = reader(given)
    offset, rows = take(stream, stream.initialOffset())
    assert {row[0] for row in rows} == {'{"part":"x","id":1}', '{"part":"x","id":2}'}
    first = min(envelopes(rows), key=lambda e: e["after"]["id"])
    assert (first["op"], first["before"], first["after"]) == ("r", None, {"id": 1, "part": "x", "v": "one"})
    assert first["ts_ms"] == first["source"]["ts_ms"] == offset["lows"][0][1]
    assert (first["source"]["snapshot"], first["source"]["gtid"], first["transaction"]) == ("true", None, None)

    mysql.execute("INSERT INTO envelope.b VALUES (5)")
    mysql.execute("UPDATE envelope.a SET v = 'two' WHERE id = 2")
    file, before = mysql.binlog_end()
    mysql.execute("UPDATE envelope.a SET id = 3 WHERE id = 1")
    mysql.execute("DELETE FROM envelope.b")
    offset, rows = take(stream, offset)
    of_a = [r for r in rows if r[3] == "a"]
    assert [(key, kind) for key, _, kind, _ in of_a] == [
        ('{"part":"x","id":2}', "update_postimage"),
        ('{"part":"x","id":1}', "delete"),
        ('{"part":"x","id":3}', "insert"),
    ]
    assert [(e["op"], e["before"], e["after"]) for e in envelopes(of_a)] == [
        ("u", {"id": 2, "part": "x", "v": None}, {"id": 2, "part": "x", "v": "two"}),
        ("d", {"id": 1, "part": "x", "v": "one"}, None),
        ("c", None, {"id": 3, "part": "x", "v": "one"}),
    ]
    source = envelopes(of_a)[1]["source"]
    assert (source["connector"], source["db"], source["table"], source["snapshot"]) == (
        "mysql", "envelope", "a", "false",
    )  # fmt: skip
    assert source["file"] == file
    assert source["pos"] > before
    assert source["server_id"] == mysql.execute("SELECT @@server_id")[0][0]
    assert source["gtid"].rpartition("-" if is_mariadb(mysql) else ":")[2].isdigit()
    of_b = [r for r in rows if r[3] == "b"]
    assert [(key, json.loads(value)["op"]) for key, value, *_ in of_b] == [(None, "c"), (None, "d")], "without a key"


def test_values_are_as_debezium_has_them(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS envelope CHARACTER SET utf8mb4")
    mysql.execute("DROP TABLE IF EXISTS envelope.kinds")
    columns = ", ".join(f"`{name}` {kind}" for name, (kind, _, _) in TYPES.items())
    mysql.execute(f"CREATE TABLE envelope.kinds ({columns}, place POINT, PRIMARY KEY (id))")
    values = ", ".join(literal for _, literal, _ in TYPES.values())
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"INSERT INTO envelope.kinds VALUES ({values}, ST_GeomFromText('POINT(1.5 -2)'))")
        nulls = ", ".join(["NULL"] * len(TYPES))
        cursor.execute(f"INSERT INTO envelope.kinds VALUES (8, {nulls})")
        connection.commit()
    stream = reader(options(mysql, "envelope.kinds", format="debezium"))
    offset, rows = take(stream, stream.initialOffset())
    expected = {name: value for name, (_, _, value) in TYPES.items()}
    expected["place"] = {"x": 1.5, "y": -2.0, "wkb": WKB, "srid": None}
    by_id = {e["after"]["id"]: e["after"] for e in envelopes(rows)}
    assert by_id[7] == expected
    assert by_id[8] == {**dict.fromkeys(expected), "id": 8}
    mysql.execute("DELETE FROM envelope.kinds")
    _, rows = take(stream, offset)
    assert {e["before"]["id"]: e["before"] for e in envelopes(rows)} == by_id


def test_a_batch_read_again_is_the_same(mysql: MySQLServer, given: dict[str, str]) -> None:
    stream = reader(given)
    offset, _ = take(stream, stream.initialOffset())
    mysql.execute("UPDATE envelope.a SET v = 'again'")
    end, rows = take(stream, offset)
    again = reader(given)
    assert [row for p in again.partitions(offset, end) for batch in again.read(p) for row in _rows(batch)] == rows


def _rows(batch: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
