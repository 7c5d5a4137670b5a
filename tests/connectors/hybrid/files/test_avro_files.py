"""Avro's object container files: every row once, as a record of Kafka would give it."""

from __future__ import annotations

import json
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.decode import decoder, parse, schemaOf
from backlog_spark.connectors.hybrid.decode.avro_decoder import AvroDecoder
from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.phases import Columns
from backlog_spark.errors import BacklogError

from ..decode.avro_cases import Case, records, written
from ..decode.plain import plain
from .reading import batches_between, rows_of, steps
from .test_phase import directory

CODECS = ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"]
SYNC = bytes(range(100, 116))
USERS = {
    "type": "record",
    "name": "User",
    "fields": [{"name": "Id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}


def phase(root: Path, **options: str) -> FilePhase:
    given_options = {"path": str(root / "data"), "metadataLocation": str(root / "meta"), "fileFormat": "avro"}
    return FilePhase("old", given_options | {"filePartitionBytes": "1k"} | options)


def packed(data: bytes, codec: str) -> bytes:
    found: bytes = pa.compress(data, {"zstandard": "zstd"}.get(codec, codec), asbytes=True)
    return found + (zlib.crc32(data).to_bytes(4, "big") if codec == "snappy" else b"")


def number(value: int) -> bytes:
    found = BytesIO()
    fastavro.schemaless_writer(found, {"type": "long"}, value)
    return found.getvalue()


def write(path: Path, schema: Any, rows: list[Any], codec: str = "null", interval: int = 64) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if codec in ("snappy", "zstandard"):  # fastavro needs packages for these
        head = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode()}
        content = BytesIO(b"Obj\x01")
        content.seek(0, 2)
        fastavro.schemaless_writer(content, {"type": "map", "values": "bytes"}, head)
        content.write(SYNC)
        records = written(schema, rows)
        some = 1 + interval // 40
        for block in (records[at : at + some] for at in range(0, len(records), some)):
            data = packed(b"".join(block), codec)
            content.write(number(len(block)) + number(len(data)) + data + SYNC)
        path.write_bytes(content.getvalue())
        return
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), rows, codec, sync_interval=interval)


@settings(max_examples=60, deadline=None)
@given(
    records.flatmap(lambda case: st.tuples(st.just(case), st.lists(st.lists(case.values, max_size=12), max_size=3))),
    st.sampled_from(CODECS),
    st.integers(1, 400),
    st.sampled_from([None, 1, 3]),
)
def test_as_records_of_kafka(pair: tuple[Case, list[list[Any]]], codec: str, interval: int, limit: int | None) -> None:
    case, files = pair
    schema = schemaOf(case.schema)
    with directory() as root:
        (root / "data").mkdir()
        for number, rows in enumerate(files):
            write(root / f"data/{number}.avro", case.schema, rows, codec, interval)
        source = phase(root, allowEmpty="true")
        source.open(Columns(schema))
        start = source.begin({})
        found: list[tuple[Any, ...]] = []
        for step in steps(source, [limit], start):
            for batch in batches_between(source, start, step.position):
                found += zip(*(plain(column) for column in batch.columns), strict=True)
            start = step.position
    values = pa.array(written(case.schema, [row for rows in files for row in rows]), pa.binary())
    columns = AvroDecoder(schema, "FAILFAST", "", case.schema).decode(values).columns
    assert sorted(map(repr, found)) == sorted(map(repr, zip(*(plain(column) for column in columns), strict=True)))


def test_columns_match_by_name_and_large_files_are_split(tmp_path: Path) -> None:
    rows = [{"Id": i, "name": None if i % 3 else f"name {i}"} for i in range(5_000)]
    write(tmp_path / "data/day=2024-01-31/a.avro", USERS, rows, "deflate", 500)
    source = phase(tmp_path)
    schema = source.schema()
    assert schema == pa.schema([("Id", pa.int64()), ("name", pa.string()), ("day", pa.date32())])
    declared = pa.schema([("name", pa.binary()), ("id", pa.float64()), ("more", pa.int32()), ("day", pa.string())])
    found = rows_of(source, Columns(declared))
    expected = [
        {"name": row["name"] and row["name"].encode(), "id": float(row["Id"]), "more": None, "day": "2024-01-31"}
        for row in rows
    ]
    assert found == expected
    start = source.begin({})
    end = next(steps(source, [None], start)).position
    assert len(source.partitions(start, end)) > 10
    source.open(Columns(declared, needed={"name": {}}))
    needed = [row for batch in batches_between(source, start, end) for row in batch.to_pylist()]
    assert needed == [{**row, "id": None} for row in expected]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"id": pa.string()}, r"a\.avro: the column Id is long in the Avro schema, but declared string"),
        ({"other": pa.string()}, r"a\.avro has none of the columns other\. It has Id, name"),
    ],
)
def test_columns_that_do_not_fit(tmp_path: Path, columns: dict[str, pa.DataType], problem: str) -> None:
    write(tmp_path / "data/a.avro", USERS, [{"Id": 1, "name": "x"}])
    with pytest.raises(BacklogError, match=problem):
        rows_of(phase(tmp_path), Columns(pa.schema(list(columns.items()))))


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_damaged_file_gives_its_rows_or_an_error(codec: str, data: st.DataObject) -> None:
    rows = [{"Id": i, "name": f"name {i}"} for i in range(40)]
    schema = decoder(parse({"valueFormat": "avro", "avroSchema": str(USERS).replace("'", '"')}), schemaOf(USERS)).schema
    with directory() as root:
        write(root / "data/a.avro", USERS, rows, codec, 60)
        content = bytearray((root / "data/a.avro").read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        kept = content[:at] if data.draw(st.booleans()) else content
        if kept is content:
            content[at] ^= data.draw(st.integers(1, 255))
        (root / "data/a.avro").write_bytes(kept or b"Obj")
        try:
            found = rows_of(phase(root), Columns(schema))
        except BacklogError as error:
            assert "a.avro" in str(error)  # noqa: PT017
        else:
            assert len(found) <= len(rows)
