"""Rows as functions are given them."""

from __future__ import annotations

import pytest

from backlog_spark.model.changes import CHANGE_TYPE, DELETE, INSERT
from backlog_spark.operators.row_types import row_type


def test_rows_have_every_column_under_its_name() -> None:
    names = ("id", CHANGE_TYPE, "_commit_seq", "a b", "_fields", "_0", "class")
    made = row_type(names)
    row = made(7, INSERT, 3, "x", "y", "z", "c")
    assert (row.id, row._change_type, row._commit_seq, row._3, row._4, row._0) == (7, INSERT, 3, "x", "y", "z")
    assert made._fields == ("id", CHANGE_TYPE, "_commit_seq", "_3", "_4", "_0", "class")
    assert row._asdict() == dict(zip(made._fields, row, strict=True))
    assert row._replace(_change_type=DELETE, _3="w") == (7, DELETE, 3, "w", "y", "z", "c")
    assert repr(row).startswith("Row(id=7, _change_type='insert', ")
    with pytest.raises(ValueError, match="unexpected field names"):
        row._replace(other=1)
    # As Spark names the columns of plain tuples.
    assert row_type(("_1", "_2"))(1, 2)._1 == 1
