"""The options of hybrid: which belong to the source, to each phase and to decoding, and which are refused."""

from __future__ import annotations

import datetime as dt
import pickle
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from backlog_spark.connectors.hybrid import HybridDataSource, inspect
from backlog_spark.connectors.hybrid.kinds import KINDS
from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.connectors.hybrid.reader import HybridStreamReader
from backlog_spark.connectors.hybrid.source import make_phases
from backlog_spark.errors import BacklogError, SettingError

FILES = {"path": "/old", "metadataLocation": "/meta"}
KAFKA = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "t"}


def test_options_go_to_the_phases_that_know_them() -> None:
    options = {
        **FILES, **KAFKA, "failOnDataLoss": "false", "valueFormat": "json", "mode": "FAILFAST", "maxRowsPerBatch": "7",
        "fs.key": "k", "intervalDuringBacklog": "5 min",
    }  # fmt: skip
    found = HybridOptions.parse(options)
    assert found.kinds == ("files:files", "kafka:kafka")
    assert found.of_phase == (
        {**FILES, "failOnDataLoss": "false", "fs.key": "k"},
        {**KAFKA, "failOnDataLoss": "false", "fs.key": "k"},
    )
    assert found.decoded == ({}, {"valueFormat": "json", "mode": "FAILFAST"})
    assert (found.max_rows, found.max_rows_given, found.during_backlog_ms) == (7, True, 300_000)


def test_an_option_of_one_phase_holds_over_that_of_all() -> None:
    found = HybridOptions.parse(
        {
            "phases": "a:files, b:files, live:kafka", **FILES, **KAFKA, "PATH": "/other", "phase.B.Path": "/b",
            "phase.live.kafka.client.id": "me", "phase.b.fileFormat": "csv", "sep": ";", "valueFormat": "csv",
        }
    )  # fmt: skip
    assert found.kinds == ("a:files", "b:files", "live:kafka")
    a, b, live = ({o.lower(): v for o, v in of.items()} for of in found.of_phase)
    assert (a["path"], b["path"]) == ("/other", "/b")
    assert live["kafka.client.id"] == "me"
    # The separator is that of CSV, wherever there is any.
    assert ("sep" in a, b["sep"]) == (False, ";")
    assert [d.get("sep") for d in found.decoded] == [None, ";", ";"]
    assert found.decoded[1]["valueFormat"] == "csv"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"phases": "files, mysql"}, r"'mysql' is not a kind of phase\..*Kinds: files, delta, kafka"),
        ({"phases": "files, files"}, r"two phases named 'files'.*a:files, b:files"),
        ({"phases": "a b:files"}, "'a b' is not a valid name"),
        ({"phases": "kafka, files"}, r"kafka is unbounded, so no phase can follow it.*endingOffsets"),
        ({"subscibe": "t"}, r"subscibe = '\*\*\*': hybrid has no such option.*Did you mean subscribe or"),
        ({"kafka.sasl.password": "secret", "sasl.password": "secret"}, r"sasl.password = '\*\*\*': hybrid has no"),
        ({"phase.live.path": "/x"}, r"there is no phase 'live'\. Phases: files, kafka"),
        ({"phase.files.subscribe": "t"}, r"phase.files.subscribe = '\*\*\*': a phase of files has no such option"),
        ({"metadataColumns": "_file, _row"}, r"'_row' is not a metadata column\. Columns: _phase, _file"),
        ({"metadataColumns": "_file, _file"}, "names _file twice"),
        ({"maxRowsPerBatch": "0"}, "is not an integer >= 1"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger = 'many': is not an integer >= 1"),
        ({"maxRowsPerBatch": "5", "maxOffsetsPerTrigger": "6"}, "is the same option as maxRowsPerBatch"),
        ({"availableNowTarget": "end"}, "is none of latest, backlogEnd, none"),
        ({"interval": "1 min", "intervalDuringBacklog": "1 s"}, "intervalDuringBacklog.*is less than"),
        ({"valueFormat": "xml"}, "valueFormat = 'xml': is none of json, avro, protobuf, csv, debezium"),
        ({"metadataLocation": ""}, "metadataLocation.*is needed.*Set it to a directory"),
    ],
)
def test_what_is_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingError, match=problem) as caught:
        inspect({**FILES, **KAFKA, **options})
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(HybridOptions.parse({**FILES, **KAFKA, "kafka.sasl.password": "secret"}))


