"""Key values as SQL, as JSON and as order bytes (pure).

A key is a tuple of storage values (see `types`), one for each column. It is needed in three forms: SQL that selects the
rows between two keys, exact JSON for the offset, and *order bytes*, which compare as the server compares the keys. For
numbers, times and binary strings these follow from the value. For text the server gives weights (`key_order`), and this
module turns weights into order bytes.

Sources: MySQL Reference Manual, "Hexadecimal Literals", "Date and Time Literals", "The binary Collation Compared to
_bin Collations" (for PAD SPACE).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from backlog_spark.errors import BacklogError

from .charsets import as_utf8
from .packed import decimal_text
from .types import Column

__all__ = [
    "Key",
    "KeyKind",
    "key_from_json",
    "key_kind",
    "key_range",
    "key_to_json",
    "order_encoder",
    "refuse_null",
    "text_literal",
    "weight_order",
]

KeyValue = int | str | bytes | None
Key = tuple[KeyValue, ...]

_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_DAY = _EPOCH.toordinal()
_MICROSECOND = datetime.timedelta(microseconds=1)
# For collations that pad with spaces, weights are compared this many at a time. Any number is right; short keys are
# filled up to it.
_PAD_UNITS = 8


@dataclass(frozen=True)
class KeyKind:
    """The key behaviour of one family of types.

    Parameters
    ----------
    literal : callable
        SQL for a value. A comparison with the column uses the column's index and collation.
    fetch : callable
        SQL expression whose text `parse` reads without loss.
    parse : callable
        Converts that text to the storage value. ValueError if there is none (zero and partial dates).
    width : int
        Length of an integer's order bytes; 0 for strings.
    numeric : bool
        Whether differences between values are meaningful, so that a range can be cut by arithmetic.
    text : bool
        Whether a collation orders the values.
    """

    literal: Callable[[Column, Any], str]
    fetch: Callable[[Column], str]
    parse: Callable[[Column, str], KeyValue]
    width: int = 0
    numeric: bool = False
    text: bool = False


def _parse_decimal(column: Column, text: str) -> int:
    whole, _, fraction = text.partition(".")
    return int(whole + fraction.ljust(column.scale, "0"))


def _date_literal(column: Column, value: int) -> str:
    return f"DATE'{datetime.date.fromordinal(value + _EPOCH_DAY).isoformat()}'"


def _moment_literal(column: Column, value: int) -> str:
    # The session's time zone is +00:00 on every connection, so this is right for TIMESTAMP as well.
    return f"TIMESTAMP'{(_EPOCH + value * _MICROSECOND).isoformat(' ', 'microseconds')}'"


def text_literal(column: Column, value: str) -> str:
    """``value`` in the column's character set and collation, whatever those of the connection are."""
    return f"CONVERT(_utf8mb4 x'{value.encode().hex()}' USING {column.charset}) COLLATE {column.collation}"


def _as_text(column: Column) -> str:
    return f"CAST({column.quoted} AS CHAR)"


_INTEGER = KeyKind(lambda c, v: str(int(v)), _as_text, lambda c, t: int(t), width=9, numeric=True)
_DATETIME = KeyKind(
    _moment_literal, _as_text, lambda c, t: (datetime.datetime.fromisoformat(t) - _EPOCH) // _MICROSECOND, width=9
)
_BINARY = KeyKind(lambda c, v: f"x'{v.hex()}'", lambda c: f"HEX({c.quoted})", lambda c, t: bytes.fromhex(t))
_TEXT = KeyKind(
    text_literal,
    lambda c: f"HEX({as_utf8(c.quoted, c.charset, exact=True)})",
    lambda c, t: bytes.fromhex(t).decode(),
    text=True,
)
_KINDS = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), _INTEGER),
    # 38 digits fill 127 bits
    "decimal": KeyKind(lambda c, v: decimal_text(v, c.scale), _as_text, _parse_decimal, width=17, numeric=True),
    "date": KeyKind(
        _date_literal, _as_text, lambda c, t: datetime.date.fromisoformat(t).toordinal() - _EPOCH_DAY, width=9
    ),
    "datetime": _DATETIME,
    "timestamp": _DATETIME,
    **dict.fromkeys(("binary", "varbinary"), _BINARY),
    **dict.fromkeys(("char", "varchar"), _TEXT),
}


