"""A table's name as text gives the same database and table again."""

from __future__ import annotations

import random
import re

import pytest

from backlog_spark.common.table_names import TableName


@pytest.mark.parametrize("seed", range(300))
def test_a_text_is_read_as_it_was_written(seed: int) -> None:
    drawn = random.Random(seed)

    def name() -> str:
        return "".join(drawn.choice("ab.,` ä") for _ in range(drawn.randint(1, 5)))

    names = [TableName(name(), name()) for _ in range(drawn.randint(1, 3))]
    assert [TableName.parse(str(each)) for each in names] == names
    assert TableName.parse_all(" , ".join(map(str, names))) == names
    assert len(set(map(str, names))) == len(set(names))


@pytest.mark.parametrize(
    ("text", "database", "table"),
    [
        ("shop.orders", "shop", "orders"),
        ("shop.a.b", "shop", "a.b"),
        ("`my.shop`.orders", "my.shop", "orders"),
        (" shop . orders ", "shop", "orders"),
        ("shop.a`b", "shop", "a`b"),
        ("`a``b`.`c,d`", "a`b", "c,d"),
        ("shop.`a`b", "shop", "`a`b"),
    ],
)
def test_what_a_text_means(text: str, database: str, table: str) -> None:
    assert TableName.parse(text) == (database, table)


@pytest.mark.parametrize(
    ("text", "part"),
    [("", ""), ("shop", "shop"), ("shop.", "shop."), (".a", ".a"), ("s.a,", ""), ("`a.b", "`a.b"), ("s.a,b", "b"),
     (",a.b", ""), ("`a`b.c", "`a`b.c"), ("s. ,s.b", "s."), (" .b", ".b")],
)  # fmt: skip
def test_what_names_no_table(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(part)}$"):
        TableName.parse_all(text)


def test_one_name_is_not_several() -> None:
    with pytest.raises(ValueError, match="too many values"):
        TableName.parse("a.b,c.d")


def test_only_odd_names_are_quoted() -> None:
    assert str(TableName("shop", "a.b")) == "shop.a.b"
    assert str(TableName("my.shop", "a")) == "`my.shop`.a"
    assert str(TableName("größe", "a-b c")) == "größe.a-b c"
