"""The source of docs/sources.md is the one of examples/, and works."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import DataSourceStreamReader

import backlog_spark as bs
from backlog_spark.spi import SourceInfo, registry
from examples import lines_source
from examples.lines_source import LinesDataSource, LinesReader, inspect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sources.md").read_text()
SOURCE, USE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
__all__ = ["UnlimitedDataSource", "inspect"]


class UnlimitedReader(DataSourceStreamReader):
    """A reader without a read limit: it returns everything, backlog or not."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._reader = LinesReader(options)

    def initialOffset(self) -> dict[str, Any]:
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        return self._reader._offset(self._reader._there(), 0, was_backlog=True)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        return self._reader.partitions(start, end)

    def read(self, partition: Any) -> Any:
        return self._reader.read(partition)


class UnlimitedDataSource(LinesDataSource):
    @classmethod
    def name(cls) -> str:
        return "unlimited_lines"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return UnlimitedReader(dict(self.options))


@pytest.fixture(autouse=True)
def _connectors() -> Iterator[None]:
    before = dict(registry.CONNECTORS)
    yield
    registry.CONNECTORS.clear()
    registry.CONNECTORS.update(before)


def test_the_page_has_the_example() -> None:
    assert (ROOT / "examples" / "lines_source.py").read_text() == SOURCE
    assert {field.name for field in fields(SourceInfo)} <= set(re.findall(r"^\| `(\w+)`", PAGE, re.MULTILINE))


def test_a_wrong_path_is_reported_at_once(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(bs.SettingError, match="there is no such file"):
        started(spark, tmp_path)


def started(spark: SparkSession, root: Path) -> bs.BacklogQuery:
    names: dict[str, Any] = {"spark": spark}
    block = (
        USE.replace("/lake/", f"{root}/")
        .replace("/var/log/", f"{root}/")
        .replace("lines_source", "examples.lines_source")
    )
    exec(block.replace("1 second", "100 ms"), names)
    query: bs.BacklogQuery = names["levels"]
    return query


def wait(query: bs.BacklogQuery, rows: int) -> None:
    limit = time.monotonic() + 300
    while query.backlogProgress.rows < rows:
        assert query.isActive, query.exception()
        assert time.monotonic() < limit, query.backlogProgress
        time.sleep(0.1)
    query.processAllAvailable()


@pytest.mark.slow
def test_it_works(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "app.log"
    lines = [f"{'WARN' if n % 10 else 'ERROR'} number {n}" for n in range(25_000)]
    # Half a line is no line.
    file.write_text("\n".join(lines) + "\nINFO ha")
    query = started(spark, tmp_path)
    try:
        wait(query, 25_000)
        assert (query.backlogProgress.backlog_rows, query.backlogProgress.commits_in_backlog) == (25_000, 1)
    finally:
        query.stop()
    with file.open("a") as more:
        more.write("lf\nWARN again\n")
    query = started(spark, tmp_path)
    try:
        wait(query, 2)
        assert (query.backlogProgress.backlog_rows, query.isProcessingBacklog) == (0, False)
    finally:
        query.stop()
    assert query.exception() is None
    expected = Counter(line.split()[0] for line in lines) + Counter(["INFO", "WARN"])
    found = spark.read.format("delta").load(f"{tmp_path}/levels").select("level", "count").collect()
    assert dict(map(tuple, found)) == expected


@pytest.mark.parametrize("keyed", [pytest.param(True, marks=pytest.mark.grid), False])
def test_a_source_without_read_limits_is_warned_of(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, keyed: bool
) -> None:
    registry.add_connector("unlimited_lines", __name__, "UnlimitedDataSource")
    (tmp_path / "app.log").write_text("WARN a\n" * 100)
    stream = bs.source("unlimited_lines", name="log", path=tmp_path / "app.log")
    writer = (stream.key_by("line").count() if keyed else stream).write("q").trigger(interval_during_backlog=0)
    writer = writer.option("checkpointLocation", str(tmp_path / "c"))
    with caplog.at_level(logging.WARNING, logger="backlog_spark.runner.query_progress"):
        query = writer.to(bs.DeltaAppend(str(tmp_path / "t"))).start(spark)
        try:
            wait(query, 100)
        finally:
            query.stop()
    (message,) = [record.getMessage() for record in caplog.records if "read limit" in record.getMessage()]
    assert message.startswith("Query q: batch 0 began in the backlog of source log and ended after it")
    assert lines_source.inspect({"path": str(tmp_path / "app.log")}).starts_in_backlog
