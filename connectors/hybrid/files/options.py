"""The options of the phases that read files, each declared once (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self
from zoneinfo import ZoneInfo

from backlog_spark.errors import SettingError
from backlog_spark.spi.options import (
    Option,
    choice,
    duration,
    flag,
    integer,
    option,
    options_of,
    parsed,
    text,
    values,
)  # fmt: skip
from backlog_spark.spi.user_options import UserOptions, check_names

from ..decode.options import CSV
from .listing import split_paths
from .stores import scheme_of

__all__ = ["CsvOptions", "DeltaOptions", "FileOptions", "ReadOptions"]

# Measured into Spark, 16 to 128 MB are equally fast: long enough compared with the cost of a task, and short enough
# that all cores end at about the same time. Row groups are not split, so each of Spark's (128 MB) is a task of its own.
PARTITION_BYTES = 32 << 20
_FORMATS = ("parquet", "json", "csv", "orc")
_STORAGE = "fs."
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SEP, _DELIMITER, _QUOTE, _ESCAPE, _NULL_VALUE = CSV


def _size(given: UserOptions, name: str) -> int:
    """A number of bytes in Spark's notation: ``67108864``, ``64m`` or ``64MB``."""
    if not given.has(name):
        return PARTITION_BYTES
    found = re.fullmatch(r"\s*(\d{1,19})\s*(b|[kmg]i?b?)?\s*", given.text(name), re.IGNORECASE)
    size = int(found[1]) * _UNITS[(found[2] or "").lower()[:1]] if found else 0
    if size < 1 << 10:
        raise SettingError(
            name, given.text(name), "is not a number of bytes >= 1024.", "Write a number, such as 67108864 or 64m."
        )
    return size


def _names(given: UserOptions, name: str) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(part.strip() for part in given.text(name).split(",") if part.strip())


def _storage(given: UserOptions) -> dict[str, str]:
    """The options ``fs.*``, without that prefix."""
    return {name[len(_STORAGE) :]: text for name, text in given.items() if name.startswith(_STORAGE)}


def _separator(given: UserOptions) -> str:
    if given.has("sep") and given.has("delimiter") and given.text("sep") != given.text("delimiter"):
        raise SettingError("delimiter", given.text("delimiter"), "contradicts sep.", "Give one of them.")
    name = "sep" if given.has("sep") else "delimiter"
    found = given.text(name, ",")
    found = "\t" if found == "\\t" else found
    if not found or "\n" in found or "\r" in found:
        raise SettingError(name, found, "cannot separate fields.", 'Set it to a text such as "," or "\\t".')
    return found


def _character(given: UserOptions, name: str, default: str) -> str:
    """One character, or none."""
    found = given.text(name, default)
    if len(found) > 1 or not found.isascii() or found in ("\n", "\r"):
        raise SettingError(name, found, "is not one ASCII character.", f"Set {name} to one, or to nothing.")
    return found


def _time_zone(given: UserOptions, name: str) -> str:
    if given.choice("fileFormat", _FORMATS) != "orc":
        return ""
    found = given.text(name).strip()
    try:
        if found:
            ZoneInfo(found)
    except (KeyError, ValueError, OSError):
        raise SettingError("timeZone", found, "is not a time zone.", "For example UTC or Europe/Berlin.") from None
    return found


