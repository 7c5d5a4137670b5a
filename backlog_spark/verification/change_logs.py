"""Tables that have all changes, such as those of `DeltaAppend`: the newest row of each key, for ``bs.verify``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.changes import CHANGE_TYPE, TABLE_EVENTS
from backlog_spark.sinks.newest_changes import DELETES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["newest_of_all", "refuse_repair"]

_SEQUENCE: Final = "_commit_seq"
_RANK: Final = "__backlog_spark_rank"
_EMPTIED: Final = "__backlog_spark_emptied"


def refuse_repair(sink: object) -> None:
    """Refuse the repair of a table that has all changes."""
    raise SettingError(
        "repair", True, f"a table of {type(sink).__name__} keeps all changes, so it cannot be repaired.",
        "Leave repair out.",
    )  # fmt: skip


def newest_of_all(found: DataFrame, keys: Sequence[str], kind: str, place: str) -> DataFrame:
    """The newest row of each key that was not deleted, of a table that has all changes.

    Raises
    ------
    BacklogError
        The table does not store the change type or the sequence, which determine a key's newest row.
    """
    there = {name.lower() for name in found.columns}
    for name in (CHANGE_TYPE, _SEQUENCE):
        if name not in there:
            raise BacklogError(
                f"The {kind} at {place} has no column {name!r}, so the newest row of a key is not known.",
                "verify needs it in a table of all changes.",
            )
    found = _since_emptied(found)
    is_delete = F.col(CHANGE_TYPE).isin(*DELETES)
    order = Window.partitionBy(*[F.col(quoted(key)) for key in keys]).orderBy(F.col(_SEQUENCE).desc(), is_delete)
    newest = found.withColumn(_RANK, F.row_number().over(order)).where((F.col(_RANK) == 1) & ~is_delete)
    return newest.drop(_RANK)


def _since_emptied(found: DataFrame) -> DataFrame:
    """The changes that came after the last TRUNCATE or DROP of their table."""
    is_event = F.coalesce(F.col(CHANGE_TYPE).isin(*TABLE_EVENTS), F.lit(False))
    names: list[str] = [name for name in ("_database", "_table") if name in found.columns]
    emptied = found.where(is_event).groupBy(*names).agg(F.max(_SEQUENCE).alias(_EMPTIED))
    changes = found.where(~is_event)
    small = F.broadcast(emptied)
    joined = changes.join(small, names, "left") if names else changes.crossJoin(small)
    is_later = F.col(_EMPTIED).isNull() | (F.col(_SEQUENCE) > F.col(_EMPTIED))
    return joined.where(is_later).select(*(F.col(quoted(name)) for name in found.columns))
