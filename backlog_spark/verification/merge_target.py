"""What ``bs.verify`` needs of Delta and of Iceberg alike: whose rows count, and repair steps as clauses of a MERGE."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from backlog_spark.common.failure_causes import first_line
from backlog_spark.common.sql_names import quoted
from backlog_spark.common.table_names import TableName
from backlog_spark.errors import SettingError
from backlog_spark.sinks.computed_columns import with_computed
from backlog_spark.sinks.forms import IGNORE
from backlog_spark.sinks.versions import Versions
from backlog_spark.verification import change_logs
from backlog_spark.verification.targets import DELETE, INSERT, REMOVE, STEP, UPDATE, TargetTable, TargetVersion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backlog_spark.sinks.forms import TableForm
    from backlog_spark.sinks.tables import BegunTable, TablesSink

__all__ = ["MergeTarget", "OneTable", "repaired"]

_COLUMN: Final = "__backlog_spark_c"
_AGAIN: Final = "Leave repair out. For a right table start with a new checkpointLocation and an empty target."

Begin = Callable[["DataFrame", str, str, Mapping[str, str]], Any]
"""Begins a MERGE: of its source, the condition on which rows match, the condition that keys are the same, and the
source's columns with the keys. Returns what has the methods of Delta's ``DeltaMergeBuilder``."""


@dataclass(frozen=True)
class OneTable:
    """One of the tables of a query of many tables.

    Parameters
    ----------
    tables : TablesSink
    table : str
        The source's.
    begun : callable
        Returns where the query's tables are, by the source's names.
    committed : callable
        Returns the newest batch of which all tables have their rows.
    """

    tables: TablesSink
    table: str
    begun: Callable[[], Mapping[str, BegunTable]]
    committed: Callable[[], int]

    def newest(self, read: Callable[[str], TargetVersion]) -> TargetVersion:
        """As of `TargetTable.newest`. The version is -1 if the query has not begun the table.

        ``read``: returns the newest version at a place.
        """
        # Looked up before the version: the version then has at least this batch.
        committed = self.committed()
        found = self.begun().get(self.table)
        if found is None or found.batch > committed:
            return TargetVersion(self.tables.path_of(*TableName.parse(self.table)), -1, committed)
        version = read(found.path)
        # Later batches had no rows of the table.
        return replace(version, batch=max(version.batch, committed))


class MergeTarget(TargetTable):
    """A table whose format has MERGE.

    Parameters
    ----------
    sink : DeltaSink or IcebergSink
    app_id : str
        Of the query's commits.
    place : str
        The sink's path, or the name of its table.
    one : OneTable, optional
        If the sink is that of one of many tables, whose place and keys it does not know.
    """

    def __init__(self, sink: Any, app_id: str, place: str, one: OneTable | None) -> None:
        self._sink = sink
        self._app_id = app_id
        self._place = place
        self._one = one
        self._form: TableForm | None = getattr(sink, "form", None)  # None: the table has all changes
        self.keys = () if one else sink.keys
        self.keeps_removed = getattr(sink, "deletes", None) == IGNORE

    def newest(self) -> TargetVersion:
        return self._newest(self._place) if self._one is None else self._one.newest(self._newest)

    @abstractmethod
    def _newest(self, place: str) -> TargetVersion:
        """As of `newest`, of the table at a place."""

    def _counted(self, found: DataFrame, version: TargetVersion, keys: Sequence[str]) -> DataFrame:
        """Those of a version's rows that count."""
        if self._form is None:
            return change_logs.newest_of_all(found, keys, self.kind, version.place)
        return self._form.current(found)

    def refuse_repair(self) -> None:
        if self._form is None:
            change_logs.refuse_repair(self._sink)
        if isinstance(self._form, Versions):
            raise SettingError(
                "repair", True, "a table with history keeps all versions, and the time of a lost change is not known.",
                _AGAIN,
            )  # fmt: skip

    def _repaired(self, steps: DataFrame, keys: Sequence[str], begin: Begin) -> Any:
        """A MERGE with the clauses of repair steps; see `repaired`."""
        assert self._form is not None, "refuse_repair comes first"
        return repaired(steps, keys, self._form, self._sink.computed, begin)


def repaired(steps: DataFrame, keys: Sequence[str], form: TableForm, computed: Mapping[str, str], begin: Begin) -> Any:
    """A MERGE with all clauses, to execute. An `INSERT` makes columns that are not given NULL.

    Parameters
    ----------
    steps, keys
        As of `TargetTable.repair`.
    form : TableForm
        A plain table, or `SoftDeletes`.
    computed : mapping of str to str
        The sink's.
    begin : Begin

    Raises
    ------
    SettingError
        The steps lack columns of which others are computed.
    """
    try:
        steps = with_computed(steps, computed)
    except Exception as error:
        raise SettingError(
            "repair", True, f"a computed column needs what the source's rows do not have: {first_line(error)}", _AGAIN
        ) from None
    names = [name for name in steps.columns if name != STEP]
    # A format may resolve its own columns together with the source's, so the source's columns get unique names.
    plain = {name: f"{_COLUMN}{number}" for number, name in enumerate(names)}
    given = steps.select(*(F.col(quoted(name)).alias(column) for name, column in plain.items()), STEP)
    same = " AND ".join(f"t.{quoted(key)} <=> s.{plain[key]}" for key in keys)
    values: dict[str, Any] = {quoted(name): f"s.{column}" for name, column in plain.items()}
    values |= {quoted(name): F.lit(value) for name, value in zip(form.names, (False, None), strict=False)}
    removed = f"s.{STEP} = '{REMOVE}'"
    # An insert matches no row: a key's old rows are deleted in the same commit.
    merge = begin(given, f"s.{STEP} <> '{INSERT}' AND {same}", same, {key: plain[key] for key in keys})
    merge = merge.whenMatchedDelete(f"s.{STEP} = '{DELETE}'").whenMatchedUpdate(f"s.{STEP} = '{UPDATE}'", values)
    gone = form.gone([])
    merge = merge.whenMatchedUpdate(removed, gone) if gone else merge.whenMatchedDelete(removed)
    return merge.whenNotMatchedInsert(f"s.{STEP} IN ('{INSERT}', '{UPDATE}')", values)
