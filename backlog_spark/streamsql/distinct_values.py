"""Translates aggregates with DISTINCT: each value of a key becomes a row first, then the key counts its rows.

The state is a row for each key and value, so the values of one key are spread over all workers.

Source: Spark's ``RewriteDistinctAggregates``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from backlog_spark.common.sql_names import quoted
from backlog_spark.operators.aggregates.aggregate import Aggregate
from backlog_spark.operators.aggregates.single import SingleValue
from backlog_spark.operators.declare import function_name
from backlog_spark.streamsql.rows import text_of

if TYPE_CHECKING:
    from backlog_spark.api.streams import BacklogStream
    from backlog_spark.streamsql.translation import Translation

__all__ = ["Distinct", "distinct_of", "rows_of_values"]

_COUNTED = ("count", "sum", "avg")
# A second row of a value does not change these.
_PLAIN = ("min", "max")


@dataclass(frozen=True)
class Distinct:
    """A call with DISTINCT.

    Parameters
    ----------
    function : str
    values : tuple of Expr
    where : Expr or None
        The condition of FILTER.
    """

    function: str
    values: tuple[exp.Expr, ...]
    where: exp.Expr | None

    @property
    def plain(self) -> str:
        """The call without DISTINCT, of one value."""
        return f"{self.function}({text_of(self.values[0])})"


def distinct_of(tr: Translation, written: exp.Expr) -> Distinct | None:
    """A call's DISTINCT; None without one.

    Raises
    ------
    SqlError
        For a function that cannot have it.
    """
    call, where = written.unnest(), None
    if isinstance(call, exp.Filter):
        call, where = call.this, call.expression.this
    if not isinstance(call.args.get("this"), exp.Distinct):
        return None
    name = function_name(call)
    if name not in (*_COUNTED, *_PLAIN):
        raise tr.statement.refused(
            written, f"{name}(DISTINCT …) is not supported.", "Use count, sum or avg with DISTINCT, or collect_set."
        )
    values = tuple(call.this.expressions)
    if len(values) > 1 and name != "count":
        raise tr.statement.refused(
            written, f"{name}(DISTINCT …) of {len(values)} values.", "Only count(DISTINCT a, b) takes several."
        )
    return Distinct(name, values, where)


def rows_of_values(
    tr: Translation, stream: BacklogStream, keys: list[str], results: Mapping[str, exp.Expr], node: exp.Expr
) -> tuple[BacklogStream, list[str | Aggregate]]:
    """The stream to group instead, and the aggregates over it.

    Its rows have the key, the number of a set, and a value of this set. Set 0 has one row a key, with the results of
    the aggregates without DISTINCT. Each other set has the values of one DISTINCT.

    Parameters
    ----------
    stream : BacklogStream
        Rows with the key columns.
    keys : list of str
    results : mapping of str to Expr
        The translated calls by the name of their result.
    """
    number = tr.unseen("__set")
    sets: dict[tuple[str, ...], int] = {}
    found = {name: distinct_of(tr, call) for name, call in results.items()}
    columns: dict[int, list[str]] = {}
    values: list[str] = []
    plain_results: dict[str, str] = {}
    inner: list[str] = [f"max(1) AS {tr.unseen('__seen')}"]
    by_name: dict[str, str | Aggregate] = {}
    for name, call in results.items():
        wanted = found[name]
        if wanted is None or wanted.function in _PLAIN:
            plain = call.unnest() if wanted is None else wanted
            where = plain.expression.this if isinstance(plain, exp.Filter) else getattr(plain, "where", None)
            text = plain.plain if isinstance(plain, Distinct) else text_of(plain.this if where is not None else plain)
            condition = f"{number} = 0" + (f" AND ({text_of(where)})" if where is not None else "")
            result = tr.hidden("result")
            inner.append(f"{text} FILTER (WHERE {condition}) AS {result}")
            plain_results[result] = name
            continue
        texts = tuple(map(text_of, wanted.values))
        if texts not in sets:
            sets[texts] = len(sets) + 1
            columns[sets[texts]] = [tr.hidden("value") for _ in texts]
            values += [
                f"CASE WHEN {number} = {sets[texts]} THEN {text} END AS {column}"
                for text, column in zip(texts, columns[sets[texts]], strict=True)
            ]
        one = f"{number} = {sets[texts]}"
        if wanted.where is not None:
            flag = tr.hidden("flag")
            inner.append(f"max(CASE WHEN {one} AND ({text_of(wanted.where)}) THEN 1 END) AS {flag}")
            one += f" AND {flag} = 1"
        argument = "*" if wanted.function == "count" else columns[sets[texts]][0]
        by_name[name] = f"{wanted.function}({argument}) FILTER (WHERE {one}) AS {quoted(name)}"
    numbers = ", ".join(map(str, range(len(sets) + 1)))
    counted = [
        f"({number} = {each} AND {' AND '.join(f'{column} IS NOT NULL' for column in columns[each])})"
        for each in columns
    ]
    spread = stream.map("*", f"explode(array({numbers})) AS {number}").map("*", *values)
    spread = spread.filter(" OR ".join([f"{number} = 0", *counted]))
    tr.schema(spread, node, "DISTINCT")
    every = [*keys, number, *(column for each in columns.values() for column in each)]
    grouped = spread.key_by(*every).aggregate(*inner, name=tr.operator(*keys, "values"))
    for field in tr.schema(grouped, node, "DISTINCT"):
        if field.name in plain_results:
            name = plain_results[field.name]
            by_name[name] = SingleValue(field.name, name=name, where=f"{number} = 0")
    return grouped, [by_name[name] for name in results]
