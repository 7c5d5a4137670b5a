"""Casts the keys of a join to a common type, as Spark does in an equality."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from backlog_spark.streamsql.rows import Rows, text_of
from backlog_spark.streamsql.subqueries import EXISTS
from backlog_spark.streamsql.translation import Translation

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["alike"]

# Types of whole values that all stay different as a floating-point number.
_EXACT: Final = {"double": ("tinyint", "smallint", "int", "float"), "float": ("tinyint", "smallint")}


def alike(
    tr: Translation, left: Rows, right: Rows, keys: Sequence[tuple[exp.Expr, exp.Expr]], node: exp.Expr
) -> list[tuple[exp.Expr, exp.Expr]]:
    """The keys, cast to a common type as in Spark's equality.

    Raises
    ------
    SqlError
        For types that cannot be compared, and for IN and EXISTS over values that are not different as the common type.
    """
    from pyspark.sql.types import NumericType

    made = []
    for one, other in keys:
        kinds = [_type(tr, rows, key, node) for rows, key in ((left, one), (right, other))]
        if kinds[0] == kinds[1]:
            made.append((one, other))
            continue
        origin = next((part for part in one.walk() if "start" in part.meta), node)
        if not all(isinstance(kind, NumericType) for kind in kinds):
            raise tr.statement.refused(
                origin,
                f"a join of {kinds[0].simpleString()} with {kinds[1].simpleString()}.",
                "Cast one side: ON a.k = CAST(b.k AS …).",
            )
        with tr.statement.at(origin):
            both = tr.schemas.empty(_two(kinds)).selectExpr("coalesce(a, b) AS c").schema["c"].dataType
        one_type, other_type, wider = (kind.simpleString() for kind in (*kinds, both))
        if EXISTS in node.meta and other_type not in (wider, *_EXACT.get(wider, (other_type,))):
            raise tr.statement.refused(
                origin,
                f"IN, EXISTS or SEMI JOIN of {one_type} with {other_type}: different values are equal as {wider}.",
                f"Select CAST(… AS {wider.upper()}) in the inner query.",
            )
        wide = exp.DataType.build(wider, dialect="spark")
        made.append(
            tuple(  # type: ignore[arg-type]
                key if kind == both else exp.Cast(this=key, to=wide.copy())
                for key, kind in zip((one, other), kinds, strict=True)
            )
        )
    return made


def _two(kinds: Sequence[DataType]) -> StructType:
    from pyspark.sql.types import StructType

    return StructType().add("a", kinds[0]).add("b", kinds[1])


def _type(tr: Translation, rows: Rows, key: exp.Expr, node: exp.Expr) -> DataType:
    schema = tr.schema(rows.stream, node)
    if isinstance(key, exp.Column):
        return schema[key.name].dataType
    with tr.statement.at(key):
        return tr.schemas.empty(schema).selectExpr(f"{text_of(key)} AS key").schema["key"].dataType
