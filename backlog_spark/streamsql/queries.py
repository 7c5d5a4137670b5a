"""Translates queries: WITH, FROM, WHERE, the SELECT list, UNION ALL."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, get_args

from sqlglot import exp

from backlog_spark.api.lookup import LookupTable, lookup
from backlog_spark.api.streams import BacklogStream
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.operators.windows.columns import WINDOW_COLUMNS
from backlog_spark.spark.jvm.session import check_session
from backlog_spark.spark.plan.schemas import Schemas
from backlog_spark.streamsql.flink_forms import rewrite
from backlog_spark.streamsql.flink_types import flink_types
from backlog_spark.streamsql.functions import register_functions
from backlog_spark.streamsql.generators import is_generator, with_generated
from backlog_spark.streamsql.grouping import distinct, grouped, is_grouped
from backlog_spark.streamsql.hints import state_ttl
from backlog_spark.streamsql.items import items_of
from backlog_spark.streamsql.joins import joined, without_version
from backlog_spark.streamsql.lookups import bounded_columns, looked_up
from backlog_spark.streamsql.overs import has_over, over_changes, with_over
from backlog_spark.streamsql.own_aggregates import as_over
from backlog_spark.streamsql.parsing import Dialect, parsed
from backlog_spark.streamsql.qualify import around_windows
from backlog_spark.streamsql.ranked_rows import first_rows
from backlog_spark.streamsql.refusals import nesting_refused
from backlog_spark.streamsql.rows import Rows, column_of, text_of
from backlog_spark.streamsql.set_operations import set_operation
from backlog_spark.streamsql.spans import event_time, is_window_function, window_table
from backlog_spark.streamsql.subqueries import ANTI, EXISTS, Known, exists_join, exists_joins
from backlog_spark.streamsql.translation import Translation, conjuncts, results_change
from backlog_spark.streamsql.used_names import as_of, pushed_down, used_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["sql"]

_LOG: Final = logging.getLogger(__name__)

Tables = Mapping[str, exp.Query]


def sql(
    spark: SparkSession,
    query: str,
    *,
    dialect: Dialect = "spark",
    functions: Mapping[str, Callable[..., object]] | None = None,
    **tables: BacklogStream | LookupTable | DataFrame,
) -> BacklogStream:
    """A stream from SQL: Spark's, with Flink's window table functions.

    Parameters
    ----------
    spark : SparkSession
    query : str
        A SELECT. It becomes the operators that one would chain by hand, and nothing runs before the stream is written.
    dialect : {"spark", "flink"}
        Whose SQL decides what a name means that both have: the average of a BIGINT is a DOUBLE in Spark and a BIGINT in
        Flink. docs/sql.md lists the differences.
    functions : mapping of str to callable, optional
        Functions that the query may call, by name: Python functions with annotated results, or ``udf(…)`` of PySpark.
        They stay registered in the session.
    **tables : BacklogStream, LookupTable or DataFrame
        The tables that the query may name: streams; where it speaks of event time, those with
        `BacklogStream.with_watermark`. On the right of a join also bounded tables, see `backlog_spark.lookup`.

    Returns
    -------
    BacklogStream

    Raises
    ------
    SqlError
        For malformed SQL and for unsupported SQL. The error has the construct, line and column, and what to do.
    BacklogError
        If an argument is neither a stream nor a table, and for a function whose result has no annotation.

    Notes
    -----
    Columns are looked up at once, so the schemas of the sources are loaded. docs/sql.md lists the supported SQL,
    compared with Flink SQL.

    Examples
    --------
    ``bs.sql(spark, "SELECT user_id, sum(amount) AS total FROM orders GROUP BY user_id", orders=orders)``
    """
    check_session(spark)
    given: dict[str, tuple[str, BacklogStream]] = {}
    lookups: dict[str, LookupTable] = {}
    for name, table in tables.items():
        if isinstance(table, BacklogStream):
            given[name.lower()] = name, table
        elif isinstance(table, LookupTable) or getattr(table, "isStreaming", None) is False:
            lookups[name.lower()] = table if isinstance(table, LookupTable) else lookup(table)
        else:
            raise BacklogError(
                f"sql was given {type(table).__name__} as {name!r}.", "Wrap a streaming DataFrame with bs.stream(…)."
            )
    if dialect not in get_args(Dialect):
        raise SettingError("dialect", dialect, "is not a dialect of SQL here.", 'Write "spark" or "flink".')
    register_functions(spark, functions or {})
    return _stream(spark, query, dialect, given, lookups)


@nesting_refused()
def _stream(
    spark: SparkSession,
    query: str,
    dialect: Dialect,
    given: Mapping[str, tuple[str, BacklogStream]],
    lookups: Mapping[str, LookupTable],
) -> BacklogStream:
    statement, tree = parsed(query, dialect)
    rewrite(statement, tree, spark.catalog.functionExists, dialect)
    tr = Translation(statement, Schemas(spark), given, lookups)
    if dialect == "flink":
        statement.typed = flink_types(tr)
    order = _order_by_time(tree)
    rows = _query(tr, tree, {})
    if order is not None:
        _ignore_order(tr, rows, order)
    # Use the statement's names. Inside the statement the columns of a change stream have other names.
    items = [(c.name, c.column, tree) for c in rows.columns if not c.hidden]
    return tr.projected(rows, items).stream


def _order_by_time(tree: exp.Query) -> exp.Order | None:
    """ORDER BY at the end of a statement, which is removed. With LIMIT it stays, to be refused."""
    if tree.args.get("limit") or tree.args.get("offset"):
        return None
    order: exp.Order | None = tree.args.get("order")
    tree.set("order", None)
    return order


def _ignore_order(tr: Translation, rows: Rows, order: exp.Order) -> None:
    """Tell that an order by time has no effect, and refuse any other."""
    first = order.expressions[0]
    written = first.this
    if isinstance(written, exp.Column) and rows.has(written) and not first.args.get("desc") and not rows.pseudo:
        column = rows.resolved(tr.statement, written)
        if column.name in (event_time(tr, rows.stream), *WINDOW_COLUMNS):
            _LOG.warning("SQL: ORDER BY %s has no effect: a stream's rows come as they are complete.", text_of(written))
            return
    tr.statement.only(exp.Select(order=order), "expressions")


def _query(tr: Translation, node: exp.Expr, tables: Tables) -> Rows:
    if isinstance(node, exp.Subquery):
        tr.statement.only(node, "this", "alias", "with_")
        return _query(tr, node.this, _with(tr, node, tables))
    if isinstance(node, exp.SetOperation):
        known = _with(tr, node, tables)
        return set_operation(tr, node, [_query(tr, each, known) for each in (node.this, node.expression)])
    if isinstance(node, exp.Select):
        return _select(tr, node, _with(tr, node, tables))
    raise tr.statement.refused(node, f"{node.key.upper()} is no query.", "Write a SELECT.")


def _with(tr: Translation, node: exp.Expr, tables: Tables) -> Tables:
    """The queries of WITH, added to the known tables. Each may use the ones before it."""
    found = dict(tables)
    clause = node.args.get("with_")
    if clause is None:
        return found
    tr.statement.only(clause, "expressions")
    for each in clause.expressions:
        tr.statement.only(each, "this", "alias")
        tr.statement.only(each.args["alias"], "this")
        query = each.this.copy()
        # A query sees only the names before it, not later definitions of the same name.
        query.meta["tables"] = dict(found)
        found[each.alias.lower()] = query
    return found


def _select(tr: Translation, select: exp.Select, tables: Tables) -> Rows:
    def is_inner(query: exp.Select, column: exp.Column) -> bool:
        return _knows(tr, query, column, tables)

    def has(item: exp.Expr, column: exp.Column) -> bool:
        return _has_column(tr, [item], tables, column)

    def is_time(item: exp.Expr, column: exp.Column) -> bool:
        rows = _columns_of(tr, item, tables)
        return text_of(rows.resolved(tr.statement, column)) == text_of(column_of(event_time(tr, rows.stream) or ""))

    select = as_over(tr, select, tables, has, is_time)
    outer, added = around_windows(tr, select, is_inner)
    if outer is None:
        return _plain_select(tr, select, tables)
    rows = _plain_select(tr, outer, tables)
    rows = replace(rows, columns=tuple(c for c in rows.columns if c.name not in added))
    if not select.args.get("distinct"):
        return rows
    tr.statement.only(select.args["distinct"])
    shown = [(c.name, c.column, select.expressions[0]) for c in rows.columns if not c.hidden]
    return distinct(tr, tr.projected(rows, shown), select.expressions[0])


def _plain_select(tr: Translation, select: exp.Select, tables: Tables) -> Rows:
    tr.statement.only(
        select,
        *("with_", "hint", "expressions", "distinct", "from_", "joins", "laterals"),
        *("where", "group", "having", "windows"),
    )
    source = select.args.get("from_")
    if source is None:
        raise tr.statement.refused(select, "a SELECT without FROM.", f"Name a stream: {_names(tr, tables)}.")
    tr.statement.only(source, "this")
    where = conjuncts(select.args["where"].this) if select.args.get("where") else []
    used, joins = used_names(select), select.args.get("joins") or []

    def select_of(inner: exp.Select, known: Tables) -> Rows:
        return _select(tr, inner, _with(tr, inner, known))

    first = first_rows(tr, source.this, tables, select, used, select_of)
    rows, where = first or (_table(tr, source.this, tables), where)

    def is_inner(query: exp.Select, column: exp.Column) -> bool:
        return _knows(tr, query, column, _with(tr, query, tables))

    plain = [source.this, *(each.this for each in joins if not is_generator(each) and not _is_semi(each))]
    rewritten = []
    for number, join in enumerate(joins):
        before = [item for item in plain if not any(item is each.this for each in joins[number:])]
        rewritten.append(_as_exists(tr, join, is_inner, partial(_has_column, tr, before, tables)))
    joins = rewritten
    joins += exists_joins(tr, where, is_inner)
    if used is not None:
        read = [part for join in joins if EXISTS in join.meta for part in (join.args["on"], join.meta.get(ANTI))]
        used |= {name.name.lower() for part in read if part for name in part.find_all(exp.Identifier)}
    found = [_lookup_of(tr, join.this, tables) for join in joins]
    rights = [
        None if is_generator(join) or bounded else _table(tr, without_version(join.this), tables)
        for join, bounded in zip(joins, found, strict=True)
    ]
    kept = state_ttl(tr, select, [each.alias_or_name for each in (source.this, *(join.this for join in joins))])
    for number, (join, right) in enumerate(zip(joins, rights, strict=True)):
        if right is None:
            bounded = found[number]
            rows = with_generated(tr, rows, join) if bounded is None else looked_up(tr, rows, bounded, join)
            continue
        if used is not None:
            # A temporal join reads build rows by their time. Other joins take changes as of now.
            version = as_of(join)
            at_rows = version is not None and version.name.lower() != "proctime"
            by_time = at_rows or (join.this.args.get("version") and not right.pseudo)
            newest = {event_time(tr, right.stream), *(["_commit_seq"] if at_rows else [])} if by_time else set()
            of_build = {c.name.lower() for c in right.columns if c.column.name in newest}
            rows, right = tr.pruned(rows, used, join), tr.pruned(right, used | of_build, join)
        later = [each for each in rights[number + 1 :] if each is not None]
        early = pushed_down(where, [rows, right, *later], joins[number + 1 :])
        taken = list(early)
        # A table of its own alias only: the result of the joins before is not in the hint.
        rows = joined(tr, rows, right, join, taken, (None if number else kept[0], kept[number + 1]))
        if ANTI in join.meta:
            rows = tr.filtered(rows, rows.translated(tr.statement, join.meta[ANTI]), join)
        if EXISTS in join.meta:
            rows = replace(rows, columns=tuple(c for c in rows.columns if c.table != join.meta[EXISTS]))
        where = [each for each in where if not any(each is one for one in early) or any(each is one for one in taken)]
    for lateral in select.args.get("laterals") or []:
        rows = with_generated(tr, rows, lateral)
    for condition in where:
        rows = _where(tr, rows, condition)
    items = items_of(tr, select, rows)
    is_over = has_over(items)
    if not is_over and select.args.get("windows"):
        tr.statement.only(select, *(key for key in select.args if key != "windows"))
    if is_grouped(select, items):
        parts = used_names(select, "expressions", "group", "having")
        if parts is not None and rows.span is None and (rows.pseudo or results_change(rows.stream._node)):
            # Rows that can be retracted may have to be kept, so drop unused columns.
            rows = tr.pruned(rows, parts, select)
        if is_over:
            call = next(item.expression.find(exp.Window) for item in items if item.expression.find(exp.Window))
            raise tr.statement.refused(
                call, "OVER together with GROUP BY or an aggregate.", "Group in a subquery and put OVER around it."
            )
        result = grouped(tr, select, rows, items)
    elif rows.span is not None:
        raise tr.statement.refused(
            rows.span.node,
            "the rows of a window function must be grouped.",
            "Write GROUP BY window_start, window_end, or leave out the function.",
        )
    elif is_over:
        used = used_names(select, "expressions", "windows")
        # Rows that change have no place in time.
        time = None if over_changes(select, items, rows) else event_time(tr, rows.stream)
        if used is not None:
            rows = tr.pruned(rows, used | {c.name.lower() for c in rows.columns if c.column.name == time}, select)
        result = with_over(tr, select, rows, items)
    else:
        rows = tr.as_data(rows, [item.expression for item in items], select)
        result = tr.projected(rows, [(i.named(tr), i.translated(tr, rows), i.expression) for i in items])
    if select.args.get("distinct"):
        tr.statement.only(select.args["distinct"])
        result = distinct(tr, result, select.expressions[0])
    return result


def _has_column(tr: Translation, items: Sequence[exp.Expr], tables: Tables, column: exp.Column) -> bool:
    """Whether an item of FROM has a column."""
    return any(_columns_of(tr, item, tables).has(column) for item in items)


def _as_exists(tr: Translation, join: exp.Join, known: Known, is_outer: Callable[[exp.Column], bool]) -> exp.Join:
    """SEMI and ANTI joins as EXISTS; other joins as they are."""
    if not _is_semi(join) or str(join.args.get("side") or "LEFT").upper() != "LEFT":
        return join
    tr.statement.only(join, "this", "on", "side", "kind")
    where = exp.Where(this=join.args["on"].copy()) if join.args.get("on") else None
    query = exp.Select(expressions=[exp.Literal.number(1)], from_=exp.From(this=join.this.copy()), where=where)
    for column in where.find_all(exp.Column) if where else ():
        item = join.this.alias_or_name.lower()
        is_bare = len(column.parts) == 1 or column.parts[0].name.lower() != item
        if is_bare and known(query, column) and is_outer(column):
            raise tr.statement.refused(
                column, f"the column {column.name!r} is ambiguous.", "Write it with the name of its table."
            )
    return exists_join(tr, query, [], known, join, anti=str(join.args["kind"]).upper() == "ANTI")


def _is_semi(join: exp.Join) -> bool:
    return str(join.args.get("kind") or "").upper() in ("SEMI", "ANTI")


def _knows(tr: Translation, query: exp.Select, column: exp.Column, tables: Tables) -> bool:
    """Whether a column belongs to the tables of a query, and not to those of the query around it."""
    source = query.args.get("from_")
    joins = query.args.get("joins") or []
    made = [each.this if isinstance(each, exp.Join) else each for each in query.args.get("laterals") or []]
    made += [each.this for each in joins if is_generator(each)]
    items = [each.this for each in (*([source] if source else []), *joins) if not any(each.this is m for m in made)]
    if len(column.parts) > 1 and column.parts[0].name.lower() in [
        item.alias_or_name.lower() for item in (*items, *made)
    ]:
        return True
    if any(
        column.name.lower() == each.name.lower() for m in made for each in m.args["alias"].args.get("columns") or []
    ):
        return True
    return any(_columns_of(tr, item, tables).has(column) for item in items)


def _columns_of(tr: Translation, item: exp.Expr, tables: Tables) -> Rows:
    """What an item of FROM has, only for its names."""
    if id(item) not in tr.looked_at:
        bounded = _lookup_of(tr, item, tables)
        if bounded is None:
            names = tr.names()
            rows = _table(tr, without_version(item), tables)
            tr.names(names)
        else:
            rows = bounded_columns(tr, bounded, item)
        tr.looked_at[id(item)] = item, rows
    return tr.looked_at[id(item)][1]


def _where(tr: Translation, rows: Rows, condition: exp.Expr) -> Rows:
    translated = rows.translated(tr.statement, condition)
    if rows.span is not None and any(each.meta.get("window") for each in translated.find_all(exp.Column)):
        raise tr.statement.refused(condition, "WHERE on a column of the window.", "Put it into HAVING.")
    if condition.find(exp.Window):
        raise tr.statement.refused(condition, "OVER in WHERE.", "Put the OVER into a subquery.")
    return tr.filtered(rows, translated, condition)


def _table(tr: Translation, node: exp.Expr, tables: Tables) -> Rows:
    """An item of FROM."""
    if isinstance(node, exp.Subquery):
        rows = _query(tr, node, tables)
        if node.args.get("alias"):
            tr.statement.only(node.args["alias"], "this")
        return rows.aliased(node.alias)
    if not isinstance(node, exp.Table):
        raise tr.statement.refused(node, f"{node.key.upper()} in FROM is not supported.", "Name a stream.")
    tr.statement.only(node, "this", "alias")
    alias = node.args.get("alias")
    if alias is not None:
        tr.statement.only(alias, "this")
    call = is_window_function(node)
    if call is not None:
        rows = window_table(tr, call, lambda table: _named(tr, table, tables))
        return rows.aliased(node.alias) if alias is not None else rows
    return _named(tr, node, tables).aliased(node.alias or node.name)


def _lookup_of(tr: Translation, table: exp.Expr, tables: Tables) -> LookupTable | None:
    """The bounded table that a join names."""
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier) or table.name.lower() in tables:
        return None
    return tr.lookups.get(table.name.lower())


def _named(tr: Translation, node: exp.Table, tables: Tables) -> Rows:
    if not isinstance(node.this, exp.Identifier):
        raise tr.statement.refused(
            node, f"the table function {node.this.name or text_of(node.this)} is not supported.", "Name a stream."
        )
    tr.statement.only(node, "this", "alias")
    name = node.name
    if name.lower() in tables:
        query = tables[name.lower()]
        return _query(tr, query, query.meta["tables"]).aliased(name)
    if name.lower() in tr.lookups:
        raise tr.statement.refused(
            node, f"{name} is a bounded table, and no side of a stream.",
            f"Join a stream with it: FROM orders JOIN {name} ON …, or LEFT JOIN.",
        )  # fmt: skip
    if name.lower() not in tr.streams:
        raise tr.statement.refused(node, f"there is no table {name!r}.", f"Given are: {_names(tr, tables)}.")
    given, stream = tr.streams[name.lower()]
    return tr.table(stream, given, node)


def _names(tr: Translation, tables: Tables) -> str:
    names = [*(name for name, _ in tr.streams.values()), *tables]
    return ", ".join(names) or "none; pass streams by name: bs.sql(spark, query, orders=orders)"
