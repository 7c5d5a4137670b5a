"""Finds names in a pipeline's SQL that nothing has: streams, columns, functions. Without Spark, which knows the rest.

Spark finds the rest: columns of streams that functions make, and of table functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from backlog_spark.common.failure_causes import nearest_function
from backlog_spark.common.familiar_names import choice

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.optimizer.scope import Scope

    from backlog_spark.streamsql.parsing import Dialect
    from backlog_spark.streamsql.refusals import SqlError

__all__ = ["Columns", "unknown_names"]

Columns = Collection[str] | None
"""Names of a stream's columns in lower case; None if they are not known."""

# Functions of Spark's SQL that are not in `pyspark.sql.functions`, and ours.
_FUNCTIONS: Final = frozenset(
    {
        "approx_top_k_estimate", "array_size", "bigint", "binary", "boolean", "cardinality", "char_length", "chr",
        "collations", "cumulate", "current_database", "date", "decimal", "descriptor", "div", "double", "float",
        "from_avro", "from_protobuf", "hop", "if", "int", "isnotnull", "len", "luhn_check", "map", "measure", "mod",
        "percentile_cont", "percentile_disc", "proctime", "python_worker_logs", "random", "range", "schema_of_avro",
        "session", "session_window", "smallint", "space", "sql_keywords", "state_ttl", "string", "table", "time",
        "timestamp", "timestampadd", "timestampdiff", "tinyint", "to_avro", "to_protobuf", "tumble", "uuid",
        "variant_explode", "variant_explode_outer", "vector_avg", "vector_cosine_similarity", "vector_inner_product",
        "vector_l2_distance", "vector_norm", "vector_normalize", "vector_sum", "window", "window_time",
    }
)  # fmt: skip


def unknown_names(
    text: str, streams: Mapping[str, Columns], *, functions: bool = True, dialect: Dialect = "spark"
) -> tuple[list[SqlError], Columns]:
    """The errors that a query has for sure, and the columns of its result.

    Parameters
    ----------
    text : str
        SQL.
    streams : mapping of str to columns
        The streams that it may read.
    functions : bool
        Whether Spark has only its own functions, so that others are errors. Default true.
    dialect : {"spark", "flink"}

    Raises
    ------
    SqlError
        It is malformed.
    """
    from sqlglot import exp
    from sqlglot.errors import OptimizeError
    from sqlglot.optimizer.scope import traverse_scope

    from backlog_spark.streamsql.parsing import parsed
    from backlog_spark.streamsql.refusals import nesting_refused

    statement, query = parsed(text, dialect)
    known = {name.lower(): columns for name, columns in streams.items()}
    inner = {each.alias_or_name.lower() for each in query.find_all(exp.CTE)}
    found = []
    for table in query.find_all(exp.Table):
        if isinstance(table.this, exp.Identifier) and table.name.lower() not in known | dict.fromkeys(inner):
            hint = choice(table.name, [*streams, *inner], "There are")
            found.append(statement.refused(table, f"there is no table {table.name!r}.", hint))
    for call in query.find_all(exp.Anonymous) if functions else ():
        if not _is_function(call.name):
            hint = nearest_function(call.name) or "Look at the functions of Spark's SQL."
            found.append(statement.refused(call, f"there is no function {call.name}.", hint))
    try:
        with nesting_refused():
            scopes = traverse_scope(_in_lower_case(query))
        for scope in scopes:
            for column, names in _unknown_columns(scope, known):
                hint = f"There are: {', '.join(sorted(names))}."
                found.append(statement.refused(column, f"there is no column {column.name!r}.", hint))
        return found, _of_result(scopes[-1], known)
    except OptimizeError:  # two tables of one name, or without one
        return found, None


def _is_function(name: str) -> bool:
    from pyspark.sql import functions

    from backlog_spark.streamsql.flink_forms import FLINK_FUNCTIONS, WINDOW_FORMS

    ours = WINDOW_FORMS | FLINK_FUNCTIONS.keys()
    return name.upper() in ours or name.lower() in _FUNCTIONS | {each.lower() for each in functions.__all__}


