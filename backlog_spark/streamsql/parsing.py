"""The text of a statement to sqlglot's tree: Spark's SQL with Flink's window table functions (pure).

Source: Flink SQL's "Windowing table-valued functions"; Spark's SQL reference for the rest.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from backlog_spark.errors import BacklogError
from backlog_spark.streamsql.refusals import SqlError, Statement

__all__ = ["TABLE_ARGUMENT", "parsed"]

TABLE_ARGUMENT: Final = "backlog_spark.partition_by"
"""In the meta data of a `sqlglot.exp.Table` that is an argument of a function: its PARTITION BY columns."""

# Keywords that name a function when a parenthesis follows.
_FUNCTIONS: Final = (TokenType.WINDOW, TokenType.SESSION)
# Of these arguments would get lost.
_REWRITTEN: Final = (exp.ArgMax, exp.ArgMin, exp.GroupConcat, exp.PercentileCont, exp.PercentileDisc)
_NO_ITEM: Final = (TokenType.COMMA, TokenType.FROM, TokenType.R_PAREN, TokenType.SEMICOLON)


# sqlglot knows what a function does and may write it in another way: parse_json(x) as x, to_char(x, f) without f. So
# functions are left to Spark as they are written, but for those that are looked at here.
_AGGREGATES: Final = frozenset(
    name for name, kind in exp.FUNCTION_BY_NAME.items() if issubclass(kind, exp.AggFunc) and kind not in _REWRITTEN
)
_SYNTAX: Final = ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM", "TRY_CAST")
"""Functions with words between their arguments."""


class StreamSpark(Spark):  # type: ignore[misc,unused-ignore]
    """Spark's dialect, whose functions take tables as Flink's do."""

    class Parser(SparkParser):
        """``f(TABLE t PARTITION BY k, …)`` and ``f(DATA => TABLE t, SIZE => …)``."""

        FUNCTIONS: ClassVar = {
            name: SparkParser.FUNCTIONS[name]
            for name in (*sorted(_AGGREGATES), "ROW_NUMBER", "STRUCT")
            if name in SparkParser.FUNCTIONS
        }
        FUNCTION_PARSERS: ClassVar = {name: SparkParser.FUNCTION_PARSERS[name] for name in _SYNTAX}

        def _parse_lambda(self, alias: bool = False) -> exp.Expr | None:
            if self._next and self._next.token_type is TokenType.FARROW:
                name = self._curr
                self._advance(2)
                return self.expression(exp.Kwarg(this=exp.var(name.text), expression=self._parse_lambda()))
            if self._curr and self._curr.token_type is TokenType.TABLE:
                self._advance()
                table = self._parse_table_parts()
                if table is not None and self._match(TokenType.PARTITION_BY):
                    table.meta[TABLE_ARGUMENT] = self._partition_columns()
                return table  # type: ignore[no-any-return,unused-ignore]
            return super()._parse_lambda(alias)  # type: ignore[no-any-return,unused-ignore]

        def _partition_columns(self) -> list[exp.Expr]:
            if self._match(TokenType.L_PAREN, advance=False):
                wrapped: list[exp.Expr] = self._parse_wrapped_csv(self._parse_disjunction)
                return wrapped
            found = [self._parse_disjunction()]
            # The next arguments follow behind a comma too.
            while (
                self._curr.token_type is TokenType.COMMA
                and self._next.text.upper() != "DESCRIPTOR"
                and self._tokens[self._index + 2].token_type is not TokenType.FARROW
            ):
                self._advance()
                found.append(self._parse_disjunction())
            return [each for each in found if each is not None]


def parsed(text: str) -> tuple[Statement, exp.Query]:
    """A query's tree.

    Raises
    ------
    SqlError
        For malformed SQL, several statements, and statements that are no query.
    """
    if not isinstance(text, str):
        raise BacklogError(f"sql was given {type(text).__name__}.", "Pass the text of a SELECT.")
    statement = Statement(text)
    dialect = StreamSpark()
    try:
        tokens = dialect.tokenize(text)
        _prepare(statement, tokens)
        trees = dialect.parser(error_level=ErrorLevel.IMMEDIATE).parse(tokens, text)
    except SqlglotError as error:
        raise _malformed(error) from error
    found = [tree for tree in trees if tree is not None]
    if not found:
        raise SqlError("there is no statement.", "Write a SELECT.")
    (tree,) = found
    while isinstance(tree, exp.Subquery) and tree.alias_or_name == "":
        statement.only(tree, "this")
        tree = tree.this
    if not isinstance(tree, exp.Select | exp.SetOperation):
        raise statement.refused_at(
            tokens[0].start,
            f"{tokens[0].text.upper()} is no query.",
            "Write a SELECT, and choose its target with .write(…).to(sink).",
        )
    return statement, tree


def _prepare(statement: Statement, tokens: list[Token]) -> None:
    """Tell names of functions from keywords; refuse what the parser would pass over."""
    for token, following in itertools.pairwise(tokens):
        if token.token_type in _FUNCTIONS and following.token_type is TokenType.L_PAREN:
            token.token_type = TokenType.VAR
        if token.token_type is TokenType.COMMA and following.token_type in _NO_ITEM:
            raise statement.refused_at(token.start, "malformed: nothing follows a comma.", "Check the statement.")
        if token.token_type is TokenType.SEMICOLON and following.token_type is not TokenType.SEMICOLON:
            raise statement.refused_at(following.start, "there are several statements.", "Call bs.sql for each.")


def _malformed(error: SqlglotError) -> SqlError:
    details: list[dict[str, Any]] = getattr(error, "errors", [])
    if details:
        first = details[0]
        shown = f" near {first['highlight']!r}" if first.get("highlight") else ""
        # sqlglot's column is that of the last character.
        line, column = first.get("line") or 1, (first.get("col") or 1) - max(len(first.get("highlight") or "") - 1, 0)
        told = f"{first['description']}{shown}"
        return SqlError(f"malformed: {told.replace('..', '.')}", "Check the statement.", line, column)
    told = re.sub(r"\x1b\[[0-9;]*m", "", str(error).split("\n", 1)[0]).strip()
    return SqlError(f"malformed: {told}", "Check the statement.")
