"""Says what an ALTER TABLE did to the values of the rows that were there, which no row event shows (pure).

For each column of the table after the statement there is one of three answers:

* *keeps*: every value that the column could hold is the same value, and the same text, as before;
* *fills*: the column is new, and all old rows have one value in it;
* *rewrites*: everything else, and everything that is not known here.

Only what this module proves is *keeps*. Sources: MySQL Reference Manual, "ALTER TABLE", "Data Type Storage
Requirements" and "Server SQL Modes"; the proofs are tried on servers with random tables and statements in
tests/connectors/mysql_cdc/schema/ddl/test_altering_servers.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..columns import AUTO_INCREMENT, EXCLUDED, MASKED, Column
from ..types import GEOMETRIES
from ..widening import same_definition
from .alters import COMPUTED, NOTHING_SAID, Add, ColumnAfter, ConvertAll, Step

__all__ = ["FILLS", "KEEPS", "REWRITES", "Answer", "Session", "answers", "implicit_default", "proof_table"]

KEEPS, FILLS, REWRITES = "keeps", "fills", "rewrites"

# Bits of sql_mode in a statement's event; both servers have the same ones.
_STRICT: Final = 1 << 21 | 1 << 22
_PADS_CHAR: Final = 1 << 31
_FIXED_ZONE: Final = re.compile(r"[+-]\d+:\d+|UTC|GMT|Etc/.*", re.I)


class Answer(NamedTuple):
    """What happened to one column's old values. ``why``: for people, if they were rewritten."""

    kind: str
    why: str = ""


_KEPT = Answer(KEEPS)


@dataclass(frozen=True)
class Session:
    """What the answers need to know of the session that ran the statement.

    Parameters
    ----------
    is_strict : bool
        Whether a value that does not fit ends the statement. Otherwise the server changes the value.
    pads_char : bool
        Whether CHAR(n) values are read with blanks at their end.
    moves_clock : bool
        Whether each TIMESTAMP of the table may have been converted to the session's time zone and back. In a zone with
        summer time an hour of each year is lost by that. MySQL does so when it copies a table.
    of_mariadb : bool
        MariaDB rounds the values of FLOAT(m, d) and DOUBLE(m, d) when it copies a table, not when it redefines them.
    """

    is_strict: bool = False
    pads_char: bool = True
    moves_clock: bool = False
    of_mariadb: bool = False

    @classmethod
    def of(cls, sql_mode: int | None, time_zone: str, *, of_mariadb: bool) -> Session:
        """From the bits of ``sql_mode``, None if they are not known, and the zone in which times were converted."""
        moves = bool(time_zone) and _FIXED_ZONE.fullmatch(time_zone) is None and not of_mariadb
        if sql_mode is None:
            return cls(moves_clock=moves, of_mariadb=of_mariadb)
        return cls(bool(sql_mode & _STRICT), bool(sql_mode & _PADS_CHAR), moves, of_mariadb)


def answers(
    before: Sequence[Column],
    after: Sequence[Column],
    made: Sequence[ColumnAfter],
    steps: Sequence[Step],
    session: Session,
    form: str = "row",
) -> dict[str, Answer]:
    """The answer for each column after a statement, by its name then.

    Parameters
    ----------
    before, after : sequence of Column
        The table's columns. A definition that is not known has no ``data_type``.
    made : sequence of ColumnAfter
        For each column after the statement: where it comes from.
    steps : sequence of Step
        What the statement says.
    session : Session
        The session that ran it.
    form : str
        The option ``format``: which text a value has in the stream.
    """
    adds = {step.name.lower(): step for step in steps if isinstance(step, Add)}
    converts = ConvertAll() in steps
    found: dict[str, Answer] = {}
    moved: list[str] = []  # columns of which generated ones may depend
    for column, each in zip(after, made, strict=True):
        old = None if each.source is None else before[each.source]
        redefined = each.redefined or (converts and (old is None or not old.data_type or bool(old.charset)))
        if old is not None and redefined and not _is_same(old, column):
            moved.append(column.name)
        found[column.name] = _of_column(old, column, redefined, adds.get(column.name.lower()), session, form)
    for column in after:
        others = [name for name in moved if name != column.name]
        if column.is_generated and others and column.use != EXCLUDED and found[column.name].kind == KEEPS:
            found[column.name] = Answer(REWRITES, f"it is computed from other columns, and {others[0]} was redefined")
    return found


def _of_column(
    old: Column | None, new: Column, redefined: bool, add: Add | None, session: Session, form: str
) -> Answer:
    if new.use == EXCLUDED:
        return _KEPT
    if old is None:
        return _of_new(new, add)
    if new.is_of_session and (new.made_by.startswith("stored") or not session.is_strict):
        return Answer(REWRITES, "the server computes it again when it copies the table, by the session's settings")
    if session.moves_clock and new.data_type == "timestamp":
        return Answer(REWRITES, "its times were converted to the session's time zone and back")
    if session.of_mariadb and new.data_type in ("float", "double") and _numbers(new):
        return Answer(REWRITES, "its values are rounded when the table is copied")
    if old.name.lower() != new.name.lower():
        return Answer(REWRITES, f"it was {old.name} before")
    if not redefined:
        return _KEPT
    why = "its definition before or after is not known" if not (old.data_type and new.data_type) else ""
    why = why or _not_proved(old, new, session, form)
    return Answer(REWRITES, why) if why else _KEPT


