"""JSON lines and CSV through a decoder: every record once, with any limits."""

import bz2
import csv
import gzip
import io
import json
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.files.formats import BATCH_ROWS
from backlog_spark.connectors.hybrid.files.text import DecoderOf
from backlog_spark.connectors.hybrid.phases import Columns, Limit
from backlog_spark.errors import BacklogError

from .decoding import CsvLines, Found, JsonLines
from .reading import bag, batches_between, rows_between, rows_of, steps
from .test_phase import directory

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
TEXTS = st.sampled_from(["", "a", "Köln 日本", "x" * 200, 'say "hi"', "back\\slash"])


def phase(root: Path, form: str, decoder: DecoderOf | None, **options: str) -> FilePhase:
    given_options = {"path": str(root / "data"), "metadataLocation": str(root / "meta"), "fileFormat": form}
    given_options |= {"allowEmpty": "true"} | options
    return FilePhase("old", given_options, decoder_of=decoder)


def zstd(data: bytes) -> bytes:
    found: bytes = pa.compress(data, "zstd", asbytes=True)
    return found


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(TEXTS, max_size=40), max_size=4),
    st.lists(st.integers(1, 30) | st.none(), min_size=1, max_size=6),
    st.booleans(),
)
def test_json_every_row_once_at_any_limits(
    files: list[list[str]], limits: list[int | None], ends_with_newline: bool
) -> None:
    with directory() as root:
        (root / "data").mkdir()
        written = []
        for number, texts in enumerate(files):
            rows = [{"id": number * 100 + i, "name": text} for i, text in enumerate(texts)]
            data = json_lines(rows)
            (root / f"data/{number}.json").write_bytes(data if ends_with_newline else data[:-1])
            written += rows
        source = phase(root, "json", JsonLines, filePartitionBytes="1k")
        source.open(Columns(SCHEMA))
        start = source.begin({})
        positions = [start, *(step.position for step in steps(source, limits, start))]
        found = [rows_between(source, a, b) for a, b in pairwise(positions)]
        assert bag(row for rows in found for row in rows) == bag(written)
        again = phase(root, "json", JsonLines, filePartitionBytes="1k")
        again.open(Columns(SCHEMA))
        for (a, b), rows in zip(pairwise(positions), found, strict=True):
            assert again.partitions(a, b) == source.partitions(a, b)
            assert rows_between(again, a, b) == rows


