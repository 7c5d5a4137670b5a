"""Prepares a batch for its tasks: keys and images as JSON, all changes of a key together, oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import SettingError
from backlog_spark.model.changes import CHANGE_TYPE, EXACT_JSON, INSERT, METADATA
from backlog_spark.sinks.newest_changes import DELETES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from backlog_spark.sinks.base import SinkContext

__all__ = ["SEQUENCE", "Shape", "shape_of"]

SEQUENCE: Final = "_commit_seq"
_DATABASE, _TABLE, _IS_SNAPSHOT = "_database", "_table", "_is_snapshot"
# Columns that `mysql_cdc` has with format=debezium, before the metadata columns.
_ENVELOPES: Final = ("key", "value")
# Debezium has these in `source` and not in the images.
_IN_SOURCE: Final = (_DATABASE, _TABLE, _IS_SNAPSHOT, "_gtid")
_NO_CHANGES: Final = (
    "For rows that are not changes, write KafkaSink(…, change_type=None, sequence=None, metadata_columns=()): with key "
    "each row is an upsert, without key it is added."
)


@dataclass(frozen=True)
class Shape:
    """What the columns of a stream are for.

    Parameters
    ----------
    keys : tuple of str
        Empty for a stream of envelopes.
    stored : tuple of str
        The columns of an image.
    change_type, sequence : str or None
    columns : tuple of str
        All columns.
    format : str
        As of `KafkaSink`.
    name : str
        ``source.name`` of envelopes.
    """

    keys: tuple[str, ...]
    stored: tuple[str, ...]
    change_type: str | None
    sequence: str | None
    columns: tuple[str, ...]
    format: str
    name: str

    @property
    def of_envelopes(self) -> bool:
        """Whether the rows are envelopes already."""
        return not self.keys and not self.adds_rows

    @property
    def adds_rows(self) -> bool:
        """Whether each row is a record without a key."""
        return not self.keys and self.change_type is None

    def prepared(self, rows: DataFrame, tasks: int) -> DataFrame:
        """The columns of `Change`, in one partition for each task.

        A replay has the same rows in the same partition in the same order: neither depends on the batch's size.
        """
        kind = F.lit(INSERT) if self.change_type is None else self._column(self.change_type)
        key, image = self._key_and_image()
        made: dict[str, Column] = {
            "key": key,
            "database": self._optional(_DATABASE),
            "table": self._optional(_TABLE),
            "kind": kind,
            "image": image,
            "source": self._source() if self.format == "debezium" and not self.of_envelopes else F.lit(""),
            "at_ms": F.unix_millis(self._column(METADATA[1]))
            if METADATA[1] in self.columns
            else F.lit(None).cast("long"),
            "is_snapshot": F.coalesce(self._optional(_IS_SNAPSHOT, "boolean"), F.lit(False)),
            "sequence": F.lit(0) if self.sequence is None else self._column(self.sequence),
            # Of two changes at one place of the log the upsert is the newer one.
            "rank": F.when(kind.isin(*DELETES), 0).otherwise(1),
        }
        columns = [column.alias(name) for name, column in made.items()]
        order: list[Column | str] = ["key", "database", "table", F.col("sequence").asc_nulls_first(), "rank"]
        if self.format != "avro":
            order.append("image")  # a map has no order
        together = "image" if self.adds_rows else "key"
        changes = rows.select(*columns).repartition(tasks, together).sortWithinPartitions(*order)
        return changes.drop("sequence", "rank")

    def _key_and_image(self) -> tuple[Column, Column]:
        if self.of_envelopes:
            key, value = (self._column(name) for name in _ENVELOPES)
            return key, value if self.format == "debezium" else F.get_json_object(value, "$.after")
        image = F.struct(*(self._column(name) for name in self.stored))
        key = F.lit(None).cast("string")
        if self.keys:
            key = F.to_json(F.struct(*(self._column(name) for name in self.keys)), EXACT_JSON)
        return key, image if self.format == "avro" else F.to_json(image, EXACT_JSON)

    def _source(self) -> Column:
        """``source`` of an envelope, with the names that Debezium's connectors have."""
        is_snapshot = F.coalesce(self._optional(_IS_SNAPSHOT, "boolean"), F.lit(False)).cast("string")
        parts: list[tuple[str, Column]] = [
            ("version", F.lit(metadata.version("backlog_spark"))),
            ("connector", F.lit("backlog_spark")),
            ("name", F.lit(self.name)),
            (
                "ts_ms",
                F.unix_millis(self._column(METADATA[1])) if METADATA[1] in self.columns else F.lit(0).cast("long"),
            ),
            ("snapshot", is_snapshot),
            ("db", F.coalesce(self._optional(_DATABASE), F.lit(""))),
            ("table", self._optional(_TABLE)),
            ("gtid", self._optional("_gtid")),
            ("pos", F.lit(None).cast("long") if self.sequence is None else self._column(self.sequence)),
        ]
        return F.to_json(F.struct(*(column.alias(name) for name, column in parts)), EXACT_JSON)

    def _optional(self, name: str, kind: str = "string") -> Column:
        return self._column(name) if name in self.columns else F.lit(None).cast(kind)

    @staticmethod
    def _column(name: str) -> Column:
        return F.col(quoted(name))


