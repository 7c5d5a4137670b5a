"""The output of joins: the columns of both inputs side by side, made from rows of state."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.changes import CHANGE_TYPE, refuse_change_type
from backlog_spark.model.watermarks import EVENT_TIME
from backlog_spark.operators.sides import LEFT, RIGHT
from backlog_spark.state.tables import PIECE_BYTES

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

    from backlog_spark.operators.rows import RowsFold

__all__ = ["OUTER", "TEMPORAL", "Output", "check_kind", "output_columns", "paired"]

OUTER: Final = {"inner": (), "left": (LEFT,), "right": (RIGHT,), "full": (LEFT, RIGHT)}
"""For each kind of join: the sides whose rows are emitted without a match."""
TEMPORAL: Final = ("left", "inner")
"""The kinds of a temporal join."""


def check_kind(how: str, kinds: Collection[str], what: str = "join") -> None:
    """Refuse an unknown kind of join.

    Raises
    ------
    SettingError
    """
    if how not in kinds:
        raise SettingError("how", how, f"is not a kind of {what}.", f"Use one of {', '.join(kinds)}.")


@dataclass(frozen=True)
class Output:
    """A column of the output: its field, and the columns of left and right rows that it comes from."""

    field: StructField
    left: str | None
    right: str | None


def output_columns(fold: RowsFold, *, changes: bool = False) -> list[Output]:
    """All columns of the left rows, then all of the right ones. A key with the same name on both sides appears once.

    None is marked as event time, because both sides have one.

    Raises
    ------
    BacklogError
        For another column name that is on both sides, and for a column named like the change type if the output has
        ``changes``.
    """
    left, right = fold.sides
    shared = {mine for mine, other in zip(left.keys, right.keys, strict=True) if mine == other}
    columns = [
        Output(_unmarked(f), fold.value(LEFT, f.name), fold.value(RIGHT, f.name) if f.name in shared else None)
        for f in left.schema
    ]
    taken = {name.lower() for name in left.schema.names}
    for field in right.schema:
        if field.name in shared:
            continue
        if field.name.lower() in taken or field.name == CHANGE_TYPE:
            raise BacklogError(
                f"{fold.what}: both streams have a column {field.name!r}, which is not a key of both.",
                f"Rename it on one side before key_by, for example with .map('*', '{field.name} AS other').",
            )
        columns.append(Output(_unmarked(field), None, fold.value(RIGHT, field.name)))
    if changes:
        refuse_change_type(fold.what, "column", [column.field.name for column in columns])
    return columns


def paired(
    rows: pa.RecordBatch, columns: list[Output], schema: pa.Schema, left: np.ndarray | None, right: np.ndarray | None
) -> Iterator[list[pa.Array]]:
    """Columns of the output with types ``schema``, from the indices of left and right rows, in pieces.

    The values of a piece have at most `PIECE_BYTES` plus one row, even if large rows are in many pairs. One of the two
    index arrays is None if that side has no rows.
    """
    indices = [each for each in (left, right) if each is not None]
    if not len(indices[0]):
        return
    weights = _weights(rows)
    sizes = sum((weights[each] for each in indices), np.zeros(len(indices[0]), dtype=np.int64))
    piece = (np.cumsum(sizes) - sizes) // PIECE_BYTES
    starts = np.flatnonzero(np.diff(piece, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(piece)], strict=True):
        some = [None if each is None else each[start:end] for each in (left, right)]
        yield _columns(rows, columns, schema, *some)


def _weights(rows: pa.RecordBatch) -> np.ndarray:
    """Estimated bytes of each row."""
    return sum(map(_bytes, rows.columns), np.zeros(rows.num_rows, dtype=np.int64))


def _bytes(column: pa.Array) -> np.ndarray:
    """Estimated bytes of each value."""
    kind, count = column.type, len(column)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        found: np.ndarray = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
        return found
    if pa.types.is_struct(kind):
        return sum(map(_bytes, column.flatten()), np.zeros(count, dtype=np.int64))
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        within = [column.keys, column.items] if pa.types.is_map(kind) else [column.values]
        before = np.concatenate([[0], np.cumsum(sum(map(_bytes, within)))])
        return np.diff(before[column.offsets.to_numpy()])
    return np.full(count, column.nbytes // max(1, count), dtype=np.int64)


def _columns(
    rows: pa.RecordBatch, columns: list[Output], schema: pa.Schema, left: np.ndarray | None, right: np.ndarray | None
) -> list[pa.Array]:
    count = max(len(indices) for indices in (left, right) if indices is not None)
    at = [None if indices is None else pa.array(indices) for indices in (left, right)]
    found = []
    for output, field in zip(columns, schema, strict=False):
        given = zip((output.left, output.right), at, strict=True)
        name, indices = next(((n, i) for n, i in given if n is not None and i is not None), (None, None))
        found.append(pa.nulls(count, field.type) if name is None else rows.column(name).take(indices))
    return found


def _unmarked(field: StructField) -> StructField:
    """A field of the output: nullable, and not marked as event time."""
    from pyspark.sql.types import StructField

    kept = {name: value for name, value in field.metadata.items() if name != EVENT_TIME}
    return StructField(field.name, field.dataType, True, kept)
