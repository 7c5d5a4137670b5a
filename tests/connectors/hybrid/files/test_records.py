"""Splitting text into records."""

import csv
import io
import re
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.files import records
from backlog_spark.connectors.hybrid.files.formats import Unreadable
from backlog_spark.connectors.hybrid.files.records import csv_records, ends_by_return, line_records, lines
from backlog_spark.connectors.hybrid.files.textoptions import CsvOptions

TEXT = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\n\n", b"\r\n", b"\r", b"d" * 20, "ü".encode()])).map(b"".join)
FIELD = st.text(st.sampled_from('a,"\n\r\\ ü'), max_size=6)


def cut(data: bytes, first: int = 0, end: int | None = None, block: int = 7) -> list[bytes]:
    return [line for part in lines(pa.BufferReader(data), first, end, block) for line in part]


@given(TEXT, st.lists(st.integers(1, 200)), st.integers(4, 64))
def test_pieces_at_any_bytes_have_each_line_once(data: bytes, at: list[int], block: int) -> None:
    bounds = [0, *sorted({a for a in at if a < len(data)})]
    found = []
    for first, end in zip(bounds, [*bounds[1:], None], strict=True):
        found += cut(data, first, end, block)
    whole = re.split(rb"\r\n|\r|\n", data)
    assert [line for line in found if line] == [line for line in whole if line]


@pytest.mark.parametrize(("first", "end"), [(0, 2), (0, 3), (2, 4), (3, 6), (1, 2)])
def test_a_line_belongs_to_the_piece_in_which_it_begins(first: int, end: int) -> None:
    # Lines begin at 0, 3 and 6.
    wanted = [line for at, line in ((0, b"ab"), (3, b"cd"), (6, b"ef")) if first <= at < end]
    assert cut(b"ab\ncd\nef\n", first, end) == wanted


def test_line_ends_blank_lines_and_the_mark_at_the_beginning() -> None:
    data = b'\xef\xbb\xbf{"a":1}\r\n\r\n  \n{"a":2}\n\t\n{"a":3}\r{"a":"\\r"}\r\r'
    for block in (4, 9, 1 << 20):
        found = [r for records in line_records(lines(pa.BufferReader(data), 0, None, block)) for r in records]
        assert found == [b'{"a":1}', b'{"a":2}', b'{"a":3}', b'{"a":"\\r"}']


def of_csv(data: bytes, block: int = 1 << 20, **options: object) -> list[bytes]:
    given = CsvOptions(**{"multi_line": True, **options})  # type: ignore[arg-type]
    returns = None if given.splits_at_lines else partial(ends_by_return, options=given)
    return [r for found in csv_records(lines(pa.BufferReader(data), 0, None, block, returns), given) for r in found]


@given(st.lists(st.lists(FIELD, min_size=2, max_size=3), max_size=5), st.integers(4, 64))
def test_records_are_what_was_written(rows: list[list[str]], block: int) -> None:
    sink = io.StringIO()
    csv.writer(sink, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    found = of_csv(sink.getvalue().encode(), block, escape="")
    assert [next(csv.reader(io.StringIO(r.decode(), newline=""))) for r in found] == rows


@given(st.lists(st.lists(FIELD, min_size=2, max_size=3), max_size=5))
def test_records_with_escaped_quotes_are_what_was_written(rows: list[list[str]]) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    written = [",".join(map(quoted, row)) for row in rows]
    assert of_csv("\n".join(written).encode()) == [text.encode() for text in written]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'a,"b\nc"\nd,e', [b'a,"b\nc"', b"d,e"]),
        (b'a"b,c\nd,e', [b'a"b,c', b"d,e"]),
        (b'"a"b,"c\n"\n', [b'"a"b,"c\n"']),
        (b'"",""\n"a""\n"\n', [b'"",""', b'"a""\n"']),
        (b'"a\\"\n",b\nc', [b'"a\\"\n",b', b"c"]),
        (b'"a\r\n\r\nb"\r\n\r\nc\r\n', [b'"a\r\n\r\nb"', b"c"]),
        (b'a,"never closed\nb\n', [b'a,"never closed\nb']),
    ],
)
def test_quotes_count_where_a_field_begins(data: bytes, found: list[bytes]) -> None:
    assert of_csv(data) == found
    assert of_csv(data, block=5) == found


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'1,a\r2,"b"\r\r3,c', [b"1,a", b'2,"b"', b"3,c"]),
        (b'\xef\xbb\xbf"a"\r"b\rc"\r', [b'"a"', b'"b\nc"']),  # as Spark does
        (b'"a\nb"\rc\r', [b'"a\nb"', b"c"]),
        (b"a\rb\nc\r\nd\r", [b"a", b"b", b"c", b"d"]),
        (b'"a\rb"\nc\rd\n', [b'"a\rb"', b"c\rd"]),
        (b'"a\rb"\r\nc\rd\r\n', [b'"a\rb"', b"c\rd"]),
        (b'"never closed\r', [b'"never closed\r']),
    ],
)
def test_a_return_ends_the_lines_of_a_file_whose_first_it_ends(data: bytes, found: list[bytes]) -> None:
    assert of_csv(data) == found
    if b"\xef" not in data:
        assert of_csv(data, block=max(6, data.find(b"\r", 3))) == found


def test_without_quotes_every_line_is_a_record() -> None:
    assert of_csv(b'a,"b\nc"\n', quote="") == [b'a,"b', b'c"']
    assert of_csv(b'a,"b\nc"\n', multi_line=False) == [b'a,"b', b'c"']
    assert of_csv(b'a\n"b\rc"\r\nd\re', multi_line=False) == [b"a", b'"b', b'c"', b"d", b"e"]
    assert of_csv(b"a;;'b\nc'\n", sep=";;", quote="'") == [b"a;;'b\nc'"]


def test_a_record_without_an_end_does_not_take_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 1_000)
    with pytest.raises(Unreadable, match="line at byte 3 has more than 1000"):
        cut(b"ab\n" + b"x" * 5_000, block=100)
    with pytest.raises(Unreadable, match="not closed within"):
        of_csv(b'a,"b\n' + b"x\n" * 5_000, block=100)
