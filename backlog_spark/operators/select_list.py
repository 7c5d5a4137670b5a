"""Parses the list between SELECT and FROM, as users write it for declared aggregates and functions."""

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
        The kind of items, for messages.
    known : str
        A sentence that lists what the list may contain.
    operator : str, optional
        Name of the operator at the start of messages.

    Raises
    ------
    BacklogError
        If the text is malformed, or is not exactly such a list.
    """
    before = f"{operator}: " if operator else ""
    try:
        statements = sqlglot.parse(f"SELECT {text}", dialect=StreamSpark)
    except SqlglotError as error:
        # The first of sqlglot's messages, without its colours and its copy of the text.
        reason = re.sub(r"\x1b\[[0-9;]*m", "", str(error).split("\n", 1)[0]).strip()
        raise BacklogError(f"{before}{text!r} is not a list of {what}: {reason}", "Check its SQL.") from error
    select = statements[0]
    clauses = [key for key, value in select.args.items() if value and key != "expressions"] if select else []
    if len(statements) != 1 or not isinstance(select, exp.Select) or clauses or not select.expressions:
        raise BacklogError(
            f"{before}{text!r} is not just a list of {what}.",
            f"Write the part between SELECT and FROM, such as 'sum(amount) AS total'. {known}",
        )
    found: list[exp.Expr] = select.expressions
    return found
