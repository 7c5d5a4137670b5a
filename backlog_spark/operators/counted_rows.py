"""Numbers the rows of a key in order of arrival, and computes accumulators over spans of them.

Rows that arrive together (in one batch, or in one stay in backlog whose results come at its end) follow the order given
to ``key_by``. Rows that are equal in it follow a hash of all their columns. So a repeated batch gives the same windows,
whatever the shuffle did with its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import EXACT_JSON, identity_of
from backlog_spark.operators.frames import ascending
from backlog_spark.operators.over.results import is_ordered
from backlog_spark.operators.sides import quoted
from backlog_spark.state.keys import equal_runs
from backlog_spark.state.tables import HASH, combine

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "NUMBER",
    "ORDER",
    "TIE",
    "Integers",
    "Numbered",
    "check_order",
    "merged_spans",
    "of_fresh_keys",
    "tie_of",
]

NUMBER: Final = "n"
"""Column of state: the row's number within its key, from where a window can still begin. NULL: not numbered yet."""
TIE: Final = "tie"
"""Column of live rows, and of state without numbers: the hash that orders rows which nothing else orders."""
ORDER: Final = "order"
"""The same for the column that rows are ordered by."""

Integers = npt.NDArray[np.int64]


def tie_of(schema: StructType) -> Column:
    """A hash of all columns, of any type. A row always has the same hash."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType, VariantType

    def comparable(field: StructField) -> tuple[StructField, Column]:
        column = quoted(field.name)
        if isinstance(field.dataType, ArrayType | StructType | MapType | VariantType):
            column = _without_maps(column, field.dataType)
            return StructField(field.name, StringType()), F.to_json(column, EXACT_JSON)
        return field, column

    return identity_of([comparable(field) for field in schema])


def _without_maps(column: Column, kind: DataType) -> Column:
    """Replace maps by arrays of entries: Spark's JSON shows the memory address of a binary map key."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        return _without_maps(F.map_entries(column), ArrayType(entry))
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda each: _without_maps(each, kind.elementType))
    if isinstance(kind, StructType):
        fields = [_without_maps(column.getField(f.name), f.dataType).alias(f.name) for f in kind]
        return F.when(column.isNotNull(), F.struct(*fields)) if fields else column
    return column


def check_order(order: str | None, schema: StructType) -> None:
    """Refuse an order column that is missing or has no order.

    Raises
    ------
    BacklogError
    """
    if order is None:
        return
    if order not in schema.names:
        raise BacklogError(
            f"key_by: the stream has no column {order!r} to order by; it has {', '.join(schema.names)}.",
            "Check the name and its case.",
        )
    if not is_ordered(schema[order].dataType):
        raise BacklogError(
            f"key_by: column {order!r} is {schema[order].dataType.simpleString()}, which does not order rows.",
            "Order by a number, a time or a text.",
        )


@dataclass(frozen=True)
class Numbered:
    """Rows of some keys, grouped by key and ordered.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        Kept rows, then new rows.
    firsts, sizes : numpy.ndarray
        Index of each key's first row, and its number of rows.
    is_new : numpy.ndarray of bool
        Flag of each row.
    numbers : numpy.ndarray
        Number of each row within its key.
    """

    rows: pa.RecordBatch
    firsts: Integers
    sizes: Integers
    is_new: npt.NDArray[np.bool_]
    numbers: Integers

    @classmethod
    def of(cls, kept: pa.RecordBatch, fresh: pa.RecordBatch, keys: Sequence[str], order: str | None) -> Numbered:
        """``order``: the column that orders new rows. There is at least one row."""
        old = np.argsort(kept.column(NUMBER).to_numpy(), kind="stable")
        new = np.argsort(fresh.column(TIE).to_numpy(), kind="stable")
        if order is not None:
            values = fresh.column(order).take(pa.array(new))
            new = new[ascending(values)]
        rows = combine([kept, fresh], fresh.schema).take(pa.array(np.concatenate([old, new + kept.num_rows])))
        by_key, firsts = equal_runs(rows.column(HASH).to_numpy(), [rows.column(name) for name in keys])
        rows = rows.take(pa.array(by_key))
        is_new = by_key >= kept.num_rows
        sizes = np.diff(np.append(firsts, rows.num_rows))
        known = pc.fill_null(rows.column(NUMBER), 0).to_numpy()
        before = np.add.reduceat((~is_new).astype(np.int64), firsts)
        base = np.where(before > 0, known[firsts + np.maximum(before - 1, 0)], 0)
        counted = np.arange(rows.num_rows) + np.repeat(base - before + 1 - firsts, sizes)
        return cls(rows, firsts, sizes, is_new, np.where(is_new, counted, known))


def of_fresh_keys(kept: pa.RecordBatch, fresh: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Kept rows with the hash of a new row, and the other kept rows."""
    found = np.isin(kept.column(HASH).to_numpy(), fresh.column(HASH).to_numpy())
    return kept.filter(pa.array(found)), kept.filter(pa.array(~found))


def merged_spans(
    merge: Callable[[Sequence[pa.Array], Integers], list[pa.Array]],
    slots: Sequence[pa.Array],
    low: Integers,
    high: Integers,
) -> list[pa.Array]:
    """Accumulators of spans of rows. Spans may overlap.

    Each span is combined from pieces of 1, 2, 4 … rows that spans share. So all spans together cost about as many
    merges as rows times the logarithm of the longest span. Only pieces of a span are computed: others could overflow
    although no result does.

    Parameters
    ----------
    merge : callable
        As `MergeFold.merge_groups`.
    slots : sequence of pyarrow.Array
        Accumulators of the rows, older rows first.
    low, high : numpy.ndarray of int64
        First and last row of each span.
    """
    if not len(high):
        return [values.slice(0, 0) for values in slots]
    length, at = high - low + 1, high.copy()
    parts: list[tuple[Integers, Integers]] = []
    for level in range(int(length.max()).bit_length()):
        takes = (length >> level) & 1 == 1
        parts.append((np.flatnonzero(takes), at[takes]))
        at[takes] -= 1 << level
    # Last rows of the needed pieces, longest pieces first. Each piece combines two of half its length.
    needed = [np.unique(parts[-1][1])]
    for level in range(len(parts) - 1, 0, -1):
        both = [parts[level - 1][1], needed[-1], needed[-1] - (1 << (level - 1))]
        needed.append(np.unique(np.concatenate(both)))
    needed.reverse()
    made = [values.take(pa.array(needed[0])) for values in slots]
    found, spans = [], []
    for level, (span, ends) in enumerate(parts):
        if level:
            half = 1 << (level - 1)
            pairs = np.column_stack((needed[level] - half, needed[level])).ravel()
            indices = pa.array(np.searchsorted(needed[level - 1], pairs))
            made = merge([values.take(indices) for values in made], np.arange(0, len(pairs), 2))
        indices = pa.array(np.searchsorted(needed[level], ends))
        found.append([values.take(indices) for values in made])
        spans.append(span)
    # Longer pieces have the older rows.
    number = np.concatenate(spans[::-1])
    order = np.argsort(number, kind="stable")
    ordered = number[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    rows = pa.array(order)
    return merge([pa.concat_arrays(values[::-1]).take(rows) for values in zip(*found, strict=True)], starts)
