"""Which columns are read, and how: patterns, keys, masks, and what a checkpoint fixes."""

import hashlib
from dataclasses import replace

import pyarrow as pa
import pytest

from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.output.masking import masked
from backlog_spark.connectors.mysql_cdc.schema.choice import ColumnChoice
from backlog_spark.connectors.mysql_cdc.schema.columns import Column, columns_from_json, columns_to_json
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.errors import SettingError
from backlog_spark.spi.user_options import UserOptions

TABLE = TableSchema(
    "shop",
    "t",
    (
        Column("id", "int", "int", nullable=False),
        Column("Name", "varchar", "varchar(9)", charset="utf8mb4"),
        Column("flag", "tinyint", "tinyint(1)"),
        Column("wide", "tinyint", "tinyint(4)"),
    ),
    ("id",),
    ("id",),
)
SALT = "columns.mask.secretsalt"


def choice(**given: str) -> ColumnChoice:
    return ColumnChoice.parse(UserOptions({name.replace("_", "."): value for name, value in given.items()}))


def uses(found: TableSchema) -> list[str]:
    return [c.use for c in found.columns]


def chosen(**given: str) -> list[str]:
    made = choice(**given)
    return uses(made.checked(made.applied(TABLE)))


def test_each_column_has_its_use() -> None:
    assert chosen() == ["", "", "", ""]
    assert chosen(columns_exclude="shop.t.name, other.t.wide") == ["", "excluded", "", ""]
    assert chosen(columns_include=r"shop\.t\.(flag|x{1,3})") == ["", "excluded", "", "excluded"]
    assert chosen(columns_mask="shop.t.n.*,shop.t.wide", **{SALT: "s"}) == ["", "masked", "", "masked"]
    assert chosen(tinyint1isbit="true") == ["", "", "boolean", ""]
    both = chosen(columns_mask=".*", columns_exclude=".*wide", tinyint1isbit="true", **{SALT: "s"})
    assert both == ["masked", "masked", "masked", "excluded"]


def test_a_column_of_the_key_is_read_and_stays_a_number() -> None:
    with pytest.raises(SettingError, match=r"columns.exclude = .*'id', which is in the key of shop.t"):
        chosen(columns_exclude=".*[.]id")
    keyed = replace(TABLE, key=("flag",), chunk_key=("flag",))
    made = choice(tinyint1isbit="true")
    assert uses(made.checked(made.applied(keyed))) == ["", "", "", ""]
    keyless = replace(TABLE, key=(), chunk_key=())
    made = choice(columns_include="shop.u.*")
    with pytest.raises(SettingError, match=r"columns.include = 'shop.u.*': leaves no column of shop.t"):
        made.checked(made.applied(keyless))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"columns_mask": "a"}, "columns.mask.secretSalt"),
        ({SALT: "hush"}, "no meaning without columns.mask"),
        ({"columns_include": "a", "columns_exclude": "b"}, "columns.include = 'a': cannot be used with"),
        ({"columns_exclude": "a("}, "columns.exclude = .*not a regular expression"),
        ({"tinyint1isbit": "yes"}, "tinyInt1isBit"),
        ({"messagekeycolumns": "shop.t"}, "messageKeyColumns = 'shop.t'"),
        ({"messagekeycolumns": "shop.t:a,a"}, "messageKeyColumns"),
        ({"messagekeycolumns": "shop(:a"}, "not a regular expression"),
    ],
)
def test_malformed_options_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(SettingError, match=said) as error:
        choice(**given)
    assert "hush" not in str(error.value)


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    choice(columns_exclude="shop.t.name", messagekeycolumns="shop.*:a").check_used([TABLE])
    with pytest.raises(SettingError, match=r"columns.mask = 'shop.t.nam': 'shop.t.nam' matches no column of shop.t"):
        choice(columns_mask="shop.t.nam", **{SALT: "s"}).check_used([TABLE])
    with pytest.raises(SettingError, match="messageKeyColumns"):
        choice(messagekeycolumns="shop.u:a").check_used([TABLE])


