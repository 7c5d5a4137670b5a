"""Tables that are there already, types and values, and the rights of the user."""

from __future__ import annotations

import datetime
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types as st

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks import SinkContext
from backlog_spark.spi.examination import Severity

from .targets import LIVE, SCHEMA, STAGED, Target, batch, changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UTC = datetime.UTC
COLUMNS: list[tuple[st.DataType, list[Any]]] = [
    (st.BooleanType(), [True, False, None]),
    (st.ByteType(), [-128, 127, None]),
    (st.ShortType(), [-32768, 32767, None]),
    (st.IntegerType(), [-(2**31), 2**31 - 1, None]),
    (st.LongType(), [-(2**63), 2**63 - 1, None]),
    (st.DecimalType(20, 0), [Decimal(2**64 - 1), Decimal(0), None]),
    (
        st.DecimalType(38, 20),
        [Decimal("123456789012345678.12345678901234567891"), Decimal("-0.00000000012345678901"), None],
    ),
    (st.FloatType(), [0.1, -3.4e38, None]),
    (st.DoubleType(), [0.1, -1.7976931348623157e308, None]),
    (st.StringType(), ["ä😀\\'\"\n\t%s\x01", "", None]),
    (st.BinaryType(), [bytearray([0, 255, *range(1, 250)]), bytearray(), None]),
    (st.DateType(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]),
    (
        st.TimestampType(),
        [datetime.datetime(1970, 1, 2, 3, 4, 5, 6, UTC), datetime.datetime(2037, 12, 31, tzinfo=UTC), None],
    ),
    (
        st.TimestampNTZType(),
        [datetime.datetime(1, 1, 1, 0, 0, 0, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999), None],
    ),
]
ALL = st.StructType(
    [st.StructField("id", st.LongType()), *(st.StructField(f"c{n}", k) for n, (k, _) in enumerate(COLUMNS))]
)
PLAIN: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": []}


def plain(value: Any) -> Any:
    """A value as both clients may show it."""
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return bytes(value) if isinstance(value, bytearray) else value


@pytest.mark.parametrize("road", [STAGED, LIVE], ids=["staged", "live"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_values_of_all_types(spark: SparkSession, target: Target, road: bool, zone: str) -> None:
    rows = [(row, *(values[row] for _, values in COLUMNS)) for row in range(3)]
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    sink = target.sink(**PLAIN)
    context = {**target.context(session), "schema": ALL, "key_is_unique_in_backlog": False}
    sink.open(SinkContext(**context))
    sink.write(session.createDataFrame(rows, ALL), batch(0, road))
    # MySQL shows six digits of a FLOAT, but computes with all.
    names = [f"{f.name} + 0e0" if f.dataType == st.FloatType() and not target.is_postgres else f.name for f in ALL]
    found = sorted(target.run(f"SELECT {', '.join(names)} FROM t"))
    for expected, row in zip(rows, found, strict=True):
        for (kind, _), value, wanted in zip(COLUMNS, row[1:], expected[1:], strict=True):
            if isinstance(kind, st.FloatType) and wanted is not None:
                assert value == pytest.approx(wanted, rel=1e-7)
            else:
                assert plain(value) == plain(wanted), kind
    # Each type can be a key, except floats.
    keys = [f.name for f in ALL if not isinstance(f.dataType, st.FloatType | st.DoubleType | st.BooleanType)]
    for name in keys:
        other = target.sink(f"by_{name}", keys=[name], **PLAIN)
        other.open(SinkContext(**{**context, "txn_app_id": name}))
    by = target.sink("by", keys=["c6", "c9", "c10", "c12", "c13"], **PLAIN)
    by.open(SinkContext(**{**context, "txn_app_id": "by"}))
    for number in range(2):
        by.write(session.createDataFrame(rows[:2], ALL), batch(number, road))
    assert target.rows("by", "id") == Counter([(0,), (1,)])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (st.ArrayType(st.LongType()), "The column v is array<bigint>"),
        (st.StructType().add("x", st.LongType()), "The column v is struct<x:bigint>"),
        (st.MapType(st.StringType(), st.LongType()), "The column v is map<string,bigint>"),
        (st.DayTimeIntervalType(), "The column v is interval day to second"),
    ],
)
def test_nested_types_are_refused_by_name(spark: SparkSession, target: Target, kind: st.DataType, said: str) -> None:
    schema = st.StructType().add("id", st.LongType()).add("v", kind)
    with pytest.raises(BacklogError, match=said):
        target.sink(**PLAIN).open(SinkContext(**{**target.context(spark), "schema": schema}))
    assert target.tables() == set()


