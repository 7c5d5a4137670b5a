"""The options of the phases of files and of Delta as the documentation lists them (pure)."""

from __future__ import annotations

from ..option import FILE_SYSTEM, Option

__all__ = ["COMMON", "DELTA", "FILES"]


_METADATA = (
    "Directory for the list of files and the keys for the hand-over, local to the driver or with a URL. Nothing in it "
    "is ever changed; it is needed as long as the checkpoint."
)
# Of every phase that reads files.
COMMON = (
    Option("maxFilesPerBatch", "int", "unset", "Most files that a batch reads from.", ">= 1", "maxFilesPerTrigger"),
    Option(
        "filePartitionBytes",
        "bytes",
        "32m",
        "About so much of the files is read by one task: larger files are split at row groups, stripes or lines, "
        "smaller ones are put together.",
        ">= 1k",
        "spark.sql.files.maxPartitionBytes",
    ),
    Option(
        "failOnDataLoss",
        "boolean",
        "true",
        "Whether a file that is gone, or is not the one that was listed, ends the query. false: it is left out with a "
        "warning; what is in its place was never listed, and is not read either.",
        "true, false",
        "spark.sql.files.ignoreMissingFiles",
    ),
    Option(
        "timestampColumn",
        "name",
        "unset",
        "Column that says a row's time: the greatest is where the phase after it may start.",
        "a column of type timestamp or timestamp_ntz",
    ),
    Option(
        "dedupKey",
        "names",
        "unset",
        "Columns that, with `timestampColumn`, tell a row from others. Those of the rows within `startingOverlap` of "
        "the last are kept for the phase after it, which leaves out what it reads again.",
        "columns of the stream, not nested; with timestampColumn and startingOverlap",
    ),
    Option("startingOverlap", "duration", "unset", "How far the phase after it goes back behind the greatest time."),
    FILE_SYSTEM,
)
FILES = (
    Option(
        "fileFormat",
        "string",
        "parquet",
        "What the files are. json: one record a line. Lines end with LF, CR LF or CR. orc: columns of Hive without "
        "names (`_col0`) are those of the schema by their place, as in Spark.",
        "parquet, json, csv, orc",
        "format",
    ),
    Option(
        "path",
        "paths",
        "required",
        "Files and directories, with commas between them. `*`, `?`, `[...]` and `{a,b}` match within a name; "
        "directories are read with all beneath; names that begin with `_` or `.` are left out. Local, or a URL of any "
        "file system of fsspec.",
        spark="path",
    ),
    Option("metadataLocation", "path", "required", _METADATA),
    Option(
        "basePath",
        "path",
        "path up to its first wildcard",
        "Directories `name=value` below it are columns, whose types are as declared.",
        spark="basePath",
    ),
    Option("pathGlobFilter", "pattern", "unset", "Only files whose name matches.", spark="pathGlobFilter"),
    Option(
        "recursiveFileLookup",
        "boolean",
        "false",
        "true: directories `name=value` are no columns.",
        "true, false",
        "recursiveFileLookup",
    ),
    Option(
        "allowEmpty",
        "boolean",
        "false",
        "Whether a path may have no file: then there is no history. false: the query is refused.",
        "true, false",
    ),
    *COMMON,
    Option(
        "timeZone",
        "zone",
        "unset",
        "orc: zone of the process that wrote the files. Needed where its `timestamp`, which has none, is declared as "
        "`timestamp`; json and csv: the decoder's.",
        "such as UTC or Europe/Berlin",
        "timeZone",
    ),
    Option("header", "boolean", "false", "csv: the first line is left out. Columns go by their place.", spark="header"),
    Option("sep", "string", ",", "csv: what is between two fields; also `delimiter`.", "not empty", "sep, delimiter"),
    Option("delimiter", "string", ",", "csv: the same as `sep`.", "not empty", "delimiter"),
    Option("quote", "character", '"', "csv: around a field; empty for none.", "one or none", "quote"),
    Option("escape", "character", "\\", "csv: before a quote within quotes; empty for none.", "one or none", "escape"),
    Option("nullValue", "string", '""', "csv: what stands for NULL.", spark="nullValue"),
    Option(
        "multiLine",
        "boolean",
        "true",
        "csv: a field in quotes may go over lines, so that a file is one task's. false: each line is a record, as is "
        "Spark's default, and large files are split. Without `quote` that is so anyway. true: CR alone ends lines if "
        "it ends the first, as in Spark; else it is text.",
        "true, false",
        "multiLine",
    ),
    Option("encoding", "string", "utf-8", "json, csv: how text is encoded.", "utf-8", "encoding, charset"),
)
DELTA = (
    Option("path", "path", "required", "Directory or URL of the table.", spark="path"),
    Option(
        "versionAsOf",
        "int",
        "the latest",
        "The version that is read. It is fixed when the query first starts.",
        ">= 0",
        "versionAsOf",
    ),
    Option(
        "timestampAsOf",
        "timestamp",
        "unset",
        "The version at this time, such as 2024-01-31T12:00:00Z; UTC without an offset.",
        spark="timestampAsOf",
    ),
    Option("metadataLocation", "path", "with dedupKey: required", _METADATA),
    *COMMON,
)
