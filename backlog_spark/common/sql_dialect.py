"""A sqlglot dialect for Spark's SQL with Flink's window table functions. It keeps expressions as written (pure).

Source: Spark's SQL reference, "Literals"; Flink SQL's "Windowing table-valued functions".
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel
from sqlglot.generator import Generator
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

__all__ = ["TABLE_ARGUMENT", "StreamFlink", "StreamSpark", "is_plain_star", "text_of"]

TABLE_ARGUMENT: Final = "backlog_spark.partition_by"
"""Key in the metadata of a `sqlglot.exp.Table` that is a function's argument: its PARTITION BY columns."""

# Key in the metadata of a string or of TIME '6:30': its text in the statement.
_WRITTEN: Final = "backlog_spark.written"
_STRINGS: Final = (TokenType.STRING, TokenType.RAW_STRING)

# sqlglot may rewrite functions that it knows: parse_json(x) as x, to_char(x, f) without f. So functions stay as they
# are written, except those that the translation looks at. Of the following ones arguments would get lost.
_REWRITTEN: Final = (exp.ArgMax, exp.ArgMin, exp.GroupConcat, exp.PercentileCont, exp.PercentileDisc)
_AGGREGATES: Final = frozenset(
    name for name, kind in exp.FUNCTION_BY_NAME.items() if issubclass(kind, exp.AggFunc) and kind not in _REWRITTEN
)
_SYNTAX: Final = ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM", "TRY_CAST")
"""Functions with keywords between their arguments."""


class StreamSpark(Spark):  # type: ignore[misc,unused-ignore]
    """Spark's dialect, with functions that take tables, as in Flink."""

    def tokenize(self, sql: str, dialect: object = None) -> list[Token]:
        """Tokens. Strings that Spark reads as one are one token: ``'it''s'`` and ``'a' 'b'``."""
        found: list[Token] = []
        for token in super().tokenize(sql):
            if token.token_type not in _STRINGS:
                found.append(token)
            elif found and found[-1].token_type is TokenType.STRING:
                found[-1].end = token.end
                found[-1].text = _value(sql[found[-1].start : token.end + 1])
            else:
                token.token_type, token.text = TokenType.STRING, _value(sql[token.start : token.end + 1])
                found.append(token)
        return found

    class Parser(SparkParser):
        """Parses ``f(TABLE t PARTITION BY k, …)`` and ``f(DATA => TABLE t, SIZE => …)``."""

        FUNCTIONS: ClassVar = {
            name: SparkParser.FUNCTIONS[name]
            for name in (*sorted(_AGGREGATES), "ROW_NUMBER", "STRUCT")
            if name in SparkParser.FUNCTIONS
        }
        FUNCTION_PARSERS: ClassVar = {name: SparkParser.FUNCTION_PARSERS[name] for name in _SYNTAX}
        STRING_PARSERS: ClassVar = {
            **SparkParser.STRING_PARSERS,
            TokenType.STRING: lambda self, token: self._written_string(token),
        }
        PRIMARY_PARSERS: ClassVar = {**SparkParser.PRIMARY_PARSERS, TokenType.STRING: STRING_PARSERS[TokenType.STRING]}

        TYPE_LITERAL_PARSERS: ClassVar = {
            **SparkParser.TYPE_LITERAL_PARSERS,
            exp.DType.TIME: lambda self, this, kind: self._time_of_day(this, kind),
        }

        def _time_of_day(self, this: exp.Expr, kind: exp.DataType) -> exp.Expr:
            made = exp.Cast(this=this, to=kind)
            made.meta[_WRITTEN] = f"TIME {this.meta[_WRITTEN]}"
            return made

        def _written_string(self, token: Token) -> exp.Expr:
            made = exp.Literal.string(token.text)
            made.update_positions(token)
            written = self.sql[token.start : token.end + 1]
            made.meta[_WRITTEN] = _escaped(token.text) if isinstance(self.dialect, StreamFlink) else written
            return made

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
            # The next arguments follow after a comma.
            while (
                self._curr.token_type is TokenType.COMMA
                and self._next.text.upper() != "DESCRIPTOR"
                and self._tokens[self._index + 2].token_type is not TokenType.FARROW
            ):
                self._advance()
                found.append(self._parse_disjunction())
            return [each for each in found if each is not None]

    class Generator(SparkGenerator):
        """Writes strings, types and operators as in the statement."""

        TYPE_MAPPING: ClassVar = {**SparkGenerator.TYPE_MAPPING, exp.DType.TIME: "TIME"}
        # Keep operators: replaced by a function, their operands would bind differently: a & b << 2.
        TRANSFORMS: ClassVar = {
            **SparkGenerator.TRANSFORMS,
            exp.BitwiseLeftShift: lambda self, shift: self.binary(shift, "<<"),
            exp.BitwiseRightShift: lambda self, shift: self.binary(shift, ">>"),
        }

        def datatype_sql(self, expression: exp.DataType) -> str:
            """A type with its parameters: Hive's dialect drops that of TIME(3)."""
            return str(Generator.datatype_sql(self, expression))

        def cast_sql(self, expression: exp.Cast, safe_prefix: str | None = None) -> str:
            """A cast. TIME '6:30' stays a literal: unlike a cast to TIME it needs no setting."""
            return str(expression.meta.get(_WRITTEN) or super().cast_sql(expression, safe_prefix))

        def literal_sql(self, expression: exp.Literal) -> str:
            """The literal as written: Spark's settings decide how to read it."""
            return str(expression.meta.get(_WRITTEN) or super().literal_sql(expression))


