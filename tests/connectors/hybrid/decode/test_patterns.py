"""Java's date patterns. Expected values are Spark 4.2's, by ``from_json`` in the zone UTC."""

from __future__ import annotations

import pickle

import pytest

from backlog_spark.connectors.hybrid.decode.patterns import Pattern
from backlog_spark.errors import SettingError

MICROS = 1577934245000000  # 2020-01-02 03:04:05

TIMESTAMPS = [
    ("yyyy-MM-dd HH:mm:ss", "2020-01-02 03:04:05", MICROS),
    ("yyyy-MM-dd HH:mm:ss", "2020-1-2 3:4:5", None),
    ("yyyy-MM-dd HH:mm:ss", " 2020-01-02 03:04:05", None),
    ("yyyy-MM-dd HH:mm:ss", "2020-01-02 03:04:05.5", None),
    ("yyyy-MM-dd HH:mm:ss", "2020-01-02", None),
    ("yyyy-MM-dd HH:mm:ss", "+12020-01-02 03:04:05", 317147454245000000),
    ("yyyy-MM-dd HH:mm:ss", "12020-01-02 03:04:05", None),
    ("yyyy-MM-dd HH:mm:ss", "-2020-01-02 03:04:05", -125912177755000000),
    ("yyyy-MM-dd HH:mm:ss", "2020-02-30 03:04:05", None),
    ("yyyy-MM-dd HH:mm:ss", "2020-01-02 24:00:00", None),
    ("yyyy-MM-dd HH:mm:ss", "２020-01-02 03:04:05", None),
    ("y-M-d H:m:s", "2020-001-02 03:04:05", MICROS),
    ("y-M-d H:m:s", "20-1-2 3:4:5", -61535969755000000),
    ("y-M-d H:m:s", "-5-1-2 3:4:5", -62324888155000000),
    ("y-M-d H:m:s", "+20-1-2 3:4:5", None),
    ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2020-01-02T03:04:05.123Z", MICROS + 123000),
    ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2020-01-02T03:04:05.1Z", MICROS + 100000),
    ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2020-01-02T03:04:05.1234Z", None),
    ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2020-01-02T03:04:05.Z", None),
    ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2020-01-02T03:04:05.123+02:00", 1577927045123000),
    ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2020-01-02T03:04:05.123+0200", None),
    ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2020-01-02t03:04:05.123z", MICROS + 123000),
    ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2020-01-02T03:04:05.123+18:30", None),
    ("yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]", "2020-01-02T03:04:05.123456Z", MICROS + 123456),
    ("yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]", "2020-01-02T03:04:05", MICROS),
    ("yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]", "2020-01-02T03:04:05+01:00", 1577930645000000),
    ("yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]", "2020-01-02T03:04:05.", None),
    ("yyyyMMddHHmmss", "20200102030405", MICROS),
    ("yyyyMMddHHmmss", "2020010203040", None),
    ("yyyyMMddHHmmss", "120200102030405", None),
    ("yyyy-MM-dd HH:mm:ss.SSSSSSSSS", "2020-01-02 03:04:05.123456789", MICROS + 123456),
    ("yyyy-MM-dd HH:mm:ss,SSS", "2020-01-02 03:04:05,123", MICROS + 123000),
    ("yyyy-MM-dd HH:mm:ssX", "2020-01-02 03:04:05+0230", 1577925245000000),
    ("yyyy-MM-dd HH:mm:ssX", "2020-01-02 03:04:05+02", 1577927045000000),
    ("yyyy-MM-dd HH:mm:ssX", "2020-01-02 03:04:05+02:30", None),
    ("yyyy-MM-dd HH:mm:ssXX", "2020-01-02 03:04:05+02", None),
    ("yyyy-MM-dd HH:mm:ssZ", "2020-01-02 03:04:05+0230", 1577925245000000),
    ("yyyy-MM-dd HH:mm:ssZ", "2020-01-02 03:04:05Z", None),
    ("yyyy-MM-dd HH:mm:ssVV", "2020-01-02 03:04:05Europe/Berlin", 1577930645000000),
    ("yyyy-MM-dd HH:mm:ssVV", "2020-01-02 03:04:05GMT+02:00", 1577927045000000),
    ("MM/dd/yyyy hh:mm:ss a", "01/02/2020 03:04:05 pm", 1577977445000000),
    ("MM/dd/yyyy hh:mm:ss a", "01/02/2020 12:04:05 AM", 1577923445000000),
    ("MM/dd/yyyy hh:mm:ss a", "01/02/2020 13:04:05 AM", None),
    ("MM/dd/yyyy hh:mm:ss a", "01/02/2020 00:04:05 AM", None),
    ("dd MMM yyyy HH:mm", "02 JAN 2020 03:04", 1577934240000000),
    ("dd MMM yyyy HH:mm", "02 January 2020 03:04", None),
    ("yy-MM-dd", "99-01-02", 4070995200000000),
    ("HH:mm:ss", "03:04:05", 11045000000),
    ("yyyy", "2020", 1577836800000000),
    ("dd.MM.", "02.05.", 10454400000000),
    ("yyyy-MM-dd''HH", "2020-01-02'03", 1577934000000000),
    ("yyyy-MM-dd 'o''clock' HH", "2020-01-02 O'CLOCK 03", 1577934000000000),
    ("yyyy-MM-dd[ HH[:mm]]", "2020-01-02 03", 1577934000000000),
    ("yyyy-MM-dd[ HH[:mm]]", "2020-01-02 ", None),
]