def test_a_large_json_file_is_cut_and_split(tmp_path: Path) -> None:
    rows = [{"id": i, "name": f"name {i}"} for i in range(10_000, 40_000)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.json").write_bytes(json_lines(rows))
    source = phase(tmp_path, "json", JsonLines, filePartitionBytes="64k")
    source.open(Columns(SCHEMA))
    start = source.begin({})
    found = list(steps(source, [10_000], start))
    assert [step.is_finished for step in found] == [False, False, True]
    # By lines in the 256 KiB at the beginning, of which the last is cut.
    assert 10_000 <= len(rows_between(source, start, found[0].position)) <= 10_002
    assert len(source.partitions(start, found[-1].position)) > 10
    batches = batches_between(source, start, found[-1].position)
    assert [row for batch in batches for row in batch.to_pylist()] == rows
    assert max(batch.num_rows for batch in batches) <= 50_000


@pytest.mark.parametrize(
    ("ending", "pack"),
    [
        ("gz", gzip.compress),
        ("bz2", bz2.compress),
        ("zst", zstd),
        ("GZ", lambda d: gzip.compress(d[:9]) + gzip.compress(d[9:])),
    ],
)
@pytest.mark.parametrize("limit", [None, 1])
def test_compressed_files_are_one_task_each(tmp_path: Path, ending: str, pack: Any, limit: int | None) -> None:
    rows = [{"id": i, "name": f"name {i}"} for i in range(5_000)]
    (tmp_path / "data").mkdir()
    (tmp_path / f"data/a.json.{ending}").write_bytes(pack(json_lines(rows[:2_500])))
    (tmp_path / f"data/b.json.{ending}").write_bytes(pack(json_lines(rows[2_500:])))
    source = phase(tmp_path, "json", JsonLines, filePartitionBytes="1k")
    assert rows_of(source, Columns(SCHEMA), [limit]) == rows
    start = source.begin({})
    assert len(source.partitions(start, source.next(start, Limit(), 0).position)) == 2


@pytest.mark.parametrize(
    ("name", "words"), [("a.json.lz4", "compressed as .lz4"), ("a.json.gz", "cannot be read as json")]
)
def test_files_that_cannot_be_unpacked(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(
        gzip.compress(json_lines([{"id": i, "name": "x"} for i in range(100)]))[:-20]
    )
    with pytest.raises(BacklogError, match=words):
        rows_of(phase(tmp_path, "json", JsonLines), Columns(SCHEMA))


def test_rows_that_a_decoder_drops_and_columns_of_directories(tmp_path: Path) -> None:
    (tmp_path / "data/name=of dir").mkdir(parents=True)
    (tmp_path / "data/name=of dir/a.json").write_bytes(b'\xef\xbb\xbf{"id": 1, "name": "own"}\r\n\n{oops\n{"id": 2}')
    declared = pa.schema([("name", pa.string()), ("id", pa.int64())])
    found = rows_of(phase(tmp_path, "json", JsonLines), Columns(declared, ("_phase",)))
    assert found == [{"name": "of dir", "id": 1, "_phase": "old"}, {"name": "of dir", "id": 2, "_phase": "old"}]


CELL = st.text(st.sampled_from('a,"\nü '), min_size=1, max_size=8)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(CELL, max_size=20), max_size=4), st.sampled_from([None, 1, 7]), st.booleans())
def test_csv_every_row_once_with_newlines_in_quotes(files: list[list[str]], limit: int | None, header: bool) -> None:
    with directory() as root:
        (root / "data").mkdir()
        written = []
        for number, texts in enumerate(files):
            sink = io.StringIO()
            writer = csv.writer(sink, lineterminator="\n")
            writer.writerows([["id", "name"]] if header else [])
            rows = [{"id": number * 100 + i, "name": text} for i, text in enumerate(texts)]
            writer.writerows([row["id"], row["name"]] for row in rows)
            (root / f"data/{number}.csv").write_text(sink.getvalue())
            written += rows
        source = phase(root, "csv", CsvLines, header=str(header).lower(), multiLine="true")
        assert bag(rows_of(source, Columns(SCHEMA), [limit])) == bag(written)


def test_csv_is_split_only_where_every_line_is_a_record(tmp_path: Path) -> None:
    (tmp_path / "data/day=2024-01-31").mkdir(parents=True)
    text = "id,name\n" + "".join(f"{i},name {i}\n" for i in range(5_000))
    (tmp_path / "data/day=2024-01-31/a.csv").write_text(text)
    counts = []
    for options in ({"multiLine": "true"}, {}, {"multiLine": "true", "quote": ""}):
        source = phase(tmp_path, "csv", CsvLines, filePartitionBytes="8k", header="true", **options)
        found = rows_of(source, Columns(pa.schema([*SCHEMA, ("day", pa.string())])))
        assert found == [{"id": i, "name": f"name {i}", "day": "2024-01-31"} for i in range(5_000)]
        start = source.begin({})
        counts.append(len(source.partitions(start, source.next(start, Limit(), 0).position)))
    assert counts[0] == 1
    assert counts[1] == counts[2] > 5