class StreamFlink(StreamSpark):
    """The same with Flink's strings: a backslash is a character like any other."""

    class Tokenizer(StreamSpark.Tokenizer):
        """Only two quotes stand for a quote."""

        STRING_ESCAPES: ClassVar = ["'"]

    def tokenize(self, sql: str, dialect: object = None) -> list[Token]:
        """Tokens, with the values of strings as Flink reads them."""
        return list(super(StreamSpark, self).tokenize(sql))


def _escaped(value: str) -> str:
    """A string's text for Spark."""
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{quoted}'"


def text_of(expression: exp.Expr) -> str:
    """The text of an expression for Spark."""
    return str(expression.sql(dialect=StreamSpark, unsupported_level=ErrorLevel.IGNORE, comments=False))


def is_plain_star(expression: exp.Expr | None) -> bool:
    """Whether this is ``*`` without EXCEPT or similar."""
    return isinstance(expression, exp.Star) and not any(expression.args.values())


# One string in a row of adjacent strings. Spaces and comments between them belong to none.
_ONE: Final = re.compile(
    r"""[rR]'(?P<r1>[^']*)'|[rR]"(?P<r2>[^"]*)"|'(?P<s1>(?:[^'\\]|\\.|'')*)'|"(?P<s2>(?:[^"\\]|\\.|"")*)"|"""
    r"""--[^\n]*|/\*.*?\*/|\s""",
    re.DOTALL,
)
_ESCAPED: Final = re.compile(r"""\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[01][0-7]{2}|.)|''|\"\"""", re.DOTALL)
_LETTERS: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def _value(written: str) -> str:
    """The value that Spark gives to adjacent strings (its ``unescapeSQLString``)."""
    parts = []
    for each in _ONE.finditer(written):
        if each.lastgroup in ("r1", "r2"):
            parts.append(each[each.lastgroup])
        elif each.lastgroup is not None:
            quote = each[0][0]
            parts.append(_ESCAPED.sub(lambda found, quote=quote: _character(found, quote), each[each.lastgroup]))
    return "".join(parts)


def _character(found: re.Match[str], quote: str) -> str:
    escaped: str | None = found[1]
    if escaped is None:
        return quote if found[0] == 2 * quote else found[0]
    if len(escaped) == 1:
        return _LETTERS.get(escaped, escaped)
    return chr(int(escaped[1:], 16)) if escaped[0] in "uU" else chr(int(escaped, 8))
