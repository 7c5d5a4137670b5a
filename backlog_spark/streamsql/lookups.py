"""Translates joins with bounded tables: each row is joined as it is processed, without state.

Source: Flink SQL's "Lookup Join".
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from backlog_spark.api.streams import BacklogStream
from backlog_spark.common.sql_names import quoted
from backlog_spark.model.nodes import TransformNode
from backlog_spark.streamsql.joins import check_processing_time, equal_columns, merged_using
from backlog_spark.streamsql.rows import Rows, Visible, column_of, text_of
from backlog_spark.streamsql.translation import Translation, results_change

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backlog_spark.api.lookup import LookupTable

__all__ = ["bounded_columns", "looked_up"]


def bounded_columns(tr: Translation, table: LookupTable, node: exp.Expr) -> Rows:
    """The columns of a bounded table, only for their names."""
    from pyspark.sql import SparkSession

    with tr.statement.at(node):
        names = table.rows(SparkSession.active()).columns
    stream = next(iter(tr.streams.values()))[1]
    return Rows(stream, tuple(Visible(node.alias_or_name, name, column_of(name)) for name in names))


def looked_up(tr: Translation, left: Rows, table: LookupTable, join: exp.Join) -> Rows:
    """The rows of a join of a stream with a bounded table.

    Raises
    ------
    SqlError
        For another join than LEFT and inner, for a time that is not the processing time, and for rows that change.
    """
    tr.statement.only(join, "this", "on", "using", "side", "kind")
    tr.statement.only(join.this, "this", "alias", "version")
    side, kind = (str(join.args.get(key) or "").upper() for key in ("side", "kind"))
    if side not in ("", "LEFT") or kind not in ("", "INNER", "OUTER", "CROSS"):
        raise tr.statement.refused(
            join, f"{' '.join(filter(None, (side, kind)))} JOIN with a bounded table.", "Use LEFT JOIN or JOIN."
        )
    check_processing_time(tr, left, join)
    if left.pseudo or results_change(left.stream._node):
        raise tr.statement.refused(
            join,
            "a join of rows that change with a bounded table: if it is read again, rows cannot be retracted.",
            "Give the table as a stream, such as bs.source(…), and use a JOIN.",
        )
    name, alias = join.this.name, join.this.alias or join.this.name
    if alias.lower() in [each.lower() for each in left.tables]:
        raise tr.statement.refused(join, f"two tables are named {alias!r}.", "Give one another name with AS.")
    prefix = tr.hidden("lookup")
    spark = tr.schemas.frame(left.stream._node).sparkSession
    with tr.statement.at(join, f"the table {name!r}"):
        names = table.rows(spark).columns
    hidden = [f"{prefix}_{number}" for number in range(len(names))]
    right = replace(
        left, columns=tuple(Visible(alias, n, column_of(h)) for n, h in zip(names, hidden, strict=True)), pseudo=()
    )
    both = replace(left, columns=(*left.columns, *right.columns))
    using = join.args.get("using") or []
    conditions = [text_of(both.translated(tr.statement, join.args["on"]))] if join.args.get("on") else []
    conditions += [" = ".join(map(text_of, equal_columns(tr, left, right, each))) for each in using]
    on = " AND ".join(f"({each})" for each in conditions) or "TRUE"
    how = "left" if side else "inner"

    def look_up(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        if frame.isStreaming:  # a run begins
            table.read_again()
        rows = table.rows(frame.sparkSession)
        # By position: a table may have several columns of one name.
        return frame.join(rows.toDF(*hidden), F.expr(on), how)

    node = TransformNode(left.stream._node, look_up, f"look up {quoted(name)} on {on}")
    made = replace(both, stream=BacklogStream(node))
    tr.schema(made.stream, join, "JOIN")
    return merged_using(made, left, right, [each.name for each in using], how)
