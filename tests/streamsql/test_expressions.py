"""Expressions reach Spark unchanged: they have Spark's results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.common.sql_dialect import text_of
from backlog_spark.operators.select_list import select_items
from backlog_spark.streamsql.parsing import parsed
from tests.operators.events import events, flush, multiset, run, source

from .test_results import known, of_spark, settled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark 4.2 takes each for.
STRINGS = {
    "'it''s'": "it's",
    '"a""b"': 'a"b',
    """'a""b'""": 'a""b',
    '''"it''s"''': "it''s",
    "''''": "'",
    r"'\\'''": r"\'",
    "'a' 'b'": "ab",
    "'a''' \"b\"": "a'b",
    "'a' -- '\n 'b' /* ' */ 'c'": "abc",
    r"'x\'y\n\q'": "x'y\nq",
    r"'\u0041\U0001F600\101\08\400\u12'": "A\U0001f600A\x008400u12",
    r"'\%\_'": r"\%\_",
    r"r'\n'": r"\n",
    r"r'\' R''": "\\",
    "R'a''b'": "ab",
    r"r'\n' '\n'": "\\n\n",
}


@pytest.mark.parametrize("text", STRINGS)
def test_strings_are_parsed_as_by_spark(spark: SparkSession, text: str) -> None:
    (item,) = select_items(text, "items", "")
    assert (item.this, text_of(item.copy())) == (STRINGS[text], text)
    assert spark.sql(f"SELECT {text}").first()[0] == STRINGS[text]  # type: ignore[index]


@pytest.mark.parametrize(
    "text",
    [
        "6 & 1 << 1",
        "make_timestamp(DATE'2026-01-01', TIME'6:30:45.887')",
        "5 | 2 ^ 7 & 3",
        "1 <=> NULL",
        "1.5BD / 3L",
        "map('it''s', 1)['it''s']",
        "'a\\_b' LIKE 'a\\\\_b'",
        "CAST(INTERVAL '1' DAY '2' HOUR AS STRING)",
    ],
)
def test_operators_and_types(spark: SparkSession, text: str) -> None:
    for ours in written(text):
        assert spark.sql(f"SELECT {ours}").collect()[0][0] == spark.sql(f"SELECT {text}").collect()[0][0]


def written(text: str) -> Iterator[str]:
    """An expression after it went through a list of aggregates and through a statement."""
    yield ", ".join(text_of(item) for item in select_items(text, "items", ""))
    yield ", ".join(text_of(item) for item in parsed(f"SELECT {text} FROM t")[1].expressions)


# Of another result each time, of the machine, or no expression.
OTHERS = re.compile(
    r"rand|uuid|current|\bnow\(|localtimestamp|shuffle|session_user|input_file|monoton|spark_partition|curdate|\(\*\)"
    r"|\bOVER\b|\bFROM\s+(VALUES|range|explode)|\buser\(\)|java_method|\breflect\(|\bsleep\(",
    re.IGNORECASE,
)


def examples(spark: SparkSession) -> list[str]:
    """The examples in the descriptions of Spark's functions that give one row."""
    found: dict[str, None] = {}
    for (name,) in spark.sql("SHOW SYSTEM FUNCTIONS").collect():
        told = "\n".join(row[0] for row in spark.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect())
        for each in re.finditer(r"> SELECT (.*?);\s*$", told, re.MULTILINE):
            if not OTHERS.search(each[1]):
                found[each[1].strip()] = None
    return list(found)


def rewritten(text: str, found: Callable[[str], Iterator[str]]) -> set[str]:
    """The changes of an expression other than blanks and the case of names."""
    try:
        made = set(found(text))
    except bs.BacklogError:
        return set()  # refused, which is told
    return {each for each in made if re.sub(r"\s", "", each).lower() != re.sub(r"\s", "", text).lower()}


def value(spark: SparkSession, text: str) -> Any:
    from pyspark.errors import PySparkException

    try:
        return repr(tuple(spark.sql(f"SELECT {text}").collect()[0]))
    except PySparkException as error:
        return error.getCondition() or str(error)


@pytest.mark.grid
def test_the_examples_of_spark_give_what_spark_gives(spark: SparkSession) -> None:
    texts = examples(spark)
    assert len(texts) > 700
    wrong = []
    for text in texts:
        for ours in rewritten(text, written):
            expected = value(spark, text)
            if expected.startswith("(") and value(spark, ours) != expected:
                wrong.append((text, ours))
    assert not wrong


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans", "few_groups")
def test_aggregates_over_what_is_written(spark: SparkSession, tmp_path: Path) -> None:
    rows = events(1, 30, 0)
    query = """
        SELECT item, max(to_char(price, 'S9999D99')) AS shown,
               max(to_json(parse_json(concat('[', item, ' ]')))) AS parsed,
               count(*) FILTER (WHERE user || 'it''s' = "bobit's") AS n FROM a GROUP BY item"""
    given = {"a": [rows, flush([rows])]}
    known(tmp_path, given)
    expected = of_spark(spark, query, given)
    assert {row[3] for row in expected} != {0}

    def newest(sink: Any) -> Any:
        return multiset((*key, *values) for key, values in sink.newest(1).items())

    stream = bs.sql(spark, query, a=source(tmp_path, "a"))
    sink = run(spark, tmp_path, stream, given, 1, multiset([]), check=settled(newest, expected))
    assert newest(sink) == expected
