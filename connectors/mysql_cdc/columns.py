"""A captured table's columns, as information_schema describes them (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Column", "quote_identifier"]


_SPARK_DIGITS = 38


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
        Of DECIMAL; 0 elsewhere.
    octet_length : int
        Bytes of a BINARY(n); 0 where it does not matter.
    charset : str
        Character set of text, else "".
    collation : str
        Of text, else "".
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
        """A DECIMAL of more digits than Spark's have: read as text."""
        return self.data_type == "decimal" and self.precision > _SPARK_DIGITS

    @property
    def quoted(self) -> str:
        """The name as an SQL identifier."""
        return quote_identifier(self.name)


def _unescaped(found: re.Match[str]) -> str:
    escaped: str | None = found.group(1)
    return "'" if escaped is None else {"n": "\n", "r": "\r", "0": "\0"}.get(escaped, escaped)


def quote_identifier(name: str) -> str:
    """A name between back-ticks, inner back-ticks doubled (MySQL manual, "Schema Object Names")."""
    return "`" + name.replace("`", "``") + "`"
