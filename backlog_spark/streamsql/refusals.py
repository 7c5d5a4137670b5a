"""Finds positions in a statement, and refuses unsupported parts of it (pure)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlglot import exp

from backlog_spark.common.failure_causes import first_line, next_step
from backlog_spark.errors import BacklogError

__all__ = ["SqlError", "Statement", "Typed", "nesting_refused", "unlogged"]


@contextmanager
def nesting_refused() -> Iterator[None]:
    """Refuses what is nested deeper than Python's stack.

    Raises
    ------
    SqlError
    """
    try:
        yield
    except RecursionError:
        # Of thousands of frames none says more.
        raise SqlError("the statement is nested too deeply.", "Cut it into several views or streams.") from None


class SqlError(BacklogError):
    """A statement that is malformed or not supported.

    Parameters
    ----------
    problem : str
        With the name of the construct.
    hint : str
        What to write instead.
    line, column : int
        Where the construct begins in the text, both from 1.
    """

    def __init__(self, problem: str, hint: str = "", line: int = 1, column: int = 1) -> None:
        self.line = line
        self.column = column
        super().__init__(f"SQL, line {line}, column {column}: {problem}", hint)

    @property
    def without_place(self) -> str:
        """The problem, for a message that shows another place."""
        return self.problem.removeprefix(f"SQL, line {self.line}, column {self.column}: ")

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (self.problem, self.hint, self.line, self.column))


def _restore(problem: str, hint: str, line: int, column: int) -> SqlError:
    error = SqlError("", hint, line, column)
    error.problem = problem
    error.args = (problem, hint)
    return error


_ENDLESS: Final = "a stream has no end"
_IN_THE_SINK: Final = "Leave it out, and apply it where the result is read."
_WITH_CHAIN: Final = "Leave it out. docs/sql.md lists what there is."

# The name and next step of each unsupported clause, by sqlglot's name.
_CLAUSES: Final[dict[str, tuple[str, str]]] = {
    "order": (f"ORDER BY is not possible: {_ENDLESS}", _IN_THE_SINK),
    "sort": ("SORT BY is not possible: rows are emitted when they are ready", _IN_THE_SINK),
    "cluster": ("CLUSTER BY is not possible: rows are emitted when they are ready", _IN_THE_SINK),
    "distribute": ("DISTRIBUTE BY has no effect on a stream's sink", "Leave it out."),
    "limit": (f"LIMIT is not possible: {_ENDLESS}", _IN_THE_SINK),
    "offset": (f"OFFSET is not possible: {_ENDLESS}", _IN_THE_SINK),
    "pivots": ("PIVOT and UNPIVOT are not supported", "Write sum(x) FILTER (WHERE …) for each column."),
    "sample": ("TABLESAMPLE is not supported", "Write WHERE rand() < 0.1."),
    "hint": ("a hint is not supported", "Leave it out. Use the settings of the query's writer."),
    "hints": ("a hint is not supported", "Leave it out. Use the settings of the query's writer."),
    "totals": ("WITH TOTALS is not supported", "Write a query without GROUP BY."),
    "all": ("GROUP BY ALL is not supported", "Name the columns."),
    "into": ("INTO is not supported", "Choose the target with .write(…).to(sink)."),
    "method": ("a NATURAL or ASOF join is not supported", "Write JOIN … ON a.k = b.k, or USING (k)."),
    "recursive": ("WITH RECURSIVE is not supported", _WITH_CHAIN),
    "db": ("the name of a table must have one part", "Name the streams that were given to bs.sql."),
    "version": (
        "FOR SYSTEM_TIME AS OF is supported only after JOIN",
        "Write FROM probe LEFT JOIN build FOR SYSTEM_TIME AS OF PROCTIME() ON probe.k = build.k.",
    ),
    "joins": ("a join in parentheses is not supported", "Write the joins one after another, or use a subquery."),
    "columns": ("renaming columns after a table's alias is not supported", "Use a subquery with AS for each column."),
    "exclude": ("an EXCLUDE or EXCEPT list is not supported", "Name the columns."),
    "except_": ("* EXCEPT is not supported", "Name the columns."),
    "replace": ("* REPLACE is not supported", "Name the columns."),
    "rename": ("* RENAME is not supported", "Name the columns."),
    "by_name": ("UNION BY NAME is not supported", "Put the columns into the same order: UNION ALL goes by position."),
    "kind": ("SELECT AS STRUCT and AS VALUE are not supported", "Write struct(…) AS name."),
    "windows": ("a WINDOW clause without OVER has no effect", "Leave it out."),
    "with_": ("WITH is supported only at the start of the statement or of a subquery", "Put it there."),
}


@contextmanager
def unlogged() -> Iterator[None]:
    """Keeps PySpark from logging an error of this thread, with a Java stack: ours says the same in one line."""
    from pyspark.logger import PySparkLogger

    logger, thread = PySparkLogger.getLogger("SQLQueryContextLogger"), threading.get_ident()

    def is_of_another(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_of_another)
    try:
        yield
    finally:
        logger.removeFilter(is_of_another)


Typed = Callable[[exp.Expr, Any], exp.Expr]
"""Takes an expression over the rows of a `backlog_spark.BacklogStream`, and this stream."""


class Statement:
    """The text of a statement, with the positions of its parts.

    Parameters
    ----------
    text : str
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.typed: Typed | None = None
        """Gives translated expressions the meaning that their types decide, if the dialect is not Spark's."""

    def refused(self, node: exp.Expr | None, problem: str, hint: str = "") -> SqlError:
        """An error with the position at which a part of the statement begins."""
        return self.refused_at(_start(node), problem, hint)

    def refused_at(self, start: int, problem: str, hint: str = "") -> SqlError:
        """An error with a position in the text, from 0."""
        before = self.text[:start]
        return SqlError(problem, hint, before.count("\n") + 1, start - (before.rfind("\n") + 1) + 1)

    @contextmanager
    def at(self, node: exp.Expr | None, what: str = "") -> Iterator[None]:
        """Adds the position of this part to errors of operators, and to Spark's errors about expressions."""
        from pyspark.errors import AnalysisException, ParseException

        before = f"{what}: " if what else ""
        try:
            with unlogged():
                yield
        except SqlError:
            raise
        except BacklogError as error:
            raise self.refused(node, before + error.problem, error.hint) from error
        except (AnalysisException, ParseException) as error:
            hint = next_step(str(error))
            raise self.refused(node, f"{before}Spark refuses it: {first_line(error)}", hint) from error

    def only(self, node: exp.Expr, *understood: str) -> None:
        """Refuse all clauses of a part of the statement, except these."""
        for key, value in node.args.items():
            if key in understood or value is None or value is False or value == []:
                continue
            problem, hint = _CLAUSES.get(
                key, (f"{key.rstrip('_').replace('_', ' ').upper()} is not supported", _WITH_CHAIN)
            )
            first = value[0] if isinstance(value, list) else value
            if isinstance(first, exp.Hint):
                first = node.expressions[0]  # only the parts of a hint have positions
            if isinstance(first, exp.With):
                first = first.expressions[0].args.get("alias")
            raise self.refused(first if isinstance(first, exp.Expr) else node, f"{problem}.", hint)

    def checked(self, expression: exp.Expr) -> None:
        """Refuse parts that no expression over a stream's rows can have."""
        for node in expression.walk():
            if isinstance(node, exp.Query):
                holder = node.find_ancestor(exp.Exists, exp.In)
                name = (
                    ("EXISTS" if isinstance(holder, exp.Exists) else "IN") + " (SELECT …)" if holder else "a subquery"
                )
                raise self.refused(
                    node, f"{name} is not possible in an expression over a stream.", "Write it as a JOIN."
                )
            if isinstance(node, exp.Placeholder | exp.Parameter | exp.SessionParameter):
                raise self.refused(
                    node, f"the parameter {node.sql(dialect='spark')} has no value.", "Format the value into the text."
                )
            if isinstance(node, exp.DataType) and node.is_type("time"):
                raise self.refused(node, "the type TIME is not supported.", "Keep times of the day as text or numbers.")
            if isinstance(node, exp.QueryTransform | exp.Unnest | exp.Lateral | exp.Kwarg):
                raise self.refused(node, f"{node.key.upper()} is not supported.", _WITH_CHAIN)


def _start(node: exp.Expr | None) -> int:
    """Where a part begins: at its first token with a known position, else at the start of its parent."""
    while node is not None:
        found = [each.meta["start"] for each in node.walk() if "start" in each.meta]
        if found:
            return int(min(found))
        node = node.parent
    return 0
