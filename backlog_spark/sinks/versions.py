"""A table with a row for each version of a key: ``history="scd2"``.

One MERGE writes a batch, the same in Spark and in the driver: `backlog_spark.sinks.row_versions` says which rows its
source has.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, MapType, StructField, StructType, TimestampType, VariantType

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import SettingError
from backlog_spark.model.changes import DELETE, METADATA, TABLE_EVENTS
from backlog_spark.sinks.forms import TableForm, check_time, first_time, refuse_names
from backlog_spark.sinks.newest_rows import IS_DELETE, RANK, SOURCE, is_delete_of
from backlog_spark.sinks.row_versions import CLOSING, DELETED, FIRST, KIND, LATER, condition
from backlog_spark.sinks.truncate import Statement, is_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["IS_CURRENT", "SCD2", "VALID_FROM", "VALID_TO", "Versions", "versions_in"]

SCD2: Final = "scd2"
VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
IS_CURRENT: Final = "is_current"
_SINCE: Final = "__backlog_spark_since"
_UNTIL: Final = "__backlog_spark_until"
_BEGINS: Final = "__backlog_spark_begins"
# They differ between changes that leave the row as it is.
_OF_CHANGE: Final = (*METADATA, "_gtid", "_is_snapshot")


@dataclass(frozen=True)
class Versions(TableForm):
    """A table with a row for each version of a key.

    Parameters
    ----------
    valid_from, valid_to, is_current : str
        Columns with the begin and the end of a version, NULL while it is the current one, and whether it is.
    track : tuple of str or None
        Columns whose changes are new versions; None: all but the keys and those of `_OF_CHANGE`.
    commit_time : str
        Column of the stream with the time of a change.
    """

    valid_from: str
    valid_to: str
    is_current: str
    track: tuple[str, ...] | None
    commit_time: str

    @property
    def names(self) -> tuple[str, str, str]:
        return self.valid_from, self.valid_to, self.is_current

    def noted(self) -> dict[str, str]:
        return {"history": SCD2, "version_columns": ", ".join(self.names)}

    def tracked(self, columns: Sequence[str], keys: Sequence[str]) -> list[str]:
        """The tracked ones among the columns of a batch."""
        own = (*keys, *self.names, *_OF_CHANGE)
        return list(self.track) if self.track is not None else [name for name in columns if name not in own]

    def fields(
        self, schema: StructType, stored: Sequence[StructField], keys: Sequence[str], sequence: str | None, sink: str
    ) -> list[StructField]:
        if sequence is None:
            raise SettingError(
                f"{sink} history", SCD2, "a sequence column orders the versions of a key, and the stream has none.",
                "Name it in sequence. Results of keyed operators have no history: write them with "
                f"{sink.replace('Upsert', 'Append')}.",
            )  # fmt: skip
        check_time("history", SCD2, self.commit_time, schema, sink)
        refuse_names(dict(zip(("valid_from", "valid_to", "is_current"), self.names, strict=True)), stored, sink)
        types = {field.name: field.dataType for field in stored}
        for name in self.tracked(list(types), keys):
            why = "" if name in types else "is not stored"
            if name in types and _has(types[name], (MapType, VariantType)):
                why = f"is {types[name].simpleString()}, whose values cannot be compared"
            if name in keys:
                why = "is a key, so it never changes"
            if why:
                raise SettingError(
                    f"{sink} track_history_columns", name, f"the column {why}.",
                    f"Choose among {', '.join(types)}.",
                )  # fmt: skip
        kinds = (TimestampType(), TimestampType(), BooleanType())
        return [StructField(name, kind) for name, kind in zip(self.names, kinds, strict=True)]

    def rows(self, rows: DataFrame, change_type: str | None) -> DataFrame:
        time, none = F.col(quoted(self.commit_time)), F.lit(None).cast("timestamp")
        return rows.withColumns(dict(zip(self.names, (time, none, F.lit(True)), strict=True)))

    def current(self, table: DataFrame) -> DataFrame:
        return table.where(F.coalesce(F.col(quoted(self.is_current)), F.lit(False))).drop(*self.names)

    @property
    def time_of_changes(self) -> str | None:
        return self.commit_time

    def since(
        self,
        rows: DataFrame,
        statements: Sequence[Statement],
        keys: Sequence[str],
        change_type: str,
        sequence: str,
    ) -> DataFrame:
        # A delete of each key of the batch, for each statement that emptied its table.
        rows = rows.where(~F.coalesce(F.col(quoted(change_type)).isin(*TABLE_EVENTS), F.lit(False)))
        types = {field.name: field.dataType for field in rows.schema}
        made = rows
        for table, at, time in statements:
            of_table = rows.where(is_of("", table)).select(*(F.col(quoted(key)) for key in keys)).distinct()
            values = {change_type: F.lit(DELETE), sequence: F.lit(at).cast(types[sequence]), self.valid_from: time}
            made = made.unionByName(of_table.withColumns(values), allowMissingColumns=True)
        return made

    def gone(self, statements: Sequence[Statement]) -> dict[str, str | Column]:
        return {quoted(self.valid_to): first_time(statements), quoted(self.is_current): F.lit(False)}

    def compared(self, columns: Sequence[str], keys: Sequence[str]) -> list[str]:
        return self.tracked(columns, keys)

    def is_there(self, prefix: str) -> Column:
        return F.coalesce(F.col(f"{prefix}{quoted(self.is_current)}"), F.lit(False))

    def is_matched(self, prefix: str) -> Column:
        return self.is_there(prefix)

    @property
    def is_filled(self) -> Column:
        return self.is_there("t.")

    def filled(self, value: Column, source: Mapping[str, str], name: str) -> Column:
        return F.when(F.col(source[self.is_current]), value).otherwise(F.col(source[name]))

    def condition(self, source: Mapping[str, str], keys: Sequence[str]) -> str:
        """The part of a MERGE's condition beside the keys. ``source``: the source's columns, by the table's."""
        same = [f"t.{quoted(name)} <=> {source[name]}" for name in self.tracked(list(source), keys)]
        return condition(" AND ".join(same) or "true", f"t.{quoted(self.is_current)}", f"s.{KIND}")

    def merged(self, merge: Any, values: Mapping[str, Any]) -> Any:
        """Add to a MERGE what becomes of rows that match, and of others of the source."""
        since, until, is_current = map(quoted, self.names)
        closed = {until: values[since], is_current: "false"}
        continued = {name: value for name, value in values.items() if name != since}
        return (
            merge.whenMatchedUpdate(f"s.{KIND} IN ({CLOSING}, {DELETED})", closed)
            .whenMatchedUpdate(f"s.{KIND} = {FIRST}", continued)
            .whenNotMatchedInsert(f"s.{KIND} IN ({FIRST}, {LATER})", values)
        )


