"""Parses and checks the options of a phase of files (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from backlog_spark.errors import SettingError

from .catalogue import FILES
from .given import FilesGiven
from .listing import split_paths
from .stores import scheme_of

__all__ = ["CsvOptions", "FileOptions", "ReadOptions", "common_options"]

# Measured into Spark, 16 to 128 MB are equally fast: long enough compared with the cost of a task, and short enough
# that all cores end at about the same time. Row groups are not split, so each of Spark's (128 MB) is a task of its own.
PARTITION_BYTES = 32 << 20
_CSV = ("header", "sep", "delimiter", "quote", "escape", "nullValue", "multiLine")


@dataclass(frozen=True)
class ReadOptions:
    """The options of every phase that reads files.

    Parameters
    ----------
    max_files : int or None
        The most files of a batch.
    partition_bytes : int
        Approximate bytes of a task.
    fails_on_loss : bool
        Whether a file that is gone or changed is an error. If not, it is skipped.
    metadata_location : str
        Directory for files that the phase writes; "": none.
    timestamp_column : str
        "": none.
    dedup_key : tuple of str
    overlap_ms : int or None
    storage : mapping
        Arguments of the file system. Secret.
    """

    max_files: int | None = None
    partition_bytes: int = PARTITION_BYTES
    fails_on_loss: bool = True
    metadata_location: str = ""
    timestamp_column: str = ""
    dedup_key: tuple[str, ...] = ()
    overlap_ms: int | None = None
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class CsvOptions:
    """The options of CSV. Names as in Spark."""

    header: bool = False
    sep: str = ","
    quote: str = '"'
    escape: str = "\\"
    null_value: str = ""
    multi_line: bool = True

    @property
    def splits_at_lines(self) -> bool:
        """Whether every line is a record."""
        return not (self.multi_line and self.quote)


@dataclass(frozen=True)
class FileOptions:
    """Parsed options.

    Parameters
    ----------
    format : str
        ``"parquet"``, ``"json"``, ``"csv"`` or ``"orc"``.
    paths : tuple of str
        Patterns, all in the same file system.
    base_path : str
        "" if not given.
    name_pattern : str
        "" for all names.
    has_partitions : bool
        Whether directories may be partition columns.
    may_be_empty : bool
        Whether a path may have no file.
    time_zone : str
        Time zone of the writer of ORC timestamps; "" if not given.
    read : ReadOptions
    csv : CsvOptions

    Raises
    ------
    SettingError
        From `parse`, for an option that is unknown, missing, malformed or out of bounds.
    """

    format: str
    paths: tuple[str, ...]
    base_path: str = ""
    name_pattern: str = ""
    has_partitions: bool = True
    may_be_empty: bool = False
    time_zone: str = ""
    read: ReadOptions = ReadOptions()
    csv: CsvOptions = CsvOptions()

    @classmethod
    def parse(cls, options: Mapping[str, str], others: Collection[str] = ()) -> FileOptions:
        """Parse the options of the phase; names in any case. ``others``: known names that other modules read."""
        given = FilesGiven(options, FILES, others, "a phase of files")
        form = given.choice("fileFormat", ("parquet", "json", "csv", "orc"))
        paths = tuple(split_paths(given.required("path", 'Set .option("path", "/data/*.parquet").')))
        base = given.text("basePath").strip()
        schemes = {scheme_of(path) for path in (*paths, *filter(None, [base]))}
        if len(schemes) > 1:
            raise SettingError(
                "path", given.text("path"), f"is of several file systems: {', '.join(sorted(schemes))}.",
                "Read them in one phase each.",
            )  # fmt: skip
        if not paths:
            raise SettingError("path", given.text("path"), "is empty.", "Name a file or directory.")
        given.required(
            "metadataLocation",
            "Set it to a directory that stays as long as the checkpoint, such as one next to it. It keeps the list of "
            "files.",
        )
        return cls(
            format=form,
            paths=paths,
            base_path=base,
            name_pattern=given.text("pathGlobFilter"),
            has_partitions=not given.flag("recursiveFileLookup", False),
            may_be_empty=given.flag("allowEmpty", False),
            time_zone=_time_zone(given) if form == "orc" else "",
            read=common_options(given),
            csv=_csv(given, form),
        )


def common_options(given: FilesGiven) -> ReadOptions:
    """The options of every phase that reads files."""
    column = given.text("timestampColumn").strip()
    key = given.names("dedupKey")
    overlap = given.duration("startingOverlap", None)
    if key and not (column and overlap is not None):
        missing = "timestampColumn" if not column else "startingOverlap"
        raise SettingError(
            "dedupKey", given.text("dedupKey"), f"needs {missing}.",
            f"Set {missing}, or leave out dedupKey.",
        )  # fmt: skip
    if key and not given.text("metadataLocation").strip():
        raise SettingError(
            "metadataLocation", None, "is needed with dedupKey.",
            "Set it to a directory that stays as long as the checkpoint, such as one next to it, for the keys.",
        )  # fmt: skip
    return ReadOptions(
        max_files=given.integer("maxFilesPerBatch", None, 1, hint="Leave it out for no bound."),
        partition_bytes=given.size("filePartitionBytes", PARTITION_BYTES, 1 << 10),
        fails_on_loss=given.flag("failOnDataLoss", True),
        metadata_location=given.text("metadataLocation").strip(),
        timestamp_column=column,
        dedup_key=key,
        overlap_ms=overlap,
        storage=given.storage(),
    )


def _time_zone(given: FilesGiven) -> str:
    name = given.text("timeZone").strip()
    try:
        if name:
            ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise SettingError("timeZone", name, "is not a time zone.", "For example UTC or Europe/Berlin.") from None
    return name


def _csv(given: FilesGiven, form: str) -> CsvOptions:
    for name in _CSV:
        if given.has(name) and form != "csv":
            raise SettingError(name, given.text(name), f"has no meaning with fileFormat={form}.", f"Leave out {name}.")
    if given.has("encoding"):
        if form not in ("csv", "json"):
            raise SettingError(
                "encoding", given.text("encoding"), f"has no meaning with fileFormat={form}.", "Leave out encoding."
            )
        if given.text("encoding").strip().lower().replace("_", "-") not in ("utf-8", "utf8"):
            raise SettingError(
                "encoding", given.text("encoding"), "is not utf-8.", "Rewrite the files in UTF-8, and leave it out."
            )
    if given.has("sep") and given.has("delimiter") and given.text("sep") != given.text("delimiter"):
        raise SettingError("delimiter", given.text("delimiter"), "contradicts sep.", "Give one of them.")
    plain = CsvOptions()
    separator = given.text("sep", given.text("delimiter", plain.sep))
    separator = "\t" if separator == "\\t" else separator
    if not separator or "\n" in separator or "\r" in separator:
        raise SettingError("sep", separator, "cannot separate fields.", 'Set it to a text such as "," or "\\t".')
    return CsvOptions(
        header=given.flag("header", plain.header),
        sep=separator,
        quote=given.character("quote", plain.quote),
        escape=given.character("escape", plain.escape),
        null_value=given.text("nullValue", plain.null_value),
        multi_line=given.flag("multiLine", plain.multi_line),
    )
