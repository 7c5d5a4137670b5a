"""Translates UNION, INTERSECT and EXCEPT, with and without ALL.

Streams without keyed operators are united as they are. Others are the two sides of a full join on a key that is NULL:
it matches nothing, so each row comes out alone and no state is kept.

Source: Flink SQL's "Set Operations"; Spark's ``ReplaceExceptWithAntiJoin`` and ``RewriteIntersectAll``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from backlog_spark.api.streams import BacklogStream
from backlog_spark.common.sql_names import quoted
from backlog_spark.model.changes import CHANGE_TYPE
from backlog_spark.model.trees import apart_from
from backlog_spark.spi.registry import KEEPS_METADATA
from backlog_spark.streamsql.grouping import distinct
from backlog_spark.streamsql.rows import Rows, Visible, column_of, text_of
from backlog_spark.streamsql.translation import Translation, named, results_change, unique

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["set_operation"]

_COUNTS: Final = ("__left", "__right")


def set_operation(tr: Translation, node: exp.SetOperation, sides: Sequence[Rows]) -> Rows:
    """The rows of a set operation over the rows of two queries.

    Raises
    ------
    SqlError
        For queries whose columns do not fit.
    """
    tr.statement.only(node, "this", "expression", "distinct", "with_")
    name = "UNION ALL" if isinstance(node, exp.Union) else node.key.upper()
    counts = [len([c for c in side.columns if not c.hidden]) for side in sides]
    if counts[0] != counts[1]:
        raise tr.statement.refused(
            node.expression,
            f"{name} of {counts[0]} columns and {counts[1]}.",
            "Give both queries the same columns, in the same order.",
        )
    if isinstance(node, exp.Union):
        rows = _united(tr, node, sides)
        return distinct(tr, rows, node.expression) if node.args.get("distinct") else rows
    return _counted(tr, node, sides)


def _united(tr: Translation, node: exp.SetOperation, sides: Sequence[Rows], marks: Sequence[str] = ()) -> Rows:
    """All rows of both sides. ``marks``: a further last column, with a text of Spark's SQL for each side."""
    shown = [column.name for column in sides[0].columns if not column.hidden]
    names = unique(shown)
    if any(results_change(side.stream._node) for side in sides):
        sides = [tr.changes(side, node) for side in sides]
    changing = any(CHANGE_TYPE in side.pseudo for side in sides)
    streams: list[BacklogStream] = []
    for number, side in enumerate(sides):
        own = [c for c in side.columns if not c.hidden]
        texts = [named(text_of(column.column), name) for name, column in zip(names, own, strict=True)]
        texts += [named(marks[number], tr.unseen("__mark"))] if marks else []
        if changing:
            # In a stream without changes all rows are inserts.
            texts.append(named(quoted(CHANGE_TYPE) if side.pseudo else "'insert'", CHANGE_TYPE))
        streams.append(tr.selected(side.stream, texts, (node.this, node.expression)[number]))
    keyed = any(side.stream._node.is_keyed for side in sides)
    if keyed:
        united = _side_by_side(tr, streams, node)
    else:
        one, other = streams
        # A source with files of its own in the checkpoint needs a directory for each reader.
        united = one.union(BacklogStream(apart_from(one._node, other._node, KEEPS_METADATA)))
    tr.schema(united, node.expression, "UNION ALL")
    rows = tr.table(united, "", node)
    told = dict(zip(names, shown, strict=True))
    return replace(rows, columns=tuple(replace(each, name=told.get(each.name, each.name)) for each in rows.columns))


def _side_by_side(tr: Translation, streams: Sequence[BacklogStream], node: exp.SetOperation) -> BacklogStream:
    """Streams with keyed operators, united."""
    schemas = [tr.schema(stream, node) for stream in streams]
    names = [[name for name in schema.names if name != CHANGE_TYPE] for schema in schemas]
    changing = CHANGE_TYPE in schemas[0].names
    is_left, none, part = tr.unseen("__is_left"), tr.unseen("__none"), tr.unseen("__part")
    sides = []
    for number, stream in enumerate(streams):
        own = names[number]
        columns = [named(quoted(name), f"__{number}_{place}") for place, name in enumerate(own)]
        columns += [named("1", is_left)] if number == 0 else []
        # The second key spreads the rows.
        columns += [named("CAST(NULL AS INT)", none), named(f"pmod({_hash(schemas[number])}, 1024)", part)]
        columns += [quoted(CHANGE_TYPE)] if changing else []
        sides.append(tr.selected(stream, columns, node).key_by(none, part))
    with tr.statement.at(node.expression, "UNION ALL"):
        joined = sides[0].join(sides[1], how="full", name=tr.operator("union_all"))
    both = [
        named(f"CASE WHEN {is_left} = 1 THEN __0_{place} ELSE __1_{place} END", name)
        for place, name in enumerate(names[0])
    ]
    return tr.selected(joined, [*both, *([quoted(CHANGE_TYPE)] if changing else [])], node)


def _hash(schema: StructType) -> str:
    """A hash of a row, from the columns that have one."""
    from backlog_spark.operators.aggregates.base import is_hashable

    found = [quoted(field.name) for field in schema if field.name != CHANGE_TYPE and is_hashable(field.dataType)]
    return f"xxhash64({', '.join(found)})" if found else "0"


def _counted(tr: Translation, node: exp.SetOperation, sides: Sequence[Rows]) -> Rows:
    """INTERSECT and EXCEPT: each row is a key, and the rows of each side are counted."""
    united = _united(tr, node, sides, ("0", "1"))
    *shown, mark = [column for column in united.columns if not column.hidden]
    keys = [column.column.name for column in shown]
    left, right = (tr.unseen(name) for name in _COUNTS)
    counts = [f"count(*) FILTER (WHERE {quoted(mark.column.name)} = {n}) AS {c}" for n, c in enumerate((left, right))]
    if node.args.get("distinct") and not united.pseudo:
        # Without retractions it only matters whether a side has the row, so the results change less often.
        counts = [
            f"max(CASE WHEN {quoted(mark.column.name)} = {n} THEN 1 ELSE 0 END) AS {c}"
            for n, c in enumerate((left, right))
        ]
    with tr.statement.at(node.expression, node.key.upper()):
        stream = united.stream.key_by(*keys).aggregate(*counts, name=tr.operator(*keys, node.key))
    pseudo = tr.change_columns(stream, node.expression, node.key.upper())
    columns = [Visible("", column.name, column_of(key)) for column, key in zip(shown, keys, strict=True)]
    columns += [Visible("", name, column_of(name), hidden=True) for name in (left, right, *pseudo)]
    rows = Rows(stream, tuple(columns), pseudo)
    copies = f"least({left}, {right})" if isinstance(node, exp.Intersect) else f"{left} - {right}"
    if node.args.get("distinct"):
        copies = (
            f"IF({copies} > 0, 1, 0)" if isinstance(node, exp.Intersect) else f"IF({left} > 0 AND {right} = 0, 1, 0)"
        )
    rows = tr.changes(rows, node.expression)
    texts = [*map(quoted, keys), quoted(CHANGE_TYPE), f"explode(array_repeat(0, CAST({copies} AS INT)))"]
    made = replace(rows, stream=tr.selected(rows.stream, texts, node.expression), columns=tuple(columns[: len(keys)]))
    hidden = Visible("", CHANGE_TYPE, column_of(CHANGE_TYPE), hidden=True)
    made = replace(made, columns=(*made.columns, hidden), pseudo=(CHANGE_TYPE,))
    return tr.projected(made, [(c.name, c.column, node.expression) for c in columns[: len(keys)]])
