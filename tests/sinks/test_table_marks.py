"""Notes of the tables that a query has begun: one of each table, whatever its name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.begun_tables import TableMark, TableMarks
from backlog_spark.spark.checkpoint.store import CheckpointStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_each_table_has_one(spark: SparkSession, tmp_path: Path) -> None:
    marks = TableMarks(CheckpointStore(spark, str(tmp_path / "query")))
    tables = [
        ("a.b", "c"),
        ("a", "b.c"),
        ("a", "b"),
        ("a", ".."),
        ("größe", "x/y"),
        ("a%2Eb", "c"),
        ("A", "B"),
        ("A" * 64, "b" * 64),
        ("a" * 64, "B" * 64),
    ]
    noted = [marks.note(TableMark(*names, f"/lake/{number}", number)) for number, names in enumerate(tables)]
    noted[0] = marks.note(TableMark(*tables[0], "/lake/0", 0, key=("id", "n")))
    assert sorted(marks, key=lambda mark: mark.batch) == noted
    files = [file.name for file in tmp_path.rglob("*.json")]
    assert len({name.lower() for name in files}) == len(tables)  # a disk may ignore case
    assert max(map(len, files)) <= 255 - 50
    assert list(TableMarks(CheckpointStore(spark, str(tmp_path / "another query")))) == []


@pytest.mark.parametrize("content", ["", "[]", '{"database": "a"'])
def test_a_damaged_one_is_refused_by_its_name(spark: SparkSession, tmp_path: Path, content: str) -> None:
    marks = TableMarks(CheckpointStore(spark, str(tmp_path / "query")))
    marks.note(TableMark("a", "b", "/lake/b", 0))
    (file,) = tmp_path.rglob("a.b.json")
    for each in file.parent.iterdir():
        each.unlink()  # the checksum too
    file.write_text(content)
    with pytest.raises(BacklogError, match=r"query/tables/a\.b\.json is not a JSON object"):
        list(marks)
