"""The two forms of a stream's rows: the table's own columns, or one envelope for many tables (pure).

In both the metadata columns come last.
"""

from __future__ import annotations

import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import types as st

from backlog_spark.errors import SettingError

from ..binlog.records import DELETE, INSERT, RowsChange, TableEmptied
from ..offsets import RangeAgain, SnapshotRange
from ..schema.columns import EXCLUDED, MASKED
from ..schema.ddl.statements import DROP, TRUNCATE
from ..schema.keys import Key
from ..schema.table import TableSchema
from ..schema.types import kind_of
from .envelope import drop_event, encoding, envelopes, key_json
from .masking import masked
from .metadata import arrow_fields, spark_fields

__all__ = ["UPDATE_AFTER", "UPDATE_BEFORE", "ChangeRows", "Output", "output_of", "rows_to_table"]

UPDATE_BEFORE, UPDATE_AFTER = "update_preimage", "update_postimage"
# Debezium's operations of changes without a before-image. It has none for a DROP, which is a schema change there.
_OPS = {INSERT: "c", TRUNCATE: "t", DROP: "t"}
_BATCH_ROWS = 10_000  # Spark takes Arrow batches of 1k to 10k rows best
_NO_EVENT = {"file": None, "pos": 0, "server_id": 0, "gtid": None}
_Told = Mapping[str, Sequence[Any]]


