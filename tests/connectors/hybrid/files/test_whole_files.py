"""Plain text, whole files, and JSON documents."""

from __future__ import annotations

import gzip
import json
import os
import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.decode import decoder, parse
from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.files.jsonfiles import elements
from backlog_spark.connectors.hybrid.files.textfiles import exact_lines
from backlog_spark.connectors.hybrid.phases import FILE, Columns
from backlog_spark.errors import BacklogError

from .reading import bag, rows_of
from .test_phase import directory

VALUE = Columns(pa.schema([("value", pa.string())]))
PART = st.sampled_from([b"a", b"\r", b"\n", b"\r\n", b"bb", b"|", b"||", "ü".encode()])


def phase(root: Path, form: str, **options: str) -> FilePhase:
    given_options = {"path": str(root / "data"), "metadataLocation": str(root / "meta"), "fileFormat": form}
    return FilePhase("old", given_options | {"allowEmpty": "true", "filePartitionBytes": "1k"} | options)


def model(data: bytes, ending: bytes | None) -> list[bytes]:
    """All lines of a text; the last one needs no end."""
    found = data.split(ending) if ending else re.split(rb"\r\n|\r|\n", data)
    return found[:-1] if found[-1] == b"" else found


@settings(max_examples=500)
@given(
    st.lists(PART, max_size=14).map(b"".join),
    st.booleans(),
    st.sampled_from([None, b"|", b"||", b"\n"]),
    st.lists(st.integers(1, 30)),
    st.integers(4, 9),
)
def test_pieces_at_any_bytes_have_each_line_once(
    data: bytes, has_mark: bool, ending: bytes | None, at: list[int], block: int
) -> None:
    written = (b"\xef\xbb\xbf" if has_mark else b"") + data
    bounds = [0, *sorted({a for a in at if a < len(written)})] if len(ending or b"|") == 1 else [0]
    found: list[bytes] = []
    for first, end in zip(bounds, [*bounds[1:], None], strict=True):
        for lines in exact_lines(pa.BufferReader(written), first, end, ending, block):
            found += lines
    assert found == model(data, ending)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(["", "a", "Köln 日本", "x" * 300]), min_size=1, max_size=30), max_size=4),
    st.sampled_from([None, 1, 7]),
    st.sampled_from(["\n", "\r\n", "\r", "|", "||"]),
    st.sampled_from(["utf-8", "UTF-16", "windows-1252"]),
    st.booleans(),
)
def test_text_has_each_line_once(
    files: list[list[str]], limit: int | None, end: str, encoding: str, packed: bool
) -> None:
    with directory() as root:
        (root / "data").mkdir()
        for number, lines in enumerate(files):
            data = "".join(line + end for line in lines).encode(encoding, "replace")
            path = root / f"data/{number}.txt{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data) if packed else data)
        options = {"lineSep": end} if "|" in end else {}
        found = rows_of(phase(root, "text", encoding=encoding, **options), VALUE, [limit])
        whole = rows_of(phase(root, "text", encoding=encoding, wholetext="true"), VALUE, [limit])
    text = [[line.encode(encoding, "replace").decode(encoding) for line in lines] for lines in files]
    assert bag(found) == bag({"value": line} for lines in text for line in lines)
    assert bag(whole) == bag({"value": "".join(line + end for line in lines)} for lines in text)


def test_text_that_is_not_utf8_and_columns_of_directories(tmp_path: Path) -> None:
    (tmp_path / "data/day=1").mkdir(parents=True)
    (tmp_path / "data/day=1/a.txt").write_bytes(b"a\xffb\nc")
    source = phase(tmp_path, "text")
    assert source.schema() == pa.schema([("value", pa.string()), ("day", pa.int32())])
    declared = Columns(pa.schema([("day", pa.int32()), ("value", pa.binary())]))
    expected = [{"day": 1, "value": "a�b".encode()}, {"day": 1, "value": b"c"}]
    assert rows_of(source, declared) == expected
    with pytest.raises(BacklogError, match=r"has none of the columns line\. It has value"):
        rows_of(phase(tmp_path, "text"), Columns(pa.schema([("line", pa.string())])))