def _of_new(new: Column, add: Add | None) -> Answer:
    """The answer for a new column."""
    if add is None or not new.data_type or add.default == COMPUTED or new.made_by:
        return Answer(REWRITES, "it is new, and old rows may have different values in it")
    if add.default == NOTHING_SAID and not new.nullable and implicit_default(new) is None:
        return Answer(REWRITES, "it is new and NOT NULL without a default")
    return Answer(FILLS)


_INTEGERS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_TEXTS = ("tinytext", "text", "mediumtext", "longtext")
_BLOBS = ("tinyblob", "blob", "mediumblob", "longblob")
_LIMITS = {"tiny": 1 << 8, "": 1 << 16, "medium": 1 << 24, "long": 1 << 32}
_MOST_DIGITS = 38
_BYTES_OF = {"utf8mb4": 4, "utf8mb3": 3, "utf8": 3}


def implicit_default(column: Column) -> object:
    """The storage value that a NOT NULL column without a default gets; None if it is not known here."""
    if column.data_type in (*_INTEGERS, "bit", "year"):
        return 0
    if column.data_type == "decimal":
        return None if column.is_wide_decimal else 0
    if column.data_type in ("float", "double"):
        return 0.0
    return "" if column.data_type in ("char", "varchar", *_TEXTS) else None


def _is_same(old: Column, new: Column) -> bool:
    """Whether an expression over the column has the same values."""
    return (
        bool(old.data_type)
        and same_definition(old, new)
        and (old.collation, old.nullable, old.made_by) == (new.collation, new.nullable, new.made_by)
    )


def _not_proved(old: Column, new: Column, session: Session, form: str) -> str:
    """Why the values may be others after a redefinition; "" if they are the same."""
    told = f"it was {old.column_type} and is {new.column_type}"
    if new.is_generated or old.is_generated:
        same = (old.made_by, old.nullable) == (new.made_by, new.nullable) and same_definition(old, new)
        return "" if same else "its values are computed by another expression or as another type"
    if new.made_by == AUTO_INCREMENT != old.made_by:
        return "AUTO_INCREMENT gives the row with 0 another number"
    if old.nullable and not new.nullable and not (session.is_strict and new.data_type != "timestamp"):
        return "NULL became another value, as it is NOT NULL now"
    if old.use != new.use:
        return told
    if same_definition(old, new):
        return ""
    if MASKED in (old.use, new.use):
        return told
    rule = _RULES.get(new.data_type)
    return "" if rule is not None and rule(old, new, session) and (form == "row" or _one_envelope(old, new)) else told


def _numbers(column: Column) -> list[int]:
    """The numbers in brackets after the type."""
    found = re.match(r"\w+\((\d+)(?:,(\d+))?\)", column.column_type)
    return [int(number) for number in found.groups() if number] if found else []


def _length(column: Column) -> int:
    return (_numbers(column) or [1])[0]


def _digits(column: Column) -> int:
    """Digits of a fraction of a second."""
    return (_numbers(column) or [0])[0]


def _integer(old: Column, new: Column, session: Session) -> bool:
    if old.data_type not in _INTEGERS:
        return False
    have, want = _INTEGERS[old.data_type], _INTEGERS[new.data_type]
    return want >= have if old.unsigned == new.unsigned else old.unsigned and want > have


def _decimal(old: Column, new: Column, session: Session) -> bool:
    if old.data_type != "decimal" or (new.unsigned and not old.unsigned):
        return False
    fits = old.precision - old.scale <= new.precision - new.scale and old.scale <= new.scale
    # Above 38 digits a value is a text, with as many digits as the scale says.
    return (
        fits
        and (new.scale == old.scale or new.precision <= _MOST_DIGITS)
        and old.is_wide_decimal == new.is_wide_decimal
    )


def _float(old: Column, new: Column, session: Session) -> bool:
    # FLOAT(m, d) rounds. Without it the type holds what it held.
    return old.data_type == new.data_type and not _numbers(new) and (old.unsigned or not new.unsigned)


def _charset_widens(old: Column, new: Column) -> bool:
    """Whether each character of the old character set is one of the new one, with the same text."""
    names = ["utf8mb3" if c.charset == "utf8" else c.charset for c in (old, new)]
    return (
        names[0] == names[1]
        or (names[1] == "utf8mb4" and names[0] in ("utf8mb3", "latin1", "ascii"))
        or (names[1] == "utf8mb3" and names[0] in ("latin1", "ascii"))
    )


