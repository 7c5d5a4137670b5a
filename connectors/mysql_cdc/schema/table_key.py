"""Finds the columns that identify a table's rows, and those by which the snapshot is cut.

Every refusal of a key happens here, before a row is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from backlog_spark.errors import BacklogError, SettingError

from ..options import MySqlOptions
from .columns import MASKED, Column
from .keys import key_kind
from .table import TableSchema

__all__ = ["KEY_CHARSETS", "weights_order", "with_keys"]

_Indexes = dict[str, list[tuple[str, bool]]]
"""By name, an index's columns in order, each with whether it is indexed whole."""
Ask = Callable[[str, tuple[object, ...]], list[tuple[Any, ...]]]

# In these character sets different bytes are always different texts, so a text identifies its row.
KEY_CHARSETS = {
    *("utf8mb4", "utf8mb3", "utf8", "ucs2", "utf16", "utf16le", "utf32"),
    *("ascii", "latin1", "latin2", "cp1250", "cp1251", "koi8r"),
}
# Collations whose WEIGHT_STRING does not order as the comparison does, measured over all collations of these sets
# (tests/connectors/mysql_cdc/schema/test_order_bytes.py). MariaDB compares level by level and pads each level, which
# one string of weights cannot express. 10.11 also treats '' and '\0' as equal in the older collations without padding.
_UNORDERED = re.compile(r"cp1250_czech_cs\Z")
_UNORDERED_IN_MARIADB = re.compile(
    r"cp1250_czech_cs\Z|.*(_ai_cs|_as_ci|_as_cs|_w2|_0900_bin)\Z|(?!.*_uca1400_).*_nopad_"
)
# -0.0 and 0.0 are one key to MySQL but two values, and FLOAT literals compare as DOUBLE.
_NO_IDENTITY = {"float", "double"}

_INDEXES = """
SELECT INDEX_NAME, COLUMN_NAME, SUB_PART, NON_UNIQUE FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_TYPE <> 'HASH' ORDER BY INDEX_NAME, SEQ_IN_INDEX
"""


def weights_order(collation: str, of_mariadb: bool) -> bool:
    """Whether texts of a collation order as their ``WEIGHT_STRING`` does."""
    return not (_UNORDERED_IN_MARIADB if of_mariadb else _UNORDERED).match(collation)


def with_keys(ask: Ask, options: MySqlOptions, schema: TableSchema, of_mariadb: bool = False) -> TableSchema:
    """The schema with its key and its chunk key.

    Parameters
    ----------
    ask : callable
        Runs a statement with arguments.
    options : MySqlOptions
        Only ``chunkKeyColumn`` and ``messageKeyColumns`` are used.
    schema : TableSchema
        Name and columns, with their use.
    of_mariadb : bool
        Whether the server is MariaDB. There the order of weights is the order of other collations.

    Raises
    ------
    BacklogError
        The values of a key column do not identify rows exactly; ``chunkKeyColumn`` does not exist, cannot order
        rows, or is not the first column of an index; or ``messageKeyColumns`` names no unique key of columns that are
        NOT NULL.
    """
    name = schema.database, schema.table
    indexes: _Indexes = {}
    unique = set()
    for index, column, prefix, repeats in ask(_INDEXES, name):
        # The column for an expression has no name.
        indexes.setdefault(str(index), []).append((str(column or ""), prefix is None))
        if not int(repeats):
            unique.add(str(index))
    index = _unique_key(schema, options, {name: of for name, of in indexes.items() if name in unique})
    primary = indexes.get(index or "PRIMARY", [])
    key = tuple(column for column, _ in primary)
    columns = {c.name: c for c in schema.columns}
    for column in key:
        _check_identity(schema, columns[column])
    if options.chunk_key_column:
        chunk_key: tuple[str, ...] = (_chosen(schema, options.chunk_key_column, indexes, of_mariadb),)
    else:
        orders = 0  # leading columns of the primary key that order rows
        while orders < len(primary) and primary[orders][1] and _orders(columns[key[orders]], of_mariadb):
            orders += 1
        chunk_key = key[:orders]
    return replace(schema, key=key, chunk_key=chunk_key, key_index=index)


