"""The sinks `Print` and `BlackHole`."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.errors import SettingError
from backlog_spark.sinks import BatchInfo, BlackHole, Print, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def written(sink: Any, frame: DataFrame, batch: int = 0) -> None:
    sink.open(SinkContext(frame.sparkSession, "app", frame.schema, key_is_unique_in_backlog=False))
    sink.write(frame, BatchInfo(batch, is_backlog=False))


def test_rows_and_changes_are_printed_as_in_flink(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(1, "a", "insert"), (1, "a", "update_preimage"), (1, None, "update_postimage"), (1, None, "delete"),
            (None, None, "truncate")]  # fmt: skip
    frame = spark.createDataFrame(rows, "id INT, `na``m.e` STRING, _change_type STRING").coalesce(1)
    written(Print(), frame)
    assert capsys.readouterr().out.splitlines() == [
        "+I[1, a]", "-U[1, a]", "+U[1, null]", "-D[1, null]", "truncate[null, null]"
    ]  # fmt: skip
    written(Print("x", standard_error=True), frame.limit(1))
    assert capsys.readouterr() == ("", "x> +I[1, a]\n")


def test_values_are_printed_as_in_java(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = (
        "a BOOLEAN, b DECIMAL(20, 2), c DATE, d TIMESTAMP_NTZ, e BINARY, f ARRAY<INT>, g STRUCT<x: INT, y: STRING>, "
        "h MAP<STRING, INT>"
    )
    row = (
        True, Decimal("100000000000.50"), date(2024, 1, 2), datetime(2024, 1, 2, 3, 4, 5, 600), bytearray(b"\x01\xff"),
        [1, None], (1, "b"), {"k": 1},
    )  # fmt: skip
    written(Print(), spark.createDataFrame([row], kinds))
    assert capsys.readouterr().out == (
        "+I[true, 100000000000.50, 2024-01-02, 2024-01-02T03:04:05.000600, [1, 255], [1, null], +I[1, b], {k=1}]\n"
    )


def test_a_batch_is_printed_whole_and_once(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """A batch that fails prints nothing. One that is repeated in the process is not printed again."""
    sink = Print().for_output()
    frame = spark.range(4).coalesce(1)
    with pytest.raises(Exception, match="broken"):
        written(sink, frame.selectExpr("IF(id = 3, raise_error('broken'), id) AS id"))
    assert capsys.readouterr().out == ""
    written(sink, frame)
    written(sink, frame)
    written(sink, frame, 1)
    assert capsys.readouterr().out == "+I[0]\n+I[1]\n+I[2]\n+I[3]\n" * 2
    written(sink.for_output(), frame.limit(0), 2)
    assert capsys.readouterr().out == ""


def test_a_black_hole_computes_every_row_once(spark: SparkSession) -> None:
    count = spark.sparkContext.accumulator(0)

    def counted(batches: Any) -> Any:
        for batch in batches:
            count.add(batch.num_rows)
            yield batch

    frame = spark.range(10).mapInArrow(counted, "id LONG")
    written(BlackHole(), frame)
    assert count.value == 10
    written(Print(), frame)
    assert count.value == 20


def test_arguments_have_their_names_in_files_too() -> None:
    assert Print(standardError=True)._standard_error  # type: ignore[call-arg]
    with pytest.raises(SettingError, match="there is no such argument"):
        Print(identifer="x")  # type: ignore[call-arg]
