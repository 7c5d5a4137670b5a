"""Options of the phase of files: valid values, and errors with the next step."""

from pathlib import Path

import pytest

from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.files.options import FileOptions
from backlog_spark.connectors.hybrid.files.textoptions import CsvOptions
from backlog_spark.errors import SettingError

NEEDED = {"path": "/data", "metadataLocation": "/meta"}


def test_names_in_any_case_and_defaults() -> None:
    found = FileOptions.parse({"PATH": "/a, /b/{c,d}/*", "metadatalocation": "/meta"})
    assert (found.format, found.paths) == ("parquet", ("/a", "/b/{c,d}/*"))
    assert found.csv == CsvOptions(False, ",", '"', "\\", "", False, False)
    assert found.read.fails_on_loss
    assert found.read.max_files is None
    assert found.read.partition_bytes is None


def test_all_options() -> None:
    found = FileOptions.parse(
        {
            **NEEDED, "fileFormat": "CSV", "maxFilesPerBatch": "3", "filePartitionBytes": "2MB",
            "failOnDataLoss": "FALSE", "timestampColumn": "at", "dedupKey": "a, b", "startingOverlap": "5 min",
            "header": "true", "delimiter": "\\t", "quote": "", "escape": "", "nullValue": "NA", "multiLine": "true",
            "enforceSchema": "true", "encoding": "Windows-1252", "fs.key": "k",
        }
    )  # fmt: skip
    assert found.csv == CsvOptions(True, "\t", "", "", "NA", True, True, frozenset({"multiLine", "enforceSchema"}))
    assert found.encoding == "cp1252"
    assert (found.read.max_files, found.read.partition_bytes, found.read.fails_on_loss) == (3, 2 << 20, False)
    assert (found.read.timestamp_column, found.read.dedup_key, found.read.overlap_ms) == ("at", ("a", "b"), 300_000)
    assert found.read.storage == {"key": "k"}


@pytest.mark.parametrize(
    ("options", "setting", "words"),
    [
        ({"path": "/a"}, "metadataLocation", "next to it"),
        ({"metadataLocation": "/m"}, "path", "is needed"),
        (NEEDED | {"path": " , "}, "path", "is empty"),
        (NEEDED | {"fileFormat": "xml"}, "fileFormat", "is none of parquet, json, csv, orc, avro, text, binaryFile"),
        (NEEDED | {"maxFilesPerBatch": "0"}, "maxFilesPerBatch", "is not an integer >= 1"),
        (NEEDED | {"maxFilesPerBatch": "many"}, "maxFilesPerBatch", "is not an integer >= 1"),
        (NEEDED | {"filePartitionBytes": "12 parsecs"}, "filePartitionBytes", "is not a number of bytes"),
        (NEEDED | {"filePartitionBytes": "1"}, "filePartitionBytes", ">= 1024"),
        (NEEDED | {"failOnDataLoss": "maybe"}, "failOnDataLoss", "is none of true, false"),
        (NEEDED | {"maxFilesPerBatc": "1"}, "maxFilesPerBatc", "Did you mean maxFilesPerBatch"),
        (NEEDED | {"header": "true"}, "header", "has no meaning with fileFormat=parquet"),
        (NEEDED | {"multiLine": "true"}, "multiLine", "has no meaning with fileFormat=parquet"),
        (NEEDED | {"fileFormat": "json", "header": "true"}, "header", "has no meaning with fileFormat=json"),
        (NEEDED | {"fileFormat": "csv", "wholetext": "true"}, "wholetext", "has no meaning with fileFormat=csv"),
        (NEEDED | {"encoding": "utf-8"}, "encoding", "has no meaning with fileFormat=parquet"),
        (NEEDED | {"fileFormat": "json", "encoding": "latin-77"}, "encoding", "is no encoding of text"),
        (NEEDED | {"fileFormat": "json", "encoding": "base64"}, "encoding", "is no encoding of text"),
        (NEEDED | {"fileFormat": "csv", "sep": ""}, "sep", "cannot separate fields"),
        (NEEDED | {"fileFormat": "csv", "sep": ";", "delimiter": ","}, "delimiter", "contradicts sep"),
        (NEEDED | {"fileFormat": "csv", "quote": "''"}, "quote", "is not one ASCII character"),
        (NEEDED | {"dedupKey": "a"}, "dedupKey", "needs timestampColumn"),
        (NEEDED | {"dedupKey": "a", "timestampColumn": "t"}, "dedupKey", "needs startingOverlap"),
        (NEEDED | {"startingOverlap": "5"}, "startingOverlap", "has no unit"),
        (NEEDED | {"fileFormat": "orc", "timeZone": "Mars/Olympus"}, "timeZone", "is not a time zone"),
        (NEEDED | {"fileFormat": "orc", "timeZone": "../etc"}, "timeZone", "is not a time zone"),
        (NEEDED | {"path": "/a,s3://b/c"}, "path", "is of several file systems: file, s3"),
    ],
)
def test_refused(options: dict[str, str], setting: str, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        FileOptions.parse(options)
    assert caught.value.setting == setting
    assert words in str(caught.value)
    assert caught.value.hint


def test_an_unknown_option_does_not_show_its_value_and_others_may_be_known() -> None:
    with pytest.raises(SettingError) as caught:
        FileOptions.parse(NEEDED | {"secretKey": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert FileOptions.parse(NEEDED | {"mode": "FAILFAST"}, others=["mode"]).format == "parquet"


def test_storage_options_are_never_shown(tmp_path: Path) -> None:
    phase = FilePhase("old", NEEDED | {"fs.secret": "hunter2"})
    assert "hunter2" not in repr(phase.options)
    remote = FilePhase("old", {"path": "gs://bucket/a", "metadataLocation": str(tmp_path), "fs.secret": "hunter2"})
    with pytest.raises(Exception, match="gcsfs") as caught:
        remote.begin({})
    assert "hunter2" not in str(caught.value)
