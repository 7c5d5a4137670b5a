"""Gives expressions the meaning that they have in Flink SQL where it depends on types: ``/`` and AVG of whole numbers.

Source: Flink SQL's "System (Built-in) Functions"; its ``AvgAggFunction`` and ``DivCallGen``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from backlog_spark.streamsql.refusals import unlogged
from backlog_spark.streamsql.rows import text_of
from backlog_spark.streamsql.translation import Translation

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from backlog_spark.api.streams import BacklogStream

__all__ = ["flink_types"]

_WHOLE: Final = ("byte", "short", "integer", "long")
_NAMES: Final = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
_AROUND: Final = (exp.Filter, exp.Window, exp.Paren)


def flink_types(tr: Translation) -> Callable[[exp.Expr, BacklogStream], exp.Expr]:
    """A function that replaces divisions and averages of whole numbers by those of Flink.

    The quotient of whole numbers is a whole number, and so is their average, of the type of the values.
    """

    def whole(expression: exp.Expr, stream: BacklogStream) -> str | None:
        """The name of an expression's type if it is a whole number."""
        kind = _type(tr, expression, stream)
        return kind.typeName() if kind is not None and kind.typeName() in _WHOLE else None

    def of(expression: exp.Expr, stream: BacklogStream) -> exp.Expr:
        root: exp.Expr = exp.paren(expression, copy=False)
        for node in reversed([*root.walk(bfs=False)]):  # arguments first
            if isinstance(node, exp.Div):
                kinds = [whole(side, stream) for side in (node.this, node.expression)]
                if None not in kinds:
                    wider = max(map(str, kinds), key=_WHOLE.index)
                    node.replace(_quotient(node.this, node.expression, wider))
            elif isinstance(node, exp.Avg):
                value = node.this
                values = value.expressions[0] if isinstance(value, exp.Distinct) else value
                kind = whole(values, stream)
                if kind is not None:
                    _replace_average(node, kind)
        made: exp.Expr = root.this
        return made

    return of


def _type(tr: Translation, expression: exp.Expr, stream: BacklogStream) -> DataType | None:
    from pyspark.errors import PySparkException

    try:
        with unlogged():
            frame = tr.schemas.frame(stream._node)
            return frame.selectExpr(f"{text_of(expression)} AS value").schema["value"].dataType
    except PySparkException:  # a column of a window, or an error that is told later
        return None


def _quotient(one: exp.Expr, other: exp.Expr, kind: str) -> exp.Expr:
    call = exp.Anonymous(this="div", expressions=[one.copy(), other.copy()])
    return exp.Cast(this=call, to=exp.DataType.build(_NAMES[kind], dialect="spark"))


def _replace_average(average: exp.Avg, kind: str) -> None:
    """Replace an average, with the FILTER and OVER around it, by a quotient of a sum and a count."""
    top: exp.Expr = average
    while isinstance(top.parent, _AROUND) and top.parent.this is top and top.parent.parent is not None:
        if isinstance(top.parent, exp.Paren) and not isinstance(top.parent.parent, exp.Filter | exp.Window):
            break
        top = top.parent

    def with_call(made: type[exp.Expr]) -> exp.Expr:
        def of(node: exp.Expr) -> exp.Expr:
            return made(this=node.this.copy()) if isinstance(node, exp.Avg) else node

        return top.transform(of)

    top.replace(_quotient(with_call(exp.Sum), with_call(exp.Count), kind))
