"""Addresses, types, limits and statements, without a server."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st

import backlog_spark as bs
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.database.address import Address, Place, parse_table
from backlog_spark.sinks.database.columns import Index, Limit, StoredColumn, TableColumn, check_values, without_deleted
from backlog_spark.sinks.database.mysql import MySqlDialect
from backlog_spark.sinks.database.postgres import PostgresDialect
from backlog_spark.sinks.database.rows import array_of, copy_lines, values_of

MYSQL, POSTGRES = MySqlDialect(), PostgresDialect()


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("mysql://db/shop", "mysql://db:3306/shop"),
        ("jdbc:mariadb://db:3307/shop", "mariadb://db:3307/shop"),
        ("postgresql://[::1]:15432/my%20shop", "postgresql://[::1]:15432/my%20shop"),
        ("mysql://db", "mysql://db:3306/"),
    ],
)
def test_an_address_is_read_and_shown(url: str, found: str) -> None:
    assert str(Address.parse(url)) == found
    assert Address.parse(found) == Address.parse(url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://me:s3cret@db/shop", "has a user or a password"),
        ("mysql://db/shop?password=s3cret", "has parameters"),
        ("oracle://db/shop", "does not begin with mysql, mariadb, postgresql"),
        ("postgresql://db", "needs a host and a database"),
        ("mysql://db:port/shop", "is no URL"),
        ("/lake/orders", "does not begin with"),
    ],
)
def test_a_wrong_address_is_refused_without_a_secret(url: str, said: str) -> None:
    with pytest.raises(SettingError, match=said) as raised:
        bs.JdbcUpsert(url, "t", ["id"], user="me")
    assert "s3cret" not in str(raised.value)


def test_a_table_is_named_with_or_without_its_schema() -> None:
    mysql, server, postgres = map(Address.parse, ("mysql://db/shop", "mysql://db", "postgresql://db/shop"))
    assert parse_table("orders", mysql) == Place("shop", "orders")
    assert parse_table("other.orders", mysql) == Place("other", "orders")
    assert parse_table("`a.b`.`c,d`", server) == Place("a.b", "c,d")
    assert parse_table("orders", postgres) == Place("", "orders")
    for text, address in (("orders", server), ("", postgres), ("a.b,c.d", mysql), (".", mysql)):
        with pytest.raises(SettingError, match="table"):
            parse_table(text, address)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keys": []}, "at least one key"),
        ({"keys": ["_commit_seq"]}, "is a metadata column"),
        ({"keys": ["a", "a"]}, "names a column twice"),
        ({"user": ""}, "user = ''"),
        ({"password": "s3cret", "password_file": "/f"}, "given by password already"),
        ({"password": 5}, "password = '\\*\\*\\*': must be a text"),
        ({"ssl_mode": "always"}, "is none of disabled, preferred"),
        ({"ssl_ca": "/ca.pem"}, "is not used with ssl.mode=preferred"),
        ({"small_batch_rows": -1}, "out of bounds"),
    ],
)
def test_a_wrong_argument_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said) as raised:
        bs.JdbcUpsert(**{"url": "mysql://db/shop", "table": "t", "keys": ["id"], "user": "me", **given})
    assert "s3cret" not in str(raised.value)


def test_the_password_is_shown_nowhere() -> None:
    sink = bs.JdbcUpsert("mysql://db/shop", "t", ["id"], user="me", password="s3cret")
    shown = [repr(sink), sink.described(), sink._database.account, vars(sink), vars(sink._database)]
    assert "s3cret" not in "".join(map(repr, shown))
    assert sink._database.account.password(sink._database.address) == "s3cret"
    assert sink.described() == {
        "kind": "JdbcUpsert",
        "place": "mysql://db:3306/shop/shop.t",
        "keys": ["id"],
        "change_type": "_change_type",
        "sequence": "_commit_seq",
        "metadata_columns": ["_change_type", "_commit_timestamp", "_commit_seq"],
    }


NULLABLE = [
    (st.BooleanType(), "BOOLEAN NULL", "boolean NULL"),
    (st.ByteType(), "TINYINT NULL", "smallint NULL"),
    (st.LongType(), "BIGINT NULL", "bigint NULL"),
    (st.DecimalType(20, 0), "DECIMAL(20,0) NULL", "numeric(20,0) NULL"),
    (st.FloatType(), "FLOAT NULL", "real NULL"),
    (st.StringType(), "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL", "text NULL"),
    (st.BinaryType(), "LONGBLOB NULL", "bytea NULL"),
    (st.TimestampType(), "TIMESTAMP(6) NULL", "timestamp with time zone NULL"),
    (st.TimestampNTZType(), "DATETIME(6) NULL", "timestamp without time zone NULL"),
    (st.ArrayType(st.LongType()), None, None),
    (st.StructType(), None, None),
    (st.MapType(st.StringType(), st.LongType()), None, None),
]


@pytest.mark.parametrize(("kind", "mysql", "postgres"), NULLABLE, ids=lambda each: str(each))
def test_types_of_new_columns(kind: st.DataType, mysql: str | None, postgres: str | None) -> None:
    for dialect, wanted in ((MYSQL, mysql), (POSTGRES, postgres)):
        assert dialect.definition(kind, is_key=False, collation="utf8mb4_bin") == wanted


def column(base: str, type: str = "", **more: Any) -> TableColumn:
    return TableColumn("c", type or base, base, **more)


@pytest.mark.parametrize(
    ("dialect", "kind", "found", "fits"),
    [
        (MYSQL, st.LongType(), column("bigint", "bigint(20) unsigned"), True),
        (MYSQL, st.DecimalType(20, 0), column("bigint", "bigint(20) unsigned"), True),
        (MYSQL, st.DecimalType(10, 2), column("decimal", scale=1), False),
        (MYSQL, st.DecimalType(10, 2), column("decimal", scale=3), True),
        (MYSQL, st.DecimalType(10, 2), column("bigint"), False),
        (MYSQL, st.FloatType(), column("float", "float(7,4)"), False),
        (MYSQL, st.DoubleType(), column("float"), False),
        (MYSQL, st.StringType(), column("enum"), False),
        (MYSQL, st.StringType(), column("json"), True),
        (MYSQL, st.TimestampType(), column("datetime"), False),
        (MYSQL, st.TimestampNTZType(), column("datetime"), True),
        (MYSQL, st.BooleanType(), column("tinyint", "tinyint(1)"), True),
        (POSTGRES, st.IntegerType(), column("int2"), True),
        (POSTGRES, st.DecimalType(10, 2), column("numeric"), True),
        (POSTGRES, st.DecimalType(10, 2), column("numeric", scale=0), False),
        (POSTGRES, st.DoubleType(), column("float4"), False),
        (POSTGRES, st.StringType(), column("bpchar"), False),
        (POSTGRES, st.StringType(), column("jsonb"), False),
        (POSTGRES, st.TimestampType(), column("timestamp"), False),
        (POSTGRES, st.BooleanType(), column("bool"), True),
    ],
)
def test_which_columns_fit(dialect: Any, kind: st.DataType, found: TableColumn, fits: bool) -> None:
    assert (dialect.unfit(kind, found) == "") is fits


def stored(name: str, kind: st.DataType, *limits: Limit, is_key: bool = False) -> StoredColumn:
    return StoredColumn(name, kind, TableColumn(name, "varchar(3)", "varchar"), is_key, limits)


def times(*micros: int | None) -> pa.Array:
    return pa.array(micros, pa.int64()).cast(pa.timestamp("us", "America/New_York"))


@pytest.mark.parametrize(
    ("limit", "good", "bad"),
    [
        (Limit("longest", 3), pa.array(["äöü", "", None]), pa.array(["a", "abc "])),
        (Limit("length", 2), pa.array([b"ab", None]), pa.array([b"ab", b"a"])),
        (Limit("fraction", 3), times(1000, -2000, None), times(1000, -1)),
        (Limit("fraction", 0), times(5_000_000, 0), times(5_100_000)),
        (Limit("blank"), pa.array([" a", "", None]), pa.array(["a "])),
    ],
)
def test_values_that_a_column_would_change_are_refused(limit: Limit, good: pa.Array, bad: pa.Array) -> None:
    columns = [stored("id", st.LongType(), is_key=True), stored("v", st.StringType(), limit)]
    check_values(pa.record_batch({"id": range(len(good)), "v": good}), columns, "sink")
    with pytest.raises(BacklogError, match=rf"sink: the value of v in the row with id = {len(bad) - 1} "):
        check_values(pa.record_batch({"id": range(len(bad)), "v": bad}), columns, "sink")


def test_a_key_that_is_null_is_refused_by_its_name() -> None:
    rows = pa.table({"a": [1, 2], "b": [1, None]})
    columns = [stored("a", st.LongType(), is_key=True), stored("b", st.LongType(), is_key=True)]
    with pytest.raises(BacklogError, match="NULL in its key b"):
        check_values(rows, columns, "sink")


def test_deletes_keep_their_keys_alone() -> None:
    columns = [stored("id", st.LongType(), is_key=True), stored("v", st.StringType())]
    rows = pa.record_batch({"id": [1, 2, 3], "v": ["a", "b", "c"]})
    found = without_deleted(rows, pa.array([False, True, False]), columns)
    assert found.to_pydict() == {"id": [1, 2, 3], "v": ["a", None, "c"]}


def test_rows_of_copy() -> None:
    day = datetime.datetime(2024, 2, 29, 1, 2, 3, 4)
    rows = pa.record_batch(
        {
            "s": ["a\tb\\\n\r", None, "\\N"],
            "b": [b"\x00\xff", b"", None],
            "n": [Decimal("1.50"), None, Decimal("-0.01")],
            "t": pa.array([day, None, None], pa.timestamp("us")),
            "z": times(0, None, None),
            "f": [True, False, None],
        }
    )
    assert copy_lines(rows, "task").decode().split("\n") == [
        "a\\tb\\\\\\n\\r\t\\\\x00ff\t1.50\t2024-02-29 01:02:03.000004\t1970-01-01 00:00:00.000000Z\ttrue\ttask",
        "\\N\t\\\\x\t\\N\t\\N\t\\N\tfalse\ttask",
        "\\\\N\t\\N\t-0.01\t\\N\t\\N\t\\N\ttask",
        "",
    ]


def test_times_with_a_zone_are_in_utc() -> None:
    (found,) = values_of(times(0))
    assert found.isoformat() == "1970-01-01T00:00:00+00:00"


def test_odd_names_are_quoted() -> None:
    assert MYSQL.quoted("a`b%") == "`a``b%%`"
    assert POSTGRES.quoted('a"b%') == '"a""b%%"'
    assert MYSQL.on_conflict(["a`", "b"], ["b"]) == " ON DUPLICATE KEY UPDATE `a``` = VALUES(`a```)"
    assert POSTGRES.on_conflict(['a"', "b"], ["b"]) == ' ON CONFLICT ("b") DO UPDATE SET "a""" = EXCLUDED."a"""'
    assert MYSQL.on_conflict(["b"], ["b"]) == " ON DUPLICATE KEY UPDATE `b` = VALUES(`b`)"
    assert POSTGRES.on_conflict(["b"], ["b"]) == ' ON CONFLICT ("b") DO NOTHING'


