"""Translates LATERAL VIEW, UNNEST and LATERAL TABLE: a function gives several rows for each row.

Source: Spark's "LATERAL VIEW Clause"; Flink SQL's "Array, Multiset and Map Expansion" and "Table Function".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlglot import exp

from backlog_spark.common.sql_names import quoted
from backlog_spark.streamsql.rows import Rows, Visible, column_of, text_of
from backlog_spark.streamsql.translation import Translation

__all__ = ["is_generator", "with_generated"]

_OUTER: Final = ("explode", "inline", "posexplode")
_GENERATORS: Final = (*_OUTER, *(f"{name}_outer" for name in _OUTER), "json_tuple", "stack")


def is_generator(join: exp.Join) -> bool:
    """Whether a join is one with the rows of a function of each row."""
    table = join.this
    return isinstance(table, exp.Unnest) or (isinstance(table, exp.Lateral) and not isinstance(table.this, exp.Query))


def with_generated(tr: Translation, rows: Rows, node: exp.Expr) -> Rows:
    """The rows, each as often as a function gives rows for it, with the columns of these.

    Parameters
    ----------
    node : Join or Lateral
        A join with a function, or LATERAL VIEW.

    Raises
    ------
    SqlError
        For a function that Spark does not know to give several rows.
    """
    outer = False
    given = node
    if isinstance(node, exp.Join):
        tr.statement.only(node, "this", "on", "side", "kind")
        side = str(node.args.get("side") or "").upper()
        on = node.args.get("on")
        if side not in ("", "LEFT") or (on is not None and not (isinstance(on, exp.Boolean) and on.this)):
            raise tr.statement.refused(
                node, "a condition or side of a join with a function.", "Write CROSS JOIN, or LEFT JOIN … ON TRUE."
            )
        outer, given = side == "LEFT", node.this
    tr.statement.only(given, "this", "expressions", "view", "outer", "alias", "cross_apply")
    outer = outer or bool(given.args.get("outer"))
    alias = given.args.get("alias")
    names = [each.name for each in alias.args.get("columns") or []] if alias is not None else []
    call = _call(tr, rows, given)
    function = call.name.lower() if isinstance(call, exp.Anonymous) else call.key
    if function not in _GENERATORS:
        raise tr.statement.refused(
            given, f"the function {function} in FROM is not supported.", f"There are {', '.join(_GENERATORS)}."
        )
    if outer and function in _OUTER:
        call = exp.Anonymous(this=f"{function}_outer", expressions=call.expressions or [call.this])
    elif outer and not function.endswith("_outer"):
        raise tr.statement.refused(given, f"{function} with OUTER or LEFT.", "Leave it out.")
    text = text_of(call)
    with tr.statement.at(given, function):
        own = tr.schemas.frame(rows.stream._node).selectExpr(text).columns
    if names and len(names) != len(own):
        raise tr.statement.refused(
            given, f"{function} gives {len(own)} columns, not {len(names)}.", "Name each after the alias: AS t(a, b)."
        )
    hidden = [tr.hidden("generated") for _ in own]
    stream = rows.stream.map("*", f"{text} AS ({', '.join(map(quoted, hidden))})")
    tr.schema(stream, given, function)
    table = alias.name if alias is not None else ""
    columns = [Visible(table, n, column_of(h)) for n, h in zip(names or own, hidden, strict=True)]
    return replace(rows, stream=stream, columns=(*rows.columns, *columns))


def _call(tr: Translation, rows: Rows, given: exp.Expr) -> exp.Expr:
    """The translated call of a function that Spark has."""
    if not isinstance(given, exp.Unnest):
        call = given.this
        if isinstance(call, exp.Anonymous) and call.name.upper() == "TABLE" and len(call.expressions) == 1:
            call = call.expressions[0]
        return rows.translated(tr.statement, call)
    if len(given.expressions) != 1:
        raise tr.statement.refused(given, "UNNEST of several values.", "Unnest one after the other.")
    value = rows.translated(tr.statement, given.expressions[0])
    with tr.statement.at(given, "UNNEST"):
        kind = tr.schemas.frame(rows.stream._node).selectExpr(text_of(value)).schema.fields[0].dataType
    is_rows = kind.typeName() == "array" and kind.elementType.typeName() == "struct"  # type: ignore[attr-defined]
    return exp.Anonymous(this="inline" if is_rows else "explode", expressions=[value])
