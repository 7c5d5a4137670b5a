"""Parsing numbers. Expected values are Spark 4.2's, by ``from_csv``."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.decode.numeric import (
    parse_bool,
    parse_decimal,
    parse_double,
    parse_float,
    parse_integer,
    to_float,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("+1", 1),
        ("-0", 0),
        ("１", 1),
        ("128", None),
        ("-128", -128),
        (" 1", None),
        ("1.0", None),
        ("1_0", None),
        ("0x10", None),
        ("1L", None),
        ("", None),
        ("+", None),
        ("--1", None),
        ("9" * 5000, None),
        ("𝟏", None),
    ],
)
def test_integer(text: str, value: int) -> None:
    assert parse_integer(text, 8) == value


@pytest.mark.parametrize("text", ["128", " 1", "1.0", "1_0", "0x10", "1L", "", "+", "--1", "9" * 5000, "𝟏"])
def test_no_integer(text: str) -> None:
    assert parse_integer(text, 8) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 1 ", 1.0), ("\t1\x00", 1.0), ("1d", 1.0), ("1F", 1.0), (".5", 0.5), ("5.", 5.0), ("+.5e+1", 5.0),
        ("0x1p3", 8.0), ("-0x1p9999", -math.inf), ("1e400", math.inf), ("Infinity", math.inf),
        ("-Infinity", -math.inf),
    ],
)  # fmt: skip
def test_double(text: str, value: float) -> None:
    assert parse_double(text) == value


@pytest.mark.parametrize("text", ["nan", "inf", "INF", "0x10", "1_0", "1e", "e1", ".", "", "１", "1L", "1 2", "true"])
def test_no_double(text: str) -> None:
    assert parse_double(text) is None
    assert parse_float(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16777217", 16777216.0),
        ("16777217.0000001", 16777218.0),
        ("1e39", math.inf),
        ("-1e39", -math.inf),
        ("1e-46", 0.0),
        ("340282356779733661637539395458142568447", 3.4028234663852886e38),
        ("340282356779733661637539395458142568448", math.inf),
        ("1.00000017881393421514957253748434595763683319091796875001", 1.0000001192092896),
    ],
)
def test_float_is_rounded_once(text: str, value: float) -> None:
    assert parse_float(text) == value


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30))
@example(Decimal("0.000000000000000000000000000000000000000000000700649232162408535461864791644958065640131"))
def test_float_is_the_nearest(number: Decimal) -> None:
    found = to_float(str(number))
    # The neighbours of 32 bits, by way of the distance between them.
    step = max(2.0 ** (math.frexp(found)[1] - 24), 2.0**-149)
    for other in (found - step / 2, found + step / 2, found - step, found + step):
        if to_float(repr(other)) == other:
            assert abs(Fraction(found) - Fraction(number)) <= abs(Fraction(other) - Fraction(number))


# Text, as decimal(6,2), as decimal(20,0).
DECIMALS = [
    ("1", "1.00", "1"), ("1.005", "1.01", "1"), ("-1.005", "-1.01", "-1"), ("1.004999", "1.00", "1"),
    ("9999.994", "9999.99", "10000"), ("9999.995", None, "10000"), ("10000", None, "10000"), ("0.5", "0.50", "1"),
    ("2.5", "2.50", "3"), ("1e3", "1000.00", "1000"), ("1E-3", "0.00", "0"), ("1,234.5", "1234.50", "1235"),
    ("1,,2", "12.00", "12"), ("+1", "1.00", "1"), (".5", "0.50", "1"), ("5.", "5.00", "5"), ("１", "1.00", "1"),
    ("0e999999999", "0.00", "0"), ("1e-400", "0.00", "0"), ("1e999999999", None, None), ("1e99999999999", None, None),
    ("99999999999999999999.5", None, None), ("99999999999999999999", None, "99999999999999999999"),
    ("1" + "0" * 60 + "e-60", "1.00", "1"), ("", None, None), (" 1", None, None), (",", None, None),
    ("NaN", None, None), ("1_0", None, None), ("0x1", None, None), ("1d", None, None), ("-", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "money", "whole"), DECIMALS, ids=[row[0] for row in DECIMALS])
def test_decimal(text: str, money: str | None, whole: str | None) -> None:
    assert parse_decimal(text, 6, 2) == (None if money is None else Decimal(money))
    assert parse_decimal(text, 20, 0) == (None if whole is None else Decimal(whole))


def test_a_decimal_that_fills_its_type() -> None:
    assert parse_decimal("0.95", 1, 1) is None
    assert parse_decimal("0.94", 1, 1) == Decimal("0.9")
    assert parse_decimal("9" * 38 + ".4", 38, 0) == Decimal("9" * 38)
    assert parse_decimal("9" * 38 + ".5", 38, 0) is None


def test_bool() -> None:
    assert [parse_bool(t) for t in ("true", "TRUE", "False", "t", "1", "yes", " true", "")] == [True, True, False] + [
        None
    ] * 5
