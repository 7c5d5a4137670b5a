"""Parsers of single options of ``mysql_cdc`` (pure). Each takes all given options, and the name of its own."""

from __future__ import annotations

import re
from typing import Final

from backlog_spark.common.table_names import TableName
from backlog_spark.common.table_patterns import check_whole_names
from backlog_spark.errors import SettingError
from backlog_spark.spi.user_options import UserOptions

from .schema.ddl.statements import TRUNCATE

__all__ = [
    "LEAST_IDS", "SERVER_IDS", "needed", "parse_operations", "parse_pattern", "parse_server_ids", "parse_signal_table",
    "parse_tables",
]  # fmt: skip

SERVER_IDS: Final = range(2**30, 2**32)
LEAST_IDS: Final = 16
_FOR_EXAMPLE = 'For example "shop.orders". A database with a dot is "`my.shop`.orders".'
# Debezium's letters of operations, with the kinds of changes here.
_OPERATIONS = {"c": "insert", "u": "update", "d": "delete", "t": TRUNCATE}


def needed(given: UserOptions, name: str) -> str:
    """A text that must be given."""
    return given.required(name, f'Set .option("{name}", …).', "mysql_cdc needs this option.")


def parse_pattern(given: UserOptions, name: str) -> str:
    """A regular expression for whole names of tables."""
    found = given.text(name)
    check_whole_names(name, found)
    return found


def parse_tables(given: UserOptions, name: str) -> tuple[tuple[str, str], ...]:
    """Names of tables. Exactly one of ``table`` and ``tablePattern`` must be given."""
    text = given.text(name)
    if bool(text) == bool(given.text("tablePattern")):
        raise SettingError(
            "table", text or None, "mysql_cdc needs this option or tablePattern, and not both.",
            'Set .option("table", "database.table").',
        )  # fmt: skip
    tables: list[tuple[str, str]] = []
    try:
        named = TableName.parse_all(text) if text else []
    except ValueError as error:
        raise SettingError("table", text, f"{str(error)!r} is not database.table.", _FOR_EXAMPLE) from None
    for table in named:
        if table in tables:
            raise SettingError("table", text, f"names {table} twice.", "Name each table once.")
        tables.append((table.database, table.table))
    return tuple(tables)


def parse_signal_table(given: UserOptions, name: str) -> tuple[str, str] | None:
    """A name of a table; None if not given."""
    text = given.text(name).strip()
    if not text:
        return None
    try:
        found = TableName.parse(text)
    except ValueError:
        raise SettingError("signal.table", text, "is not database.table.", 'For example "shop.signals".') from None
    return found.database, found.table


def parse_operations(given: UserOptions, name: str) -> frozenset[str]:
    """Kinds of changes, by Debezium's letters."""
    text = given.text(name, "none")
    letters = {part.strip().lower() for part in text.split(",") if part.strip()} - {"none"}
    if letters - set(_OPERATIONS):
        raise SettingError(
            "skipped.operations", text, "is no list of c, u, d and t, and not none.", 'For example "t" or "u,d".'
        )
    return frozenset(_OPERATIONS[letter] for letter in letters)


def parse_server_ids(given: UserOptions, name: str) -> range:
    """A range of server ids."""
    if not given.has(name):
        return SERVER_IDS
    text = given.text(name)
    first, _, last = (part.strip() for part in text.partition("-"))
    # As long as 2^32 has digits.
    is_range = re.fullmatch("[0-9]{1,10}", first) and re.fullmatch("[0-9]{1,10}", last)
    found = range(int(first), int(last) + 1) if is_range else range(0)
    if not (len(found) >= LEAST_IDS and found[0] >= 1 and found[-1] < 2**32):
        raise SettingError(
            "serverId", text, f"is no range of at least {LEAST_IDS} ids from 1 to {2**32 - 1}.",
            "For example 5400-5499, if no replica and no other reader uses these.",
        )  # fmt: skip
    return found