@pytest.mark.parametrize("limit", [None, 1])
def test_binary_files(tmp_path: Path, limit: int | None) -> None:
    (tmp_path / "data/day=1").mkdir(parents=True)
    written = []
    for number in range(20):
        path = tmp_path / f"data/day=1/a {number}.bin"
        path.write_bytes(content := bytes([number]) * (number + 1) * 100)
        os.utime(path, ns=(0, 1_700_000_000_123_456_789 + number * 1_000_000))
        at = datetime.fromtimestamp(1_700_000_000 + (123 + number) / 1000, UTC)
        row = {"path": f"file:{path}", "modificationTime": at, "length": len(content), "content": content, "day": 1}
        written.append(row)
    source = phase(tmp_path, "BinaryFile")
    schema = source.schema()
    assert schema is not None
    assert rows_of(source, Columns(schema), [limit]) == written
    without = rows_of(phase(tmp_path, "BinaryFile"), Columns(schema, needed={"length": {}}), [limit])
    assert without == [dict.fromkeys(row) | {"length": row["length"], "day": 1} for row in written]


def test_metadata_of_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data/a.txt"
    path.write_text("".join(f"{i}\n" for i in range(1_000)))
    os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    found = rows_of(phase(tmp_path, "text"), Columns(VALUE.data, ("_file", "_metadata")))
    assert FILE.names == list(found[0]["_metadata"])
    blocks = {(row["_metadata"]["file_block_start"], row["_metadata"]["file_block_length"]): row for row in found}
    size = path.stat().st_size
    assert len(blocks) > 1
    assert sum(length for _, length in blocks) == size
    expected = {
        "file_path": f"file:{path}", "file_name": "a.txt", "file_size": size,
        "file_modification_time": datetime.fromtimestamp(1_700_000_000.123, UTC),
    }  # fmt: skip
    for (start, length), row in blocks.items():
        block = {"file_block_start": start, "file_block_length": length}
        assert row["_metadata"] == expected | block
        assert row["_file"] == str(path)


VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | st.sampled_from(["", 'a"b', "c,d]", "e}f\n", "'", "\\", "日本"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab]"), inner, max_size=2),
    max_leaves=5,
)


@given(st.lists(VALUES, max_size=5), st.sampled_from([None, 2]), st.sampled_from(["", " \n"]))
def test_elements_of_an_array(values: list[Any], indent: int | None, around: str) -> None:
    text = around + json.dumps(values, indent=indent) + around
    assert [json.loads(part) for part in elements(text.encode())] == values
    assert elements((around + '{"a": [1, 2]}' + around).encode()) == [b'{"a": [1, 2]}']
    if values:
        cut = text.rstrip()[:-1].encode()
        assert elements(cut) == [cut]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.fixed_dictionaries({"id": st.integers(0, 99), "v": VALUES}), max_size=6), max_size=4),
    st.sampled_from([None, 1]),
    st.sampled_from([None, 1]),
    st.sampled_from(["utf-8", "UTF-16LE", "ISO-8859-1"]),
)
def test_json_documents(
    files: list[list[dict[str, Any]]], limit: int | None, indent: int | None, encoding: str
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    with directory() as root:
        (root / "data").mkdir()
        lines: list[bytes] = []
        for number, rows in enumerate(files):
            document = rows[0] if len(rows) == 1 else rows
            text = json.dumps(document, indent=indent, ensure_ascii=encoding == "ISO-8859-1")
            (root / f"data/{number}.json").write_bytes(text.encode(encoding))
            lines += elements(text.encode())
        made = partial(decoder, parse({"valueFormat": "json", "mode": "FAILFAST"}))
        source = phase(root, "json", multiLine="true", encoding=encoding)
        source.decoder_of = made
        found = rows_of(source, Columns(schema), [limit])
    columns = made(schema).decode(pa.array(lines, pa.binary())).columns
    assert bag(found) == bag(pa.table(columns, schema).to_pylist())
