"""The options of the phases that read files, each declared once (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self
from zoneinfo import ZoneInfo

from backlog_spark.common.stores import plain_path, scheme_of
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

from ..table.options import FollowingOptions
from .byte_sizes import byte_size
from .discovery_options import DiscoveryOptions
from .listing import fixed_part, split_paths
from .schemas.options import SchemaOptions
from .textoptions import CsvOptions, TextOptions, encoding_of

__all__ = ["CsvOptions", "DeltaOptions", "FileOptions", "ReadOptions"]

_FORMATS = ("parquet", "json", "csv", "orc", "avro", "text", "binaryFile")
# Files of lines or records, and the formats that know an option of another one too.
_TEXTS = ("csv", "json", "text")
# Formats whose columns are always the same.
_FIXED = ("text", "binaryFile")
_ALSO = {"multiLine": ("json",)}
_STORAGE = "fs."


def _names(given: UserOptions, name: str) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(part.strip() for part in given.text(name).split(",") if part.strip())


def _storage(given: UserOptions) -> dict[str, str]:
    """The options ``fs.*``, without that prefix."""
    return {name[len(_STORAGE) :]: text for name, text in given.items() if name.startswith(_STORAGE)}


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
        raise SettingError(name, given.text(name), "is no time.", "For example 2024-01-31T12:00:00Z.") from None
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
    max_bytes: int | None = option(
        "maxBytesPerBatch", lambda given, name: byte_size(given, name, None), None, type="bytes", bounds=">= 1",
        spark="maxBytesPerTrigger",
    )  # fmt: skip
    """Maximum bytes of files per batch. A larger file is a batch of its own. Holds beside `maxFilesPerBatch`."""
    partition_bytes: int | None = option(
        "filePartitionBytes",
        lambda given, name: byte_size(given, name, None, 1 << 10),
        None,
        type="bytes",
        shown="32m to 128m",
        bounds=">= 1k",
        spark="spark.sql.files.maxPartitionBytes",
    )
    """Approximate bytes of files per task: by default a 16th of the batch, within these limits. Larger files are split
    at row groups, stripes or lines. Smaller files are read together."""
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


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Parsed options of a phase of files.

    Raises
    ------
    SettingError
        From `parse`, for an option that is unknown, missing, malformed or out of bounds.
    """

    format: str = choice("fileFormat", _FORMATS, spark="format")
    """Format of the files. json: one record per line, or with `multiLine` per file. Lines end with LF, CR LF or CR.
    text: the column `value`. binaryFile: the columns `path`, `modificationTime`, `length` and `content`. orc: Hive's
    columns without names (`_col0`) match the schema by position, as in Spark."""
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
    after: datetime | None = option("modifiedAfter", _time, None, type="timestamp", spark="modifiedAfter")
    """Reads only files that were changed after this time, such as 2024-01-31T12:00:00Z; UTC without an offset."""
    before: datetime | None = option("modifiedBefore", _time, None, type="timestamp", spark="modifiedBefore")
    """Reads only files that were changed before this time."""
    flat: bool = flag("recursiveFileLookup", spark="recursiveFileLookup")
    """true: directories `name=value` do not become columns."""
    may_be_empty: bool = flag("allowEmpty")
    """true: a path may match no file; the history is then empty. false: the query is refused."""
    discovery: DiscoveryOptions = parsed(DiscoveryOptions.parse, DiscoveryOptions)
    read: ReadOptions = parsed(ReadOptions.parse, ReadOptions)
    time_zone: str = option(
        "timeZone", _time_zone, type="zone", bounds="such as UTC or Europe/Berlin", spark="timeZone"
    )
    """orc: zone of the process that wrote the files. ORC's `timestamp` has no zone, so this is required where the
    schema declares it as `timestamp`. json and csv: the decoder's."""
    schemas: SchemaOptions = parsed(SchemaOptions.parse, SchemaOptions)
    csv: CsvOptions = parsed(lambda given: CsvOptions(**values(CsvOptions, given)), CsvOptions)
    plain: TextOptions = parsed(lambda given: TextOptions(**values(TextOptions, given)), TextOptions)
    encoding: str = option(
        "encoding", encoding_of, type="encoding", shown="utf-8", bounds="such as ISO-8859-1 or UTF-16LE",
        spark="encoding, charset",
    )  # fmt: skip
    """json, csv, text: encoding of the files. Python's names and Java's. Files are split only in UTF-8, or if each
    character is one byte."""

    @classmethod
    def parse(cls, options: Mapping[str, str], others: Collection[str] = ()) -> Self:
        """Parse the options of the phase; names in any case. ``others``: known names that other modules read."""
        _check_names(cls, options, others, "a phase of files")
        given = UserOptions(options)
        found = cls(**values(cls, given))
        archive = found.discovery.archive.strip()
        schemes = {scheme_of(path) for path in (*found.paths, *filter(None, [found.base_path, archive]))}
        if len(schemes) > 1:
            others = " and sourceArchiveDir" if archive else ""
            raise SettingError(
                "path", given.text("path"),
                f"is of several file systems: {', '.join(sorted(schemes))} (with basePath{others}).",
                "Read them in one phase each.",
            )  # fmt: skip
        if not found.paths:
            raise SettingError("path", given.text("path"), "is empty.", "Name a file or directory.")
        found.discovery.check_paths(found.paths, [plain_path(fixed_part(p)) for p in found.paths], plain_path(archive))
        given.required(
            "metadataLocation",
            "Set it to a directory that stays as long as the checkpoint, such as one next to it. It keeps the list of "
            "files.",
        )
        meant: dict[str, tuple[str, ...]] = {o.name: ("csv", *_ALSO.get(o.name, ())) for o in options_of(CsvOptions)}
        meant.update({o.name: ("text",) for o in options_of(TextOptions)}, encoding=_TEXTS)
        meant.update({o.name: tuple(f for f in _FORMATS if f not in _FIXED) for o in options_of(SchemaOptions)})
        meant.update(inferColumnTypes=_TEXTS[:2], schemaInferenceBytes=_TEXTS[:2])
        for name, formats in meant.items():
            if given.has(name) and found.format not in formats:
                raise SettingError(
                    name, given.text(name), f"has no meaning with fileFormat={found.format}.", f"Leave out {name}."
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
    following: FollowingOptions = parsed(FollowingOptions.parse, FollowingOptions)
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