def test_float_keys_are_refused(spark: SparkSession, target: Target) -> None:
    schema = st.StructType().add("id", st.DoubleType())
    with pytest.raises(BacklogError, match="The key id is double"):
        target.sink(**PLAIN).open(SinkContext(**{**target.context(spark), "schema": schema}))


# Statements, and what `open` says of the table for (id BIGINT, name STRING) by id.
UNFIT = [
    (["CREATE TABLE t (id BIGINT PRIMARY KEY)"], "has no column name"),
    (["CREATE TABLE t (id BIGINT, name VARCHAR(20))"], "no primary key and no unique index on exactly id"),
    (["CREATE TABLE t (id BIGINT, name VARCHAR(20), PRIMARY KEY (id, name))"], "no unique index on exactly id"),
    (["CREATE TABLE t (id BIGINT PRIMARY KEY, name INT)"], "The column name of .* is int"),
    (
        ["CREATE TABLE t (id VARCHAR(20) PRIMARY KEY, name VARCHAR(20))"],
        r"The column id of \S+ is (varchar|character)",
    ),
    (
        ["CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20), more INT NOT NULL)"],
        "The column more .* must have a value",
    ),
    (
        ["CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20) GENERATED ALWAYS AS ('x') STORED)"],
        "The server alone writes the column name",
    ),
]


@pytest.mark.parametrize(("statements", "said"), UNFIT)
def test_a_table_that_does_not_fit_is_refused(
    spark: SparkSession, target: Target, statements: list[str], said: str
) -> None:
    for statement in statements:
        target.run(statement)
    with pytest.raises(BacklogError, match=said):
        target.opened(spark)
    assert target.tables() == {"t"}


def test_indexes_that_an_upsert_could_hit(spark: SparkSession, target: Target) -> None:
    target.run("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20) UNIQUE)")
    if target.is_postgres:
        sink = target.opened(spark)
        sink.write(changes(spark, (1, "a", "insert", 0), (2, "b", "insert", 0)), batch(0, STAGED))
        with pytest.raises(BacklogError, match="duplicate key value"):
            sink.write(changes(spark, (3, "a", "insert", 1)), batch(1, LIVE))
        # A value may move from a deleted row to a new one.
        sink.write(changes(spark, (1, "a", "delete", 1), (3, "a", "insert", 2)), batch(1, LIVE))
        assert target.rows() == Counter([(3, "a"), (2, "b")])
        return
    with pytest.raises(BacklogError, match="also has the unique index name on name"):
        target.opened(spark)
    target.run("DROP INDEX name ON t")
    sink = target.opened(spark)
    target.run("CREATE UNIQUE INDEX later ON t (name)")
    with pytest.raises(BacklogError, match="also has the unique index later"):
        sink.write(changes(spark, (1, "a", "insert", 0)), batch(0))
    assert target.rows() == Counter()


