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
        Where they are written.
    partition : tuple of Expr or None
        Of sessions of a table function: the translated PARTITION BY columns. None where GROUP BY alone says it.
    """

    assigner: WindowAssigner
    node: exp.Expr
    partition: tuple[exp.Expr, ...] | None = None
