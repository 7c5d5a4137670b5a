"""Text in other encodings than UTF-8."""

from __future__ import annotations

import codecs
import io

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.files.encodings import Transcoder, as_utf8, is_bytewise, known_encoding
from backlog_spark.connectors.hybrid.files.records import lines
from backlog_spark.connectors.hybrid.phases import Columns

from .decoding import CsvLines, JsonLines
from .reading import bag, rows_of
from .test_phase import directory
from .test_text import SCHEMA, json_lines, phase

BYTEWISE = ["ISO-8859-1", "windows-1252", "US-ASCII", "koi8-r", "UTF8"]
OTHERS = ["UTF-16", "UTF-16LE", "UTF-16BE", "UTF-32", "Shift_JIS", "GBK", "cp037"]
TEXTS = st.lists(st.sampled_from(["", "a", "ü", "Ж", "日本", "😀", "€", "ਊ", "x" * 90]), max_size=6).map("".join)


@pytest.mark.parametrize("name", [*BYTEWISE, *OTHERS])
def test_only_bytes_that_are_characters_are_split(name: str) -> None:
    found = known_encoding(name)
    assert found is not None
    assert is_bytewise(found) == (name in BYTEWISE)


@pytest.mark.parametrize("name", ["base64", "rot13", "zlib", "undefined", "latin-77", "", "a\0b"])
def test_what_is_no_encoding_of_text(name: str) -> None:
    assert known_encoding(name) is None


def fitting(text: str, encoding: str) -> str:
    """The text as it comes back from an encoding that lacks some of its characters."""
    return text.encode(encoding, "replace").decode(encoding)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(TEXTS, max_size=30), min_size=1, max_size=3),
    st.sampled_from([*BYTEWISE, *OTHERS]),
    st.sampled_from([None, 1, 7]),
    st.sampled_from(["json", "csv", "csv of lines"]),
)
def test_every_row_once_in_any_encoding(files: list[list[str]], encoding: str, limit: int | None, form: str) -> None:
    with directory() as root:
        (root / "data").mkdir()
        written = []
        for number, texts in enumerate(files):
            fits = [fitting(text, encoding) for text in texts]
            rows = [{"id": number * 100 + i, "name": text or None} for i, text in enumerate(fits)]
            if form == "json":
                data = json_lines(rows).decode()
            else:
                data = "id,name\n" + "".join(f"{row['id']},{row['name'] or ''}\n" for row in rows)
            (root / f"data/{number}.txt").write_bytes(data.encode(encoding))
            written += rows
        options = {} if form == "json" else {"header": "true", "multiLine": str(form == "csv").lower()}
        decode = JsonLines if form == "json" else CsvLines
        source = phase(root, form[:4].strip(), decode, filePartitionBytes="1k", encoding=encoding, **options)
        assert bag(rows_of(source, Columns(SCHEMA), [limit])) == bag(written)


@given(st.binary(max_size=60), st.sampled_from(BYTEWISE[:-1]), st.integers(4, 20))
def test_bytes_without_a_character(data: bytes, encoding: str, block: int) -> None:
    found = as_utf8(lines(pa.BufferReader(data), 0, None, block), encoding)
    whole = data.removeprefix(codecs.BOM_UTF8).replace(b"\r", b"\n").decode(encoding, "replace")
    assert [line.decode() for part in found for line in part if line] == [line for line in whole.split("\n") if line]


@given(st.text(max_size=20), st.sampled_from(["utf-16", "utf-32"]), st.sampled_from(["-le", "-be", ""]), st.booleans())
def test_byte_order(text: str, encoding: str, order: str, has_mark: bool) -> None:
    text = text.lstrip("\ufeff").encode("utf-8", "replace").decode()
    mark = "\ufeff" if has_mark and order else ""
    data = (mark + text).encode(encoding + (order or "-be"))
    # As in Java: the name without an order follows the mark, and is big-endian without one.
    name = encoding if has_mark or not order or order == "-be" else encoding + order
    stream = Transcoder(io.BytesIO(data), name)
    found = b""
    while part := stream.read(3):
        found += part
    assert found.decode() == text