def _time(given: UserOptions, name: str) -> datetime | None:
    if not given.has(name):
        return None
    try:
        found = datetime.fromisoformat(given.text(name).strip())
    except ValueError:
        raise SettingError(
            "timestampAsOf", given.text(name), "is no time.", "For example 2024-01-31T12:00:00Z."
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _check_names(kind: type[object], options: Mapping[str, str], others: Collection[str], what: str) -> None:
    names = (name for name in options if not name.lower().startswith(_STORAGE))
    check_names(names, [*(o.name for o in options_of(kind)), *others], f"{what} has no such option.")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The options of every phase that reads files."""

    metadata_location: str = option(
        "metadataLocation", lambda given, name: given.text(name).strip(), type="path",
        shown="required; by a Delta phase only with dedupKey",
    )  # fmt: skip
    """Directory for the list of files and the keys for the hand-over: a local path of the driver, or a URL. Its files
    never change. Keep it as long as the checkpoint."""
    max_files: int | None = integer(
        "maxFilesPerBatch", None, 1, hint="Leave it out for no bound.", spark="maxFilesPerTrigger"
    )
    """Maximum number of files per batch."""
    partition_bytes: int = option(
        "filePartitionBytes",
        _size,
        type="bytes",
        shown="32m",
        bounds=">= 1k",
        spark="spark.sql.files.maxPartitionBytes",
    )
    """Approximate bytes of files per task. Larger files are split at row groups, stripes or lines. Smaller files are
    read together."""
    fails_on_loss: bool = flag("failOnDataLoss", True, spark="spark.sql.files.ignoreMissingFiles")
    """Whether the query stops if a listed file is gone or was replaced. false: the file is skipped with a warning. A
    file that replaced it is not read either."""
    timestamp_column: str = option(
        "timestampColumn", lambda given, name: given.text(name).strip(), type="name",
        bounds="a column of type timestamp or timestamp_ntz",
    )  # fmt: skip
    """Column with a row's time. The next phase may start at its greatest value."""
    dedup_key: tuple[str, ...] = option(
        "dedupKey", _names, type="names",
        bounds="columns of the stream, not nested; with timestampColumn and startingOverlap",
    )  # fmt: skip
    """Columns that identify a row, together with `timestampColumn`. The keys of rows within `startingOverlap` of the
    last row are kept. The next phase drops records with these keys and times."""
    overlap_ms: int | None = duration("startingOverlap", None)
    """How far before the greatest time the next phase starts."""
    storage: Mapping[str, str] = parsed(_storage, Option("fs.*", secret=True))
    """Arguments of the file system, such as `fs.key` and `fs.secret`. If files and `metadataLocation` are in different
    file systems, `fs.s3.key` applies to `s3://` only. Names without a scheme apply to the files, or to
    `metadataLocation` if the files are local. Never written to logs, offsets or errors."""

    @classmethod
    def parse(cls, given: UserOptions) -> Self:
        """Parse the options."""
        found = cls(**values(cls, given))
        if found.dedup_key and not (found.timestamp_column and found.overlap_ms is not None):
            missing = "timestampColumn" if not found.timestamp_column else "startingOverlap"
            raise SettingError(
                "dedupKey", given.text("dedupKey"), f"needs {missing}.",
                f"Set {missing}, or leave out dedupKey.",
            )  # fmt: skip
        if found.dedup_key and not found.metadata_location:
            raise SettingError(
                "metadataLocation", None, "is needed with dedupKey.",
                "Set it to a directory that stays as long as the checkpoint, such as one next to it, for the keys.",
            )  # fmt: skip
        return found


@dataclass(frozen=True)
class CsvOptions:
    """The options of CSV. Names as in Spark."""

    header: bool = flag("header", spark="header")
    """csv: skips the first line. Columns match by position."""
    sep: str = parsed(_separator, _SEP, _DELIMITER, default=",")
    quote: str = parsed(lambda given: _character(given, "quote", '"'), _QUOTE, default='"')
    escape: str = parsed(lambda given: _character(given, "escape", "\\"), _ESCAPE, default="\\")
    null_value: str = parsed(lambda given: given.text("nullValue"), _NULL_VALUE, default="")
    multi_line: bool = flag("multiLine", True, spark="multiLine")
    """csv. true: a quoted field may span lines, so one task reads a whole file. CR alone ends lines if it ends the
    first line, as in Spark; else it is text. false: each line is a record, as is Spark's default, and large files are
    split. Without `quote` it is always false."""

    @property
    def splits_at_lines(self) -> bool:
        """Whether every line is a record."""
        return not (self.multi_line and self.quote)


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Parsed options of a phase of files.

    Raises
    ------
    SettingError
        From `parse`, for an option that is unknown, missing, malformed or out of bounds.
    """

    format: str = choice("fileFormat", _FORMATS, spark="format")
    """Format of the files. json: one record per line. Lines end with LF, CR LF or CR. orc: Hive's columns without names
    (`_col0`) match the schema by position, as in Spark."""
    paths: tuple[str, ...] = option(
        "path", lambda given, name: tuple(split_paths(given.required(name, 'Set .option("path", "/data/*.parquet").'))),
        type="paths", shown="required", spark="path",
    )  # fmt: skip
    """Files and directories, separated by commas. `*`, `?`, `[...]` and `{a,b}` match within a name. Directories are
    read with everything below them. Names that begin with `_` or `.` are skipped. Local, or a URL of any file system of
    fsspec."""
    base_path: str = option(
        "basePath", lambda given, name: given.text(name).strip(), type="path", shown="path up to its first wildcard",
        spark="basePath",
    )  # fmt: skip
    """Directories `name=value` below it become columns with the declared types."""
    name_pattern: str = text("pathGlobFilter", type="pattern", spark="pathGlobFilter")
    """Reads only files whose name matches."""
    flat: bool = flag("recursiveFileLookup", spark="recursiveFileLookup")
    """true: directories `name=value` do not become columns."""
    may_be_empty: bool = flag("allowEmpty")
    """true: a path may match no file; the history is then empty. false: the query is refused."""
    read: ReadOptions = parsed(ReadOptions.parse, ReadOptions)
    time_zone: str = option(
        "timeZone", _time_zone, type="zone", bounds="such as UTC or Europe/Berlin", spark="timeZone"
    )
    """orc: zone of the process that wrote the files. ORC's `timestamp` has no zone, so this is required where the
    schema declares it as `timestamp`. json and csv: the decoder's."""
    csv: CsvOptions = parsed(lambda given: CsvOptions(**values(CsvOptions, given)), CsvOptions)
    encoding: str = text("encoding", "utf-8", bounds="utf-8", spark="encoding, charset")
    """json, csv: encoding of text."""

    @classmethod
    def parse(cls, options: Mapping[str, str], others: Collection[str] = ()) -> Self:
        """Parse the options of the phase; names in any case. ``others``: known names that other modules read."""
        _check_names(cls, options, others, "a phase of files")
        given = UserOptions(options)
        found = cls(**values(cls, given))
        schemes = {scheme_of(path) for path in (*found.paths, *filter(None, [found.base_path]))}
        if len(schemes) > 1:
            raise SettingError(
                "path", given.text("path"),
                f"is of several file systems: {', '.join(sorted(schemes))} (with basePath).",
                "Read them in one phase each.",
            )  # fmt: skip
        if not found.paths:
            raise SettingError("path", given.text("path"), "is empty.", "Name a file or directory.")
        given.required(
            "metadataLocation",
            "Set it to a directory that stays as long as the checkpoint, such as one next to it. It keeps the list of "
            "files.",
        )
        for name in (o.name for o in options_of(CsvOptions)):
            if given.has(name) and found.format != "csv":
                raise SettingError(
                    name, given.text(name), f"has no meaning with fileFormat={found.format}.", f"Leave out {name}."
                )
        if given.has("encoding") and found.format not in ("csv", "json"):
            raise SettingError(
                "encoding", found.encoding, f"has no meaning with fileFormat={found.format}.", "Leave out encoding."
            )
        if found.encoding.strip().lower().replace("_", "-") not in ("utf-8", "utf8"):
            raise SettingError(
                "encoding", found.encoding, "is not utf-8.", "Rewrite the files in UTF-8, and leave it out."
            )
        return found


@dataclass(frozen=True, kw_only=True)
class DeltaOptions:
    """Parsed options of a phase of Delta.

    Raises
    ------
    SettingError
        From `parse`, for an option that is unknown, missing, malformed or out of bounds.
    """

    path: str = option(
        "path", lambda given, name: given.required(name, 'Set .option("path", "/data/table").').strip(), type="path",
        shown="required", spark="path",
    )  # fmt: skip
    """Directory or URL of the table."""
    version: int | None = integer(
        "versionAsOf", None, 0, hint="Leave it out for the latest version.", shown="the latest", spark="versionAsOf"
    )
    """The version to read. The first start of the query fixes it."""
    time: datetime | None = option("timestampAsOf", _time, type="timestamp", spark="timestampAsOf")
    """Reads the version at this time, such as 2024-01-31T12:00:00Z; UTC without an offset."""
    read: ReadOptions = parsed(ReadOptions.parse, ReadOptions)

    @classmethod
    def parse(cls, options: Mapping[str, str], others: Collection[str] = ()) -> Self:
        """Parse the options of the phase; names in any case. ``others``: known names that other modules read."""
        _check_names(cls, options, others, "a phase of Delta")
        given = UserOptions(options)
        if given.has("versionAsOf") and given.has("timestampAsOf"):
            raise SettingError(
                "timestampAsOf", given.text("timestampAsOf"), "is given together with versionAsOf.", "Give one of them."
            )
        return cls(**values(cls, given))