def test_whether_it_starts_with_backlog() -> None:
    assert inspect({**FILES, **KAFKA}).starts_in_backlog
    assert not inspect({**KAFKA, "phases": "kafka"}).starts_in_backlog


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    for name in [*sys.modules]:
        if name.startswith(("backlog_spark.connectors.hybrid.delta", "backlog_spark.connectors.hybrid.table")):
            monkeypatch.delitem(sys.modules, name)
    with pytest.raises(BacklogError, match=r"phase delta cannot run here: .*deltalake.*backlog-spark\[files\]"):
        KINDS["delta"].make("delta", {"path": "/t"})


def source(**options: str) -> HybridDataSource:
    return HybridDataSource({**FILES, **KAFKA, **options})


def test_the_columns_of_the_stream(tmp_path: Path) -> None:
    assert source(schema="n BIGINT", metadataColumns="_file,_timestamp,_key").schema() == (
        "n BIGINT, _file string, _timestamp timestamp, _key binary"
    )
    raw = HybridDataSource({**KAFKA, "phases": "kafka"}).schema()
    assert isinstance(raw, StructType)
    assert raw.fieldNames() == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    with pytest.raises(SettingError, match="none of the phases kafka:kafka declares its columns"):
        HybridDataSource({**KAFKA, "phases": "kafka", "valueFormat": "json"}).schema()
    with pytest.raises(SettingError, match="no file is there to infer a schema from"):
        source(path=str(tmp_path), fileFormat="json", valueFormat="json", allowEmpty="true").schema()


def declared(schema: str) -> StructType:
    found = StructType()
    for part in schema.split(", "):
        found = found.add(*part.split())
    return found


@pytest.mark.parametrize(
    ("schema", "asked", "problem"),
    [
        ("_file string, n long", "_file", "_file are not the last columns"),
        ("n long, _offset string", "_offset", "_offset is declared as string. Declare it as bigint"),
        ("n long, _file string", "_file, _key", r"no column '_key'\. Put `_key binary` at its end"),
        ("_File string, _file string", "_file", "the data also have a column '_file'"),
        ("_file string, _file string", "_file", "the data also have a column '_file'"),
    ],
)
def test_metadata_columns_of_a_declared_schema(schema: str, asked: str, problem: str) -> None:
    with pytest.raises(BacklogError, match=problem):
        source(metadataColumns=asked).streamReader(declared(schema))


def rows(found: HybridDataSource, schema: StructType) -> list[dict[str, Any]]:
    """All rows of bounded phases, in one batch."""
    reader = found.streamReader(schema)
    assert isinstance(reader, HybridStreamReader)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(1000))
    return [row for p in reader.partitions(start, end) for batch in reader.read(p) for row in batch.to_pylist()]


def test_data_may_have_columns_named_as_metadata(tmp_path: Path) -> None:
    """What this source wrote with metadata columns is read back with their values."""
    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    kept = {"id": 1, "_timestamp": at, "_key": b"k", "_file": "mine", "_phase": "old", "_topic": "t"}
    table = pa.Table.from_pylist([kept])
    (tmp_path / "files").mkdir()
    pq.write_table(table, tmp_path / "files" / "a.parquet")
    write_deltalake(str(tmp_path / "delta"), table)
    for kind in ("files", "delta"):
        options = {"phases": kind, "path": str(tmp_path / kind), "metadataLocation": str(tmp_path / "metadata")}
        found = HybridDataSource(options)
        schema = found.schema()
        assert isinstance(schema, StructType)
        assert rows(found, schema) == [kept]
        found = HybridDataSource({**options, "metadataColumns": "_offset"})
        schema = found.schema()
        assert isinstance(schema, StructType)
        assert rows(found, schema) == [{**kept, "_offset": None}]
        with pytest.raises(SettingError, match="the data also have a column '_file'"):
            HybridDataSource({**options, "metadataColumns": "_offset, _file"}).schema()
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "a.json").write_text('{"id": 1, "_offset": 77}\n')
    options = {"phases": "files", "path": str(tmp_path / "json"), "metadataLocation": str(tmp_path)}
    options["fileFormat"] = "json"
    schema = declared("id long, _offset long")
    assert rows(HybridDataSource(options), schema) == [{"id": 1, "_offset": 77}]
    assert rows(HybridDataSource({**options, "metadataColumns": "_offset"}), schema) == [{"id": 1, "_offset": None}]