def test_indexes_of_a_part_are_no_keys(spark: SparkSession, target: Target) -> None:
    if target.is_postgres:
        target.run("CREATE TABLE t (id BIGINT, name TEXT)")
        target.run("CREATE UNIQUE INDEX part ON t (id) WHERE id > 5")
        target.run("CREATE UNIQUE INDEX made ON t ((id + 1))")
        target.run("ALTER TABLE t ADD CONSTRAINT late UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
        keys = ["id"]
    else:
        target.run("CREATE TABLE t (id BIGINT, name VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)")
        target.run("CREATE UNIQUE INDEX part ON t (name(3))")
        keys = ["name"]
    with pytest.raises(BacklogError, match="no unique index on exactly"):
        target.opened(spark, keys=keys)


def test_texts_that_are_equal_there_are_no_keys(spark: SparkSession, target: Target) -> None:
    if target.is_postgres:
        target.run("CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        target.run("CREATE TABLE t (id BIGINT, name TEXT COLLATE loose PRIMARY KEY)")
    else:
        target.run(
            "CREATE TABLE t (id BIGINT, name VARCHAR(50) COLLATE utf8mb4_general_ci PRIMARY KEY) CHARSET utf8mb4"
        )
    with pytest.raises(BacklogError, match=r"The key name of .* has the collation"):
        target.opened(spark, keys=["name"])


@pytest.mark.parametrize("road", [STAGED, LIVE], ids=["staged", "live"])
def test_values_that_do_not_fit_fail_and_write_nothing(spark: SparkSession, target: Target, road: bool) -> None:
    zoned = "TIMESTAMP(3) WITH TIME ZONE" if target.is_postgres else "TIMESTAMP(3) NULL"
    target.run(
        f"CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR(3), d DECIMAL(4,2), z {zoned}, extra VARCHAR(9) DEFAULT 'kept')"
    )
    schema = (
        st.StructType().add("id", st.LongType()).add("s", st.StringType()).add("d", st.DecimalType(10, 2))
        .add("z", st.TimestampType())
    )  # fmt: skip
    sink = target.sink(**PLAIN)
    sink.open(SinkContext(**{**target.context(spark), "schema": schema}))
    at = datetime.datetime(2024, 1, 1, 0, 0, 0, 123000, UTC)
    good = (1, "äöü", Decimal("99.99"), at)
    sink.write(spark.createDataFrame([good, (2, None, None, None)], schema), batch(0, road))
    for row in (
        (3, "abcd", None, None),
        (3, "abc ", None, None),
        (3, None, Decimal("100.00"), None),
        (3, None, None, at.replace(microsecond=1)),
        (2**31, None, None, None),
    ):
        with pytest.raises(Exception, match=r"[Oo]ut of range|longer than 3|more than 3 digits|overflow"):
            sink.write(spark.createDataFrame([(1, "new", None, None), row], schema), batch(1, road))
    assert target.rows(columns="id, s, extra") == Counter([(1, "äöü", "kept"), (2, None, "kept")])
    assert [row[2] for row in target.marks()] == [0]


def test_blanks_at_the_end_of_a_key(spark: SparkSession, target: Target) -> None:
    """MySQL 8.0.15 has no collation that compares bytes and keeps blanks apart."""
    schema = st.StructType().add("k", st.StringType())
    sink = target.sink(keys=["k"], **PLAIN)
    sink.open(SinkContext(**{**target.context(spark), "schema": schema}))
    rows = spark.createDataFrame([("a",), ("a ",)], schema)
    if target.scheme == "mysql":
        with pytest.raises(BacklogError, match="the value of k in the row with k = 'a ' ends with a blank"):
            sink.write(rows, batch(0))
        return
    sink.write(rows, batch(0))
    assert target.rows(columns="k") == Counter([("a",), ("a ",)])


def test_tables_without_transactions_are_refused(spark: SparkSession, target: Target) -> None:
    if target.is_postgres:
        target.run("CREATE VIEW t AS SELECT 1 AS id, 'a' AS name")
        said = "already exists"
    else:
        target.run("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20)) ENGINE=MyISAM")
        said = "has the engine MyISAM"
    with pytest.raises(BacklogError, match=said):
        target.opened(spark)


def user_of(target: Target, name: str, *rights: str) -> dict[str, Any]:
    """A user with a password and some rights; its arguments for a sink."""
    name = f"{name}_{target.database}"
    if target.is_postgres:
        target.run(f"CREATE USER {name} PASSWORD 's3cret'")
        on_table = [right for right in rights if right != "CREATE"]
        target.run(f"GRANT {', '.join(on_table)} ON t TO {name}")
        target.run(f'GRANT SELECT, INSERT, UPDATE ON "_backlog_spark_marks" TO {name}')
        if "CREATE" in rights:
            target.run(f"GRANT CREATE ON SCHEMA public TO {name}")
        return {"user": name, "password": "s3cret"}
    target.run(f"CREATE USER {name} IDENTIFIED BY 's3cret'")
    target.run(f"GRANT {', '.join(rights)}, DROP ON {target.database}.* TO {name}")
    return {"user": name, "password": "s3cret", "allow_public_key_retrieval": True}


RIGHTS = ["SELECT", "INSERT", "UPDATE", "DELETE", "CREATE"]


@pytest.mark.parametrize("lacks", RIGHTS)
def test_a_user_without_a_right_is_refused_at_the_start(spark: SparkSession, target: Target, lacks: str) -> None:
    target.opened(spark, context={"txn_app_id": "first"})
    user = user_of(target, "poor", *(right for right in RIGHTS if right != lacks))
    with pytest.raises(BacklogError) as raised:
        target.opened(spark, **user)
    assert "s3cret" not in str(raised.value)
    assert "grant the rights that docs/databases.md lists" in str(raised.value)
    assert target.marks() == []
    (finding,) = target.sink(**user).examine()
    assert finding.severity is Severity.ERROR
    rich = user_of(target, "rich", *RIGHTS)
    sink = target.opened(spark, **rich)
    sink.write(changes(spark, (1, "a", "insert", 0)), batch(0, STAGED))
    sink.write(changes(spark, (1, "a", "delete", 1)), batch(1, LIVE))
    assert target.rows() == Counter()
    for name in (user["user"], rich["user"]):
        if target.is_postgres:
            target.run(f"DROP OWNED BY {name}")
        target.run(f"DROP USER {name}")


def test_servers_that_cannot_be_reached(spark: SparkSession, target: Target) -> None:
    from servers.server import free_port

    for more, said in (
        ({"url": f"{target.scheme}://127.0.0.1:{free_port()}/{target.database}"}, "cannot be reached"),
        ({"user": "nobody", "password": "s3cret", "allow_public_key_retrieval": True}, "refuses user 'nobody'"),
        ({"url": target.url + "x"}, "refuses|Unknown database|does not exist"),
    ):
        with pytest.raises(BacklogError, match=said) as raised:
            target.opened(spark, **more)
        assert "s3cret" not in str(raised.value)
        (finding,) = target.sink(**more).examine()
        assert finding.severity is Severity.ERROR
        assert "s3cret" not in f"{finding}"


def test_columns_that_the_stream_lacks(spark: SparkSession, target: Target) -> None:
    with pytest.raises(SettingError, match="JdbcUpsert sequence = 'at': the stream has no such column"):
        target.opened(spark, sequence="at")
    with pytest.raises(SettingError, match="there is no column 'key' to store"):
        target.opened(spark, keys=["key"])
    sink = target.sink()
    results = st.StructType(SCHEMA.fields[:2])
    sink.open(SinkContext(**{**target.context(spark), "schema": results, "rows_are_results": True}))
    sink.write(spark.createDataFrame([(1, "a")], results), batch(0))
    assert target.rows() == Counter([(1, "a")])


def test_what_an_examination_finds(spark: SparkSession, target: Target) -> None:
    (finding,) = target.sink().examine()
    assert (finding.severity, "is not there: the first start creates it" in finding.problem) == (Severity.OK, True)
    assert target.tables() == set()
    target.opened(spark)
    (finding,) = target.sink().examine()
    assert (finding.severity, finding.problem.endswith("can be written.")) == (Severity.OK, True)
    (finding,) = target.sink(keys=["name"]).examine()
    assert (finding.severity, "no unique index on exactly name" in finding.problem) == (Severity.ERROR, True)
    (finding,) = target.sink(keys=["key"]).examine()
    assert "lacks a column of keys; it has id, name" in finding.problem
    assert target.tables() == {"t", "_backlog_spark_marks"}
