"""The examples of docs/history.md run, and a pipeline's file takes the same arguments."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.pipelines.building import sink_of
from backlog_spark.pipelines.document import PipelineError
from backlog_spark.pipelines.parsing import parse

from .blocks import ROOT, python_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer


@pytest.mark.slow
def test_versions_of_a_server_s_table(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    mysql.execute("DROP DATABASE IF EXISTS history")
    mysql.execute("CREATE DATABASE history")
    mysql.execute("CREATE TABLE history.orders (id INT PRIMARY KEY, state VARCHAR(10))")
    mysql.execute("INSERT INTO history.orders VALUES (1, 'new'), (2, 'new')")
    copy, read, marked = python_blocks(ROOT / "docs" / "history.md")
    given = re.search(r'host="db",\s+user="reader",\s+passwordFile="[\w/-]+"', copy)
    assert given
    code = copy.replace(given[0], f'host="127.0.0.1", port={mysql.port}, user="root"').replace("/lake", str(tmp_path))
    names: dict[str, Any] = {"spark": spark}
    exec(code, names)
    query = names["query"]
    try:
        limit = time.monotonic() + 300
        while query.isProcessingBacklog or query.backlogProgress.last_write is None:
            assert time.monotonic() < limit
            time.sleep(0.1)
        mysql.execute("UPDATE history.orders SET state = 'paid' WHERE id = 1")
        mysql.execute("DELETE FROM history.orders WHERE id = 2")
        query.processAllAvailable()
        assert query.backlogProgress.last_write.writer == "direct"
    finally:
        query.stop()
    exec(read.replace("/lake", str(tmp_path)), names)
    rows = {(row["id"], row["state"], row["valid_to"] is None) for row in names["history"].collect()}
    assert rows == {(1, "new", False), (1, "paid", True), (2, "new", False)}
    assert [tuple(row)[:2] for row in names["now"].collect()] == [(1, "paid")]
    assert [tuple(row)[:2] for row in names["then"].collect()] == [(1, "paid")]
    exec(marked.replace("/lake", str(tmp_path)), names)
    assert names["marked"].form.noted() == {"deletes": "soft", "deleted_column": "_is_deleted"}


@pytest.mark.parametrize(
    ("kind", "more"),
    [("delta_upsert", "  keys: [id]\n  trackHistoryColumns: [state]\n  commitTime: at\n"), ("delta_tables", "")],
)
def test_the_same_arguments_in_a_file(tmp_path: Path, kind: str, more: str) -> None:
    table = "tables" if kind == "delta_tables" else "table"
    text = (
        f"source:\n  type: mysql_cdc\n  host: db\n  user: reader\n  {table}: shop.orders\n"
        f"sink:\n  type: {kind}\n  path: /lake/orders\n  history: scd2\n  validFrom: since\n{more}"
        f"pipeline:\n  name: p\n  checkpoint: {tmp_path}\n"
    )
    pipeline = parse(text, "p.yaml", {})
    made: Any = sink_of(pipeline, next(pipeline.outputs()))
    noted = {"history": "scd2", "version_columns": "since, valid_to, is_current"}
    assert noted.items() <= made.described().items()
    with pytest.raises(PipelineError, match=r"p.yaml:\d+:\d+: .*deletes"):
        parse(text.replace("history: scd2", "deletes: hide"), "p.yaml", {})
