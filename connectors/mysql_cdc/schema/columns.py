"""A captured table's columns, as information_schema describes them (pure)."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backlog_spark.errors import BacklogError

__all__ = [
    "AUTO_INCREMENT",
    "BOOLEAN",
    "EXCLUDED",
    "MASKED",
    "Column",
    "columns_from_json",
    "columns_to_json",
    "made_by",
    "not_text",
    "quote_identifier",
]


_SPARK_DIGITS = 38
EXCLUDED, MASKED, BOOLEAN = "excluded", "masked", "boolean"
AUTO_INCREMENT = "auto_increment"


@dataclass(frozen=True)
class Column:
    """A column as information_schema describes it.

    Parameters
    ----------
    name : str
    data_type : str
        ``DATA_TYPE``, lower case: ``"int"``, ``"varchar"`` ….
    column_type : str
        ``COLUMN_TYPE``, with lengths, ``unsigned`` and labels.
    nullable : bool
    precision, scale : int
        Of a DECIMAL; 0 for other types.
    octet_length : int
        Bytes of a BINARY(n); 0 for other types.
    charset : str
        Character set of text; "" for other types.
    collation : str
        Collation of text; "" for other types.
    use : str
        `EXCLUDED`: it is not read. `MASKED`: its values are hashed before they leave the source. `BOOLEAN`: it is a
        TINYINT(1) that is read as boolean. "" for a column that is read as it is.
    made_by : str
        `AUTO_INCREMENT`; for a generated column its kind and a hash of its expression; "" for other columns.
    """

    name: str
    data_type: str
    column_type: str
    nullable: bool = True
    precision: int = 0
    scale: int = 0
    octet_length: int = 0
    charset: str = ""
    collation: str = ""
    use: str = ""
    made_by: str = ""

    @property
    def is_generated(self) -> bool:
        """Whether the server computes the values from other columns."""
        return self.made_by not in ("", AUTO_INCREMENT)

    @property
    def is_of_session(self) -> bool:
        """Whether the computed values may depend on the session that computes them."""
        return "-by-session:" in self.made_by

    @property
    def unsigned(self) -> bool:
        return " unsigned" in self.column_type.lower()

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of an ENUM or SET in definition order."""
        quoted = re.findall(r"'((?:[^']|'')*)'", self.column_type)
        # information_schema doubles quotes and escapes these few characters.
        return tuple(re.sub(r"''|\\(.)", _unescaped, label, flags=re.S) for label in quoted)

    @property
    def bits(self) -> int:
        """Width of a BIT column."""
        return int(re.sub(r"\D", "", self.column_type) or 1)

    @property
    def is_wide_decimal(self) -> bool:
        """Whether it is a DECIMAL with more digits than Spark has. It is read as text."""
        return self.data_type == "decimal" and self.precision > _SPARK_DIGITS

    @property
    def quoted(self) -> str:
        """The name as an SQL identifier."""
        return quote_identifier(self.name)


# What an expression may have if its value is the same in every session: columns, strings, numbers, and these words.
_PLAIN_TOKEN = re.compile(r"`((?:[^`]|``)*)`|'(?:[^'\\]|''|\\.)*'|\\'|\d+|([A-Za-z_]\w*)|[-+*(),.=<>!%&|~^\s]")
_PLAIN_WORDS = {
    "abs", "and", "ascii", "bit_count", "case", "ceiling", "char_length", "coalesce", "concat", "concat_ws", "crc32",
    "else", "end", "false", "field", "floor", "greatest", "hex", "if", "ifnull", "in", "instr", "is", "json_extract",
    "json_unquote", "json_value", "lcase", "least", "left", "length", "locate", "lower", "lpad", "ltrim", "md5", "mod",
    "not", "null", "nullif", "or", "ord", "repeat", "replace", "reverse", "right", "round", "rpad", "rtrim", "sha",
    "sha1", "sha2", "sign", "strcmp", "substr", "substring", "substring_index", "then", "trim", "true", "ucase",
    "unhex", "upper", "when",
}  # fmt: skip
# Values of these have other texts in other sessions: CHAR with PAD_CHAR_TO_FULL_LENGTH.
_BY_SESSION = ("date", "datetime", "timestamp", "time", "year", "float", "double", "char")


