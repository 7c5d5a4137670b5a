"""The documented options of the file and Delta phases (pure)."""

from __future__ import annotations

from ..option import FILE_SYSTEM, Option

__all__ = ["COMMON", "DELTA", "FILES"]


_METADATA = (
    "Directory for the list of files and the keys for the hand-over: a local path of the driver, or a URL. Its files "
    "never change. Keep it as long as the checkpoint."
)
# For every phase that reads files.
COMMON = (
    Option("maxFilesPerBatch", "int", "unset", "Maximum number of files per batch.", ">= 1", "maxFilesPerTrigger"),
    Option(
        "filePartitionBytes",
        "bytes",
        "32m",
        "Approximate bytes of files per task. Larger files are split at row groups, stripes or lines. Smaller files "
        "are read together.",
        ">= 1k",
        "spark.sql.files.maxPartitionBytes",
    ),
    Option(
        "failOnDataLoss",
        "boolean",
        "true",
        "Whether the query stops if a listed file is gone or was replaced. false: the file is skipped with a warning. "
        "A file that replaced it is not read either.",
        "true, false",
        "spark.sql.files.ignoreMissingFiles",
    ),
    Option(
        "timestampColumn",
        "name",
        "unset",
        "Column with a row's time. The next phase may start at its greatest value.",
        "a column of type timestamp or timestamp_ntz",
    ),
    Option(
        "dedupKey",
        "names",
        "unset",
        "Columns that identify a row, together with `timestampColumn`. The keys of rows within `startingOverlap` of "
        "the last row are kept. The next phase drops records with these keys and times.",
        "columns of the stream, not nested; with timestampColumn and startingOverlap",
    ),
    Option("startingOverlap", "duration", "unset", "How far before the greatest time the next phase starts."),
    FILE_SYSTEM,
)
FILES = (
    Option(
        "fileFormat",
        "string",
        "parquet",
        "Format of the files. json: one record per line. Lines end with LF, CR LF or CR. orc: Hive's columns without "
        "names (`_col0`) match the schema by position, as in Spark.",
        "parquet, json, csv, orc",
        "format",
    ),
    Option(
        "path",
        "paths",
        "required",
        "Files and directories, separated by commas. `*`, `?`, `[...]` and `{a,b}` match within a name. Directories "
        "are read with everything below them. Names that begin with `_` or `.` are skipped. Local, or a URL of any "
        "file system of fsspec.",
        spark="path",
    ),
    Option("metadataLocation", "path", "required", _METADATA),
    Option(
        "basePath",
        "path",
        "path up to its first wildcard",
        "Directories `name=value` below it become columns with the declared types.",
        spark="basePath",
    ),
    Option("pathGlobFilter", "pattern", "unset", "Reads only files whose name matches.", spark="pathGlobFilter"),
    Option(
        "recursiveFileLookup",
        "boolean",
        "false",
        "true: directories `name=value` do not become columns.",
        "true, false",
        "recursiveFileLookup",
    ),
    Option(
        "allowEmpty",
        "boolean",
        "false",
        "true: a path may match no file; the history is then empty. false: the query is refused.",
        "true, false",
    ),
    *COMMON,
    Option(
        "timeZone",
        "zone",
        "unset",
        "orc: zone of the process that wrote the files. ORC's `timestamp` has no zone, so this is required where the "
        "schema declares it as `timestamp`. json and csv: the decoder's.",
        "such as UTC or Europe/Berlin",
        "timeZone",
    ),
    Option("header", "boolean", "false", "csv: skips the first line. Columns match by position.", spark="header"),
    Option("sep", "string", ",", "csv: field separator; also `delimiter`.", "not empty", "sep, delimiter"),
    Option("delimiter", "string", ",", "csv: the same as `sep`.", "not empty", "delimiter"),
    Option("quote", "character", '"', "csv: quotes a field; empty for none.", "one or none", "quote"),
    Option("escape", "character", "\\", "csv: escapes a quote within quotes; empty for none.", "one or none", "escape"),
    Option("nullValue", "string", '""', "csv: text that means NULL.", spark="nullValue"),
    Option(
        "multiLine",
        "boolean",
        "true",
        "csv. true: a quoted field may span lines, so one task reads a whole file. CR alone ends lines if it ends the "
        "first line, as in Spark; else it is text. false: each line is a record, as is Spark's default, and large "
        "files are split. Without `quote` it is always false.",
        "true, false",
        "multiLine",
    ),
    Option("encoding", "string", "utf-8", "json, csv: encoding of text.", "utf-8", "encoding, charset"),
)
DELTA = (
    Option("path", "path", "required", "Directory or URL of the table.", spark="path"),
    Option(
        "versionAsOf",
        "int",
        "the latest",
        "The version to read. The first start of the query fixes it.",
        ">= 0",
        "versionAsOf",
    ),
    Option(
        "timestampAsOf",
        "timestamp",
        "unset",
        "Reads the version at this time, such as 2024-01-31T12:00:00Z; UTC without an offset.",
        spark="timestampAsOf",
    ),
    Option("metadataLocation", "path", "with dedupKey: required", _METADATA),
    *COMMON,
)
