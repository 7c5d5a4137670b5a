"""Which table has a name after a RENAME, and which columns it then has."""

from __future__ import annotations

import pytest

from backlog_spark.connectors.mysql_cdc.schema.columns import Column
from backlog_spark.connectors.mysql_cdc.schema.ddl.alters import after, before, column_steps
from backlog_spark.connectors.mysql_cdc.schema.ddl.history import Layout, Taken, layouts
from backlog_spark.connectors.mysql_cdc.schema.ddl.renames import (
    GONE,
    altered_table,
    is_shadow,
    made,
    made_by_tool,
    moves,
    only_renames,
    origin_of,
)
from backlog_spark.connectors.mysql_cdc.schema.ddl.statements import changed_tables
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged

T = ("shop", "t")
OLD = [Column("id", "int", "int"), Column("a", "int", "int"), Column("b", "varchar", "varchar(9)", charset="utf8mb4")]
WIDER = Column("a", "bigint", "bigint")
ADDED = Column("c", "int", "int")


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("rename /* gh-ost */ table `shop`.`t` to `shop`.`_t_del`, `shop`.`_t_gho` to `shop`.`t`", ("shop", "_t_gho")),
        ("RENAME TABLE `shop`.`t` TO `shop`.`_t_old`, `shop`.`_t_new` TO `shop`.`t`", ("shop", "_t_new")),
        ("RENAME TABLES T TO x, other.Y WAIT 5 TO t;", ("other", "y")),
        ("RENAME TABLE x TO y, t TO x, y TO t", ("shop", "x")),
        ("RENAME TABLE IF EXISTS t NOWAIT TO gone", GONE),
        ("RENAME TABLE .t TO .gone, . x TO .t", ("shop", "x")),
        ("ALTER TABLE t RENAME TO gone", GONE),
        ("ALTER TABLE t ADD c INT, RENAME AS other.t", GONE),
        ("ALTER TABLE x RENAME = t", ("shop", "x")),
        ("ALTER ONLINE TABLE x ADD c INT, RENAME`t`, ADD INDEX (c)", ("shop", "x")),
        ("RENAME TABLE t TO x, x TO t", None),
        ("RENAME TABLE other.t TO other.x", None),
        ("ALTER TABLE t RENAME COLUMN a TO t, RENAME INDEX b TO t", None),
    ],
)
def test_the_table_that_has_the_name_afterwards(text: str, origin: tuple[str, str] | None) -> None:
    found = moves(text, "shop")
    assert found is not None
    assert found.get(T) == origin
    if origin is not None:
        assert T in (changed_tables(text, "shop") or ())


@pytest.mark.parametrize(
    ("text", "origin", "by_tool"),
    [
        ("rename table `shop`.`t` to `shop`.`_t_del`, `shop`.`_t_gho` to `shop`.`t`", ("shop", "_t_gho"), True),
        ("ALTER TABLE t RENAME `_t_del`", GONE, True),
        ("RENAME TABLE t TO t_old, t_new TO t", ("shop", "t_new"), False),
        ("RENAME TABLE t TO _t_old, other._t_new TO t", ("other", "_t_new"), True),
        ("RENAME TABLE t TO t_old", GONE, False),
        ("RENAME TABLE t TO T", GONE, False),
        ("RENAME TABLE T TO t_old", None, False),
        ("RENAME TABLE T TO T_OLD, T_NEW TO T", None, False),
        ("RENAME TABLE x TO y", None, False),
    ],
)
def test_where_the_name_went_and_whether_a_tool_did_it(
    text: str, origin: tuple[str, str] | None, by_tool: bool
) -> None:
    assert origin_of(T, text, "shop", lambda: False) == (origin, by_tool)


def test_a_server_that_takes_names_in_upper_case_for_the_same() -> None:
    for text, origin in (
        ("RENAME TABLE t TO T", None),
        ("RENAME TABLE T TO t_old", GONE),
        ("RENAME TABLE T TO T_OLD, T_NEW TO T", ("shop", "t_new")),
    ):
        assert origin_of(T, text, "shop", lambda: True) == (origin, False)


def test_a_statement_that_servers_read_in_different_ways() -> None:
    assert moves("RENAME TABLE t TO /*!80000 x, y TO */ z", "shop") is None


@pytest.mark.parametrize(
    ("name", "is_new"),
    [
        ("_t_gho", True),
        ("_t_new", True),
        ("___t_new", True),
        ("_t_ghc", False),
        ("_t_del", False),
        ("_t_20261126134500_del", False),
        ("__t_old", False),
    ],
)
def test_tables_of_the_tools(name: str, is_new: bool) -> None:
    assert made_by_tool(("shop", name), {T})
    assert not made_by_tool(("other", name), {T})
    assert is_shadow(name.upper(), "t") is is_new