def test_the_salt_shows_nowhere() -> None:
    given = {"host": "h", "user": "u", "table": "shop.t", "columns.mask": "a", "columns.mask.secretSalt": "hush"}
    parsed = MySqlOptions.parse(given)
    assert parsed.columns.salt == "hush"
    assert "hush" not in f"{parsed!r} {parsed} {parsed.columns!r} {parsed.columns.salt_check}"
    assert len(parsed.columns.salt_check) == 8
    assert parsed.columns.salt_check != choice(columns_mask="a", **{SALT: "other"}).salt_check


def test_the_use_of_a_column_is_kept_in_the_checkpoint() -> None:
    columns = choice(columns_exclude=".*wide").applied(TABLE).columns
    assert columns_from_json(columns_to_json(columns)) == columns


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        ({}, {"columns_exclude": ".*name"}, r"columns.exclude = 'Name': .*excluded were none when .* are Name now"),
        ({"columns_exclude": ".*name"}, {}, r"columns.exclude = 'none': .*were Name when .* are none now"),
        (
            {"columns_include": ".*name"},
            {"columns_include": ".*a.*"},
            r"include = 'wide': .* were flag, wide when",
        ),
        ({"columns_mask": ".*name", SALT: "s"}, {}, "columns.mask = 'none'"),
        ({}, {"tinyint1isbit": "true"}, "tinyInt1isBit = 'flag'"),
        ({"columns_mask": ".*name", SALT: "s"}, {"columns_mask": ".*name", SALT: "r"}, r"secretSalt = '\*\*\*'"),
    ],
)
def test_another_choice_than_the_checkpoints_is_refused(then: dict[str, str], now: dict[str, str], said: str) -> None:
    before, after = choice(**then), choice(**now)
    known, declared = before.checked(before.applied(TABLE)), after.checked(after.applied(TABLE))
    with pytest.raises(SettingError, match=said):
        after.check_unchanged(known, declared, before.salt_check)


def test_other_options_that_choose_the_same_go_on() -> None:
    before, after = choice(columns_exclude="shop.t.name"), choice(columns_include="shop.t.(flag|wide)")
    known, declared = before.checked(before.applied(TABLE)), after.checked(after.applied(TABLE))
    after.check_unchanged(known, declared, "")
    # A column that was added, or has another type now, is a change of the schema.
    fewer = replace(known, columns=(known.columns[0], *known.columns[2:]))
    after.check_unchanged(fewer, declared, "")
    narrow = replace(
        known, columns=(*known.columns[:2], replace(known.columns[2], column_type="tinyint(2)"), known.columns[3])
    )
    choice(tinyint1isbit="true", columns_exclude="shop.t.name").check_unchanged(narrow, declared, "")


def test_another_key_than_the_checkpoints_is_refused() -> None:
    keyless = replace(TABLE, key=(), chunk_key=())
    with pytest.raises(SettingError, match=r"messageKeyColumns = 'shop.t:id': .* was \(\) when .* is \(id\) now"):
        choice(messagekeycolumns="shop.t:id").check_unchanged(keyless, TABLE, "")
    with pytest.raises(SettingError, match=r"messageKeyColumns = 'unset': .* was \(id\) when .* is \(\) now"):
        choice().check_unchanged(TABLE, keyless, "")


def test_masks_are_debeziums_for_text_and_one_for_equal_values() -> None:
    found = masked(pa.array(["a", None, "ü", "a"]), "salt").to_pylist()
    a, u = (hashlib.sha256(b"salt" + text.encode()).hexdigest() for text in ("a", "ü"))
    assert found == [a, None, u, a]
    assert masked(pa.chunked_array([["a"], ["a"]]), "salt").to_pylist() == [a, a]
    assert masked(pa.array([b"a"]), "salt").to_pylist() == [a]
    seven = hashlib.sha256(b"salt7").hexdigest()
    assert masked(pa.array([7], pa.int8()), "salt").to_pylist() == [seven]
    assert len(set(masked(pa.array([0.0, -0.0]), "salt").to_pylist())) == 1
    assert masked(pa.array([], pa.date32()), "salt").to_pylist() == []
