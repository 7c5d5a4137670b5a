"""Columns whose values are in directory names."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from backlog_spark.connectors.hybrid.files.partitioning import constant, inferred_type, values_in
from backlog_spark.errors import BacklogError


def test_values_are_unquoted_and_null_has_a_name_of_its_own() -> None:
    path = "/a=x%2Fy/sub/b%3Dc=1 2/d=__HIVE_DEFAULT_PARTITION__/e=/part=0.parquet"
    assert values_in(path) == (("a", "x/y"), ("b=c", "1 2"), ("d", None), ("e", ""))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-7", None], pa.int32()),
        (["1", "2147483648"], pa.int64()),
        (["-2147483648"], pa.int32()),
        (["1", "9223372036854775808"], pa.float64()),
        (["1", "2.5", "1e3"], pa.float64()),
        (["2024-01-31", "2024-02-29"], pa.date32()),
        (["2024-01-31", "2024-02-30"], pa.string()),
        (["1", "a"], pa.string()),
        ([None], pa.string()),
        (["1", ""], pa.string()),
    ],
)
def test_types_are_inferred_from_all_values(values: list[str | None], kind: pa.DataType) -> None:
    assert inferred_type(values) == kind


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("7", pa.int8(), 7),
        ("7", pa.string(), "7"),
        ("7", pa.binary(), b"7"),
        ("1.50", pa.decimal128(10, 2), Decimal("1.50")),
        ("true", pa.bool_(), True),
        ("2024-01-31", pa.date32(), date(2024, 1, 31)),
        ("2024-01-31 12:00:00.5", pa.timestamp("us"), datetime(2024, 1, 31, 12, 0, 0, 500_000)),
        ("2024-01-31 12:00:00", pa.timestamp("us", "UTC"), datetime(2024, 1, 31, 12, tzinfo=UTC)),
        ("2024-01-31T12:00:00+02:00", pa.timestamp("us", "UTC"), datetime(2024, 1, 31, 10, tzinfo=UTC)),
        (None, pa.int32(), None),
    ],
)
def test_a_value_has_the_declared_type(text: str | None, kind: pa.DataType, value: object) -> None:
    give = constant("f", pa.field("c", kind), text)
    for rows in (2, 5, 0, 3):
        made = give(rows)
        assert made.type == kind
        assert made.to_pylist() == [value] * rows


@pytest.mark.parametrize(("text", "kind"), [("x", pa.int32()), ("300", pa.int8()), ("2024-13-01", pa.date32())])
def test_a_value_of_another_type(text: str, kind: pa.DataType) -> None:
    with pytest.raises(BacklogError, match=re.escape(f"dir/f: the directory says c={text}, which is not {kind}")):
        constant("dir/f", pa.field("c", kind), text)