def made_by(extra: str, expression: str, types: Mapping[str, str]) -> str:
    """`Column.made_by`, from ``EXTRA`` and ``GENERATION_EXPRESSION`` of information_schema.

    ``types``: ``DATA_TYPE`` of the table's columns, by their names in lower case.
    """
    words = extra.lower().split()
    if expression:
        kind = "stored" if {"stored", "persistent"} & set(words) else "virtual"
        plain = "" if _is_plain(expression, types) else "-by-session"
        return f"{kind}{plain}:{hashlib.sha256(expression.encode()).hexdigest()[:12]}"
    return AUTO_INCREMENT if AUTO_INCREMENT in words else ""


def _is_plain(expression: str, types: Mapping[str, str]) -> bool:
    """Whether an expression has the same value in every session. Not if this is not known."""
    at = 0
    while at < len(expression):
        found = _PLAIN_TOKEN.match(expression, at)
        if found is None:
            return False
        name, word = found.groups()
        if word is not None:
            # A character set before a string, or a column that MariaDB shows without quotes.
            name = None if word.lower() in _PLAIN_WORDS or word.startswith("_") else word
            if name is not None and name.lower() not in types:
                return False
        if name is not None and types.get(name.replace("``", "`").lower(), "time") in _BY_SESSION:
            return False
        at = found.end()
    return True


def _unescaped(found: re.Match[str]) -> str:
    escaped: str | None = found.group(1)
    return "'" if escaped is None else {"n": "\n", "r": "\r", "0": "\0"}.get(escaped, escaped)


def quote_identifier(name: str) -> str:
    """A name between back-ticks, inner back-ticks doubled (MySQL manual, "Schema Object Names")."""
    return "`" + name.replace("`", "``") + "`"


def not_text(column: Column) -> BacklogError:
    """The error for a value that has no exact text."""
    return BacklogError(
        f"The column {column.name!r} holds bytes that are no text in {column.charset}.",
        "Correct such rows, then start with a new checkpoint.",
    )


# -- JSON --------------------------------------------------------------------------------------------------


def columns_to_json(columns: Iterable[Column]) -> list[Any]:
    """Columns as JSON for an offset: name, type, collation, and by name everything that does not follow from these.

    >>> columns_to_json([Column("id", "int", "int(11)", nullable=False), Column("n", "int", "int(11)")])
    [['id', 'int(11)', '', {'nullable': False}], ['n', 'int(11)']]
    """
    return [_column_to_json(column) for column in columns]


def columns_from_json(data: Sequence[Any]) -> tuple[Column, ...]:
    """Read back what `columns_to_json` wrote."""
    return tuple(_column_from_json(*entry) for entry in data)


def _column_to_json(column: Column) -> list[Any]:
    follows = _column_from_json(column.name, column.column_type, column.collation)
    more = {
        field.name: getattr(column, field.name)
        for field in dataclasses.fields(column)
        if getattr(column, field.name) != getattr(follows, field.name)
    }
    entry: list[Any] = [column.name, column.column_type, column.collation, more]
    while not entry[-1] and len(entry) > 2:
        entry.pop()
    return entry


def _column_from_json(name: str, column_type: str, collation: str = "", more: dict[str, Any] | None = None) -> Column:
    data_type = re.split(r"\W", column_type.lower(), maxsplit=1)[0]
    length = re.match(r"\w+\((\d+)(?:,(\d+))?\)", column_type)
    numbers = [int(number or 0) for number in length.groups()] if length else [0, 0]
    precision, scale = numbers if data_type == "decimal" else (0, 0)
    follows = Column(
        name=name,
        data_type=data_type,
        column_type=column_type,
        precision=precision,
        scale=scale,
        octet_length=numbers[0] if data_type == "binary" else 0,
        charset=collation.split("_")[0],
        collation=collation,
    )
    return dataclasses.replace(follows, **(more or {}))
