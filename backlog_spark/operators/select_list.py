"""The list that stands between SELECT and FROM, as users write it for declared aggregates and functions."""

from __future__ import annotations

import re

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from backlog_spark.common.sql_dialect import StreamSpark
from backlog_spark.errors import BacklogError

__all__ = ["select_items"]


def select_items(text: str, what: str, known: str, operator: str = "") -> list[exp.Expr]:
    """The items of a list in Spark's SQL.

    Parameters
    ----------
    text : str
    what : str
        What it is a list of, for messages.
    known : str
        The sentence that tells what may stand in it.
    operator : str, optional
        With which messages begin.

    Raises
    ------
    BacklogError
        For what is malformed, and for more or less than such a list.
    """
    before = f"{operator}: " if operator else ""
    try:
        statements = sqlglot.parse(f"SELECT {text}", dialect=StreamSpark)
    except SqlglotError as error:
        # The first of sqlglot's messages without its colours and its copy of the text.
        reason = re.sub(r"\x1b\[[0-9;]*m", "", str(error).split("\n", 1)[0]).strip()
        raise BacklogError(f"{before}{text!r} is no list of {what}: {reason}", "Check its SQL.") from error
    select = statements[0]
    clauses = [key for key, value in select.args.items() if value and key != "expressions"] if select else []
    if len(statements) != 1 or not isinstance(select, exp.Select) or clauses or not select.expressions:
        raise BacklogError(
            f"{before}{text!r} is more or less than a list of {what}.",
            f"Write what stands between SELECT and FROM, such as 'sum(amount) AS total'. {known}",
        )
    found: list[exp.Expr] = select.expressions
    return found