def _in_lower_case(query: exp.Query) -> exp.Query:
    """The query with names of tables in lower case, as Spark compares them."""
    from sqlglot import exp

    found: exp.Query = query.copy()
    for node in found.find_all(exp.Table, exp.CTE):
        name = node.this if isinstance(node, exp.Table) else node.args["alias"].this
        if isinstance(name, exp.Identifier):
            name.set("this", name.name.lower())
    return found


def _of_result(scope: Scope, known: Mapping[str, Columns]) -> Columns:
    """The columns that a query has for the one around it."""
    from sqlglot import exp

    query = scope.expression
    if scope.outer_columns:  # WITH t(a, b) AS …
        return {name.lower() for name in scope.outer_columns}
    if isinstance(query, exp.UDTF):  # LATERAL VIEW explode(…) t AS a
        return {name.lower() for name in query.alias_column_names} or None
    if isinstance(query, exp.SetOperation):
        return _of_result(scope.set_operation_scopes[0], known)
    if not isinstance(query, exp.Select):
        return None
    names: list[str] = []
    for item in query.selects:
        if item.is_star:
            every = _of_sources(scope, known)
            shown = [every.get(item.table.lower())] if isinstance(item, exp.Column) else [*every.values()]
            if any(columns is None for columns in shown) or any(
                any(star.args.values()) for star in item.find_all(exp.Star)
            ):
                return None
            names += [name for columns in shown for name in columns or ()]
        elif isinstance(item, exp.Alias | exp.Column):
            names.append(item.alias_or_name.lower())
        else:
            return None
    return {*names} if len({*names}) == len(names) else None


def _of_sources(scope: Scope, known: Mapping[str, Columns]) -> dict[str, Columns]:
    """The columns of what a query reads, by name or alias."""
    from sqlglot import exp

    found: dict[str, Columns] = {}
    for name, (node, source) in scope.selected_sources.items():
        if isinstance(source, exp.Table):
            plain = isinstance(source.this, exp.Identifier) and not node.alias_column_names
            found[name.lower()] = known.get(source.name.lower()) if plain else None
        else:
            found[name.lower()] = _of_result(source, known)
    return found


def _unknown_columns(scope: Scope, known: Mapping[str, Columns]) -> Iterator[tuple[exp.Column, set[str]]]:
    """The columns that a query names and nothing that it reads has, each with those there are."""
    from sqlglot import exp

    query = scope.expression
    if not isinstance(query, exp.Select):
        return
    sources: dict[str, Columns] = {}
    around: Scope | None = scope
    while around is not None:  # a subquery may name columns of the query around it
        sources = {**_of_sources(around, known), **sources}
        around = around.parent if around.is_subquery or around.is_udtf else None
    made = {each.alias.lower() for each in query.selects if isinstance(each, exp.Alias)}
    items = {id(each): number for number, each in enumerate(query.selects)}
    group = query.args.get("group")
    calls = group.find_all(exp.Anonymous) if group else ()
    made |= {call.name.lower() for call in calls} & {"window", "session_window"}  # columns of their own
    for column in {id(column): column for column in scope.columns}.values():
        first = column.parts[0].name.lower()
        if isinstance(column.this, exp.Star) or column.find_ancestor(exp.Select) is not query:
            continue
        if column.name.lower() == "proctime" and column.find_ancestor(exp.Version):
            continue  # the processing time, which needs no column
        if first in sources:
            if len(column.parts) == 1:
                continue
            of, name = [sources[first]], column.parts[1].name.lower()
        else:
            of, name = [*sources.values()], first
        if any(columns is None for columns in of) or name.startswith("_"):
            continue  # not known for sure; a source may add names that begin with _
        inside = next((items[id(each)] for each in _above(column) if id(each) in items), None)
        later = {each.alias.lower() for each in query.selects[inside:]} if inside is not None else set()
        if first in made - later:  # an item may name an item before it
            continue
        names = {each for columns in of for each in columns or ()}
        if name not in names:
            yield column, names


def _above(node: exp.Expr) -> Iterator[exp.Expr]:
    """A part of a query, and all that it is in."""
    found: exp.Expr | None = node
    while found is not None:
        yield found
        found = found.parent
