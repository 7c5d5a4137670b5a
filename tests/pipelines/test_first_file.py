"""The file that ``init`` writes: nothing that a server names can be more than a name in it."""

from __future__ import annotations

import re

import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.common.table_names import TableName
from backlog_spark.pipelines.first_file import first_file
from backlog_spark.pipelines.parsing import parse
from backlog_spark.spi.examination import Examination, Finding, FoundTable, Severity

CONNECTION = {"host": "db", "port": "3306", "user": "reader"}
BREAKS = ["\n", "\r", "\x85", "\u2028", "\u2029", "\x0b", "\x1b[2J", "\u202e"]
WORDS = [
    "yes",
    "007",
    "1:30",
    "null",
    "a,b",
    "a: b",
    "a #b",
    "[a",
    "{a",
    "'a",
    '"a',
    "*a",
    "&a",
    "!a",
    "-",
    "${A}",
    "a\\b",
    "é",
]


def written(*tables: FoundTable, problem: str = "") -> str:
    findings = (Finding(Severity.WARNING, "s", problem),)
    return first_file(Examination(findings, tables), CONNECTION, "", ["shop.*"], name="p", root="/lake")


@pytest.mark.parametrize("name", [f"x{b}transform: [{{name: e, sql: s}}]" for b in BREAKS] + WORDS)
def test_hostile_names(name: str) -> None:
    one = written(FoundTable(str(TableName("shop", name)), (name,), columns=((name, "int"),)), problem=name)
    several = written(
        FoundTable(str(TableName("shop", name)), (), columns=((name, "int"),)), FoundTable("shop.b", ("id",))
    )
    for text in (one, several):
        assert not re.search("[^\n -~\xa0-\u1fff]", text)
        assert set(yaml.safe_load(text)) == {"source", "sink", "pipeline"}
    made = parse(one)
    assert made.sinks[0].arguments()["keys"] == [name]
    options = made.sources[0].options
    assert TableName.parse(options["table"]) == ("shop", name)
    (excluded,) = parse(several).sources[0].options["tables.exclude"].split(",")
    assert re.fullmatch(excluded, f"shop.{name}")


def test_an_excluded_name_matches_nothing_else() -> None:
    text = written(FoundTable("shop.a+b", ()), FoundTable("shop.a.c", ()))
    patterns = parse(text).sources[0].options["tables.exclude"].split(",")
    assert [bool(re.fullmatch(p, n)) for p, n in zip(patterns, ("shop.a+b", "shop.a.c"), strict=True)] == [True, True]
    assert not any(re.fullmatch(p, n) for p in patterns for n in ("shop.aab", "shop.aac", "shopxa.c"))


def test_the_comments_are_right_when_they_are_taken_in() -> None:
    text = written(FoundTable("shop.orders", ("the id",), columns=(("the id", "int"), ("a.b", "int"))))
    text = re.sub(r"(?m)^( *)# (columns.exclude|transform:|  - name|    sql)", r"\1\2", text)
    made = parse(text)
    assert made.transforms[0].sql == "SELECT `the id`, count(*) AS n FROM orders GROUP BY `the id`"
    assert made.sources[0].options["columns.exclude"] == r"shop\.orders\.a\.b"
