"""Flink's group windows and functions: their results are those of Flink's documentation, worked out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import SparkRuntimeException

from backlog_spark.pipelines.sql_names import unknown_names
from backlog_spark.streamsql.flink_forms import FLINK_FUNCTIONS, rewrite
from backlog_spark.streamsql.parsing import parsed
from backlog_spark.streamsql.refusals import SqlError
from backlog_spark.streamsql.rows import text_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = "INTERVAL '{}' SECOND"
TWO, TEN = SECONDS.format(2), SECONDS.format(10)

WINDOWS = {
    f"TUMBLE(at, {TEN})": f"window(at, {TEN})",
    f"tumble_start(a.at, {TEN})": f"window(a.at, {TEN}).start",
    f"TUMBLE(at, {TEN}, {TWO})": f"window(at, {TEN}, {TEN}, {TWO})",
    f"HOP(at, {TWO}, {TEN})": f"window(at, {TEN}, {TWO})",
    f"HOP_END(at, {TWO}, {TEN})": f"window(at, {TEN}, {TWO}).end",
    f"SESSION(at, {TEN})": f"session_window(at, {TEN})",
    f"SESSION_ROWTIME(at, {TEN})": f"window_time(session_window(at, {TEN}))",
    f"upper(concat(CAST(TUMBLE_END(at, {TEN}) AS STRING), 'x'))": (
        f"UPPER(CONCAT(CAST(window(at, {TEN}).end AS STRING), 'x'))"
    ),
}

VALUES = {
    "SPLIT_INDEX('https://a.b/dir1/dir2', '/', 3)": "dir1",
    "SPLIT_INDEX('a.b.c', '.', 0)": "a",
    "SPLIT_INDEX('a.b.c', '.', 3)": None,
    "SPLIT_INDEX('a.b.c', '.', -1)": None,
    "SPLIT_INDEX('a||', '||', 1)": "",
    "SPLIT_INDEX('', '/', 0)": None,
    "SPLIT_INDEX(NULL, '/', 0)": None,
    "SHA224('')": "d14a028c2a3a2bc9476102bb288234c415a2b01f828ea62ac5b3e42f",
    "SHA256('abc')": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    "length(SHA384('abc')) + length(SHA512('abc'))": 96 + 128,
    "JSON_VALUE('{\"a\": {\"b\": 2}}', '$.a.b')": "2",
    "JSON_VALUE('{}', '$.a')": None,
    "TO_BASE64(FROM_BASE64('aGk='))": "aGk=",
    "SPLIT_INDEX(SPLIT_INDEX('a.b,c.d', '.', 1), ',', 0)": "b",
    "CAST(timestampadd(DAY, timestampdiff(DAY, DATE'2026-01-01', DATE'2026-01-03'), DATE'2026-01-01') AS STRING)": (
        "2026-01-03 00:00:00"
    ),
    "TO_BASE64('hello world')": "aGVsbG8gd29ybGQ=",
    "FROM_BASE64('aGVsbG8gd29ybGQ=')": "hello world",
    "CONVERT_TZ('1970-01-01 00:00:00', 'UTC', 'America/Los_Angeles')": "1969-12-31 16:00:00",
    "unix_millis(TO_TIMESTAMP_LTZ(1700000000123, 3))": 1_700_000_000_123,
    "unix_millis(TO_TIMESTAMP_LTZ(1700000000, 0))": 1_700_000_000_000,
    "CURRENT_ROW_TIMESTAMP() = current_timestamp()": True,
    "timestampdiff(MINUTE, TIMESTAMP'2026-01-01 00:00:00', TIMESTAMP'2026-01-01 02:03:59')": 123,
    "CAST(timestampadd(HOUR, -1, TIMESTAMP'2026-01-01 00:00:00') AS STRING)": "2025-12-31 23:00:00",
}


def spelled(expression: str, of_session: tuple[str, ...] = ()) -> str:
    statement, tree = parsed(f"SELECT {expression} FROM t")
    rewrite(statement, tree, lambda name: name in of_session)
    return text_of(tree.expressions[0])


@pytest.mark.parametrize("written", WINDOWS)
def test_group_windows_are_windows_of_spark(written: str) -> None:
    assert spelled(written).lower() == spelled(WINDOWS[written]).lower()


@pytest.mark.parametrize("written", VALUES)
def test_functions(spark: SparkSession, written: str) -> None:
    row = spark.sql(f"SELECT {spelled(written)}").first()
    assert row is not None
    assert row[0] == VALUES[written]


@pytest.mark.parametrize(("precision", "left"), [(0, 0), (1, 900_000), (3, 987_000), (5, 987_650), (6, 987_654)])
@pytest.mark.parametrize("year", [1969, 2026])
def test_precisions_of_times(spark: SparkSession, precision: int, left: int, year: int) -> None:
    """A cast to TIMESTAMP(p) cuts, also before 1970."""
    statement, tree = parsed(f"SELECT CAST('{year}-05-01 00:00:07.987654' AS TIMESTAMP({precision})) FROM t", "flink")
    rewrite(statement, tree, lambda name: False, "flink")
    row = spark.sql(f"SELECT CAST({text_of(tree.expressions[0])} AS STRING) AS s").first()
    assert row is not None
    assert row["s"] == f"{year}-05-01 00:00:07.{left:06}".rstrip("0").rstrip(".")


def test_a_precision_that_flink_does_not_have(spark: SparkSession) -> None:
    with pytest.raises(SparkRuntimeException, match="the precision must be 0 or 3"):
        spark.sql(f"SELECT {spelled('TO_TIMESTAMP_LTZ(1, 6)')}").collect()


def test_each_function_has_a_value() -> None:
    assert {name for name in FLINK_FUNCTIONS if any(name in text for text in VALUES)} == set(FLINK_FUNCTIONS)


def test_a_function_of_the_session_goes_first() -> None:
    assert spelled("SPLIT_INDEX(a, 'x')", ("SPLIT_INDEX",)) == "SPLIT_INDEX(a, 'x')"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("split_index(a, '/')", "column 8: SPLIT_INDEX takes 3 arguments, found 2."),
        (f"HOP_START(at, {TEN})", "HOP_START takes 3 arguments, found 2. Write HOP_START(at, slide, size)."),
        (f"TUMBLE_PROCTIME(at, {TEN})", "windows of processing time are not supported. Use TUMBLE_ROWTIME."),
    ],
)
def test_refused(written: str, told: str) -> None:
    with pytest.raises(SqlError) as caught:
        spelled(written)
    assert told in str(caught.value)


def test_table_functions_stay() -> None:
    text = f"SELECT window_start FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(at), {TEN})) GROUP BY window_start, window_end"
    statement, tree = parsed(text)
    before = text_of(tree)
    rewrite(statement, tree, lambda _: False)
    assert text_of(tree) == before


def test_check_knows_them() -> None:
    query = (
        f"SELECT split_index(b, '/', 1) AS d, HOP_END(at, {TWO}, {TEN}) AS e, timestampdiff(DAY, at, at) AS f FROM t"
    )
    assert unknown_names(query, {"t": ["at", "b"]})[0] == []