def _unique_key(schema: TableSchema, options: MySqlOptions, indexes: _Indexes) -> str:
    """The index of the key that ``messageKeyColumns`` names; "" if it names none."""
    wanted = options.columns.key_of(schema)
    if not wanted:
        return ""
    given = options.columns.keys_text
    if "PRIMARY" in indexes:
        raise SettingError(
            "messageKeyColumns", given, f"{schema.name} has a primary key, which is its key.", "Leave the table out."
        )
    columns = {c.name.lower(): c for c in schema.columns}
    for name in wanted:
        column = columns.get(name.lower())
        if column is None:
            raise SettingError(
                "messageKeyColumns",
                given,
                f"{schema.name} has no column {name!r}.",
                f"It has {', '.join(c.name for c in schema.columns)}.",
            )
        if column.nullable:
            raise SettingError(
                "messageKeyColumns", given,
                f"the column {name!r} of {schema.name} may be NULL, and a unique key allows any number of NULLs.",
                f"ALTER TABLE {schema.name} MODIFY {column.quoted} … NOT NULL, or name another key.",
            )  # fmt: skip
    names = {name.lower() for name in wanted}
    for index, of in indexes.items():
        if {column.lower() for column, _ in of} == names and all(whole for _, whole in of):
            return index
    raise SettingError(
        "messageKeyColumns", given, f"{schema.name} has no UNIQUE key of exactly the columns {', '.join(wanted)}.",
        f"ALTER TABLE {schema.name} ADD UNIQUE KEY ({', '.join(columns[n.lower()].quoted for n in wanted)}).",
    )  # fmt: skip


def _check_identity(schema: TableSchema, column: Column) -> None:
    if column.data_type in _NO_IDENTITY or (column.charset and column.charset not in KEY_CHARSETS):
        what = f"the character set {column.charset}" if column.charset else f"the type {column.column_type}"
        raise BacklogError(
            f"The primary key of {schema.name} contains {column.name!r}, which has {what}: "
            "it does not identify rows exactly.",
            "Use an integer, decimal, date, binary or text key; text in a character set of "
            f"{', '.join(sorted(KEY_CHARSETS))}.",
        )


def _orders(column: Column, of_mariadb: bool) -> bool:
    kind = key_kind(column)
    # The ends of chunks are in the checkpoint, which must not show what is masked.
    if kind is None or column.use == MASKED:
        return False
    if kind.text:
        return column.charset in KEY_CHARSETS and weights_order(column.collation, of_mariadb)
    # In a nullable column a zero date reads as NULL, but sorts elsewhere.
    return not (column.nullable and column.data_type in ("date", "datetime", "timestamp"))


def _chosen(schema: TableSchema, wanted: str, indexes: _Indexes, of_mariadb: bool) -> str:
    able = [c.name for c in schema.columns if _orders(c, of_mariadb)]
    leading = {first for (first, whole), *_ in indexes.values() if whole}
    good = [name for name in able if name in leading]
    hint = f"Columns that can be: {', '.join(good)}." if good else "Leave the option out."
    column = next((c for c in schema.columns if c.name.lower() == wanted.lower()), None)
    where = f"{schema.database}.{schema.table}"
    if column is None:
        raise SettingError("chunkKeyColumn", wanted, f"{where} has no such column.", hint)
    if column.use == MASKED:
        raise SettingError(
            "chunkKeyColumn", wanted, "columns.mask masks it, and the ends of chunks are in the checkpoint.", hint
        )
    if column.name not in able:
        what = column.column_type + (f" COLLATE {column.collation}" if column.collation else "")
        raise SettingError(
            "chunkKeyColumn",
            wanted,
            f"{where} cannot be cut by a column of the type {what}{'' if column.nullable else ' NOT NULL'}.",
            hint,
        )
    if column.name not in leading:
        raise SettingError(
            "chunkKeyColumn",
            wanted,
            f"no index of {where} begins with it, so every chunk would read the whole table.",
            f"CREATE INDEX … ON {where} ({column.quoted}). {hint}",
        )
    return column.name