DATES = [
    ("dd/MM/yyyy", "02/01/2020", 18263),
    ("dd/MM/yyyy", "2/1/2020", None),
    ("dd/MM/yyyy", "31/02/2020", None),
    ("yyyyMMdd", "20200102", 18263),
    ("d.M.y", "02.01.2020", 18263),
    ("yyyy-MM-dd", "2020-1-2", None),
    ("yyyy-MM-dd", "18000", None),
    ("MMM d, yyyy", "Jan 2, 2020", 18263),
    ("yyyy-MM-dd HH:mm", "2020-01-02 03:04", 18263),
    ("yy/M/d", "20/1/2", 18263),
    ("yyyy", "2020", 18262),
    ("MM-dd", "05-06", 125),
]


@pytest.mark.parametrize(("pattern", "text", "micros"), TIMESTAMPS)
def test_timestamps(pattern: str, text: str, micros: int | None) -> None:
    assert Pattern("timestampFormat", pattern, "timestamp").timestamp(text, 0) == micros


@pytest.mark.parametrize(("pattern", "text", "days"), DATES)
def test_dates(pattern: str, text: str, days: int | None) -> None:
    assert Pattern("dateFormat", pattern, "date").date(text) == days


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("yyyy-MM-dd EEE", "'EEE' is not supported"),
        ("uuuu", "'uuuu' is not supported"),
        ("yyyyy", "'yyyyy' is not supported"),
        ("yyyy#", "'#' is not supported"),
        ("yyyy MM yyyy", "repeats a field"),
        ("MM MMM", "repeats a field"),
        ("yyyyMMddHHmmssSSS", "follows another number"),
        ("[yyyy", "a [ is not closed"),
        ("yyyy]", "']' is not supported"),
        ("yyyy'T", '"\'" is not supported'),
        ("hh:mm", "h and a must be used together"),
        ("HH a", "h and a must be used together"),
        ("", "it has no field"),
        ("'text'", "it has no field"),
    ],
)
def test_what_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(SettingError) as caught:
        Pattern("timestampFormat", pattern, "timestamp")
    assert why in str(caught.value)
    assert caught.value.setting == "timestampFormat"


def test_a_local_timestamp_has_no_zone() -> None:
    with pytest.raises(SettingError, match="cannot have one"):
        Pattern("timestampNTZFormat", "yyyy-MM-dd HH:mm:ssXXX", "timestamp_ntz")


def test_pickle() -> None:
    pattern = Pattern("dateFormat", "dd/MM/yyyy", "date")
    again = pickle.loads(pickle.dumps(pattern))
    assert again == pattern
    assert hash(again) == hash(pattern)
    assert again.date("02/01/2020") == 18263
