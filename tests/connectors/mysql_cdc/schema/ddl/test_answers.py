"""What an ALTER TABLE did to old values: examples of each rule, and that the documentation has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backlog_spark.connectors.mysql_cdc.schema.columns import AUTO_INCREMENT, EXCLUDED, Column, made_by
from backlog_spark.connectors.mysql_cdc.schema.ddl.alters import after, column_steps
from backlog_spark.connectors.mysql_cdc.schema.ddl.answers import (
    FILLS,
    KEEPS,
    REWRITES,
    Session,
    answers,
    proof_table,
)

STRICT = Session.of(1 << 22, "", of_mariadb=False)
LAX = Session.of(0, "", of_mariadb=False)


def column(name: str, kind: str, **more: object) -> Column:
    """A column as information_schema describes it."""
    word = kind.split("(")[0].split()[0]
    numbers = (
        [int(n) for n in kind[len(word) + 1 :].split(")")[0].split(",")] if "(" in kind and "'" not in kind else []
    )
    precision, scale = (*numbers, 0)[:2] if word == "decimal" else (0, 0)
    text = word in ("char", "varchar", "text", "mediumtext", "tinytext", "enum", "set")
    made = Column(
        name, word, kind, precision=precision, scale=scale, octet_length=numbers[0] if word == "binary" else 0,
        charset="utf8mb4" if text else "", collation="utf8mb4_bin" if text else "",
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def answer(old: str | Column, new: str | Column, session: Session = STRICT, form: str = "row") -> str:
    """The answer for a column that gets another definition."""
    before, now = (column("c", each) if isinstance(each, str) else each for each in (old, new))
    steps = column_steps("ALTER TABLE t MODIFY c INT")
    return answers([before], [now], after(["c"], steps), steps, session, form)["c"].kind


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("int", "bigint", KEEPS),
        ("int unsigned", "bigint", KEEPS),
        ("int", "int unsigned", REWRITES),
        ("bigint", "int", REWRITES),
        ("int", "decimal(20,0)", REWRITES),
        ("decimal(10,2)", "decimal(12,4)", KEEPS),
        ("decimal(10,2)", "decimal(10,4)", REWRITES),
        ("decimal(40,2)", "decimal(44,4)", REWRITES),
        ("decimal(40,2)", "decimal(44,2)", KEEPS),
        ("float", "double", REWRITES),
        ("double", "double(10,2)", REWRITES),
        ("double(10,2)", "double", KEEPS),
        ("datetime(6)", "datetime", REWRITES),
        ("datetime", "datetime(6)", KEEPS),
        ("time", "time(3)", REWRITES),
        ("time(6)", "time", REWRITES),
        ("date", "datetime", REWRITES),
        ("varchar(20)", "varchar(3)", REWRITES),
        ("varchar(3)", "varchar(20)", KEEPS),
        ("varchar(20)", "char(20)", REWRITES),
        ("char(20)", "varchar(20)", KEEPS),
        ("varchar(60)", "tinytext", KEEPS),
        ("varchar(64)", "tinytext", REWRITES),
        ("text", "varchar(255)", REWRITES),
        ("text", "mediumtext", KEEPS),
        ("binary(4)", "binary(8)", REWRITES),
        ("binary(4)", "varbinary(8)", KEEPS),
        ("varbinary(4)", "varbinary(3)", REWRITES),
        ("enum('a','b')", "enum('b','a','c')", KEEPS),
        ("enum('a','b')", "enum('a')", REWRITES),
        ("set('a','b')", "set('b','a')", REWRITES),
        ("set('a','b')", "set('a','x','b')", KEEPS),
        ("varchar(20)", "json", REWRITES),
        ("char(36)", "uuid", REWRITES),
        ("point", "geometry", KEEPS),
        ("geometry", "point", REWRITES),
        ("int", "something_of_a_later_version", REWRITES),
    ],
)
def test_only_what_is_proved_keeps_values(old: str, new: str, expected: str) -> None:
    assert answer(old, new) == expected


def test_null_becomes_a_value_unless_the_session_is_strict() -> None:
    here, there = column("c", "int"), column("c", "int", nullable=False)
    assert answer(here, there, STRICT) == KEEPS
    assert answer(here, there, LAX) == REWRITES
    assert answer(here, there, Session.of(None, "", of_mariadb=False)) == REWRITES
    assert answer(there, here, LAX) == KEEPS
    assert answer(column("c", "timestamp"), column("c", "timestamp", nullable=False), STRICT) == REWRITES


def test_the_session_may_pad_or_move_values() -> None:
    pads = Session.of(1 << 22 | 1 << 31, "", of_mariadb=False)
    assert answer("char(20)", "varchar(20)", pads) == REWRITES
    summer = Session.of(1 << 22, "Europe/Berlin", of_mariadb=False)
    assert answer("timestamp", "timestamp(3)", summer) == REWRITES
    assert answer("timestamp", "timestamp(3)", Session.of(1 << 22, "+02:00", of_mariadb=False)) == KEEPS
    assert answer("timestamp", "timestamp(3)", Session.of(1 << 22, "Europe/Berlin", of_mariadb=True)) == KEEPS


def test_a_row_with_0_gets_a_number() -> None:
    plain, counted = column("c", "int"), column("c", "int", made_by=AUTO_INCREMENT)
    assert answer(plain, counted) == REWRITES
    assert answer(counted, replace(counted, column_type="bigint", data_type="bigint")) == KEEPS


def test_envelopes_have_texts_that_rows_do_not_have() -> None:
    assert answer("decimal(10,2)", "decimal(12,4)", form="debezium") == REWRITES
    assert answer("datetime(3)", "datetime(6)", form="debezium") == REWRITES
    assert answer("datetime", "datetime(3)", form="debezium") == KEEPS


def of_statement(statement: str, before: list[Column], now: list[Column], session: Session = STRICT) -> dict[str, str]:
    steps = column_steps(statement)
    made = after([c.name for c in before], steps)
    return {name: found.kind for name, found in answers(before, now, made, steps, session).items()}


def test_a_name_that_comes_to_mean_another_column_has_other_values() -> None:
    a, b = column("a", "int"), column("b", "int")
    swapped = of_statement("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a", [a, b], [b, a])
    assert swapped == {"a": REWRITES, "b": REWRITES}
    assert of_statement("ALTER TABLE t DROP b, RENAME COLUMN a TO b", [a, b], [b]) == {"b": REWRITES}
    assert of_statement("ALTER TABLE t CHANGE a A INT", [a], [column("A", "int")]) == {"A": KEEPS}
    assert of_statement("ALTER TABLE t MODIFY a INT AFTER b", [a, b], [b, a]) == {"a": KEEPS, "b": KEEPS}


def test_a_new_column_has_one_value_or_many() -> None:
    a = column("a", "int")
    for definition, more, expected in (
        ("INT", {}, FILLS),
        ("INT NOT NULL", {"nullable": False}, FILLS),
        ("INT DEFAULT 7", {}, FILLS),
        ("INT DEFAULT (RAND())", {}, REWRITES),
        ("INT AUTO_INCREMENT UNIQUE", {"made_by": AUTO_INCREMENT}, REWRITES),
        ("INT AS (a + 1)", {"made_by": "virtual:0"}, REWRITES),
    ):
        now = column("n", "int", **more)
        assert of_statement(f"ALTER TABLE t ADD n {definition}", [a], [a, now])["n"] == expected, definition
    moment = column("n", "datetime", nullable=False)
    assert of_statement("ALTER TABLE t ADD n DATETIME DEFAULT NOW()", [a], [a, moment])["n"] == REWRITES
    dropped = of_statement("ALTER TABLE t DROP n, ADD n INT", [a, column("n", "int")], [a, column("n", "int")])
    assert dropped == {"a": KEEPS, "n": FILLS}


def test_generated_columns_change_with_their_base_and_their_expression() -> None:
    types = {"a": "int", "g": "int", "d": "datetime"}
    a = column("a", "int")
    g = column("g", "bigint", made_by=made_by("STORED GENERATED", "(`a` + 1)", types))
    kept = of_statement("ALTER TABLE t MODIFY a INT COMMENT 'x'", [a, g], [a, g])
    assert kept == {"a": KEEPS, "g": KEEPS}
    wider = of_statement("ALTER TABLE t MODIFY a BIGINT", [a, g], [column("a", "bigint"), g])
    assert wider == {"a": KEEPS, "g": REWRITES}
    other = replace(g, made_by=made_by("STORED GENERATED", "(`a` + 2)", types))
    assert of_statement("ALTER TABLE t MODIFY g BIGINT AS (a + 2) STORED", [a, g], [a, other])["g"] == REWRITES
    by_session = column("g", "int", made_by=made_by("STORED GENERATED", "hour(`d`)", types))
    assert of_statement("ALTER TABLE t FORCE", [a, by_session], [a, by_session]) == {"a": KEEPS, "g": REWRITES}


@pytest.mark.parametrize(
    ("expression", "is_plain"),
    [
        ("(`a` + 1)", True),
        ("json_unquote(json_extract(`j`,_utf8mb4'$.x'))", True),
        ("concat(`v`,'it''s',`v`)", True),
        ("(`a` / 3)", False),
        ("cast(`d` as char)", False),
        ("concat(`d`,'')", False),
        ("uuid()", False),
        ("`a` * `f`", False),
    ],
)
def test_an_expression_is_plain_if_its_value_is_the_same_in_every_session(expression: str, is_plain: bool) -> None:
    types = {"a": "int", "d": "datetime", "f": "double", "j": "json", "v": "varchar"}
    found = column("g", "int", made_by=made_by("VIRTUAL GENERATED", expression, types))
    assert found.is_generated
    assert found.is_of_session is not is_plain


def test_nobody_reads_an_excluded_column() -> None:
    assert answer(column("c", "int", use=EXCLUDED), column("c", "date", use=EXCLUDED)) == KEEPS


def test_an_unknown_definition_is_not_proved() -> None:
    assert answer(Column("c", "", ""), "int") == REWRITES


def test_the_documentation_has_the_proofs() -> None:
    page = Path(__file__).parents[5] / "docs/mysql_cdc_schema.md"
    assert proof_table() in page.read_text(encoding="utf-8")