@dataclass
class ChangeRows:
    """Images of one table's rows with their metadata: one list entry for each row.

    Parameters
    ----------
    rows : list
        Storage values.
    kinds : list of str
        As ``_change_type``.
    sequences : list of int
        As ``_commit_seq``.
    positions : list of int
        Offset of each row's image in its file; of its event if it was compressed.
    origins : list of RowsChange or TableEmptied
        The event of each row. All values of a row for a `TableEmptied` are None.
    covered : list
        For a row that the snapshot may hold: index of the first of the table's ranges whose low watermark includes the
        transaction. Otherwise None.
    """

    rows: list[list[Any]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    origins: list[RowsChange | TableEmptied] = field(default_factory=list)
    covered: list[int | None] = field(default_factory=list)

    def take(self, at: Sequence[int]) -> ChangeRows:
        """The rows at these indexes."""
        columns: tuple[list[Any], ...] = (
            self.rows, self.kinds, self.sequences, self.positions, self.origins, self.covered
        )  # fmt: skip
        return ChangeRows(*([column[i] for i in at] for column in columns))

    def told(self, wanted: Collection[str]) -> dict[str, list[Any]]:
        """The wanted metadata of each row."""
        found: dict[str, Callable[[], list[Any]]] = {
            "_change_type": lambda: self.kinds,
            "_commit_timestamp": lambda: [origin.timestamp * 1_000_000 for origin in self.origins],
            "_commit_seq": lambda: self.sequences,
            "_gtid": lambda: [origin.gtid or None for origin in self.origins],
            "_is_snapshot": lambda: [False],
        }
        return {name: made() for name, made in found.items() if name in wanted}


class Output(ABC):
    """The form of a stream's rows.

    Parameters
    ----------
    metadata : tuple of str
        The metadata columns.
    salt : str
        For masks; secret. Schemas do not depend on it.
    """

    def __init__(self, metadata: tuple[str, ...], salt: str = "") -> None:
        self.metadata = metadata
        self._salt = salt

    @abstractmethod
    def check(self, tables: Sequence[TableSchema]) -> None:
        """Refuse tables that do not fit into one stream.

        Raises
        ------
        SettingError
            Names two of them.
        """

    @abstractmethod
    def spark_schema(self, tables: Sequence[TableSchema]) -> st.StructType:
        """The stream's columns."""

    @abstractmethod
    def snapshot(
        self, schema: TableSchema, table: pa.Table, of: SnapshotRange, sequence: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a table's snapshot. ``sequence``: their ``_commit_seq``."""

    @abstractmethod
    def missing(self, schema: TableSchema, keys: Sequence[Key], of: SnapshotRange) -> Iterator[pa.RecordBatch]:
        """Deletes of rows that a range does not have. Only their keys have values."""

    @abstractmethod
    def changes(self, schema: TableSchema, found: ChangeRows) -> Iterator[pa.RecordBatch]:
        """Changes of a table, in order."""

    def _masked(self, schema: TableSchema, table: pa.Table) -> pa.Table:
        """The rows with the values of masked columns replaced by their masks."""
        for column in schema.read:
            if column.use == MASKED:
                at = table.schema.get_field_index(column.name)
                table = table.set_column(at, column.name, masked(table.column(at), self._salt))
        return table

    def _batches(self, schema: TableSchema, table: pa.Table, told: _Told) -> Iterator[pa.RecordBatch]:
        """Append the metadata columns, which have one value for each row or one for all, and cut into batches."""
        rows = table.num_rows
        if not rows:
            return
        told = {**told, "_database": [schema.database], "_table": [schema.table]}
        if "_columns" in self.metadata:
            told["_columns"] = [_columns(schema)]
        fields = arrow_fields(self.metadata)
        meta = [_column(told[f.name], f.type, rows) for f in fields]
        whole = pa.Table.from_arrays([*table.columns, *meta], schema=pa.schema([*table.schema, *fields]))
        yield from whole.combine_chunks().to_batches(_BATCH_ROWS)


def _column(values: Sequence[Any], kind: pa.DataType, rows: int) -> pa.Array:
    array = pa.array(values, kind if not pa.types.is_timestamp(kind) else pa.int64())
    array = pa.repeat(array[0], rows) if len(values) == 1 and rows != 1 else array
    return array.view(kind) if pa.types.is_timestamp(kind) else array


def _of_snapshot(of: SnapshotRange, sequence: int) -> _Told:
    again = of if isinstance(of, RangeAgain) else None
    return {
        "_change_type": [INSERT if again is None else UPDATE_AFTER],
        # Whole seconds, as in the binary log: no change may seem to be older than the row that it changes.
        "_commit_timestamp": [of.at_ms // 1000 * 1_000_000],
        "_commit_seq": [sequence if again is None else again.sequence],
        "_gtid": [None],
        "_is_snapshot": [True],
    }


def _of_keys(schema: TableSchema, keys: Sequence[Key]) -> pa.Table:
    """Rows with these primary keys, and NULL in every other column."""
    rows: list[list[Any]] = [[None] * len(schema.columns) for _ in keys]
    for row, key in zip(rows, keys, strict=True):
        for at, value in zip(schema.indexes(schema.key), key, strict=True):
            row[at] = value
    return rows_to_table(schema, rows)


def rows_to_table(schema: TableSchema, rows: Sequence[list[Any]]) -> pa.Table:
    """An Arrow table of the columns that are read, from storage values."""
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in schema.columns]
    found = {
        c.name: kind_of(c).build(c, values)
        for c, values in zip(schema.columns, columns, strict=True)
        if c.use != EXCLUDED
    }
    return pa.table(found)


class _Rows(Output):
    """``format=row``: the table's columns. An update is two rows."""

    def check(self, tables: Sequence[TableSchema]) -> None:
        first = tables[0]
        for other in tables[1:]:
            if _fields(other) != _fields(first):
                raise SettingError(
                    "format", "row", f"{other.name} has other columns than {first.name}: {_difference(first, other)}.",
                    "Set format=debezium, or declare a source for each table.",
                )  # fmt: skip

    def spark_schema(self, tables: Sequence[TableSchema]) -> st.StructType:
        return st.StructType([*_fields(tables[0]), *spark_fields(self.metadata)])

    def snapshot(
        self, schema: TableSchema, table: pa.Table, of: SnapshotRange, sequence: int = 0
    ) -> Iterator[pa.RecordBatch]:
        return self._batches(schema, self._masked(schema, table), _of_snapshot(of, sequence))

    def missing(self, schema: TableSchema, keys: Sequence[Key], of: SnapshotRange) -> Iterator[pa.RecordBatch]:
        return self._batches(schema, _of_keys(schema, keys), {**_of_snapshot(of, 0), "_change_type": [DELETE]})

    def changes(self, schema: TableSchema, found: ChangeRows) -> Iterator[pa.RecordBatch]:
        table = self._masked(schema, rows_to_table(schema, found.rows))
        return self._batches(schema, table, found.told(self.metadata))


def _fields(schema: TableSchema) -> list[st.StructField]:
    # All nullable, as in Arrow batches of Python sources; Spark refuses a mismatch.
    return [st.StructField(c.name, st.StringType() if c.use == MASKED else kind_of(c).spark(c)) for c in schema.read]


@functools.lru_cache(maxsize=512)
def _columns(schema: TableSchema) -> str:
    """The metadata column ``_columns``."""
    columns = [
        [field.name, field.dataType.simpleString(), encoding(column)]
        for column, field in zip(schema.read, _fields(schema), strict=True)
    ]
    return json.dumps({"key": schema.key, "columns": columns}, ensure_ascii=False, separators=(",", ":"))


def _difference(one: TableSchema, other: TableSchema) -> str:
    mine, its = ([f"{f.name} {f.dataType.simpleString()}" for f in _fields(s)] for s in (one, other))
    only = [name for name in its if name not in mine]
    missing = [name for name in mine if name not in its]
    told = [f"it has {', '.join(only)}"] * bool(only) + [f"it has no {', '.join(missing)}"] * bool(missing)
    return " and ".join(told) or "in another order"


class _Envelopes(Output):
    """``format=debezium``: a row's key and one envelope as JSON. An update is one row, unless it changes the key."""

    def check(self, tables: Sequence[TableSchema]) -> None:
        pass

    def spark_schema(self, tables: Sequence[TableSchema]) -> st.StructType:
        fields = [st.StructField("key", st.StringType()), st.StructField("value", st.StringType())]
        return st.StructType([*fields, *spark_fields(self.metadata)])

    def snapshot(
        self, schema: TableSchema, table: pa.Table, of: SnapshotRange, sequence: int = 0
    ) -> Iterator[pa.RecordBatch]:
        return self._at_once(schema, self._masked(schema, table), of, sequence, "r")

    def missing(self, schema: TableSchema, keys: Sequence[Key], of: SnapshotRange) -> Iterator[pa.RecordBatch]:
        return self._at_once(schema, _of_keys(schema, keys), of, 0, "d")

    def _at_once(
        self, schema: TableSchema, table: pa.Table, of: SnapshotRange, sequence: int, op: str
    ) -> Iterator[pa.RecordBatch]:
        rows, told = table.num_rows, _of_snapshot(of, sequence)
        before, after = (table, None) if op == "d" else (None, table)
        value = envelopes(schema, before, after, [op] * rows, [of.at_ms] * rows, [_NO_EVENT] * rows)
        told = {**told, "_change_type": [DELETE]} if op == "d" else told
        return self._batches(schema, pa.table({"key": key_json(schema, table), "value": value}), told)

    def changes(self, schema: TableSchema, found: ChangeRows) -> Iterator[pa.RecordBatch]:
        # Indexes of each output row's images; -1 for none.
        before: list[int] = []
        after: list[int] = []
        last: list[int] = []  # indexes of the changes that give the key and the metadata
        ops: list[str] = []
        for i, kind in enumerate(found.kinds):
            if kind == UPDATE_AFTER:  # follows its preimage: both have the same key
                after[-1], last[-1], ops[-1] = i, i, "u"
            else:
                before.append(-1 if kind in _OPS else i)
                after.append(i if kind == INSERT else -1)
                last.append(i)
                ops.append(_OPS.get(kind, "d"))
        images = self._masked(schema, rows_to_table(schema, found.rows))
        kept = found.take(last)
        origins = [
            {"file": o.file, "pos": p, "server_id": o.server_id, "gtid": o.gtid or None}
            for o, p in zip(kept.origins, kept.positions, strict=True)
        ]
        value = envelopes(
            schema, _images(images, before), _images(images, after), ops,
            [o.timestamp * 1000 for o in kept.origins], origins,
        )  # fmt: skip
        key = key_json(schema, images.take(last))
        if emptied := [i for i, origin in enumerate(kept.origins) if isinstance(origin, TableEmptied)]:
            keys, values = key.to_pylist(), value.to_pylist()
            for i in emptied:
                keys[i] = None  # as Debezium's events of this kind
                if found.kinds[last[i]] == DROP:
                    statement = cast("TableEmptied", kept.origins[i]).statement
                    keys[i], values[i] = drop_event(schema, statement, kept.origins[i].timestamp * 1000, origins[i])
            key, value = pa.array(keys, pa.string()), pa.array(values, pa.string())
        return self._batches(schema, pa.table({"key": key, "value": value}), kept.told(self.metadata))


def _images(table: pa.Table, at: list[int]) -> pa.Table | None:
    """Rows at these indexes. For -1 a row of NULLs, which `envelopes` ignores because of the operation."""
    return table.take(pa.array([i if i >= 0 else None for i in at], pa.int64()))


_OUTPUTS: dict[str, type[Output]] = {"row": _Rows, "debezium": _Envelopes}


def output_of(form: str, metadata: tuple[str, ...], salt: str = "") -> Output:
    """The output of an option ``format``."""
    return _OUTPUTS[form](metadata, salt)
