"""Reads the hints of a SELECT: how long joins keep rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from backlog_spark.common.durations import parse_duration
from backlog_spark.streamsql.translation import Translation

__all__ = ["state_ttl"]

_TTL_FORM: Final = (
    "Write SELECT /*+ STATE_TTL('orders' = '1 day', 'customers' = '30 days') */ …, with names of this FROM."
)


def state_ttl(tr: Translation, select: exp.Select, tables: Sequence[str]) -> list[int | None]:
    """How long joins keep the rows of each table, in milliseconds. None and 0: for ever.

    Source: Flink SQL, "State TTL Hints".

    Parameters
    ----------
    tables : sequence of str
        Names of the tables in FROM, in order.

    Raises
    ------
    SqlError
        For another hint, an unknown table name, a value that is not a duration, and a FROM without a join.
    """
    found: dict[str, int] = {}
    hint = select.args.get("hint")
    lower = [name.lower() for name in tables]
    for each in hint.expressions if hint is not None else []:
        if not isinstance(each, exp.Anonymous) or each.name.upper() != "STATE_TTL":
            tr.statement.only(select, *(key for key in select.args if key != "hint"))
        if len(tables) == 1:
            raise tr.statement.refused(
                select.expressions[0], "STATE_TTL without a join.", "Only joins drop rows by age. Leave the hint out."
            )
        for pair in each.expressions:
            table = pair.this.name if isinstance(pair, exp.EQ) else ""
            if not table or not isinstance(pair.expression, exp.Literal) or table.lower() not in lower:
                shown = table or pair.sql(dialect="spark")
                raise tr.statement.refused(
                    select.expressions[0], f"STATE_TTL of {shown!r}; the tables are {', '.join(tables)}.", _TTL_FORM
                )
            with tr.statement.at(select.expressions[0]):
                found[table.lower()] = parse_duration(pair.expression.name, f"STATE_TTL of {table!r}")
    return [found.get(name) or None for name in lower]
