"""Parsing dates, times and timestamps. Expected values are Spark 4.2's, by ``from_json`` in the zone UTC."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.decode.temporal import (
    day_number,
    days_of,
    parse_date,
    parse_ntz,
    parse_time,
    parse_timestamp,
)
from backlog_spark.connectors.hybrid.decode.zones import offset_seconds, zone

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY = 18263  # 2020-01-02
MICROS = 1577934245000000  # 2020-01-02 03:04:05 UTC

# Text, as timestamp, as timestamp without time zone, as date.
TABLE = [
    ("2020-01-02T03:04:05Z", MICROS, None, DAY),
    ("2020-01-02 03:04:05", MICROS, MICROS, DAY),
    ("2020-01-02T03:04:05.123456789+02:00", 1577927045123456, None, DAY),
    ("2020-01-02T03:04:05.1", 1577934245100000, 1577934245100000, DAY),
    ("2020-01-02", 1577923200000000, 1577923200000000, DAY),
    ("2020-01", 1577836800000000, 1577836800000000, 18262),
    ("2020", 1577836800000000, 1577836800000000, 18262),
    ("2020-1-2 3:4:5", MICROS, MICROS, DAY),
    ("2020-01-02T03:04", 1577934240000000, 1577934240000000, DAY),
    ("2020-01-02T03", 1577934000000000, 1577934000000000, DAY),
    ("2020-01-02T", None, None, DAY),
    ("2020-01-02 ", 1577923200000000, 1577923200000000, DAY),
    ("2020-01-02T03:04:05 Europe/Berlin", 1577930645000000, None, DAY),
    ("2020-01-02T03:04:05CET", 1577930645000000, None, DAY),
    ("2020-01-02T03:04:05 PST", 1577963045000000, None, DAY),
    ("2020-01-02T03:04:05 EST", 1577952245000000, None, DAY),
    ("2020-01-02T03:04:05+0200", 1577927045000000, None, DAY),
    ("2020-01-02T03:04:05+02", 1577927045000000, None, DAY),
    ("2020-01-02T03:04:05+2", 1577927045000000, None, DAY),
    ("2020-01-02T03:04:05+2:30", 1577925245000000, None, DAY),
    ("2020-01-02 03:04:05+1:2", 1577930525000000, None, DAY),
    ("2020-01-02 03:04:05-1:02:03", 1577937968000000, None, DAY),
    ("2020-01-02 03:04:05+010203", 1577930522000000, None, DAY),
    ("2020-01-02T03:04:05+18:00", 1577869445000000, None, DAY),
    ("2020-01-02T03:04:05+18:01", None, None, DAY),
    ("2020-01-02T03:04:05UTC+02:00", 1577927045000000, None, DAY),
    ("2020-01-02 03:04:05 UTC+1:30", 1577928845000000, None, DAY),
    ("2020-01-02 03:04:05UTC0", None, None, DAY),
    ("2020-01-02 03:04:05Etc/GMT+5", 1577952245000000, None, DAY),
    ("2020-01-02 03:04:05 europe/berlin", None, None, DAY),
    ("2020-01-02T03:04:05posixrules", None, None, DAY),
    ("2020-01-02T03:04:05GMT+2", 1577927045000000, None, DAY),
    ("2020-01-02T03:04:05.123GMT-00:00", 1577934245123000, None, DAY),
    ("2020-01-02GMT", 1577923200000000, None, DAY),
    ("2020-01-02GMT-05:00", None, None, None),
    ("2020-01-02T24:00:00", None, None, DAY),
    ("2020-01-02T23:59:60", None, None, DAY),
    ("2020-02-29", 1582934400000000, 1582934400000000, 18321),
    ("2020-02-30", None, None, None),
    ("1900-02-29", None, None, None),
    ("+2020-01-02", 1577923200000000, 1577923200000000, DAY),
    ("-0001-01-01", -62198755200000000, -62198755200000000, -719893),
    ("0000-01-01", -62167219200000000, -62167219200000000, -719528),
    ("9999-12-31T23:59:59.999999Z", 253402300799999999, None, 2932896),
    ("10000-01-01", 253402300800000000, 253402300800000000, 2932897),
    ("294247-01-10T04:00:54.775807Z", 9223372036854775807, None, 106751991),
    ("294247-01-10T04:00:54.775808Z", None, None, 106751991),
    ("1234567-01-01", None, None, 450196810),
    ("9999999-01-01", None, None, None),
    ("2020-01-02T03:04:05z", None, None, DAY),
    (" 2020-01-02T03:04:05Z ", MICROS, None, DAY),
    ("\x002020-01-02\x7f", 1577923200000000, 1577923200000000, DAY),
    ("2020/01/02", None, None, None),
    ("", None, None, None),
    (" ", None, None, None),
    ("2020-01-02T03:04:05.", MICROS, MICROS, DAY),
    ("2020-01-02T03:04:05.Z", MICROS, None, DAY),
    ("2020-01-02T03:04:05,5", None, None, DAY),
    ("2020-01-02T03:04Z", None, None, DAY),
    ("2020-01-02Z", None, None, None),
    ("２020-01-02", None, None, None),
    ("2020-001-02", None, None, None),
    ("20-01-02", None, None, None),
    ("1969-12-31T23:59:59.999999Z", -1, None, -1),
    ("epoch", None, None, None),
]


@pytest.mark.parametrize(("text", "timestamp", "local", "day"), TABLE, ids=[repr(row[0]) for row in TABLE])
def test_text(text: str, timestamp: int | None, local: int | None, day: int | None) -> None:
    assert parse_timestamp(text, 0) == timestamp
    assert parse_ntz(text) == local
    assert parse_date(text) == day


@pytest.mark.parametrize("text", ["T12:00", "12:00:00", "12:00"])
def test_a_time_without_a_day_is_no_timestamp(text: str) -> None:
    assert parse_timestamp(text, 0) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("12:00:00", 43200), ("12:00", 43200), ("T12", 43200), ("0:0:1", 1), ("23:59:59.999999999", 86399.999999)],
)
def test_time(text: str, seconds: float) -> None:
    assert parse_time(text) == round(seconds * 10**6) * 1000


@pytest.mark.parametrize("text", ["24:00:00", "12", "12:60", "12:00:00Z", "2020-01-02 12:00:00", "", "-1:00"])
def test_no_time(text: str) -> None:
    assert parse_time(text) is None


# Local times in Europe/Berlin, America/New_York and Australia/Lord_Howe, as seconds since the epoch.
LOCAL = [
    ("2020-03-29 02:30:00", 1585445400, 1585463400, 1585409400),
    ("2020-10-25 02:30:00", 1603585800, 1603607400, 1603553400),
    ("2020-03-29 03:00:00", 1585443600, 1585465200, 1585411200),
    ("2020-10-25 03:00:00", 1603591200, 1603609200, 1603555200),
    ("1893-03-31 23:59:59", -2422054409, -2422033201, -2422089381),
    ("1800-01-01 00:00:00", -5364665608, -5364644638, -5364700580),
    ("0001-01-01 00:00:00", -62135600008, -62135579038, -62135634980),
    ("-0005-01-01 00:00:00", -62324988808, -62324967838, -62325023780),
    ("12000-07-01 00:00:00", 316531922400, 316531944000, 316531891800),
    ("2050-07-01 00:00:00", 2540239200, 2540260800, 2540208600),
    ("2020-01-02 03:04:05Z", 1577934245, 1577934245, 1577934245),
]


@pytest.mark.parametrize(("text", "berlin", "new_york", "lord_howe"), LOCAL, ids=[row[0] for row in LOCAL])
def test_local_times_that_are_skipped_repeated_or_long_ago(
    text: str, berlin: int, new_york: int, lord_howe: int
) -> None:
    for name, seconds in (
        ("Europe/Berlin", berlin),
        ("America/New_York", new_york),
        ("Australia/Lord_Howe", lord_howe),
    ):
        assert parse_timestamp(text, ZoneInfo(name)) == seconds * 10**6


@given(st.datetimes(timezones=st.sampled_from([UTC, ZoneInfo("Europe/Paris"), ZoneInfo("Asia/Kathmandu")])))
def test_what_python_writes(moment: datetime) -> None:
    local = moment.replace(tzinfo=None, fold=0)
    found = parse_timestamp(str(local), zone(str(moment.tzinfo)) or 0)
    offset = local.replace(tzinfo=moment.tzinfo).utcoffset() or timedelta()
    assert found == (local.replace(tzinfo=UTC) - EPOCH - offset) // timedelta(microseconds=1)
    assert parse_ntz(str(local)) == (local.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


@given(st.dates())
def test_days(day: date) -> None:
    assert days_of(day.year, day.month, day.day) == (day - date(1970, 1, 1)).days
    # The calendar is the same 400 years on, also beyond Python's.
    assert days_of(day.year + 8000, day.month, day.day) == (day - date(1970, 1, 1)).days + 20 * 146097


@pytest.mark.parametrize(
    ("text", "days"),
    [("0", 0), ("-5", -5), ("1577934245", 1577934245), ("2147483648", None), ("-141428", None), ("1e5", None)],
)
def test_a_day_as_a_number(text: str, days: int | None) -> None:
    assert day_number(text) == days


@pytest.mark.parametrize("name", ["", "+", "+19", "+1:60", "X", "../UTC", "Europe", "posix/UTC", "UTC+x", "+１"])
def test_no_zone(name: str) -> None:
    assert zone(name) is None


def test_offset_of_a_fixed_zone() -> None:
    assert offset_seconds(zone("-05:30") or 0, 12345, 1, 1, 0, 0, 0) == -19800