def test_tables_that_are_nobodys() -> None:
    for name in ("t_new", "_x_gho", "_t", "t", "_t_newer", "_tt_new"):
        assert not made_by_tool(("shop", name), {T})
        assert not is_shadow(name, "t")
    long = "l" * 64
    assert is_shadow(f"_{long[:59]}_gho", long), "tools cut names that are too long"


def test_the_columns_before_a_statement_follow_from_those_after_it() -> None:
    for names, statement in (
        (["id", "a"], "ADD c INT, ADD d INT FIRST, RENAME COLUMN a TO x"),
        (["id", "a", "b"], "ADD (c INT, d INT), CHANGE b e INT, CONVERT TO CHARACTER SET latin1"),
        (["a", "b"], "RENAME COLUMN a TO b, RENAME COLUMN b TO a"),
    ):
        steps = column_steps(f"ALTER TABLE t {statement}")
        assert before([each.name for each in after(names, steps)], steps) == names
    for statement in ("DROP x", "MODIFY a INT FIRST", "ADD IF NOT EXISTS c INT"):
        assert before(["id", "a", "c"], column_steps(f"ALTER TABLE t {statement}")) is None


def test_the_columns_of_the_table_that_took_the_name() -> None:
    now = [OLD[0], OLD[2], WIDER, ADDED]
    assert layouts(OLD, [Taken()], now) == [
        Layout(tuple(OLD), ("id", "a", "b")),
        Layout(tuple(now), ("id", "b", "a", "c")),
    ]


def test_columns_that_the_new_table_has_not() -> None:
    now = [OLD[0], Column("x", "int", "int")]
    assert layouts(OLD, [Taken(is_gone=True), Taken()], now)[1:] == [
        Layout(tuple(OLD), ("id", None, None)),
        Layout(tuple(now), ("id", "x")),
    ]
    with pytest.raises(SchemaChanged, match="'a' of the primary key was dropped"):
        layouts(OLD, [Taken()], now, key=("a",))


def test_statements_after_another_table_took_the_name() -> None:
    added = "ALTER TABLE t ADD c INT AFTER id"
    assert layouts(OLD, [Taken(), added], [OLD[0], ADDED, *OLD[1:]])[1].columns == tuple(OLD)
    dropped = "ALTER TABLE t DROP c"
    with pytest.raises(SchemaChanged, match=r"does not have its columns.*binlog_row_metadata=FULL"):
        layouts(OLD, [Taken(), dropped], OLD)
    with pytest.raises(SchemaChanged, match="does not have its columns"):
        layouts(OLD, [Taken(), Taken()], OLD)
    found = layouts(OLD, [Taken(("c", "id", "a", "b")), dropped], OLD)
    assert [(c.name, c.data_type) for c in found[1].columns] == [
        ("c", ""),
        ("id", "int"),
        ("a", "int"),
        ("b", "varchar"),
    ]
    assert found[1].now == (None, "id", "a", "b")


def test_a_copy_whose_statements_are_known() -> None:
    """The second of two swaps made `a` wider. Between them `a` has its form before the second swap."""
    copy = Taken(steps=(column_steps("ALTER TABLE x ADD c INT"), column_steps("ALTER TABLE x MODIFY a BIGINT")))
    now = [OLD[0], WIDER, OLD[2], ADDED]
    assert layouts(OLD, [Taken(steps=()), copy], now)[1:] == [
        Layout(tuple(OLD), ("id", "a", "b")),
        Layout(tuple(now), ("id", "a", "b", "c")),
    ]
    between = layouts(OLD, [Taken(), copy], now)[1]
    assert [column.data_type for column in between.columns] == ["int", "", "varchar"], "a was redefined twice"
    swapped = Taken(steps=(column_steps("ALTER TABLE x RENAME COLUMN id TO a, RENAME COLUMN a TO id"),))
    assert swapped.redefines("a")
    assert swapped.redefines("ID")
    assert not swapped.redefines("b")


def test_how_a_copy_was_made() -> None:
    assert made("create /* gh-ost */ table `shop`.`_t_gho` like `shop`.`t`", "") == (("shop", "_t_gho"), T)
    assert made("CREATE TABLE x (LIKE t)", "shop") == (("shop", "x"), T)
    assert made("CREATE TABLE _t_new (id INT)", "shop") == (("shop", "_t_new"), GONE)
    assert made("CREATE TABLE IF NOT EXISTS x LIKE t", "shop") == (("shop", "x"), None)
    assert made("CREATE TRIGGER x AFTER INSERT ON t FOR EACH ROW DELETE FROM _t_new", "shop") is None
    assert altered_table("ALTER TABLE `shop`.`_t_new` ADD c INT", "") == ("shop", "_t_new")
    assert only_renames("alter /* gh-ost */ table x rename `t`")
    assert not only_renames("ALTER TABLE x ADD c INT, RENAME t")
