"""The columns of a change stream for a sink with keys: those it stores, and those that say what a row means (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backlog_spark.errors import SettingError
from backlog_spark.model.changes import CHANGE_TYPE, METADATA

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

    from backlog_spark.sinks.base import SinkContext

__all__ = ["BY_DEFAULT", "SEQUENCE", "ChangeColumns", "check_stored", "checked_columns", "checked_keys"]

SEQUENCE: Final = "_commit_seq"
"""The name that sources give to the column which orders the changes of a key."""


class ChangeColumns(NamedTuple):
    """Columns of a batch that say what its rows mean.

    Parameters
    ----------
    change_type, sequence : str or None
        As of `backlog_spark.DeltaUpsert`.
    metadata : tuple of str
        Columns that are not stored.
    """

    change_type: str | None
    sequence: str | None
    metadata: tuple[str, ...]

    def described(self) -> dict[str, Any]:
        """For `Sink.described`."""
        rows = {"change_type": self.change_type, "sequence": self.sequence}
        return {**rows, "metadata_columns": list(self.metadata)}

    def of(self, context: SinkContext, kind: str, otherwise: str) -> ChangeColumns:
        """Those that a query's rows have. With the defaults, results of a keyed operator may lack them.

        Parameters
        ----------
        kind : str
            The sink's class, for messages.
        otherwise : str
            What to do with rows that are no changes.

        Raises
        ------
        SettingError
            The rows lack a column.
        """
        schema, found = context.schema, self
        there = tuple(name for name in METADATA if name in schema.names)
        if self == BY_DEFAULT and context.rows_are_results and there in ((), (CHANGE_TYPE,)):
            found = ChangeColumns(there[0] if there else None, None, there)
        needed: list[tuple[str, str | None]] = [("metadata_columns", name) for name in found.metadata]
        needed += [("change_type", found.change_type), ("sequence", found.sequence)]
        for setting, name in needed:
            if name is not None and name not in schema.names:
                raise SettingError(
                    f"{kind} {setting}", name, f"the stream has no such column; it has {', '.join(schema.names)}.",
                    otherwise,
                )  # fmt: skip
        return found


BY_DEFAULT: Final = ChangeColumns(CHANGE_TYPE, SEQUENCE, METADATA)


def checked_columns(setting: str, names: Sequence[str]) -> tuple[str, ...]:
    """An argument with names of columns."""
    for name in names:
        if not name or list(names).count(name) > 1:
            what = "names a column twice" if name else "has an empty name"
            raise SettingError(setting, list(names), f"{what}.", "Name each column once.")
    return tuple(names)


def checked_keys(keys: Sequence[str], metadata: Sequence[str]) -> tuple[str, ...]:
    """The argument ``keys`` of a sink that does not store the metadata columns."""
    if not keys:
        raise SettingError(
            "keys", list(keys), "an upsert needs at least one key column.", "Name the columns that identify a row."
        )
    for key in keys:
        if key in metadata:
            raise SettingError(
                "keys", list(keys), f"{key!r} is a metadata column and is not stored.",
                "Leave it out of keys, or out of metadata_columns.",
            )  # fmt: skip
    return checked_columns("keys", keys)


def check_stored(kind: str, setting: str, names: Sequence[str], stored: Sequence[StructField]) -> None:
    """Refuse columns that a sink does not store.

    Raises
    ------
    SettingError
    """
    found = {field.name for field in stored}
    for name in names:
        if name not in found:
            raise SettingError(
                f"{kind} {setting}", list(names),
                f"there is no column {name!r} to store; the columns are {', '.join(sorted(found))}.",
                "Name one of these, in the same case.",
            )  # fmt: skip
