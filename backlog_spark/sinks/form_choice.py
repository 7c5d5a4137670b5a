"""Which rows a table keeps: the arguments of the sinks that say so, and what follows for a table and its batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import DataType, DoubleType, FloatType

from backlog_spark.errors import SettingError
from backlog_spark.sinks.forms import IGNORE, REMOVE, SOFT, SoftDeletes, TableForm, without_deletes
from backlog_spark.sinks.small_batches import is_comparable
from backlog_spark.sinks.versions import SCD2, Versions

if TYPE_CHECKING:
    from backlog_spark.sinks.table_sink import PendingBatch

__all__ = ["FORM", "FormArguments", "check_form", "formed", "noted", "only_spark_compares"]

FORM: Final = "backlog_spark.rows"
"""Table property with `TableForm.noted`, as JSON, if a query created the table for such rows."""


@dataclass(frozen=True)
class FormArguments:
    """These arguments, with the names that they have in the sinks."""

    deletes: str
    deleted_column: str
    deleted_at_column: str | None
    history: str | None
    valid_from: str
    valid_to: str
    is_current: str
    track_history_columns: Sequence[str] | None
    commit_time: str

    def form(self, change_type: str | None) -> TableForm:
        """What they ask for.

        Raises
        ------
        SettingError
            A value is unknown, or has no effect.
        """
        if self.deletes not in (REMOVE, SOFT, IGNORE):
            raise SettingError(
                "deletes", self.deletes, f"must be {REMOVE!r}, {SOFT!r} or {IGNORE!r}.", "See docs/history.md."
            )
        if self.history not in (None, SCD2):
            raise SettingError("history", self.history, f"must be {SCD2!r} or None.", "See docs/history.md.")
        self._check_combination(change_type)
        if self.history is None and self.deletes == SOFT:
            return SoftDeletes(self.deleted_column, self.deleted_at_column, self.commit_time)
        if self.history is None:
            return TableForm()
        track = self.track_history_columns
        return Versions(
            self.valid_from,
            self.valid_to,
            self.is_current,
            None if track is None else tuple(dict.fromkeys(track)),
            self.commit_time,
        )

    def _check_combination(self, change_type: str | None) -> None:
        if self.history is not None and self.deletes == SOFT:
            raise SettingError(
                "deletes", SOFT, f"a table with history={SCD2!r} has no marks: a delete ends the key's version.",
                "Leave deletes out.",
            )  # fmt: skip
        if change_type is None and self.deletes != REMOVE:
            raise SettingError(
                "deletes", self.deletes, "has no effect with change_type=None: each row is an upsert.",
                "Leave deletes out, or name the column with the kind of change.",
            )  # fmt: skip
        if self.deleted_at_column is not None and self.deletes != SOFT:
            raise SettingError(
                "deleted_at_column", self.deleted_at_column, f"has no effect with deletes={self.deletes!r}.",
                f"Set deletes={SOFT!r}.",
            )  # fmt: skip
        if self.track_history_columns is not None and self.history is None:
            raise SettingError(
                "track_history_columns", list(self.track_history_columns), "has no effect without history.",
                f"Set history={SCD2!r}.",
            )  # fmt: skip


def noted(form: TableForm) -> dict[str, str]:
    """Properties of a table that a query creates for rows of a form."""
    found = form.noted()
    return {FORM: json.dumps(found)} if found else {}


def check_form(
    place: str, form: TableForm, properties: Mapping[str, str], has_rows: Callable[[], bool], sink: str
) -> None:
    """Refuse a table whose rows were written in another form, by a query of another checkpoint.

    Parameters
    ----------
    place : str
        The table, for messages.
    properties : mapping of str to str
        Of the table.
    has_rows : callable
        Whether the table has rows.
    sink : str
        The sink's class, for messages.

    Raises
    ------
    SettingError
    """
    recorded: dict[str, str] = json.loads(properties.get(FORM, "{}"))
    wanted = form.noted()
    plain = {"deletes": REMOVE, "history": None}
    for setting in (*recorded, *wanted):
        before, now = recorded.get(setting, plain.get(setting)), wanted.get(setting, plain.get(setting))
        # A row without a mark is not deleted, so marks may come later. A row without a time is no version.
        is_new = setting in ("deletes", "deleted_column") and not recorded
        if before == now or is_new or (not recorded and not has_rows()):
            continue
        raise SettingError(
            f"{sink} {setting}", now, f"the rows of {place} were written with {before!r}.",
            "Set the same, or use another table.",
        )  # fmt: skip


def formed(batch: PendingBatch, form: TableForm, deletes: str, change_type: str | None) -> PendingBatch:
    """A batch with the rows and columns that a table of a form takes from it."""
    if deletes == IGNORE:
        batch.rows = without_deletes(batch.rows, change_type)
        batch.info = replace(batch.info, has_table_events=False)
    batch.rows = form.rows(batch.rows, change_type)
    return batch


def only_spark_compares(
    types: Mapping[str, DataType], keys: Sequence[str], sequence: str | None, form: TableForm, stored: Sequence[str]
) -> str:
    """Why Spark has to merge batches whose columns have these types; empty if Arrow compares their values equally.

    Parameters
    ----------
    stored : sequence of str
        The stored columns.
    """
    for name in (*keys, *((sequence,) if sequence is not None else ())):
        if not is_comparable(types[name]):
            return f"keys and sequences of type {types[name].simpleString()} are compared by Spark alone ({name})"
    for name in form.compared(stored, keys):
        if not (is_comparable(types[name]) or isinstance(types[name], (FloatType, DoubleType))):
            return f"values of type {types[name].simpleString()} are compared by Spark alone ({name})"
    return ""