def key_kind(column: Column) -> KeyKind | None:
    """How a column orders rows. None if it cannot, because the values that are read order differently."""
    return None if column.is_wide_decimal else _KINDS.get(column.data_type)


# -- order -------------------------------------------------------------------------------------------------


def order_encoder(column: Column) -> Callable[[Any], bytes]:
    """Order bytes of a value of a column that is not text. A key's order bytes are those of its columns, joined."""
    if column.nullable:
        value_of = order_encoder(replace(column, nullable=False))
        return lambda value: b"\0" if value is None else b"\1" + value_of(value)  # MySQL sorts NULL first
    kind = _KINDS[column.data_type]
    if not kind.width:
        return lambda value: _terminated(value) if value is not None else refuse_null(column)
    width, shift = kind.width, 1 << 8 * (kind.width - 1)
    return lambda value: (value + shift).to_bytes(width, "big") if value is not None else refuse_null(column)


def refuse_null(column: Column) -> NoReturn:
    """Refuse a key value that Spark can only hold as NULL, but the server as something else."""
    raise BacklogError(
        f"The key column {column.name!r} holds a zero or partial date, which Spark has no value for.",
        "Correct such rows, then start with a new checkpoint.",
    )


def _terminated(value: bytes) -> bytes:
    """Bytes that order as ``value`` does. None is a prefix of another, so that columns can be joined."""
    return value.replace(b"\0", b"\0\xff") + b"\0\0"


def weight_order(weights: bytes, space: bytes) -> bytes:
    """Order bytes from a collation's weights.

    Parameters
    ----------
    weights : bytes
        ``WEIGHT_STRING`` of the text.
    space : bytes
        ``WEIGHT_STRING`` of a blank if the collation is PAD SPACE: the shorter of two texts is compared as if blanks
        followed it. Otherwise empty.
    """
    if not space:
        return _terminated(weights)
    # The weights are cut into pieces of equal length. A byte after each says how the rest compares with endless blanks:
    # 1 less, 2 equal (and nothing follows), 3 greater. So 'a' < 'a b', 'a' = 'a ' and 'a' > 'a\t'.
    size = _PAD_UNITS * len(space)
    out = []
    for at in range(0, len(weights) + size, size):
        rest = weights[at + size :]
        blank = space * (len(rest) // len(space) + 1)
        blank = blank[: len(rest)]
        out.append((weights[at : at + size] + space * _PAD_UNITS)[:size])
        out.append(b"\2" if rest == blank else b"\1" if rest < blank else b"\3")
        if rest == blank:
            break
    return b"".join(out)


# -- SQL ---------------------------------------------------------------------------------------------------


def key_range(columns: Sequence[Column], first: Key | None, last: Key | None) -> str:
    """The WHERE clause for keys after ``first`` up to ``last``, with a blank before it; "" for all.

    Several columns are compared column by column: MySQL reads the whole table for ``(a, b) > (x, y)``.
    """
    # Values are literals in the statement: names may hold a "%", which PyMySQL would take for a placeholder.
    conditions = [] if first is None else [_bound(columns, first, ">", ">")]
    if last is not None:
        condition = _bound(columns, last, "<", "<=")
        if first is None and columns[0].nullable:
            condition = f"({condition} OR {columns[0].quoted} IS NULL)"
        conditions.append(condition)
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _bound(columns: Sequence[Column], key: Key, before: str, at_last: str) -> str:
    column, value = columns[0], key[0]
    kind = key_kind(column)
    assert kind is not None, "only columns that can order are chosen"
    name, literal = column.quoted, kind.literal(column, value)
    if len(columns) == 1:
        return f"{name} {at_last} {literal}"
    rest = _bound(columns[1:], key[1:], before, at_last)
    return f"{name} {before}= {literal} AND ({name} {before} {literal} OR ({name} = {literal} AND {rest}))"


# -- JSON --------------------------------------------------------------------------------------------------


def key_to_json(key: Key | None) -> Any:
    """A key as JSON: a single integer as it is, else a list; bytes as ``{"hex": …}``."""
    if key is None or (len(key) == 1 and isinstance(key[0], int)):
        return None if key is None else key[0]
    return [{"hex": part.hex()} if isinstance(part, bytes) else part for part in key]


def key_from_json(data: Any) -> Key | None:
    """Read back what `key_to_json` wrote."""
    if data is None or isinstance(data, int):
        return None if data is None else (data,)
    return tuple(bytes.fromhex(part["hex"]) if isinstance(part, dict) else part for part in data)
