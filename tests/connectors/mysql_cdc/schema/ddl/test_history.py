"""The columns in a part of the log, and the conversion of its rows: examples by hand, and against a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.mysql_cdc.schema.columns import EXCLUDED, Column, columns_from_json, columns_to_json
from backlog_spark.connectors.mysql_cdc.schema.ddl.history import Layout, bridge, layouts, layouts_until_drop
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged, TableSchema
from backlog_spark.connectors.mysql_cdc.schema.widening import conversion


def column(name: str, column_type: str, **more: Any) -> Column:
    """As information_schema has it; text in utf8mb4."""
    (found,) = columns_from_json([[name, column_type, *_collation(column_type)]])
    return replace(found, **more)


def _collation(column_type: str) -> list[str]:
    is_text = column_type.split("(")[0].endswith(("char", "text", "enum", "set"))
    return ["utf8mb4_general_ci"] if is_text else []


def columns(*given: str) -> list[Column]:
    """From 'name type' each."""
    return [column(*text.split(" ", 1)) for text in given]


def told(layout: Layout) -> list[str]:
    """Each column as 'name type > name now', '?' for what is not known, '-' for what is gone."""
    return [
        f"{c.name} {c.column_type or '?'} > {now or '-'}" for c, now in zip(layout.columns, layout.now, strict=True)
    ]


A, B, C = "a int(11)", "b varchar(9)", "c int(11)"


def test_no_statement_is_one_layout() -> None:
    (only,) = layouts(columns(A, B), [], columns(A, B))
    assert told(only) == ["a int(11) > a", "b varchar(9) > b"]


def test_a_table_that_was_dropped_has_the_columns_of_before() -> None:
    found = layouts_until_drop(
        columns(A, B, C),
        ["ALTER TABLE t RENAME COLUMN c TO x, ADD d BIGINT FIRST", "ALTER TABLE t DROP x, MODIFY d INT AFTER b"],
        columns(A, B),
        ("a",),
    )
    assert [told(layout) for layout in found] == [
        ["a int(11) > a", "b varchar(9) > b", "c int(11) > -"],
        ["d ? > -", "a int(11) > a", "b varchar(9) > b", "x int(11) > -"],
        ["a int(11) > a", "b varchar(9) > b", "d ? > -"],
    ]


@pytest.mark.parametrize(
    "statement",
    ["MODIFY b VARCHAR(99)", "ADD d INT", "DROP a", "RENAME COLUMN b TO x", "CONVERT TO CHARACTER SET latin1"],
)
def test_a_definition_that_nothing_tells_after_a_drop(statement: str) -> None:
    with pytest.raises(SchemaChanged):
        layouts_until_drop(columns(A, B), [f"ALTER TABLE t {statement}"], columns(A, B, "d int(11)"), ("a",))


def test_names_positions_and_what_they_became() -> None:
    found = layouts(
        columns(A, B, C),
        [
            "ALTER TABLE t RENAME COLUMN a TO x, ADD d BIGINT FIRST",
            "ALTER TABLE t DROP c, MODIFY d BIGINT AFTER b",
            "ALTER TABLE t ADD INDEX i (b)",
            "ALTER TABLE t RENAME COLUMN x TO c",
        ],
        columns("c int(11)", "b varchar(9)", "d bigint(20)"),
    )
    after_drop = ["x int(11) > c", "b varchar(9) > b", "d bigint(20) > d"]
    assert [told(layout) for layout in found] == [
        ["a int(11) > c", "b varchar(9) > b", "c int(11) > -"],
        ["d ? > d", "x int(11) > c", "b varchar(9) > b", "c int(11) > -"],
        after_drop,
        after_drop,
        ["c int(11) > c", "b varchar(9) > b", "d bigint(20) > d"],
    ]


def test_a_definition_between_two_others_is_not_known() -> None:
    found = layouts(
        columns(A, B),
        ["ALTER TABLE t MODIFY a BIGINT", "ALTER TABLE t ADD c INT", "ALTER TABLE t CHANGE a x DECIMAL(30)"],
        columns("x decimal(30,0)", B, C),
    )
    assert [told(layout) for layout in found] == [
        ["a int(11) > x", "b varchar(9) > b"],
        ["a ? > x", "b varchar(9) > b"],
        ["a ? > x", "b varchar(9) > b", "c int(11) > c"],
        ["x decimal(30,0) > x", "b varchar(9) > b", "c int(11) > c"],
    ]


def test_conversion_of_all_text_redefines_text_alone() -> None:
    latin = replace(column("b", "varchar(9)"), charset="latin1", collation="latin1_swedish_ci")
    before = [*columns(A, "e enum('x')"), latin, *columns("y varbinary(9)", "j json")]
    now = [*columns(A, "e enum('x')", "b varchar(9)", "y varbinary(9)", "j json")]
    statements = ["ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4", "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4"]
    first, between, last = layouts(before, statements, now)
    assert first.columns == tuple(before)
    assert [c.data_type for c in between.columns] == ["int", "", "", "varbinary", "json"]
    assert last.columns == tuple(now)
    # What is of bytes today may have been text.
    first, last = layouts(
        columns(A, B), ["ALTER TABLE t CONVERT TO CHARACTER SET binary"], columns(A, "b varbinary(9)")
    )
    assert (told(first)[1], told(last)[1]) == ("b varchar(9) > b", "b varbinary(9) > b")
    first, last = layouts(
        columns(A),
        ["ALTER TABLE t ADD b VARCHAR(9)", "ALTER TABLE t CONVERT TO CHARACTER SET binary"],
        columns(A, "b varbinary(9)"),
    )[1:]
    assert (told(first)[1], told(last)[1]) == ("b ? > b", "b varbinary(9) > b")


def test_what_leads_elsewhere_is_refused() -> None:
    add = "ALTER TABLE t ADD c INT"
    for now in ([A, B], [A, C, B], [A, B, "d int(11)"], ["a bigint(20)", B, C], [A, "b varchar(10)", C]):
        with pytest.raises(SchemaChanged, match="do not lead to the table's present columns"):
            layouts(columns(A, B), [add], columns(*now))
    with pytest.raises(SchemaChanged, match=r"b varchar\(9\) in utf8mb4 instead of b varchar\(9\) in latin1"):
        layouts(columns(A, B), [], [column("a", "int(11)"), column("b", "varchar(9)", charset="latin1")])
    with pytest.raises(SchemaChanged, match="does not fit"):
        layouts(columns(A, B), ["ALTER TABLE t DROP x"], columns(A, B))


def test_what_does_not_change_values_does_not_matter() -> None:
    before = [column("a", "int(11)"), column("y", "year(4)"), column("b", "varchar(9)", charset="utf8", collation="x")]
    now = [column("A", "int", nullable=False), column("y", "year"), column("b", "varchar(9)", charset="utf8mb3")]
    (only,) = layouts(before, [], now)
    assert only.columns == tuple(before)
    assert only.now == ("A", "y", "b")


def test_a_column_that_leaves_the_primary_key_is_refused() -> None:
    drop = "ALTER TABLE t DROP b, ADD b INT"
    layouts(columns(A, B), [drop], columns(A, "b int(11)"), key=["a"])
    with pytest.raises(SchemaChanged, match="'b' of the primary key was dropped"):
        layouts(columns(A, B), [drop], columns(A, "b int(11)"), key=["a", "b"])


def test_layouts_go_on_from_columns_of_which_some_are_not_known() -> None:
    (_, middle, _) = layouts(
        columns(A), ["ALTER TABLE t MODIFY a BIGINT", "ALTER TABLE t MODIFY a INT"], columns("a int(11)")
    )
    kept = columns_from_json(columns_to_json(middle.columns))
    assert kept == middle.columns == (Column("a", "", ""),)
    (first, last) = layouts(kept, ["ALTER TABLE t MODIFY a INT"], columns(A))
    assert (told(first), told(last)) == (["a ? > a"], ["a int(11) > a"])
    (only,) = layouts(kept, [], columns(A))
    assert told(only) == ["a int(11) > a"]


# -- against a model ---------------------------------------------------------------------------------------

# A model table is a list of [identity, name, version of the definition]; a version is the length of a VARCHAR.
Model = list[tuple[int, str, int]]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Model], list[str]]:
    """Random statements, each of one clause, and the table before and after each."""
    table: Model = [(i, f"c{i}", i + 1) for i in range(draw(st.integers(1, 4)))]
    stages, statements = [list(table)], []
    fresh = 100
    for _ in range(draw(st.integers(0, 8))):
        fresh += 1
        at = draw(st.integers(0, len(table) - 1))
        identity, name, version = table[at]
        kind = draw(st.sampled_from(["add", "drop", "rename", "change", "modify", "index"]))
        rest = table[:at] + table[at + 1 :]
        position = draw(st.one_of(st.none(), st.integers(0, len(rest if kind in ("change", "modify") else table))))
        # A name that was free, or had been another column's.
        new = draw(
            st.sampled_from([f"c{fresh}", *sorted({n for s in stages for _, n, _ in s} - {n for _, n, _ in table})])
        )
        if kind == "add":
            table = _inserted(table, (fresh, new, fresh), len(table) if position is None else position)
            clause = f"ADD {new} VARCHAR({fresh}){_position(stages[-1], position)}"
        elif kind == "drop" and rest:
            table, clause = rest, f"DROP {name}"
        elif kind == "rename":
            table, clause = _inserted(rest, (identity, new, version), at), f"RENAME COLUMN {name} TO {new}"
        elif kind in ("change", "modify"):
            new = new if kind == "change" else name
            clause = f"CHANGE {name} {new}" if kind == "change" else f"MODIFY {name}"
            clause += f" VARCHAR({fresh}){_position(rest, position)}"
            table = _inserted(rest, (identity, new, fresh), at if position is None else position)
        else:
            clause = f"ADD INDEX ({name})"
        statements.append(f"ALTER TABLE t {clause}")
        stages.append(list(table))
    return stages, statements


def _inserted(table: Model, entry: tuple[int, str, int], at: int) -> Model:
    return [*table[:at], entry, *table[at:]]


def _position(others: Model, position: int | None) -> str:
    return "" if position is None else f" AFTER {others[position - 1][1]}" if position else " FIRST"


@given(histories())
def test_random_histories(history: tuple[list[Model], list[str]]) -> None:
    stages, statements = history
    types = [[column(name, f"varchar({version})") for _, name, version in stage] for stage in stages]
    found = layouts(types[0], statements, types[-1])
    first, last = ({identity: (name, version) for identity, name, version in stages[i]} for i in (0, -1))
    assert len(found) == len(stages)
    for layout, stage, true in zip(found, stages, types, strict=True):
        assert [c.name for c in layout.columns] == [c.name for c in true]
        assert list(layout.now) == [last[identity][0] if identity in last else None for identity, _, _ in stage]
        for (identity, _, version), derived, real in zip(stage, layout.columns, true, strict=True):
            is_known = version in (first.get(identity, ("", 0))[1], last.get(identity, ("", 0))[1])
            assert derived == (real if is_known else Column(real.name, "", ""))


# -- conversions -------------------------------------------------------------------------------------------

DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        ("int(11)", "int(10)", {7: 7}),
        ("tinyint(4)", "smallint(6)", {-7: -7}),
        ("int(10) unsigned", "bigint(20)", {7: 7}),
        ("tinyint(3) unsigned", "int(10) unsigned", {255: 255}),
        ("year(4)", "smallint(6)", {0: 0, 2155: 2155}),
        ("bit(4)", "bit(9)", {15: 15}),
        ("bit(8)", "tinyint(3) unsigned", {255: 255}),
        ("int(11)", "decimal(12,2)", {-7: -700}),
        ("bigint(20) unsigned", "decimal(40,1)", {2**64 - 1: "18446744073709551615.0"}),
        ("decimal(5,2)", "decimal(7,4)", {-125: -12500}),
        ("decimal(5,2) unsigned", "decimal(5,2)", {125: 125}),
        ("decimal(5,2)", "decimal(40,4)", {-125: "-1.2500", 0: "0.0000"}),
        ("decimal(40,0)", "decimal(42,2)", {"-7": "-7.00"}),
        ("decimal(40,1)", "decimal(42,2)", {"-7.5": "-7.50"}),
        ("decimal(40,1)", "decimal(41,1)", {"-7.5": "-7.5"}),
        ("int(11)", "double", {-7: -7.0}),
        ("float", "double", {0.5: 0.5}),
        ("float(7,4)", "float", {0.5: 0.5}),
        ("varchar(9)", "mediumtext", {"a ": "a "}),
        ("varchar(9)", "char(9)", {"a \t  ": "a \t", "": ""}),
        ("char(9)", "varchar(3)", {"a": "a"}),
        ("enum('a','b')", "enum('c','b','a')", {"a": "a", "": ""}),
        ("enum('a','b')", "varchar(9)", {"a": "a"}),
        ("set('x','y')", "set('x','z','y')", {"x,y": "x,y"}),
        ("set('x','y','z')", "set('z','y','x')", {"x,z": "z,x", "": "", "y": "y"}),
        ("binary(2)", "binary(4)", {b"a\0": b"a\0\0\0"}),
        ("varbinary(2)", "binary(4)", {b"": b"\0\0\0\0"}),
        ("binary(2)", "blob", {b"a\0": b"a\0"}),
        ("blob", "varbinary(9)", {b"a\0": b"a\0"}),
        ("time", "time(3)", {"-12:00:00": "-12:00:00.000"}),
        ("time(1)", "time(6)", {"838:59:58.5": "838:59:58.500000"}),
        ("datetime", "datetime(6)", {7: 7}),
        ("timestamp(1)", "timestamp(3)", {7: 7}),
        ("date", "datetime(2)", {-1: -DAY}),
        ("point", "geometry", {b"x": b"x"}),
    ],
)
def test_values_that_become_others(old: str, new: str, values: dict[Any, Any]) -> None:
    convert = conversion(column("c", old), column("c", new))
    assert convert is not None
    found = {value: convert(value) for value in values}
    assert found == values
    assert [type(value) for value in found.values()] == [type(value) for value in values.values()]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int(11)", "int(10) unsigned"),
        ("int(10) unsigned", "int(11)"),
        ("bigint(20)", "int(11)"),
        ("bit(9)", "bit(8)"),
        ("bit(8)", "tinyint(4)"),
        ("int(11)", "decimal(11,2)"),
        ("int(11)", "decimal(12,2) unsigned"),
        ("int(11)", "varchar(20)"),
        ("int(11)", "float"),
        ("bigint(20)", "double"),
        ("int(11)", "year(4)"),
        ("decimal(5,2)", "decimal(6,4)"),
        ("decimal(5,2)", "decimal(6,1)"),
        ("decimal(5,2)", "decimal(5,2) unsigned"),
        ("decimal(5,0)", "bigint(20)"),
        ("double", "float"),
        ("double", "double(10,3)"),
        ("float", "float(7,4)"),
        ("double", "double unsigned"),
        ("varchar(9)", "varbinary(9)"),
        ("varbinary(9)", "varchar(9)"),
        ("varchar(9)", "enum('a')"),
        ("varchar(9)", "json"),
        ("json", "longtext"),
        ("enum('a','b')", "enum('a','B')"),
        ("set('a','b')", "set('a')"),
        ("enum('a')", "set('a')"),
        ("binary(4)", "binary(2)"),
        ("blob", "binary(9)"),
        ("time(3)", "time"),
        ("datetime(3)", "datetime"),
        ("datetime", "timestamp"),
        ("timestamp", "datetime"),
        ("date", "timestamp"),
        ("datetime", "date"),
        ("geometry", "point"),
    ],
)
def test_values_that_cannot_become_others(old: str, new: str) -> None:
    assert conversion(column("c", old), column("c", new)) is None


def schema(*given: str, key: tuple[str, ...] = (), chunk_key: tuple[str, ...] = ()) -> TableSchema:
    return TableSchema("shop", "t", tuple(columns(*given)), key, chunk_key)


def layout(*given: str, now: str) -> Layout:
    """A layout and the names of today, '-' for what is gone."""
    return Layout(tuple(columns(*given)), tuple(None if name == "-" else name for name in now.split()))


def test_columns_of_the_stream_find_their_values() -> None:
    found = bridge(layout(A, B, C, now="x - A"), schema("x bigint(20)", "b varchar(9)", "a int(11)", "d int(11)"))
    assert (found.sources, found.converts) == ((0, 1, 2, None), (None,) * 4)
    assert [found.index_of(i) for i in range(3)] == [0, 1, 2]
    assert not found.is_identity
    assert bridge(layout(A, B, C, now="a b c"), schema(C, A)).sources == (2, 0)


def test_a_column_that_was_redefined_and_dropped_is_not_null_without_a_word() -> None:
    statements = ["ALTER TABLE t MODIFY c BIGINT FIRST", "ALTER TABLE t RENAME COLUMN c TO d", "ALTER TABLE t DROP d"]
    old, between, renamed, new = layouts(columns(A, B, C), statements, columns(A, B))
    assert [layout.lost for layout in (old, between, renamed, new)] == [set(), {"c"}, {"c", "d"}, set()]
    had, has = schema(A, B, C), schema(A, B)
    assert bridge(old, had).sources == (0, 1, 2)
    for layout in (between, renamed):
        with pytest.raises(SchemaChanged, match=r"'c' of .* was redefined and then dropped"):
            bridge(layout, had)
        assert bridge(layout, has).sources == (1, 2)  # a stream without the column loses nothing
        excluded = replace(has, columns=(*has.columns, column("c", "int(11)", use=EXCLUDED)))
        assert bridge(layout, excluded).sources == (1, 2, None)
    assert bridge(new, had).sources == (0, 1, None)  # the column is not there any more
    # Read on from in between, where only the column's name is known.
    again, _ = layouts(between.columns, ["ALTER TABLE t DROP c"], columns(A, B))
    assert again.lost == {"c"}
    # A column that came and went was never in a stream, and another one has its name today.
    came = layouts(columns(A), ["ALTER TABLE t ADD c INT", "ALTER TABLE t DROP c"], columns(A))
    assert not any(layout.lost for layout in came)
    back = layouts(columns(A, C), ["ALTER TABLE t MODIFY c BIGINT", "ALTER TABLE t DROP c, ADD c INT"], columns(A, C))
    assert not any(layout.lost for layout in back)


def test_what_is_as_declared_is_left_alone() -> None:
    assert bridge(layout(A, B, now="a b"), schema("a int(10)", B)).is_identity
    assert bridge(layout(A, B, now="x -"), schema(A, B)).is_identity
    assert not bridge(layout(A, B, now="a b"), schema("a bigint(20)", B)).is_identity
    assert not bridge(layout(A, B, now="a b"), schema(A)).is_identity
    assert not bridge(layout(A, B, now="a b"), schema(B, A)).is_identity
    # Names that were exchanged since
    assert bridge(layout(A, C, now="c a"), schema(A, C)).sources == (1, 0)


def test_a_column_that_cannot_be_converted_is_named_with_both_types() -> None:
    with pytest.raises(SchemaChanged, match=r"'a' of shop\.t is a bigint.* and a int.*new checkpoint"):
        bridge(layout("a bigint(20)", B, now="a b"), schema(A, B))
    unknown = Layout((Column("a", "", ""), *columns(B)), ("a", "b"))
    with pytest.raises(SchemaChanged, match=r"'a' of shop\.t was redefined more than once.*new checkpoint"):
        bridge(unknown, schema(A, B))
    assert bridge(unknown, schema(B)).sources == (1,)


@pytest.mark.parametrize("keys", [{"key": ("a",)}, {"chunk_key": ("a",)}])
@pytest.mark.parametrize(
    ("found", "declared", "able"),
    [
        ("a int(11)", "a bigint(20)", True),
        ("a int(10) unsigned", "a bigint(20)", True),
        ("a varbinary(3)", "a varbinary(9)", True),
        ("a decimal(5,2)", "a decimal(7,2)", True),
        ("a datetime", "a datetime(3)", True),
        ("a varchar(3)", "a varchar(9)", True),
        ("a decimal(5,2)", "a decimal(7,3)", False),
        ("a int(11)", "a decimal(12,0)", False),
        ("a binary(3)", "a binary(9)", False),
        ("a binary(3)", "a varbinary(9)", False),
        ("a date", "a datetime", False),
        ("a varchar(3)", "a char(9)", False),
        ("x int(11)", "a int(11)", False),
    ],
)
def test_keys_stay_what_they_are(keys: dict[str, Any], found: str, declared: str, able: bool) -> None:
    here = layout(found, C, now=f"{found.split()[0]} c")
    if able:
        assert bridge(here, schema(declared, C, **keys)).sources == (0, 1)
    else:
        with pytest.raises(SchemaChanged, match=r"key column 'a' of shop\.t.*new checkpoint"):
            bridge(here, schema(declared, C, **keys))


@pytest.mark.parametrize("change", [{"nullable": False}, {"collation": "utf8mb4_bin"}, {"charset": "latin1"}])
def test_keys_keep_null_and_collation(change: dict[str, Any]) -> None:
    other = Layout((replace(column("b", "varchar(9)"), **change),), ("b",))
    assert bridge(other, schema(B)).sources == (0,)
    with pytest.raises(SchemaChanged, match="key column 'b'"):
        bridge(other, schema(B, key=("b",)))


def test_columns_as_json_are_short() -> None:
    assert columns_to_json(columns(A, B, "d decimal(9,2)", "e enum('a,b','c')", "f binary(8)")) == [
        ["a", "int(11)"],
        ["b", "varchar(9)", "utf8mb4_general_ci"],
        ["d", "decimal(9,2)"],
        ["e", "enum('a,b','c')", "utf8mb4_general_ci"],
        ["f", "binary(8)"],
    ]
    odd = Column("é`", "longtext", "longtext", False, charset="latin1", collation="x_y")
    assert columns_to_json([odd]) == [["é`", "longtext", "x_y", {"nullable": False, "charset": "latin1"}]]
    assert columns_from_json(columns_to_json([odd])) == (odd,)