def shape_of(
    context: SinkContext,
    keys: Sequence[str],
    change_type: str | None,
    sequence: str | None,
    metadata_columns: Sequence[str],
    format: str,
    name: str,
) -> Shape:
    """What the columns of a stream are for. Arguments as of `KafkaSink` and `Shape`.

    Raises
    ------
    SettingError
        A column is missing, or there is no key.
    """
    schema: StructType = context.schema
    by_default = (change_type, sequence, tuple(metadata_columns)) == (CHANGE_TYPE, SEQUENCE, METADATA)
    there = tuple(name for name in METADATA if name in schema.names)
    if by_default and context.rows_are_results and there in ((), (CHANGE_TYPE,)):
        change_type, sequence, metadata_columns = there[0] if there else None, None, there
    needed = [("metadata_columns", name) for name in metadata_columns]
    needed += [("change_type", change_type)] if change_type is not None else []
    needed += [("sequence", sequence)] if sequence is not None else []
    for setting, column in needed:
        _check(setting, column, schema, _NO_CHANGES)
    for key in keys:
        _check("key", key, schema, "Name columns of the stream, in the same case.")
    hidden = [key for key in keys if key in metadata_columns]
    if hidden:
        raise SettingError(
            "KafkaSink key", list(keys), f"{hidden[0]!r} is a metadata column and is not stored.",
            "Leave it out of key, or out of metadata_columns.",
        )  # fmt: skip
    if not keys and change_type is not None and not {*_ENVELOPES, _DATABASE, _TABLE} <= set(schema.names):
        raise SettingError(
            "KafkaSink key", list(keys), f"there is no key; the stream's columns are {', '.join(schema.names)}.",
            "Name the columns that identify a row, or change_type=None, sequence=None and metadata_columns=() to add "
            "each row without a key. Only envelopes of mysql_cdc bring their keys: set its options "
            "format=debezium and metadataColumns=_change_type,_commit_timestamp,_commit_seq,_database,_table.",
        )  # fmt: skip
    left_out = {*metadata_columns, *(_IN_SOURCE if format == "debezium" else ())} - {*keys}
    stored = tuple(each for each in schema.names if each not in left_out)
    return Shape(tuple(keys), stored, change_type, sequence, tuple(schema.names), format, name)


def _check(setting: str, name: str, schema: StructType, hint: str) -> None:
    if name not in schema.names:
        raise SettingError(
            f"KafkaSink {setting}", name, f"the stream has no such column; it has {', '.join(schema.names)}.", hint
        )