def test_which_unique_indexes_do() -> None:
    place, none = Place("s", "t"), lambda *_: [("InnoDB",)]
    for dialect in (MYSQL, POSTGRES):
        dialect.check_table(none, place, ["a", "b"], [Index("p", ("b", "a"))])
        for indexes in ([], [Index("p", ("a",))], [Index("part", ())]):
            with pytest.raises(BacklogError, match="no unique index on exactly a, b"):
                dialect.check_table(none, place, ["a", "b"], indexes)
    others = [Index("p", ("a",)), Index("other", ("b", "c"))]
    POSTGRES.check_table(none, place, ["a"], others)
    with pytest.raises(BacklogError, match="also has the unique index other on b, c"):
        MYSQL.check_table(none, place, ["a"], others)
    with pytest.raises(BacklogError, match="has the engine MyISAM"):
        MYSQL.check_table(lambda *_: [("MyISAM",)], place, ["a"], others[:1])


def test_values_of_the_client_libraries_become_arrow_or_are_refused() -> None:
    utc, plus2 = datetime.UTC, datetime.timezone(datetime.timedelta(hours=2))
    noon = datetime.datetime(2020, 1, 1, 12)
    cases: list[tuple[pa.DataType, list[Any], list[Any]]] = [
        (pa.int64(), [Decimal("5.00"), -7, None], [5, -7, None]),
        (pa.bool_(), [1, 0, 2, True, None], [True, False, True, True, None]),
        (pa.decimal128(20, 4), [Decimal("1.50000"), Decimal(2**50), None], [Decimal("1.5"), Decimal(2**50), None]),
        (pa.timestamp("us", "UTC"), [noon, noon.replace(tzinfo=plus2)],
         [noon.replace(tzinfo=utc), datetime.datetime(2020, 1, 1, 10, tzinfo=utc)]),
        (pa.timestamp("us"), [noon], [noon]),
        (pa.string(), ["a ", "", None], ["a ", "", None]),
    ]  # fmt: skip
    for kind, given, expected in cases:
        assert array_of(given, kind).to_pylist() == expected
    wrong: list[tuple[pa.DataType, Any]] = [
        (pa.int64(), Decimal("0.5")), (pa.int64(), 2**63), (pa.int64(), Decimal("NaN")), (pa.int64(), Decimal("inf")),
        (pa.decimal128(3, 1), Decimal("1.55")), (pa.decimal128(3, 1), Decimal(1000)),
        (pa.decimal128(3, 1), Decimal("NaN")), (pa.date32(), "0000-00-00"), (pa.timestamp("us"), "0000-00-00 00:00:00"),
    ]  # fmt: skip
    for kind, value in wrong:
        with pytest.raises(ValueError, match=r".+"):
            array_of([value], kind)