def _has(kind: Any, wanted: tuple[type, ...]) -> bool:
    inner = [field.dataType for field in kind] if isinstance(kind, StructType) else [getattr(kind, "elementType", None)]
    return isinstance(kind, wanted) or any(_has(each, wanted) for each in inner if each is not None)


def versions_in(
    rows: DataFrame,
    columns: Sequence[str],
    keys: Sequence[str],
    change_type: str | None,
    sequence: str,
    form: Versions,
    sink: str,
) -> DataFrame:
    """The source of a MERGE, as `backlog_spark.sinks.row_versions.versions_of` makes it.

    It has the stored columns in order, named by `SOURCE` and number, then `KIND`, and `IS_DELETE`, which is false.
    """
    order = Window.partitionBy(*(F.col(quoted(key)) for key in keys)).orderBy(
        F.col(quoted(sequence)).asc_nulls_first(), F.col(IS_DELETE).desc()
    )
    at = F.struct(F.col(quoted(sequence)).alias("at"))
    is_repeated = F.lead(at).over(order).eqNullSafe(at)
    found = rows.withColumn(IS_DELETE, is_delete_of(change_type, sink)).withColumn(RANK, is_repeated)
    found = found.where(~F.col(RANK)).drop(RANK)

    tracked = form.tracked(columns, keys)
    before = F.lag(F.struct(F.col(IS_DELETE), *(F.col(quoted(n)).alias(f"c{i}") for i, n in enumerate(tracked))))
    found = found.withColumn(RANK, before.over(order))
    same = [F.col(RANK).getField(f"c{i}").eqNullSafe(F.col(quoted(n))) for i, n in enumerate(tracked)]
    continues = (F.col(RANK).getField(IS_DELETE) == F.col(IS_DELETE)) & (
        F.col(IS_DELETE) | functools.reduce(operator.and_, same, F.lit(True))
    )
    begin = F.last(F.when(F.col(_BEGINS), F.struct(F.col(quoted(form.valid_from)).alias("at"))), ignorenulls=True)
    found = (
        found.withColumn(_BEGINS, F.coalesce(~continues, F.lit(True)))
        .withColumn(_SINCE, begin.over(order.rowsBetween(Window.unboundedPreceding, Window.currentRow)))
        .withColumn(RANK, F.coalesce(F.lead(_BEGINS).over(order), F.lit(True)))
        .where(F.col(RANK))
        .withColumn(RANK, F.row_number().over(order))
        .withColumn(_UNTIL, F.lead(_SINCE).over(order))
    )
    is_first = F.col(RANK) == 1
    kinds = (
        F.when(is_first & F.col(IS_DELETE), F.array(F.lit(DELETED)))
        .when(is_first, F.array(F.lit(FIRST), F.lit(CLOSING)))
        .when(~F.col(IS_DELETE), F.array(F.lit(LATER)))
    )
    own = {
        form.valid_from: F.col(_SINCE).getField("at"),
        form.valid_to: F.col(_UNTIL).getField("at"),
        form.is_current: F.col(_UNTIL).isNull(),
    }
    stored = [own.get(name, F.col(quoted(name))).alias(f"{SOURCE}{number}") for number, name in enumerate(columns)]
    return found.select(*stored, F.explode(kinds).alias(KIND)).withColumn(IS_DELETE, F.lit(False))