@pytest.mark.parametrize("multi_line", ["false", "true"])
def test_columns_match_the_header_of_their_file(tmp_path: Path, multi_line: str) -> None:
    (tmp_path / "data/town=x").mkdir(parents=True)
    headers = ["id,name", "NAME,id", 'more,"iD", name,more,town', "name,id"]
    written = []
    for number, header in enumerate(headers):
        names = [name.strip().strip('"').lower() for name in header.split(",")]
        rows = [{"id": number * 1000 + i, "name": f"name {i}"} for i in range(200)]
        lines = [",".join(str(row.get(name, "?")) for name in names) for row in rows]
        begin = b"\xef\xbb\xbf\n\n" if number % 2 else b""
        data = begin + "\r\n".join([header, *lines]).encode()
        (tmp_path / f"data/town=x/{number}.csv").write_bytes(data)
        written += [{**row, "town": "x"} for row in rows]
    (tmp_path / "data/town=x/blank.csv").write_bytes(b"\n\n")
    declared = Columns(pa.schema([*SCHEMA, ("town", pa.string())]))
    for limit in (None, 1, 90):
        source = phase(tmp_path, "csv", CsvLines, header="true", filePartitionBytes="1k", multiLine=multi_line)
        assert bag(rows_of(source, declared, [limit])) == bag(written)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("id,nam", r"a\.csv: the header has no column name\. It is id, nam; declared are id, name\."),
        ("id;name", r"the header has no column id, name\. It is id;name"),
        ("id,ID,name", r"the header has id more than once\. It is id, ID, name"),
    ],
)
def test_a_header_that_contradicts_the_schema_is_refused(tmp_path: Path, header: str, problem: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.csv").write_text(header + "\n1,x\n")
    source = phase(tmp_path, "csv", CsvLines, header="true")
    source.open(Columns(SCHEMA))
    with pytest.raises(BacklogError, match=problem) as caught:
        source.check()
    assert "enforceSchema=true" in caught.value.hint
    with pytest.raises(BacklogError, match=problem):
        rows_of(phase(tmp_path, "csv", CsvLines, header="true"), Columns(SCHEMA))


def test_columns_match_by_position_on_demand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.csv").write_text("\n\nID,name\n1,x\n")
    source = phase(tmp_path, "csv", CsvLines, header="true", enforceSchema="true")
    assert rows_of(source, Columns(SCHEMA)) == [{"id": 1, "name": "x"}]
    assert "header" not in caplog.text
    (tmp_path / "data/a.csv").write_text("name,id\n1,x\n")
    source = phase(tmp_path, "csv", CsvLines, header="true", enforceSchema="true")
    assert rows_of(source, Columns(SCHEMA)) == [{"id": 1, "name": "x"}]
    assert "its header is ['name', 'id']" in caplog.text


@pytest.mark.parametrize("chosen", [{"multiLine": "true"}, {"enforceSchema": "false"}, {}])
def test_a_position_of_a_version_with_other_defaults_is_refused(tmp_path: Path, chosen: dict[str, str]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.csv").write_text("id,name\n1,x\n")
    source = phase(tmp_path, "csv", CsvLines, header="true", **chosen)
    source.open(Columns(SCHEMA))
    former = {name: value for name, value in source.begin({}).items() if name != "csvDefaults"}
    missing = "enforceSchema" if "multiLine" in chosen else "multiLine"
    with pytest.raises(BacklogError, match=rf"{missing} = 'false': is a new default: .* Set {missing}=true to go on"):
        source.next(former, Limit(), 0)
    both = {"multiLine": "false", "enforceSchema": "true", **chosen}
    source = phase(tmp_path, "csv", CsvLines, header="true", **both)
    source.open(Columns(SCHEMA))
    end = source.next(former, Limit(), 0).position
    assert "csvDefaults" not in end
    assert rows_between(source, former, end) == [{"id": 1, "name": "x"}]


@dataclass(frozen=True)
class Refusing:
    """Fails at a record, as FAILFAST does."""

    schema: pa.Schema

    def decode(self, values: pa.Array) -> Found:
        for i, value in enumerate(values.to_pylist()):
            if value == b"{oops":
                raise BacklogError(f"record {i} of its block is malformed.", "Set mode to PERMISSIVE.")
        return JsonLines(self.schema).decode(values)


def test_a_record_that_is_refused_is_found_again(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.json").write_bytes(json_lines([{"id": 1, "name": "x"}] * (BATCH_ROWS + 2)) + b"{oops\n")
    with pytest.raises(
        BacklogError, match=rf"a\.json, after {BATCH_ROWS} records from byte 0 on: record 2 of its block"
    ):
        rows_of(phase(tmp_path, "json", Refusing, filePartitionBytes="64m"), Columns(SCHEMA))


def test_a_decoder_can_be_set_later_and_has_to_be(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.json").write_text('{"id": 1, "name": "x"}')
    source = phase(tmp_path, "json", None)
    assert source.schema() is None
    with pytest.raises(BacklogError, match="No decoder was set for json"):
        rows_of(source, Columns(SCHEMA))
    source.decoder_of = partial(JsonLines)
    assert rows_of(source, Columns(SCHEMA)) == [{"id": 1, "name": "x"}]
