"""Lines of JSON and CSV against Spark's own readers of the same files."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from backlog_spark.connectors.hybrid.decode import decoder, parse
from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.phases import Columns

from .reading import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
JSON = [json.dumps({"id": i, "v": text}).encode() for i, text in enumerate(["a", "b\rc", "d\r\n", "e"])]


def ours(root: Path, form: str, **options: str) -> list[tuple[Any, ...]]:
    given = {"path": str(root / "data"), "metadataLocation": str(root / "meta"), "fileFormat": form, **options}
    decode = parse({"valueFormat": form, "mode": options.pop("mode", "PERMISSIVE")})
    source = FilePhase("old", given, others=("mode",), decoder_of=partial(decoder, decode))
    return [tuple(row.values()) for row in rows_of(source, Columns(SCHEMA))]


def by_spark(spark: SparkSession, root: Path, form: str, **options: str) -> list[tuple[Any, ...]]:
    rows = spark.read.format(form).schema("id BIGINT, v STRING").options(**options).load(str(root / "data")).collect()
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("mode", ["PERMISSIVE", "FAILFAST"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r", b"\r\r\n"], ids=repr)
def test_json_lines_have_any_end(spark: SparkSession, tmp_path: Path, end: bytes, mode: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.json").write_bytes(end.join(JSON))
    found = ours(tmp_path, "json", mode=mode)
    assert found == by_spark(spark, tmp_path, "json", mode=mode) == [(0, "a"), (1, "b\rc"), (2, "d\r\n"), (3, "e")]


@pytest.mark.parametrize("multi_line", ["false", "true"])
@pytest.mark.parametrize("header", ["false", "true"])
@pytest.mark.parametrize(
    "data",
    [
        b"1,a\r2,b\r3,c\r",
        b"\r\r1,a\r\r2,b\r\n3,c",
        b'1,"a"\r2,"b\rc"\r3,"d\r\ne"\r4,f',
        b'1,a\r\n2,"b\rc"\r\n3,d\r\n',
        b'0,x\n1,"a\rb"\n2,c\rd\n3,e',
        b'1,a\r2,"never\rclosed',
        b" \n1,a\n\t\n2,b\n\n \t \n,\n3,c\n ",
        b"\r\n1,a\r\n\r\n \r\n2,b\r\n",
    ],
)
def test_csv_has_the_line_ends_that_spark_finds(
    spark: SparkSession, tmp_path: Path, data: bytes, header: str, multi_line: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.csv").write_bytes(data)
    options = {"header": header, "multiLine": multi_line, "enforceSchema": "true"}
    assert ours(tmp_path, "csv", **options) == by_spark(spark, tmp_path, "csv", **options)


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_large_file_of_returns_is_split_at_any_byte(spark: SparkSession, tmp_path: Path, form: str) -> None:
    (tmp_path / "data").mkdir()
    lines = '{"id": %d, "v": "%s"}' if form == "json" else "%d,%s"
    text = "".join(lines % (i, "x" * (i % 7)) + ("\r", "\r\n", "\n")[i % 3] for i in range(5_000))
    (tmp_path / f"data/a.{form}").write_bytes(text.encode())
    options = {"multiLine": "false"} if form == "csv" else {}
    found = ours(tmp_path, form, filePartitionBytes="1k", **options)
    assert found == by_spark(spark, tmp_path, form, **options)
    assert len(found) == 5_000
