"""The windows of a GROUP BY."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from backlog_spark.operators.windows.assigners import WindowAssigner

__all__ = ["Span"]


@dataclass(frozen=True)
class Span:
    """The windows of a GROUP BY.

    Parameters
    ----------
    assigner : WindowAssigner
    node : Expr
        The window's expression in the statement.
    partition : tuple of Expr or None
        For a session of a table function: its translated PARTITION BY columns. None if only GROUP BY has the keys.
    """

    assigner: WindowAssigner
    node: exp.Expr
    partition: tuple[exp.Expr, ...] | None = None
