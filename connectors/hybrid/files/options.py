"""The options of a phase of files, parsed and checked (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from backlog_spark.errors import SettingError

from .catalogue import FILES
from .given import Given
from .listing import split_paths
from .stores import scheme_of

__all__ = ["CsvOptions", "FileOptions", "ReadOptions", "common_options"]

# Measured into Spark, 16 to 128 MB are as fast as each other: long enough beside what a task costs, and short enough
# that cores end about together. Row groups are not split, so those of Spark (128 MB) still are a task each.
PARTITION_BYTES = 32 << 20
_CSV = ("header", "sep", "delimiter", "quote", "escape", "nullValue", "multiLine")


@dataclass(frozen=True)
class ReadOptions:
    """What every phase that reads files is told.

    Parameters
    ----------
    max_files : int or None
        Most files that a batch reads from.
    partition_bytes : int
        Of a task, about.
    fails_on_loss : bool
        Whether a file that is gone or changed is an error, rather than left out.
    metadata_location : str
        Directory for what the phase writes; "" for none.
    timestamp_column : str
        "" for none.
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
    """How CSV is written; names as in Spark."""

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
        Patterns, of one file system.
    base_path : str
        "" if not given.
    name_pattern : str
        "" for all names.
    has_partitions : bool
        Whether directories may be columns.
    may_be_empty : bool
        Whether a path may have no file.
    time_zone : str
        Of who wrote the timestamps of ORC; "" if not given.
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
        """From the options of the phase; names in any case. ``others`` are known, and somebody else's to read."""
        given = Given(options, FILES, others, "a phase of files")
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
            raise SettingError("path", given.text("path"), "names nothing.", "Name a file or directory.")
        given.required(
            "metadataLocation",
            "Set it to a directory that stays as long as the checkpoint, such as one beside it: the list of files is "
            "kept there.",
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


def common_options(given: Given) -> ReadOptions:
    """Those of every phase that reads files."""
    column = given.text("timestampColumn").strip()
    key = given.names("dedupKey")
    overlap = given.duration("startingOverlap")
    if key and not (column and overlap is not None):
        missing = "timestampColumn" if not column else "startingOverlap"
        raise SettingError(
            "dedupKey", given.text("dedupKey"), f"needs {missing}.",
            f"Set {missing}, or leave dedupKey out.",
        )  # fmt: skip
    if key and not given.text("metadataLocation").strip():
        raise SettingError(
            "metadataLocation", None, "is needed with dedupKey.",
            "Set it to a directory that stays as long as the checkpoint, such as one beside it, for the keys.",
        )  # fmt: skip
    return ReadOptions(
        max_files=given.integer("maxFilesPerBatch", 1, "Leave it out for no bound."),
        partition_bytes=given.size("filePartitionBytes", PARTITION_BYTES, 1 << 10),
        fails_on_loss=given.flag("failOnDataLoss", True),
        metadata_location=given.text("metadataLocation").strip(),
        timestamp_column=column,
        dedup_key=key,
        overlap_ms=overlap,
        storage=given.storage(),
    )


def _time_zone(given: Given) -> str:
    name = given.text("timeZone").strip()
    try:
        if name:
            ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise SettingError("timeZone", name, "is no time zone.", "For example UTC or Europe/Berlin.") from None
    return name


def _csv(given: Given, form: str) -> CsvOptions:
    for name in _CSV:
        if given.has(name) and form != "csv":
            raise SettingError(name, given.text(name), f"has no meaning with fileFormat={form}.", f"Leave {name} out.")
    if given.has("encoding"):
        if form not in ("csv", "json"):
            raise SettingError(
                "encoding", given.text("encoding"), f"has no meaning with fileFormat={form}.", "Leave encoding out."
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
        raise SettingError("sep", separator, "cannot stand between fields.", 'Set it to a text such as "," or "\\t".')
    return CsvOptions(
        header=given.flag("header", plain.header),
        sep=separator,
        quote=given.character("quote", plain.quote),
        escape=given.character("escape", plain.escape),
        null_value=given.text("nullValue", plain.null_value),
        multi_line=given.flag("multiLine", plain.multi_line),
    )
