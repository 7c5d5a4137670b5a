"""A row that a constraint of a database's table rejects is named, whichever road its batch takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backlog_spark.errors import RejectedRowError
from backlog_spark.sinks.rejected_rows import named

from .targets import LIVE, STAGED, Target, batch, changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = {
    "NOT NULL": "id bigint PRIMARY KEY, name varchar(20) NOT NULL",
    "CHECK": "id bigint PRIMARY KEY, name varchar(20), CONSTRAINT not_odd CHECK (name <> '50%' AND name <> 'odd')",
    "length": "id bigint PRIMARY KEY, name varchar(3)",
}
WRONG = {"NOT NULL": None, "CHECK": "50%", "length": "long"}


@pytest.mark.parametrize(
    ("what", "road"), [("NOT NULL", STAGED), ("CHECK", LIVE), ("length", STAGED), ("length", LIVE)]
)
def test_the_row_is_named(spark: SparkSession, target: Target, what: str, road: bool) -> None:
    if what == "CHECK" and target.scheme == "mysql":
        what = "length"  # this version of MySQL ignores CHECK
    target.run(f"CREATE TABLE t ({COLUMNS[what]})")
    sink, wrong = target.opened(spark), WRONG[what]
    sink.write(changes(spark, (1, "a", "insert", 1), (7, "b", "insert", 1)), batch(0, road))
    rows = changes(spark, (2, "b", "insert", 3), (7, wrong, "update_postimage", 4), (1, None, "delete", 5))
    with pytest.raises(RejectedRowError, match=r"id = 7\b") as caught, named(sink, "t", rows):
        sink.write(rows, batch(1, road))
    assert {"NOT NULL": "name", "CHECK": "not_odd", "length": "3 characters"}[what] in str(caught.value)
    assert target.rows() == {(1, "a"): 1, (7, "b"): 1}, "the batch is written whole or not at all"
    assert not [name for name in target.tables() if "stage" in name]
    target.run("DELETE FROM t WHERE id = 7")
    fine = changes(spark, (2, "b", "insert", 3), (7, wrong, "delete", 4), (1, None, "delete", 5))
    sink.write(fine, batch(1, road))
    assert target.rows() == {(2, "b"): 1}
