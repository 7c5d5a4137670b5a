"""Finds out which table has a name after RENAME TABLE or ALTER TABLE … RENAME (pure).

Online schema changes end with such a statement: gh-ost renames ``t`` to ``_t_del`` and ``_t_gho`` to ``t``,
pt-online-schema-change ``t`` to ``_t_old`` and ``_t_new`` to ``t``. The new table has the old one's rows then, and a
stream follows the name. A table that anybody else gives the name may have other rows.

Sources: MySQL Reference Manual and MariaDB Knowledge Base, "RENAME TABLE", "ALTER TABLE"; gh-ost's "cut-over";
pt-online-schema-change's manual.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from backlog_spark.common.lazy_patterns import lazy_pattern

from .statements import TABLE, able_readings, parts, split_clauses, target_of

__all__ = [
    "GONE",
    "Name",
    "altered_table",
    "is_shadow",
    "made",
    "made_by_tool",
    "moves",
    "only_renames",
    "origin_of",
]

Name = tuple[str, str]
GONE: Name = ("", "")
"""No table has the name any more."""

_LONGEST_NAME = 64  # characters; tools cut the names that they make
_RENAME = lazy_pattern(r"\s*RENAME\s+TABLES?\b\s*(?:IF\s+EXISTS\b\s*)?", re.I)
_PAIR = lazy_pattern(rf"\s*({TABLE})\s*(?:(?:NOWAIT|WAIT\s+\d+)\b\s*)?TO\b\s*({TABLE})\s*(?:,|;?\s*\Z)", re.I)
_ALTER = lazy_pattern(
    r"\s*ALTER\s+(?:(?:ONLINE|IGNORE)\s+)*TABLE\b\s*(?:IF\s+EXISTS\b\s*)?"
    rf"({TABLE})\s*(?:(?:NOWAIT|WAIT\s+\d+)\b)?",
    re.I,
)
_CREATE = lazy_pattern(
    rf"\s*CREATE\s+TABLE\b\s*(IF\s+NOT\s+EXISTS\b\s*)?({TABLE})(?:\s*\(?\s*LIKE\b\s*({TABLE}))?", re.I
)
# gh-ost's shadow and changelog, and what it leaves of the old table; the same of pt-online-schema-change.
_TOOLS = lazy_pattern(r"_+(?P<table>.+?)_(?:(?P<shadow>gho|new)|ghc|(?:\d{14}_)?del|old)", re.I | re.S)


def moves(text: str, default: str, *, folds: bool = True) -> dict[Name, Name] | None:
    """For each name that another table or none has after a statement: the table's name before, or `GONE`.

    All names are in lower case or, without ``folds``, as written. None if servers may read the statement in different
    ways, or it is not understood.
    """
    pairs = {_pairs(plain, default, _folded if folds else parts) for plain in able_readings(text)}
    if len(pairs) != 1 or None in pairs:
        return None
    before: dict[Name, Name] = {}
    for old, new in pairs.pop() or ():
        if old != new:
            before[new] = before.get(old, old)
            before[old] = GONE
    return {name: origin for name, origin in before.items() if name != origin}


def _pairs(plain: str, default: str, named: Callable[[str, str], Name]) -> tuple[tuple[Name, Name], ...] | None:
    """Old and new names, in the order in which the server renames."""
    if head := _ALTER.match(plain):
        return tuple((named(head.group(1), default), named(new, default)) for new in target_of(plain[head.end() :]))
    head = _RENAME.match(plain)
    if head is None:
        return None
    at, found = head.end(), []
    while pair := _PAIR.match(plain, at):
        found.append((named(pair.group(1), default), named(pair.group(2), default)))
        at = pair.end()
    return tuple(found) if found and at == len(plain) else None


def _folded(name: str, default: str) -> Name:
    database, table = parts(name, default)
    return database.lower(), table.lower()


def origin_of(name: Name, text: str, default: str, folds_case: Callable[[], bool]) -> tuple[Name | None, bool]:
    """Which table has a name after a statement that `moves` understands, and whether a known tool renamed.

    Parameters
    ----------
    name : (str, str)
        As the server spells it.
    folds_case : callable
        Whether the server takes names that differ in case for equal. Called only if that matters.

    Returns
    -------
    (str, str) or None
        The table's name before, in lower case; `GONE` if no table has the name; None if the same table has it.
    bool
        Whether the statement belongs to a change by gh-ost or pt-online-schema-change.
    """
    folded, spelt = moves(text, default) or {}, moves(text, default, folds=False) or {}
    low = (name[0].lower(), name[1].lower())
    origin, exact = folded.get(low), spelt.get(name)
    exact = exact and (exact[0].lower(), exact[1].lower())
    if origin != exact and not folds_case():
        origin = exact
    if origin is None or origin == GONE:
        now = [new for new, old in folded.items() if old == low]
        return origin, any(made_by_tool(new, (low,)) for new in now)
    return origin, is_shadow(origin[1], low[1])


def made(text: str, default: str) -> tuple[Name, Name | None] | None:
    """The table that a CREATE TABLE makes, and the one that it is made LIKE, or `GONE`. None for another statement.

    With IF NOT EXISTS the table may be older than the statement. Then there is None instead of the other table.
    """
    found = {_made(plain, default) for plain in able_readings(text)}
    return found.pop() if len(found) == 1 else None


def _made(plain: str, default: str) -> tuple[Name, Name | None] | None:
    create = _CREATE.match(plain)
    if create is None:
        return None
    exists, name, like = create.groups()
    return _folded(name, default), None if exists else _folded(like, default) if like else GONE


def altered_table(text: str, default: str) -> Name | None:
    """The table that an ALTER TABLE alters, if it is certain."""
    heads = [_ALTER.match(plain) for plain in able_readings(text)]
    found = {None if head is None else _folded(head.group(1), default) for head in heads}
    return found.pop() if len(found) == 1 else None


def only_renames(text: str) -> bool:
    """Whether a statement that renames tables alters none."""
    heads = [(plain, _ALTER.match(plain)) for plain in able_readings(text)]
    return all(head is None or len(split_clauses(plain[head.end() :])) == 1 for plain, head in heads)


def made_by_tool(name: Name, tables: Collection[Name]) -> bool:
    """Whether the name is one that gh-ost or pt-online-schema-change give to a helper table of one of ``tables``."""
    found = _TOOLS.fullmatch(name[1])
    return found is not None and any(name[0] == of[0] and _is_of(name[1], found["table"], of[1]) for of in tables)


def is_shadow(table: str, of: str) -> bool:
    """Whether ``table`` is a name that one of these tools gives to the new form of the table ``of``."""
    found = _TOOLS.fullmatch(table)
    return found is not None and bool(found["shadow"]) and _is_of(table.lower(), found["table"].lower(), of.lower())


def _is_of(table: str, base: str, of: str) -> bool:
    return base == of or (len(table) >= _LONGEST_NAME - 1 and of.startswith(base))
