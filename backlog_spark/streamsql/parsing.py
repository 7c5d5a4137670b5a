"""Parses the text of a statement into sqlglot's tree (pure)."""

from __future__ import annotations

import itertools
import re
from typing import Any, Final, Literal

from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from backlog_spark.common.sql_dialect import StreamFlink, StreamSpark
from backlog_spark.errors import BacklogError
from backlog_spark.streamsql.refusals import SqlError, Statement, nesting_refused

__all__ = ["Dialect", "parsed"]

Dialect = Literal["spark", "flink"]

# Keywords that name a function when a parenthesis follows.
_FUNCTIONS: Final = (TokenType.WINDOW, TokenType.SESSION)
_WITH_UNIT: Final = ("dateadd", "datediff", "date_add", "date_diff", "timestampadd", "timestampdiff")
# They are refused before the parser, which logs the texts of those that it does not know. They may have passwords.
_NO_QUERIES: Final = ("ALTER", "CALL", "COMMENT", "CREATE", "DROP", "EXPLAIN", "GRANT", "KILL", "REVOKE", "SET", "SHOW")
_NO_ITEM: Final = (TokenType.COMMA, TokenType.FROM, TokenType.R_PAREN, TokenType.SEMICOLON)


@nesting_refused()
def parsed(text: str, dialect: Dialect = "spark") -> tuple[Statement, exp.Query]:
    """A query's tree.

    Parameters
    ----------
    text : str
    dialect : {"spark", "flink"}
        How strings are read.

    Raises
    ------
    SqlError
        For malformed SQL, several statements, and statements that are not queries.
    """
    if not isinstance(text, str):
        raise BacklogError(f"sql was given {type(text).__name__}.", "Pass the text of a SELECT.")
    statement = Statement(text)
    reader = StreamFlink() if dialect == "flink" else StreamSpark()
    try:
        tokens = reader.tokenize(text)
        if tokens and tokens[0].text.upper() in _NO_QUERIES:
            raise _no_query(statement, tokens[0])
        _prepare(statement, tokens)
        trees = reader.parser(error_level=ErrorLevel.IMMEDIATE).parse(tokens, text)
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
        raise _no_query(statement, tokens[0])
    _mark_units(tree)
    return statement, tree


def _no_query(statement: Statement, first: Token) -> SqlError:
    return statement.refused_at(
        first.start,
        f"{first.text.upper()} is no query.",
        "Write a SELECT, and choose its target with .write(…).to(sink).",
    )


def _mark_units(tree: exp.Query) -> None:
    """Make keywords of units of time: the parser takes that of ``timestampdiff(MINUTE, a, b)`` for a column."""
    for call in [*tree.find_all(exp.Anonymous)]:
        unit = call.expressions[0] if len(call.expressions) == 3 else None
        if call.name.lower() in _WITH_UNIT and isinstance(unit, exp.Column) and len(unit.parts) == 1:
            unit.replace(exp.var(unit.name))


def _prepare(statement: Statement, tokens: list[Token]) -> None:
    """Turn keywords into function names where they are used so. Refuse errors that the parser would accept."""
    for token, following in itertools.pairwise(tokens):
        if token.token_type in _FUNCTIONS and following.token_type is TokenType.L_PAREN:
            token.token_type = TokenType.VAR
        if token.text.upper() == "MATCH_RECOGNIZE" and following.token_type is TokenType.L_PAREN:
            raise statement.refused_at(
                token.start,
                "MATCH_RECOGNIZE is not supported.",
                "Write a KeyedProcessFunction: .key_by(…).process(…), docs/operators.md.",
            )
        if token.token_type is TokenType.COMMA and following.token_type in _NO_ITEM:
            raise statement.refused_at(token.start, "malformed: nothing follows the comma.", "Check the statement.")
        if token.token_type is TokenType.SEMICOLON and following.token_type is not TokenType.SEMICOLON:
            raise statement.refused_at(following.start, "there are several statements.", "Call bs.sql for each.")


def _malformed(error: SqlglotError) -> SqlError:
    details: list[dict[str, Any]] = getattr(error, "errors", [])
    if details:
        first = details[0]
        shown = f" near {first['highlight']!r}" if first.get("highlight") else ""
        # sqlglot reports the column of the last character.
        line, column = first.get("line") or 1, (first.get("col") or 1) - max(len(first.get("highlight") or "") - 1, 0)
        problem = f"{first['description']}{shown}"
        return SqlError(f"malformed: {problem.replace('..', '.')}", "Check the statement.", line, column)
    problem = re.sub(r"\x1b\[[0-9;]*m", "", str(error).split("\n", 1)[0]).strip()
    return SqlError(f"malformed: {problem}", "Check the statement.")
