"""Finds names in a pipeline's SQL that nothing has: streams, columns, functions. Without Spark, which knows the rest.

What is not known for sure is left to Spark: the columns of a join, of a subquery, and of streams that functions make.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from backlog_spark.common.failure_causes import nearest_function
from backlog_spark.common.familiar_names import choice

if TYPE_CHECKING:
    from sqlglot import exp

    from backlog_spark.streamsql.refusals import SqlError

__all__ = ["Columns", "columns_of", "unknown_names"]

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
        "timestamp", "tinyint", "to_avro", "to_protobuf", "tumble", "uuid", "variant_explode", "variant_explode_outer",
        "vector_avg", "vector_cosine_similarity", "vector_inner_product", "vector_l2_distance", "vector_norm",
        "vector_normalize", "vector_sum", "window", "window_time",
    }
)  # fmt: skip


def columns_of(query: exp.Query) -> Columns:
    """The columns of a query's result."""
    from sqlglot import exp

    if not isinstance(query, exp.Select) or query.is_star or not all(query.named_selects):
        return None
    return {name.lower() for name in query.named_selects}


def unknown_names(
    text: str, streams: Mapping[str, Columns], *, functions: bool = True
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

    Raises
    ------
    SqlError
        It is malformed.
    """
    from sqlglot import exp

    from backlog_spark.streamsql.parsing import parsed

    statement, query = parsed(text)
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
    if isinstance(query, exp.Select):
        for column in _unknown_columns(query, known):
            names = ", ".join(sorted(_of_only_table(query, known) or ()))
            found.append(statement.refused(column, f"there is no column {column.name!r}.", f"There are: {names}."))
    return found, columns_of(query)


def _is_function(name: str) -> bool:
    from pyspark.sql import functions

    return name.lower() in _FUNCTIONS or name.lower() in {each.lower() for each in functions.__all__}


def _of_only_table(select: exp.Select, known: Mapping[str, Columns]) -> Columns:
    """The columns of the one stream that a plain query reads."""
    from sqlglot import exp

    tables, others = (
        [*select.find_all(exp.Table)],
        (exp.Join, exp.Lateral, exp.Subquery, exp.CTE, exp.Lambda, exp.Unnest),
    )
    if len(tables) != 1 or any(select.find(other) for other in others) or len([*select.find_all(exp.Select)]) != 1:
        return None
    return known.get(tables[0].name.lower()) if isinstance(tables[0].this, exp.Identifier) else None


def _unknown_columns(select: exp.Select, known: Mapping[str, Columns]) -> Iterator[exp.Column]:
    from sqlglot import exp

    columns = _of_only_table(select, known)
    if columns is None:
        return
    (table,) = select.find_all(exp.Table)
    tables = {table.name.lower(), table.alias_or_name.lower()}
    made = {each.alias.lower() for each in select.selects if isinstance(each, exp.Alias)}
    for column in select.find_all(exp.Column):
        first = column.parts[0].name.lower()
        if isinstance(column.this, exp.Star) or (first in tables and len(column.parts) == 1):
            continue
        name = column.parts[1].name.lower() if first in tables else first
        # Names that begin with _ may be columns that the source adds.
        if name not in columns and name not in made and not name.startswith("_"):
            yield column