def _char(old: Column, new: Column, session: Session) -> bool:
    return old.data_type == "char" and _length(old) <= _length(new) and _charset_widens(old, new)


def _varchar(old: Column, new: Column, session: Session) -> bool:
    kept = old.data_type == "varchar" or (old.data_type == "char" and not session.pads_char)
    return kept and _length(old) <= _length(new) and _charset_widens(old, new)


def _text(old: Column, new: Column, session: Session) -> bool:
    if not _charset_widens(old, new):
        return False
    limit = _LIMITS[new.data_type.removesuffix("text")]
    if old.data_type in _TEXTS:
        grows = new.charset != old.charset and old.charset not in ("utf8", "utf8mb3")
        return _LIMITS[old.data_type.removesuffix("text")] * (4 if grows else 1) <= limit
    kept = old.data_type == "varchar" or (old.data_type == "char" and not session.pads_char)
    return kept and _length(old) * _BYTES_OF.get(new.charset, 1) < limit


def _enum(old: Column, new: Column, session: Session) -> bool:
    return old.data_type == "enum" and set(old.labels) <= set(new.labels) and _charset_widens(old, new)


def _set(old: Column, new: Column, session: Session) -> bool:
    kept = tuple(label for label in new.labels if label in old.labels)
    return old.data_type == "set" and kept == old.labels and _charset_widens(old, new)


def _varbinary(old: Column, new: Column, session: Session) -> bool:
    return old.data_type in ("binary", "varbinary") and _length(old) <= _length(new)


def _blob(old: Column, new: Column, session: Session) -> bool:
    limit = _LIMITS[new.data_type.removesuffix("blob")]
    if old.data_type in _BLOBS:
        return _LIMITS[old.data_type.removesuffix("blob")] <= limit
    return old.data_type in ("binary", "varbinary") and _length(old) < limit


def _moment(old: Column, new: Column, session: Session) -> bool:
    return old.data_type == new.data_type and _digits(old) <= _digits(new)


def _bit(old: Column, new: Column, session: Session) -> bool:
    return old.data_type == "bit" and old.bits <= new.bits


def _geometry(old: Column, new: Column, session: Session) -> bool:
    return old.data_type in GEOMETRIES


_Rule = Callable[[Column, Column, Session], bool]
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(_INTEGERS, _integer),
    "decimal": _decimal,
    "float": _float,
    "double": _float,
    "char": _char,
    "varchar": _varchar,
    **dict.fromkeys(_TEXTS, _text),
    "enum": _enum,
    "set": _set,
    "varbinary": _varbinary,
    **dict.fromkeys(_BLOBS, _blob),
    "datetime": _moment,
    "timestamp": _moment,
    "bit": _bit,
    "geometry": _geometry,
}


def _one_envelope(old: Column, new: Column) -> bool:
    """Whether values that are the same have the same text in an envelope."""
    if new.data_type == "decimal":
        return old.scale == new.scale
    if new.data_type == "datetime":  # milliseconds up to three digits, then microseconds
        return (_digits(old) > 3) == (_digits(new) > 3)
    return new.data_type != "bit" or ((old.bits > 1) == (new.bits > 1) and (old.bits + 7) // 8 == (new.bits + 7) // 8)


_PROOFS = (
    ("no definition; another position, index, comment or default", "with the same name"),
    ("TINYINT … BIGINT to a larger integer", "not from signed to unsigned"),
    ("DECIMAL to more digits before and after the point", "up to 38 digits; above with the same scale"),
    ("FLOAT(m,d) to FLOAT, DOUBLE(m,d) to DOUBLE", ""),
    ("CHAR(n) to a longer CHAR; VARCHAR(n) to a longer VARCHAR", "character set: see below"),
    ("CHAR(n) to VARCHAR or a text that holds all", "not with `PAD_CHAR_TO_FULL_LENGTH`"),
    ("VARCHAR(n) to a text that holds all; a text to a larger one", ""),
    ("ascii or latin1 to utf8mb3 or utf8mb4; utf8mb3 to utf8mb4", "TEXT only from utf8mb3, or to a larger type"),
    ("another collation", "not of a key"),
    ("ENUM with more labels in any order; SET with more labels, the old ones in their order", ""),
    ("BINARY or VARBINARY to a longer VARBINARY or a BLOB that holds all; a BLOB to a larger one", ""),
    ("DATETIME, TIMESTAMP with more digits of a second", "`format=debezium`: DATETIME not beyond 3 digits"),
    ("BIT to a longer BIT", ""),
    ("POINT … to GEOMETRY", ""),
    ("NOT NULL to NULL", ""),
    ("NULL to NOT NULL", "only in strict mode, and not of a TIMESTAMP"),
)  # fmt: skip


def proof_table() -> str:
    """The table of what is proved to keep all values, for the documentation, in Markdown."""
    return (
        "\n".join(["| the statement gives a column | where |", "|---|---|", *(f"| {a} | {b} |" for a, b in _PROOFS)])
        + "\n"
    )
