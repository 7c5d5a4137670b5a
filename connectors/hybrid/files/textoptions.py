"""The options of files of text, each declared once (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from backlog_spark.errors import SettingError
from backlog_spark.spi.options import flag, parsed, text
from backlog_spark.spi.user_options import UserOptions

from ..decode.options import CSV, separator
from .encodings import UTF_8, known_encoding

__all__ = ["CsvOptions", "TextOptions", "encoding_of"]

_SEP, _DELIMITER, _QUOTE, _ESCAPE, _NULL_VALUE = CSV


def _character(given: UserOptions, name: str, default: str) -> str:
    """One character, or none."""
    found = given.text(name, default)
    if len(found) > 1 or not found.isascii() or found in ("\n", "\r"):
        raise SettingError(name, found, "is not one ASCII character.", f"Set {name} to one, or to nothing.")
    return found


def encoding_of(given: UserOptions, name: str) -> str:
    """Python's name of the encoding."""
    found = known_encoding(given.text(name, UTF_8))
    if found is None:
        raise SettingError(
            name,
            given.text(name),
            "is no encoding of text.",
            "For example UTF-8, ISO-8859-1, UTF-16LE or windows-1252.",
        )
    return found


@dataclass(frozen=True)
class CsvOptions:
    """The options of CSV. Names as in Spark."""

    header: bool = flag("header", spark="header")
    """csv: the first line has names. Columns match these names, in any case; other columns of the file are ignored. A
    file without a declared column is refused."""
    sep: str = parsed(separator, _SEP, _DELIMITER, default=",")
    quote: str = parsed(lambda given: _character(given, "quote", '"'), _QUOTE, default='"')
    escape: str = parsed(lambda given: _character(given, "escape", "\\"), _ESCAPE, default="\\")
    null_value: str = parsed(lambda given: given.text("nullValue"), _NULL_VALUE, default="")
    multi_line: bool = flag("multiLine", spark="multiLine")
    """csv. false: each line is a record, and large files are split. true: a quoted field may span lines, so one task
    reads a whole file. CR alone then ends lines if it ends the first line, as in Spark; else it is text. Without
    `quote` it is always false. json. true: a file is one object, or one array of objects, as in Spark."""
    enforce_schema: bool = flag("enforceSchema", spark="enforceSchema, there true by default")
    """csv with `header`. true: columns match by position, and a header with other names is only a warning."""
    # Which of the options with a new default the user set.
    chosen: frozenset[str] = parsed(
        lambda given: frozenset(name for name in ("multiLine", "enforceSchema") if given.has(name)), default=frozenset()
    )

    @property
    def splits_at_lines(self) -> bool:
        """Whether every line is a record."""
        return not (self.multi_line and self.quote)

    def check_former(self) -> None:
        """Refuse to go on where a version with other defaults began, as it would read other rows.

        Raises
        ------
        SettingError
        """
        for name, matters in (("multiLine", self.quote), ("enforceSchema", self.header)):
            if matters and name not in self.chosen:
                raise SettingError(
                    name, "false", "is a new default: the version that began this query had true.",
                    f"Set {name}=true to go on as before, or {name}=false.",
                )  # fmt: skip


@dataclass(frozen=True)
class TextOptions:
    """The options of plain text. Names as in Spark."""

    whole: bool = flag("wholetext", spark="wholetext")
    """text: a file is one row, which must fit into memory."""
    line_sep: str = text("lineSep", shown="LF, CR LF or CR", spark="lineSep")
    """text: ends a line. Files are split only if it is one byte."""
