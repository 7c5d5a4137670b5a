"""Columns of texts: parsing a whole column with Arrow equals parsing each text alone."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.decode.patterns import Pattern
from backlog_spark.connectors.hybrid.decode.texts import Formats, Texts, merged

from .plain import plain
from .records import COLUMNS, NUMBERS, TEXTS

SCALARS = [f.type for f in COLUMNS if not pa.types.is_nested(f.type)]
FORMATS = [
    Formats(),
    Formats(-19800),
    Formats(ZoneInfo("America/New_York")),
    Formats(
        0,
        Pattern("dateFormat", "dd/MM/yyyy", "date"),
        Pattern("timestampFormat", "yyyy-MM-dd HH:mm:ss.SSSXXX", "timestamp"),
        Pattern("timestampNTZFormat", "yyyy-MM-dd HH:mm:ss", "timestamp_ntz"),
    ),
    Formats(
        3600,
        Pattern("dateFormat", "yyyyMMdd", "date"),
        Pattern("timestampFormat", "dd.MM.yyyy HH:mm", "timestamp"),
        Pattern("timestampNTZFormat", "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]", "timestamp_ntz"),
    ),
]
texts = st.one_of(
    st.sampled_from([*TEXTS, *NUMBERS]),
    st.datetimes().map(str),
    st.datetimes().map(lambda t: t.isoformat(timespec="milliseconds") + "+02:00"),
    st.datetimes().map(lambda t: t.strftime("%d.%m.%Y %H:%M")),
    st.dates().map(str),
    st.dates().map(lambda d: d.strftime("%d/%m/%Y")),
    st.integers().map(str),
    st.floats().map(repr),
    st.decimals(places=2, min_value=-99999, max_value=99999).map(str),
)


@pytest.mark.slow
@pytest.mark.parametrize("formats", FORMATS, ids=repr)
@given(st.lists(st.one_of(st.none(), texts), max_size=60))
def test_many_are_as_one(formats: Formats, some: list[str | None]) -> None:
    for kind in SCALARS:
        reader = Texts(kind, formats, {"NaN": float("nan")})
        expected = [None if text is None else reader.one(text) for text in some]
        found, bad = reader.many(pa.array(some, pa.string()))
        assert found.type == kind
        assert plain(found) == plain(pa.array(expected, kind))
        flags = [text is not None and value is None for text, value in zip(some, expected, strict=True)]
        assert (flags if bad is None else bad.tolist()) == flags
        assert bad is None or any(flags)


def test_one_bad_text_does_not_lose_the_column() -> None:
    days = [f"2020-01-{1 + i % 31:02}" for i in range(1000)]
    days[500] = "2020-02-30"
    found, bad = Texts(pa.date32(), Formats()).many(pa.array(days))
    assert found.null_count == 1
    assert bad is not None
    assert bad.nonzero()[0].tolist() == [500]
    assert plain(found)[:2] == [18262, 18263]


def test_merged() -> None:
    found = merged(pa.array([1, 2, None, 4]), np.array([0, 2]), pa.array([None, 30]))
    assert found.to_pylist() == [None, 2, 30, 4]
