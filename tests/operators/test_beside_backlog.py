"""Live rows of one source while another one is in backlog: one interval holds for the whole query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import backlog_spark as bs

from .conftest import Collect, wait
from .scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of which none ends within this test, however long that takes.
NEVER_OVER = "10000 days"


def rows(*values: str) -> pa.Table:
    return pa.table({"v": list(values)})


@pytest.mark.parametrize("during", ["0", NEVER_OVER])
def test_live_rows_wait_for_the_backlog_of_another_source(spark: SparkSession, tmp_path: Path, during: str) -> None:
    append(tmp_path / "old", rows("old 1"), backlog=True)
    append(tmp_path / "live", rows("live 1"), backlog=False)
    old, live = (bs.source("scripted", name=n, path=tmp_path / n, partitions=1) for n in ("old", "live"))
    sink = Collect()
    query = (
        old.union(live)
        .write("beside")
        .trigger(processing_time="100 ms", interval_during_backlog=during)
        .option("checkpointLocation", str(tmp_path / "c"))
        .to(sink)
        .start(spark)
    )

    def seen() -> list[set[str]]:
        return [{row.v for row in sink.batches[n]} for n in sorted(sink.batches) if sink.batches[n]]

    try:
        wait(lambda: bool(seen()), query)
        append(tmp_path / "live", rows("live 2"), backlog=False)
        # What is in backlog is never made to wait, and comes without what was there before it.
        append(tmp_path / "old", rows("old 2"), backlog=True)
        wait(lambda: len(seen()) == 2, query)
        append(tmp_path / "old", rows("old 3"), backlog=False)
        wait(lambda: sum(map(len, seen())) == 5, query)
    finally:
        query.stop()
    before = [{"old 1"}, {"old 2"}] if during == "0" else [{"old 1", "live 1"}, {"old 2"}]
    assert seen()[:2] == before
    assert set.union(*seen()[2:]) == {"old 3", "live 2", *({"live 1"} if during == "0" else ())}
