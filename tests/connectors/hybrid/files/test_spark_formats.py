"""Random files of each format against Spark's own readers."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs
from backlog_spark.connectors.hybrid.decode import decoder, parse
from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.phases import METADATA, Columns

from .reading import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CASES = 12
TYPES = {"long": pa.int64(), "string": pa.string(), "double": pa.float64()}
# Each with the line ends that Spark finds in it.
ENCODINGS = {
    "UTF-8": ["\n", "\r\n", "\r"], "ISO-8859-1": ["\n", "\r\n"], "US-ASCII": ["\n"], "UTF-16LE": ["\n"],
    "UTF-16BE": ["\n"], "UTF-16": ["\n"],
}  # fmt: skip


def ours(root: Path, form: str, schema: pa.Schema, metadata: tuple[str, ...] = (), **options: str) -> list[list[Any]]:
    """Rows of small pieces."""
    given = {"path": str(root / "data"), "metadataLocation": str(root / "meta"), "fileFormat": form}
    decoding = {name: options.pop(name) for name in ("mode",) if name in options}
    source = FilePhase("old", given | {"filePartitionBytes": "1k", "allowEmpty": "true"} | options)
    if form in ("csv", "json"):
        csv = {name: options[name] for name in ("sep", "quote") if name in options}
        source.decoder_of = partial(decoder, parse({"valueFormat": form, **decoding, **csv}))
    return [list(row.values()) for row in rows_of(source, Columns(schema, metadata))]


def bag(rows: Iterable[Iterable[Any]]) -> Counter[str]:
    return Counter(repr([item.asDict() if hasattr(item, "asDict") else item for item in row]) for row in rows)


def without_text(rows: Iterable[Iterable[Any]], encoding: str) -> list[list[Any]]:
    """Rows that only say whether there is a corrupt record: Spark shows its bytes in another encoding as UTF-8."""
    return [list(row) if encoding == "UTF-8" else [*[*row][:2], [*row][2:] == [None]] for row in rows]


def write(chance: random.Random, path: Path, data: bytes) -> None:
    if chance.random() < 0.2:
        path, data = path.with_name(path.name + ".gz"), gzip.compress(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def ddl(schema: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in schema)


def field(chance: random.Random, kind: str, options: dict[str, str], encoding: str, multi: bool) -> str:
    if chance.random() < 0.1:
        return ""
    if kind == "long" and chance.random() < 0.9:
        return str(chance.randint(-99, 99))
    if kind == "double" and chance.random() < 0.9:
        return str(chance.randint(-99, 99) / 4)
    quote = options["quote"]
    parts = ["a", "b c", "ü", "€", "\t x", options["sep"], quote, *(["\n"] if multi else [])]
    text = "".join(chance.choice(parts) for _ in range(chance.randint(1, 4)))
    text = text.encode(encoding, "replace").decode(encoding)
    if any(special in text for special in (options["sep"], quote, "\n")):
        text = quote + text.replace(quote, "\\" + quote) + quote
    return text


@pytest.mark.parametrize("by_name", [True, False])
def test_csv(spark: SparkSession, tmp_path: Path, by_name: bool) -> None:
    read = 0
    for case in range(CASES):
        chance = random.Random(1000 * by_name + case)
        root = tmp_path / str(case)
        encoding = chance.choice(list(ENCODINGS))
        names = chance.sample(
            ["id", "Name", "x y", "d", "größe"][: 4 if encoding == "US-ASCII" else 5], chance.randint(1, 4)
        )
        schema = [(name, chance.choice(list(TYPES))) for name in names]
        # By lines Spark looks for the mark of UTF-16 before each line end.
        multi = encoding == "UTF-16" or chance.random() < 0.5
        header = by_name or chance.random() < 0.3
        options = {
            "sep": chance.choice([",", ";", "\t", "||"]), "quote": chance.choice(['"', "'"]), "encoding": encoding,
            "header": str(header).lower(), "multiLine": str(multi).lower(), "enforceSchema": str(not by_name).lower(),
        }  # fmt: skip
        (root / "data").mkdir(parents=True)
        expected: list[list[Any]] = []
        for number in range(chance.randint(1, 3)):
            end = chance.choice(ENCODINGS[encoding])
            own = list(schema)
            if by_name:
                own += [("more", "string")] * (chance.random() < 0.3)
                chance.shuffle(own)
            lines = [
                options["sep"].join(field(chance, kind, options, encoding, multi) for _, kind in own)
                for _ in range(chance.choice([0, 1, 5, 100]))
            ]
            if multi and end == "\r":
                end = "\n"  # with others in quoted fields Spark takes the first that it finds
            shown = [chance.choice([name, name.upper(), name.lower()]) for name, _ in own] if by_name else names
            blank = [""] if chance.random() < 0.2 else []
            text = end.join([*blank, *([options["sep"].join(shown)] if header else []), *lines, *blank])
            mark = "\ufeff" if encoding == "UTF-8" and chance.random() < 0.2 else ""
            if not text:
                continue
            folder = root / f"data/{number}"
            write(
                chance,
                folder / "a.csv",
                (mark + text + (end if chance.random() < 0.5 else "")).encode(encoding, "replace"),
            )
            given = options | {"enforceSchema": "true"} | ({"lineSep": "\n"} if encoding.startswith("UTF-16") else {})
            # Spark only matches by position, so it gets the order of each file.
            frame = spark.read.schema(ddl(own)).options(**given).csv(str(folder))
            # All columns: if it skips one, Spark's parser trips over a separator before the quote that ends it.
            expected += [[row[name] for name in names] for row in frame.collect()]
        if expected:
            found = ours(root, "csv", pa.schema([(name, TYPES[kind]) for name, kind in schema]), **options)
            assert bag(found) == bag(expected), (case, options, schema)
            read += len(found)
    assert read > 300


def test_json_lines(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("_corrupt_record", pa.string())])
    for case in range(CASES):
        chance = random.Random(case)
        root = tmp_path / str(case)
        encoding = chance.choice([name for name in ENCODINGS if name != "UTF-16"])
        for number in range(chance.randint(1, 3)):
            lines = [some_json(chance, lines=True) for _ in range(chance.choice([1, 5, 100]))]
            write(chance, root / f"data/{number}.json", "\n".join(lines).encode(encoding, "replace"))
        given = {"lineSep": "\n"} if encoding != "UTF-8" else {}
        frame = spark.read.schema("id long, v string, _corrupt_record string").options(encoding=encoding, **given)
        expected = frame.json(str(root / "data")).collect()
        found = ours(root, "json", schema, encoding=encoding)
        assert bag(without_text(found, encoding)) == bag(without_text(expected, encoding)), (case, encoding)


def some_json(chance: random.Random, *, lines: bool) -> str:
    """A record, most often good."""
    value = chance.choice(["a", 'b"c', "ü€", [1, {"x": "}"}], {"y": None}, None, 7, True, "x" * 300, "d,e]"])
    # Spark writes nested values again, without blanks, except from lines in UTF-8.
    indent = None if lines or isinstance(value, list | dict) else chance.choice([None, 1])
    good = json.dumps(
        {"id": chance.choice([1, 2, None]), "v": value},
        ensure_ascii=chance.random() < 0.5, indent=indent, separators=(",", ":"),
    )  # fmt: skip
    odd = ['{"id": "x", "v": "ü"}', '{"id": 1.5}', "{}", '{"v": {"a":"\\n"}}']
    broken = ['{"id": 1', "x", '{"id" 1}', '{"id": 3}}'] if lines else ["{", "1", '{"id" 1}', "null", '"x"', ""]
    return chance.choice([good] * 20 + odd * 2 + broken) if lines else chance.choice([good] * 30 + odd + broken)


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
@pytest.mark.parametrize("has_corrupt", [True, False])
def test_json_documents(spark: SparkSession, tmp_path: Path, mode: str, has_corrupt: bool) -> None:
    columns = [("id", "long"), ("v", "string"), *([("_corrupt_record", "string")] if has_corrupt else [])]
    schema = pa.schema([(name, TYPES[kind]) for name, kind in columns])
    for case in range(CASES):
        chance = random.Random(case)
        root = tmp_path / str(case)
        encoding = chance.choice(list(ENCODINGS))
        for number in range(chance.randint(1, 3)):
            records = [some_json(chance, lines=False) for _ in range(chance.choice([0, 1, 2, 5]))]
            text = records[0] if len(records) == 1 else f"[{', '.join(records)}]"
            text = chance.choice(["", " \n"]) + text + chance.choice(["", "\n", "\n"])
            if text.strip():
                write(chance, root / f"data/{number}.json", text.encode(encoding, "replace"))
        if not (root / "data").exists():
            continue
        options = {"encoding": encoding, "multiLine": "true", "mode": mode}
        expected = spark.read.schema(ddl(columns)).options(**options).json(str(root / "data")).collect()
        found = ours(root, "json", schema, **options)
        texts = [path.read_bytes() for path in (root / "data").iterdir()]
        assert bag(without_text(found, encoding)) == bag(without_text(expected, encoding)), (case, options, texts)


@pytest.mark.parametrize("whole", ["false", "true"])
def test_text_and_metadata(spark: SparkSession, tmp_path: Path, whole: str) -> None:
    for case in range(CASES // 2):
        chance = random.Random(case)
        root = tmp_path / str(case)
        end = chance.choice([None, None, "|", "||", "\n"])
        for number in range(chance.randint(1, 3)):
            parts = ["a", "ü", "\n", "\r", "\r\n", "|", "||", "b" * 400, " "]
            data = "".join(chance.choice(parts) for _ in range(chance.choice([1, 5, 100]))).encode()
            if chance.random() < 0.2:
                data = b"\xef\xbb\xbf" + data
            if chance.random() < 0.2:
                data += b"\xff\xc3x"
            write(chance, root / f"data/a %2F ü {number}.txt", data)
        options = {"wholetext": whole, **({"lineSep": end} if end else {})}
        frame = spark.read.format("text").options(**options).load(str(root / "data"))
        found = ours(root, "text", pa.schema([("value", pa.string())]), **options)
        assert bag(found) == bag(frame.collect()), (case, options)
        # Blocks are those of the reader's own tasks.
        fields = [name for name in METADATA["_metadata"].names if not name.startswith("file_block")]
        expected = frame.select(*(f"_metadata.{name}" for name in fields)).distinct().toArrow()
        own = ours(root, "text", pa.schema([("value", pa.string())]), ("_metadata",), **options)
        assert (
            bag([row[-1][name] for name in fields] for row in own).keys()
            == bag(row.values() for row in expected.to_pylist()).keys()
        )


def test_blocks_of_whole_files(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    spark.range(100).coalesce(1).write.parquet(str(tmp_path / "data/one"))
    fields = METADATA["_metadata"].names
    frame = spark.read.parquet(str(tmp_path / "data/one")).select("id", *(f"_metadata.{name}" for name in fields))
    found = ours(tmp_path, "parquet", pa.schema([("id", pa.int64())]), ("_metadata",))
    assert bag([row[0], *row[1].values()] for row in found) == bag(rows_in_utc(frame))


def rows_in_utc(frame: DataFrame) -> list[Any]:
    return [row.values() for row in frame.toArrow().to_pylist()]


def test_binary_files(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "data/day=1").mkdir(parents=True)
    chance = random.Random(7)
    for number in range(20):
        path = tmp_path / f"data/day=1/a %2F ü {number}.bin"
        path.write_bytes(chance.randbytes(chance.randint(1, 3000)))
        os.utime(path, ns=(0, 1_700_000_000_000_000_000 + chance.randrange(10**12)))
    frame = spark.read.format("binaryFile").load(str(tmp_path / "data"))
    given = {"path": str(tmp_path / "data"), "metadataLocation": str(tmp_path / "m"), "fileFormat": "binaryFile"}
    source = FilePhase("old", given)
    schema = source.schema()
    assert schema is not None
    assert schema.names == frame.columns
    assert bag(row.values() for row in rows_of(source, Columns(schema))) == bag(rows_in_utc(frame))


@pytest.mark.parametrize("codec", ["uncompressed", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_avro(spark: SparkSession, tmp_path: Path, codec: str) -> None:
    frame = spark.range(3000).selectExpr(
        "id", "if(id % 7 = 0, null, concat('name ', id)) as name", "cast(id / 8 as float) as f",
        "cast(id as decimal(12, 3)) as d", "timestamp_seconds(id) as at",
        "date_add(date '2024-01-31', cast(id as int)) as day",
        "array(id, null) as l", "map('k', id) as m", "named_struct('A', id, 'b', cast('x' as binary)) as s",
    )  # fmt: skip
    path = str(tmp_path / "data")
    frame.repartition(3).write.format("avro").option("compression", codec).save(path)
    source = FilePhase("old", {"path": path, "metadataLocation": str(tmp_path / "m"), "fileFormat": "avro"})
    schema = source.schema()
    assert schema is not None
    expected = frame.toArrow()
    assert [f.type for f in schema if f.name not in "lms"] == [f.type for f in expected.schema if f.name not in "lms"]
    found = ours(tmp_path, "avro", schema)
    assert bag(found) == bag(row.values() for row in expected.to_pylist())


def test_a_stream_of_csv_with_metadata(spark: SparkSession, tmp_path: Path) -> None:
    """Columns in another order in each file, which several tasks read."""
    bs.register(spark)
    (tmp_path / "data").mkdir()
    expected = []
    for number, names in enumerate((["id", "name", "x"], ["NAME", "x", "Id"])):
        path = tmp_path / f"data/{number}.csv"
        rows = [{"id": 1000 * number + i, "name": f"name {i}", "x": "?"} for i in range(500)]
        lines = [",".join(str(row[name.lower()]) for name in names) for row in rows]
        path.write_text("\n".join([",".join(names), *lines]))
        expected += [[row["id"], row["name"], path.name, path.stat().st_size] for row in rows]
    options = {
        "phases": "files", "path": str(tmp_path / "data"), "metadataLocation": str(tmp_path / "meta"),
        "fileFormat": "csv", "header": "true", "filePartitionBytes": "1k", "metadataColumns": "_metadata",
        "schema": "id LONG, name STRING",
    }  # fmt: skip
    found: list[Any] = []
    frame = spark.readStream.format("hybrid").options(**options).load()
    assert frame.schema["_metadata"].dataType.simpleString() == (
        "struct<file_path:string,file_name:string,file_size:bigint,file_block_start:bigint,file_block_length:bigint,"
        "file_modification_time:timestamp>"
    )
    query = (
        frame.select("id", "name", "_metadata.file_name", "_metadata.file_size")
        .writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination(300)
    assert bag(found) == bag(expected)
