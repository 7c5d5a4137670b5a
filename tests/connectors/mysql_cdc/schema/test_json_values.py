"""JSON columns of a real MySQL: snapshot, binary log and rewind give the same text, equal to the written value."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.schema.json_values import from_text
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import options, read, reader

# As SQL: what cannot be written as JSON text has a type of its own inside.
EXPRESSIONS = {
    "CAST('null' AS JSON)": "null",
    "NULL": None,
    "'{}'": "{}",
    "'[]'": "[]",
    "'true'": "true",
    "'18446744073709551615'": "18446744073709551615",
    "'-9223372036854775808'": "-9223372036854775808",
    "'18446744073709551616'": "18446744073709552000.0",
    "'1e20'": "100000000000000000000.0",
    "'-0.0'": "-0.0",
    "'1.0'": "1.0",
    "'2.2250738585072014e-308'": None,
    "'0.1'": "0.1",
    "JSON_ARRAY(CAST(1.10 AS DECIMAL(20,2)), CAST(-5 AS DECIMAL(65,30)), CAST(7 AS DECIMAL(10,0)))": "[1.1, -5.0, 7]",
    "JSON_ARRAY(CAST(0.000000000000000000000000000001 AS DECIMAL(65,30)))": "[0.000000000000000000000000000001]",
    "JSON_ARRAY(DATE '2020-02-29', TIMESTAMP '2020-02-29 23:59:58.123456', TIME '23:59:58.5')": (
        '["2020-02-29", "2020-02-29 23:59:58.123456", "23:59:58.500000"]'
    ),
    "JSON_ARRAY(TIMESTAMP '0001-01-01 00:00:00')": '["0001-01-01 00:00:00.000000"]',
    "JSON_ARRAY(TIME '-01:02:03')": '["-01:02:03.000000"]',
    "JSON_ARRAY(TIME '-838:59:58.5')": None,
    "JSON_OBJECT('b', 1, 'aa', 2, 'a', 3)": '{"a": 3, "b": 1, "aa": 2}',
    "JSON_ARRAY(CAST('bytes' AS BINARY), b'101')": None,
    "JSON_QUOTE('')": '""',
}


@pytest.fixture(scope="module")
def server() -> Iterator[MySQLServer]:
    with MySQLServer(fast=True) as own:
        own.execute("CREATE DATABASE docs")
        yield own


def by_all_roads(server: MySQLServer, expressions: list[str]) -> list[str | None]:
    """The texts, if the three ways agree."""
    server.execute("DROP TABLE IF EXISTS docs.t")
    server.execute("CREATE TABLE docs.t (id INT PRIMARY KEY, j JSON, n INT)")
    stream = reader(options(server, "docs.t"))
    before = stream.latestOffset(stream.initialOffset(), ReadMaxRows(10**6))
    with server.connect(charset="utf8mb4", autocommit=True) as connection, connection.cursor() as cursor:
        for number, expression in enumerate(expressions):
            cursor.execute(f"INSERT INTO docs.t VALUES ({number}, {expression}, 0)")
    after = stream.latestOffset(before, ReadMaxRows(10**6))
    from_log = {r[0]: r[1] for p in stream.partitions(before, after) for r in read(stream, p)}
    other = reader(options(server, "docs.t", chunkSize=50))
    start = other.initialOffset()
    end = other.latestOffset(start, ReadMaxRows(10**6))
    from_select = {r[0]: r[1] for p in other.partitions(start, end) for r in read(other, p)}
    assert from_log == from_select
    server.execute("UPDATE docs.t SET n = 1")
    discard_rewind_log()
    assert {r[0]: r[1] for p in other.partitions(start, end) for r in read(other, p)} == from_select
    return [from_log[number] for number in range(len(expressions))]


def test_every_kind_of_value(server: MySQLServer) -> None:
    found = dict(zip(EXPRESSIONS, by_all_roads(server, list(EXPRESSIONS)), strict=True))
    for expression, expected in EXPRESSIONS.items():
        if expected is not None:
            assert found[expression] == expected, expression
    assert found["NULL"] is None
    assert float(str(found["'2.2250738585072014e-308'"])) == 2.2250738585072014e-308


def document(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(6 if depth > 3 else 9)
    text = "".join(chance.choice('ab"\\/\n\t\x01\x1f\x7fé漢😀 ') for _ in range(chance.choice([0, 3, 9, 130])))
    if kind < 6:
        exact = chance.choice([2**15, 2**16, 2**31, 2**32, 2**63]) - chance.randrange(3)
        near = chance.uniform(-1, 1) * 10 ** chance.randrange(-300, 300)
        return [None, chance.random() < 0.5, chance.choice([-1, 1]) * (exact % 2**63), near, text, chance.random()][
            kind
        ]
    if kind == 6:
        return [document(chance, depth + 1) for _ in range(chance.randrange(6))]
    return {f"{text[: chance.randrange(9)]}{n}": document(chance, depth + 1) for n in range(chance.randrange(6))}


def same(found: Any, written: Any) -> bool:
    """Equal values of equal types; a double as near as its text says."""
    if isinstance(written, float) or isinstance(found, float):
        return type(found) is type(written) and (found == written or math.isclose(found, written, rel_tol=1e-15))
    if isinstance(written, list):
        return isinstance(found, list) and len(found) == len(written) and all(map(same, found, written))
    if isinstance(written, dict):
        return found.keys() == written.keys() and all(same(found[k], written[k]) for k in written)
    return type(found) is type(written) and found == written


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.grid) for n in range(2, 12))])
def test_random_documents(server: MySQLServer, seed: int) -> None:
    chance = random.Random(seed)
    written = [document(chance) for _ in range(150)]
    # Beyond 64 KB offsets take four bytes.
    written += [["x" * 70_000, 5, 70_000, {"long": "é" * 40_000, "after": -3}], {f"k{n}": n for n in range(9_000)}]
    escaped = [json.dumps(d).replace("\\", "\\\\").replace("'", "\\'") for d in written]
    found = by_all_roads(server, [f"'{text}'" for text in escaped])
    for text, value in zip(found, written, strict=True):
        assert text is not None
        assert same(json.loads(text), value), value


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)
    )
)
def test_text_without_fractions_stays_as_it_is(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert json.loads(from_text(text)) == value
    assert from_text(text) == text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("[1.50, 2e3, -1E-2, 10]", "[1.5, 2000.0, -0.01, 10]"),
        ('{"a1.50": "1.50", "e\\\\": 1.50}', '{"a1.50": "1.50", "e\\\\": 1.5}'),
        ('"a \\" 1.50"', '"a \\" 1.50"'),
        ("0.0", "0.0"),
    ],
)
def test_numbers_are_written_one_way(text: str, canonical: str) -> None:
    assert from_text(text) == canonical
