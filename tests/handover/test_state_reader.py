"""The state of a keyed operator, as shown to a user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backlog_spark.handover.state_reader import _shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_columns_of_plans_are_not_shown(spark: SparkSession) -> None:
    picked = "named_struct('user', 'a', 'id', 1, 'a.b', 2) AS __backlog_row"
    state = spark.sql(f"SELECT 'a' AS user, {picked}, 3 AS n, 4 AS __backlog_count")
    shown = _shown(state)
    assert shown.columns == ["user", "id", "a.b", "n"]
    assert [tuple(row) for row in shown.collect()] == [("a", 1, 2, 3)]
