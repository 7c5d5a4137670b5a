"""Which columns are read and how: ``columns.include``, ``columns.exclude``, ``columns.mask``, ``tinyInt1isBit``,
``messageKeyColumns`` (pure).

Each `Column` has its choice as ``use``, so the choice is in the checkpoint too. A later query with the same checkpoint
must make the same choice.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backlog_spark.common.table_patterns import check_whole_names
from backlog_spark.errors import SettingError
from backlog_spark.spi.options import flag, option, text, values
from backlog_spark.spi.user_options import UserOptions

from .columns import BOOLEAN, EXCLUDED, MASKED, Column
from .table import TableSchema

__all__ = ["ColumnChoice", "matches", "patterns"]

# Commas within {2,3} do not separate.
_COMMA = re.compile(r",(?![^{}]*\})")
_OPTIONS = {EXCLUDED: "columns.exclude", MASKED: "columns.mask", BOOLEAN: "tinyInt1isBit"}
_SALT = "columns.mask.secretSalt"
_KEYS = "messageKeyColumns"
_DEBEZIUM_MASK = "column.mask.hash.v2.SHA-256.with.salt.…"
_ROUNDS = 20_000


def patterns(name: str, like: str = "database.table.column", **more: Any) -> tuple[str, ...]:
    """An option with regular expressions for whole names, separated by commas. ``like``: such a name, for errors."""

    def parse(given: UserOptions, name: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in _COMMA.split(given.text(name)) if part.strip())
        for pattern in found:
            check_whole_names(name, pattern, like)
        return found

    return option(name, parse, (), type="regular expressions", **more)


def matches(patterns: Iterable[str], name: str, *, any_case: bool = False) -> bool:
    """Whether a pattern matches the whole name."""
    return any(re.fullmatch(pattern, name, re.IGNORECASE if any_case else 0) for pattern in patterns)


@dataclass(frozen=True)
class ColumnChoice:
    """Parsed options."""

    include: tuple[str, ...] = patterns(
        "columns.include", shown="every column", bounds="not with columns.exclude", debezium="column.include.list"
    )
    """Separated by commas. A column is read only if one of them matches its whole `database.table.column`. Columns of
    the key are always read. Upper and lower case do not matter ([Columns](#columns))."""
    exclude: tuple[str, ...] = patterns(
        "columns.exclude", bounds="not with columns.include", debezium="column.exclude.list"
    )
    """A column is not read if one of them matches. A column of the key cannot be excluded."""
    mask: tuple[str, ...] = patterns("columns.mask", debezium=_DEBEZIUM_MASK)
    """A column's values become a salted SHA-256 if one of them matches: 64 hexadecimal digits. NULL stays NULL."""
    salt: str = text(_SALT, shown="with columns.mask: required", secret=True, debezium=_DEBEZIUM_MASK)
    """The salt. Never written to logs, offsets or errors. Another salt needs a new checkpoint."""
    tiny_as_boolean: bool = flag("tinyInt1isBit")
    """Reads signed TINYINT(1) as boolean: 0 is false, all other values are true. In a key it stays a number."""
    keys: tuple[tuple[str, tuple[str, ...]], ...] = option(
        _KEYS, lambda given, name: _parse_keys(given.text(name)), (), type="names", debezium="message.key.columns"
    )
    """`table:column,column;…`, where `table` is a regular expression: the NOT NULL columns of a UNIQUE key. They become
    the key of a table without a primary key ([Keys](#keys))."""

    @classmethod
    def parse(cls, given: UserOptions) -> ColumnChoice:
        """Parse the options.

        Raises
        ------
        SettingError
            A pattern is malformed, options exclude each other, or the salt is missing.
        """
        found = cls(**values(cls, given))
        if found.include and found.exclude:
            raise SettingError(
                "columns.include", given["columns.include"], "cannot be used with columns.exclude.", "Set one of them."
            )
        if found.mask and not found.salt:
            raise SettingError(
                _SALT, None, "columns.mask needs it: without a salt, masks of common values can be looked up.",
                "Set it to a long random text, and keep it as long as the checkpoint.",
            )  # fmt: skip
        if found.salt and not found.mask:
            raise SettingError(_SALT, "***", "has no meaning without columns.mask.", "Set columns.mask.")
        return found

    def applied(self, schema: TableSchema) -> TableSchema:
        """The table with the use of each column, before its key is known."""
        return replace(schema, columns=tuple(replace(c, use=self._use(schema, c)) for c in schema.columns))

    def _use(self, schema: TableSchema, column: Column) -> str:
        name = f"{schema.name}.{column.name}"
        if matches(self.exclude, name, any_case=True):
            return EXCLUDED
        if self.include and not matches(self.include, name, any_case=True):
            return EXCLUDED
        if matches(self.mask, name, any_case=True):
            return MASKED
        return BOOLEAN if self.tiny_as_boolean and column.column_type.lower() == "tinyint(1)" else ""

    def checked(self, schema: TableSchema) -> TableSchema:
        """The table with its key. Columns of the key are always read, perhaps masked.

        Raises
        ------
        SettingError
            ``columns.exclude`` matches a column of the key, or every column is excluded.
        """
        keyed = {*schema.key, *schema.chunk_key}
        columns = []
        for column in schema.columns:
            if column.name in keyed and column.use == EXCLUDED and self.exclude:
                raise SettingError(
                    "columns.exclude", ",".join(self.exclude),
                    f"matches the column {column.name!r}, which is in the key of {schema.name}: rows are identified "
                    "and read by it.", "Leave it out of columns.exclude; columns.mask can hide its values.",
                )  # fmt: skip
            # A boolean would make 1 and 2 the same key.
            kept = column.name in keyed and column.use != MASKED
            columns.append(replace(column, use="") if kept else column)
        found = replace(schema, columns=tuple(columns))
        if not found.read:
            name = "columns.include" if self.include else "columns.exclude"
            patterns = self.include or self.exclude
            raise SettingError(name, ",".join(patterns), f"leaves no column of {schema.name}.", "Keep one column.")
        return found

    def key_of(self, schema: TableSchema) -> tuple[str, ...]:
        """The columns that ``messageKeyColumns`` names for a table; empty if it names none."""
        return next((columns for pattern, columns in self.keys if re.fullmatch(pattern, schema.name)), ())

    @property
    def names_any(self) -> bool:
        """Whether an option names tables or columns."""
        return bool(self.include or self.exclude or self.mask or self.keys)

    @property
    def keys_text(self) -> str:
        """The option ``messageKeyColumns``."""
        return ";".join(f"{pattern}:{','.join(columns)}" for pattern, columns in self.keys)

    def check_used(self, tables: Sequence[TableSchema]) -> None:
        """Refuse a pattern without a match. It is probably misspelt, and a column would be read that should not.

        Raises
        ------
        SettingError
            It names the pattern.
        """
        names = [f"{t.name}.{c.name}" for t in tables for c in t.columns]
        for setting, found in (
            ("columns.include", self.include), ("columns.exclude", self.exclude), ("columns.mask", self.mask),
        ):  # fmt: skip
            for pattern in found:
                if not any(matches([pattern], name, any_case=True) for name in names):
                    raise SettingError(
                        setting, ",".join(found),
                        f"{pattern!r} matches no column of {_listed(t.name for t in tables)}.",
                        "It must match the whole of database.table.column.",
                    )  # fmt: skip
        for pattern, _ in self.keys:
            if not any(re.fullmatch(pattern, t.name) for t in tables):
                raise SettingError(
                    _KEYS, self.keys_text, f"{pattern!r} matches none of {_listed(t.name for t in tables)}.",
                    "Expected database.table:column,column;….",
                )  # fmt: skip

    @property
    def salt_check(self) -> str:
        """A few bytes for the checkpoint, to find out whether the salt is still the same. "" without a salt.

        They are too few to find the salt: one in four billion salts has the same bytes.
        """
        return _salt_check(self.salt) if self.salt else ""

    def check_unchanged(self, known: TableSchema, declared: TableSchema, salt_check: str) -> None:
        """Refuse another choice than that of the checkpoint.

        Parameters
        ----------
        known, declared : TableSchema
            A table in the checkpoint, and as it is declared now.
        salt_check : str
            `salt_check` in the checkpoint.

        Raises
        ------
        SettingError
            It names the option, and both choices.
        """
        was = {c.name: c for c in known.columns}
        for column in declared.columns:
            then = was.get(column.name)
            # An ALTER TABLE may make another choice too: that is a change of the schema.
            if then is None or then.column_type != column.column_type or then.use == column.use:
                continue
            use = column.use or then.use
            setting = "columns.include" if use == EXCLUDED and self.include else _OPTIONS[use]
            raise SettingError(
                setting, _used(declared.columns, use),
                f"the columns of {declared.name} that it makes {use} were {_used(known.columns, use)} when the "
                f"checkpoint was made, and are {_used(declared.columns, use)} now.",
                "Set it as it was, or start with a new checkpoint and a new target.",
            )  # fmt: skip
        if any(c.use == MASKED for c in declared.columns) and salt_check != self.salt_check:
            raise SettingError(
                _SALT, "***",
                "is not the one that the checkpoint was made with, so equal values would get other masks.",
                "Set it as it was, or start with a new checkpoint and a new target.",
            )  # fmt: skip
        if known.key != declared.key and (self.key_of(declared) or not declared.key):
            raise SettingError(
                _KEYS, self.keys_text or "unset",
                f"the key of {declared.name} was ({', '.join(known.key)}) when the checkpoint was made, and is "
                f"({', '.join(declared.key)}) now.",
                "Set it as it was. If the table itself has another key now, start with a new checkpoint and a new "
                "target.",
            )  # fmt: skip


def _used(columns: Iterable[Column], use: str) -> str:
    return ", ".join(c.name for c in columns if c.use == use) or "none"


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")


@functools.lru_cache(4)
def _salt_check(salt: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", salt.encode(), b"backlog_spark columns.mask", _ROUNDS, 4).hex()


def _parse_keys(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for part in filter(None, (p.strip() for p in text.split(";"))):
        pattern, colon, names = part.rpartition(":")
        columns = tuple(name.strip() for name in names.split(",") if name.strip())
        if not (pattern and colon and columns) or len(set(columns)) != len(columns):
            raise SettingError(
                _KEYS, text, f"{part!r} is not table:column,column.", "For example shop.events:day,number."
            )
        check_whole_names(_KEYS, pattern.strip())
        found.append((pattern.strip(), columns))
    return tuple(found)
