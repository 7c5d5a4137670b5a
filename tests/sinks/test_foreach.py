"""The sink `ForeachSink`: a function gets each batch, and again after a failure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.errors import SettingError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_function_gets_each_batch_and_again_after_a_failure(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given, seen = tmp_path / "in", []
    given.mkdir()
    for number in range(2):
        (given / f"{number}.json").write_text(f'{{"id": {number}}}\n')

    def take(batch_df: DataFrame, batch: Any) -> None:
        seen.append((batch.batch_id, [row.id for row in batch_df.collect()]))
        if len(seen) == 2:
            raise RuntimeError("once")

    frame = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).json(str(given))
    writer = bs.stream(frame).write("each").trigger(available_now=True)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).to(bs.ForeachSink(take)).start(spark)
    assert query.awaitTermination(300)
    assert [number for number, _ in seen] == [0, 1, 1]
    assert seen[1] == seen[2]
    assert sorted(seen[0][1] + seen[1][1]) == [0, 1]
    assert "ForeachSink(take) writes at least once" in caplog.text


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (3, r"ForeachSink fn = 3: is int 3, not a function|ForeachSink fn = 3"),
        (lambda: None, r"ForeachSink fn = '<lambda>': cannot be called: too many.*Give a function of two parameters"),
        (lambda a, b, c: None, r"cannot be called: missing a required argument: 'c'"),
    ],
)
def test_what_is_no_such_function(fn: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        bs.ForeachSink(fn)


def test_what_it_is_called() -> None:
    assert repr(bs.ForeachSink(print)) == "ForeachSink(print)"
    assert bs.ForeachSink(print).described() == {"kind": "ForeachSink"}
