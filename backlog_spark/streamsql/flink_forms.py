"""Rewrites Flink's group windows and its functions with other names as Spark's (pure).

Source: Flink SQL's "Window Aggregation", section on group windows, and "System (Built-in) Functions".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from sqlglot import exp

from backlog_spark.common.sql_dialect import StreamSpark
from backlog_spark.streamsql.parsing import Dialect
from backlog_spark.streamsql.refusals import Statement

__all__ = ["FLINK_FUNCTIONS", "FLINK_MEANINGS", "WINDOW_FORMS", "rewrite"]

_GROUP_WINDOWS: Final[Mapping[str, tuple[str, int, int]]] = {
    "TUMBLE": ("TUMBLE(at, size)", 2, 3),
    "HOP": ("HOP(at, slide, size)", 3, 4),
    "SESSION": ("SESSION(at, gap)", 2, 2),
}
"""Form, and least and greatest number of arguments. The last argument of the longer form is an offset."""

_BOUNDS: Final = {"_START": "start", "_END": "end", "_ROWTIME": "window_time", "_PROCTIME": ""}

WINDOW_FORMS: Final = frozenset(name + bound for name in _GROUP_WINDOWS for bound in ("", *_BOUNDS))

FLINK_FUNCTIONS: Final[Mapping[str, str]] = {
    "CONVERT_TZ": "date_format(convert_timezone(_2, _3, to_timestamp_ntz(_1)), 'yyyy-MM-dd HH:mm:ss')",
    "CURRENT_ROW_TIMESTAMP": "current_timestamp()",
    "FROM_BASE64": "CAST(unbase64(_1) AS STRING)",
    "JSON_VALUE": "get_json_object(_1, _2)",
    "SHA224": "sha2(_1, 224)",
    "SHA256": "sha2(_1, 256)",
    "SHA384": "sha2(_1, 384)",
    "SHA512": "sha2(_1, 512)",
    # An index beyond the parts, and any index of '', is NULL.
    "SPLIT_INDEX": r"get(split(nullif(_1, ''), concat(r'\Q', _2, r'\E')), _3)",
    "TO_BASE64": "base64(CAST(_1 AS BINARY))",
    "TO_TIMESTAMP_LTZ": (
        "CASE _2 WHEN 3 THEN timestamp_millis(_1) WHEN 0 THEN timestamp_seconds(_1) "
        "ELSE raise_error('TO_TIMESTAMP_LTZ: the precision must be 0 or 3.') END"
    ),
}
"""Spark's expression for each of Flink's functions that Spark does not have. The arguments are ``_1``, ``_2``, …"""


FLINK_MEANINGS: Final[Mapping[str, str]] = {
    "REGEXP_EXTRACT": "CASE WHEN regexp_like(_1, _2) THEN regexp_extract(_1, _2, _3) END",
}
"""The same for functions of Flink that mean something else in Spark, for ``dialect="flink"``."""

_DEFAULTS: Final[Mapping[str, str]] = {"REGEXP_EXTRACT": "0"}
"""The last argument of functions that may leave it out."""

_TIMES: Final = (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ, exp.DType.TIMESTAMPNTZ)


def rewrite(
    statement: Statement, tree: exp.Query, is_of_session: Callable[[str], bool], dialect: Dialect = "spark"
) -> None:
    """Give the statement Spark's functions.

    Parameters
    ----------
    statement : Statement
    tree : Query
    is_of_session : callable
        Whether the session has a function of this name, registered by the user. It goes before Flink's.
    dialect : {"spark", "flink"}
        Whose functions a name means that both have.

    Raises
    ------
    SqlError
        For a wrong number of arguments, and for windows of processing time.
    """

    def of(node: exp.Anonymous) -> exp.Expr:
        name, arguments = node.name.upper(), node.expressions
        is_table_function = any(isinstance(each, exp.Table | exp.Kwarg) for each in arguments)
        if name in WINDOW_FORMS and not is_table_function and not isinstance(node.parent, exp.Table):
            return _window(statement, node, name)
        if name == "PROCTIME" and not arguments and not _is_column(node):
            return exp.Anonymous(this="current_timestamp", expressions=[])
        meaning = dialect == "flink" and name in FLINK_MEANINGS
        if meaning and len(arguments) == _arguments(name) - 1:
            arguments = [*arguments, exp.Literal.number(_DEFAULTS[name])]
        if meaning or (name in FLINK_FUNCTIONS and not is_of_session(name)):
            expected = _arguments(name)
            if len(arguments) != expected:
                raise statement.refused(
                    node, f"{name} takes {expected} arguments, found {len(arguments)}.", "Check the statement."
                )
            return _filled(_template(name), arguments)
        return node

    for node in reversed([*tree.find_all(exp.Anonymous)]):  # arguments first
        new = of(node)
        if new is not node:
            node.replace(new)
    for cast in reversed([*tree.find_all(exp.Cast)]) if dialect == "flink" else ():
        _cast_as_spark(cast)


def _is_column(call: exp.Expr) -> bool:
    """Whether ``PROCTIME()`` is an item of a SELECT list, or the time of a join."""
    parent = call.parent
    return isinstance(parent, exp.Select | exp.Version) or (
        isinstance(parent, exp.Alias) and isinstance(parent.parent, exp.Select)
    )


def _cast_as_spark(cast: exp.Cast) -> None:
    """TIMESTAMP(3) has a precision in Flink; in Spark it is 6."""
    if cast.to.this in _TIMES:
        precision = int(cast.to.expressions[0].name) if cast.to.expressions else 6
        cast.set("to", exp.DataType.build("TIMESTAMP", dialect="spark"))
        if precision < 6:
            micros = exp.Anonymous(this="unix_micros", expressions=[cast.copy()])
            rest = exp.Anonymous(this="pmod", expressions=[micros.copy(), exp.Literal.number(10 ** (6 - precision))])
            cut = exp.Sub(this=micros, expression=rest)
            cast.replace(exp.Anonymous(this="timestamp_micros", expressions=[cut]))


def _window(statement: Statement, call: exp.Anonymous, name: str) -> exp.Expr:
    kind = next(each for each in _GROUP_WINDOWS if name == each or name.startswith(f"{each}_"))
    form, least, most = _GROUP_WINDOWS[kind]
    bound = name.removeprefix(kind)
    arguments = call.expressions
    if not least <= len(arguments) <= most:
        raise statement.refused(
            call, f"{name} takes {least} arguments, found {len(arguments)}.", f"Write {form.replace(kind, name)}."
        )
    if bound == "_PROCTIME":
        raise statement.refused(call, f"{name}: windows of processing time are not supported.", f"Use {kind}_ROWTIME.")
    time, *lengths = arguments
    if kind == "HOP":
        lengths[:2] = [lengths[1], lengths[0]]
    elif kind == "TUMBLE" and len(lengths) == 2:
        lengths[:1] = [lengths[0], lengths[0].copy()]
    window = exp.Anonymous(this="session_window" if kind == "SESSION" else "window", expressions=[time, *lengths])
    if not bound:
        return window
    if bound == "_ROWTIME":
        return exp.Anonymous(this="window_time", expressions=[window])
    return exp.Dot(this=window, expression=exp.to_identifier(_BOUNDS[bound]))


@cache
def _template(name: str) -> exp.Expr:
    dialect = StreamSpark()
    text = f"SELECT {FLINK_MEANINGS.get(name) or FLINK_FUNCTIONS[name]}"
    made: exp.Expr = dialect.parse(text)[0].expressions[0]  # type: ignore[union-attr]
    for each in made.walk():  # their positions would be of another text
        for key in ("line", "col", "start", "end"):
            each.meta.pop(key, None)
    return made


def _arguments(name: str) -> int:
    return len({column.name for column in _template(name).find_all(exp.Column)})


def _filled(template: exp.Expr, arguments: list[exp.Expr]) -> exp.Expr:
    def of(node: exp.Expr) -> exp.Expr:
        return exp.paren(arguments[int(node.name[1:]) - 1].copy()) if isinstance(node, exp.Column) else node

    return template.transform(of)