@pytest.mark.parametrize("limit", [1, 1000])
def test_the_columns_of_a_delta_table_change_between_two_starts(tmp_path: Path, limit: int) -> None:
    path = str(tmp_path / "delta")
    for i in range(3):
        write_deltalake(path, pa.table({"id": [i], "amount": [i * 1.5]}), mode="append")
    options = {"phases": "delta", "path": path, "metadataLocation": str(tmp_path)}

    def started(**more: str) -> HybridStreamReader:
        found = HybridDataSource({**options, **more})
        schema = found.schema() if not more else declared(more["schema"])
        reader = pickle.loads(pickle.dumps(found)).streamReader(schema)
        assert isinstance(reader, HybridStreamReader)
        return reader

    reader = started()
    first = reader.initialOffset()
    offset = reader.latestOffset(first, ReadMaxRows(limit))
    assert len(list(reader.partitions(first, offset))) > 0
    started().latestOffset(offset, ReadMaxRows(limit))
    write_deltalake(path, pa.table({"id": [9], "amt": [9.5]}), mode="overwrite", schema_mode="overwrite")
    problem = "declares the columns id, amt, but the checkpoint has id, amount.*: `id` bigint, `amount` double"
    with pytest.raises(SettingError, match=problem):
        started().latestOffset(offset, ReadMaxRows(limit))
    with pytest.raises(SettingError, match=problem):
        started().partitions(first, offset)
    reader = started(schema="id long, amount double")
    found = [batch.to_pylist() for p in reader.partitions(first, offset) for batch in reader.read(p)]
    assert found[0][0] == {"id": 0, "amount": 0.0}


@pytest.mark.parametrize(
    "schema", ["id BIGINT, _File STRING", "`_file` STRING", "a STRUCT<x: INT, y: INT> COMMENT 'a, _key', _file STRING"]
)
def test_a_schema_with_the_name_of_a_metadata_column(schema: str) -> None:
    with pytest.raises(SettingError, match="metadataColumns = '_file': the data also have a column '_file'"):
        source(schema=schema, metadataColumns="_file").schema()
    with pytest.raises(SettingError, match="also have a column"):
        inspect({**FILES, **KAFKA, "schema": schema, "metadataColumns": "_file"})
    fine = "a STRUCT<_key: INT, _phase: DECIMAL(3, 2)> COMMENT '_key', `b, _key` INT NOT NULL"
    assert source(schema=fine, metadataColumns="_key, _phase").schema() == f"{fine}, _key binary, _phase string"


def test_phases_get_what_decodes() -> None:
    options: dict[str, Any] = {**FILES, **KAFKA, "fileFormat": "json", "valueFormat": "csv", "mode": "dropmalformed"}
    files, kafka = make_phases(HybridOptions.parse(options))
    schema = pa.schema([("n", pa.int64())])
    assert files.decoder_of is not None
    assert kafka.decoder_of is not None
    assert type(files.decoder_of(schema)).__name__ == "JsonDecoder"
    decoder = kafka.decoder_of(schema)
    assert type(decoder).__name__ == "CsvDecoder"
    assert decoder.decode(pa.array([b"1", b"x", b"2"])).columns[0].to_pylist() == [1, 2]
