"""A pipeline on the checkpoint or the target of another one is refused, by its start and by ``check``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.parsing import load
from backlog_spark.pipelines.running import session_for, start, wait
from tests.pipelines.test_commands import findings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

OF_CHECKPOINT = "the checkpoint was made with"


@pytest.mark.slow
def test_other_settings_on_a_checkpoint(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    file, root = tmp_path / "p.yaml", tmp_path / "lake"

    def write(
        table: str = "orders", sink: str = "delta_upsert", keys: str = ", keys: [id]", at: str = "t", **pipeline: str
    ) -> Path:
        given = {"name": "resumed", "checkpoint": f"{root}/c", "interval": "100 ms", "availableNow": "true", **pipeline}
        file.write_text(f"""\
source: {{type: mysql_cdc, host: 127.0.0.1, port: {mysql.port}, user: root, table: resumed.{table}}}
sink: {{type: {sink}, path: "{root}/{at}"{keys}}}
pipeline: {json.dumps(given)}
""")
        return file

    def run() -> None:
        pipeline = load(str(file), {})
        assert wait(start(pipeline, session_for(pipeline)))

    def rows() -> list[tuple[int, ...]]:
        return sorted(tuple(row) for row in spark.read.format("delta").load(f"{root}/t").collect())

    for statement in (
        "DROP DATABASE IF EXISTS resumed",
        "CREATE DATABASE resumed",
        "CREATE TABLE resumed.orders (id INT PRIMARY KEY, customer INT, amount INT)",
        "CREATE TABLE resumed.others LIKE resumed.orders",
        "CREATE TABLE resumed.customers (id INT PRIMARY KEY, name VARCHAR(20))",
        "INSERT INTO resumed.orders VALUES (1, 3, 1), (2, 3, 2), (3, 3, 3), (4, 1, 4)",
        "INSERT INTO resumed.others VALUES (9, 9, 9)",
    ):
        mysql.execute(statement)
    write()
    run()
    expected = [(1, 3, 1), (2, 3, 2), (3, 3, 3), (4, 1, 4)]
    assert rows() == expected
    mysql.execute("UPDATE resumed.orders SET amount = 20 WHERE id = 2")
    mysql.execute("DELETE FROM resumed.orders WHERE id = 3")
    for now, told in (
        ({"keys": ", keys: [customer]"}, f"DeltaUpsert keys = ['customer']: {OF_CHECKPOINT} ['id']"),
        ({"table": "others"}, "table = 'resumed.others': the checkpoint is of resumed.orders (server "),
        ({"table": "customers"}, "table = 'resumed.customers': the checkpoint is of resumed.orders (server "),
    ):
        found = findings(write(**now))
        assert any(told in each for each in found["error"]), found
        with pytest.raises(BacklogError) as refused:
            run()
        assert told in str(refused.value)
    assert any(OF_CHECKPOINT in each for each in findings(write(at="elsewhere"))["error"])
    with pytest.raises(BacklogError, match=f"DeltaUpsert path = .*elsewhere': {OF_CHECKPOINT}"):
        run()
    assert not (root / "elsewhere").exists()
    # Another checkpoint, whose query would update the table by other columns.
    write(keys=", keys: [customer]", checkpoint=f"{root}/c2")
    with pytest.raises(BacklogError, match=r"keys = \['customer'\]: the Delta table at .* keys id\. "):
        run()
    assert rows() == expected
    # An older version has recorded nothing. The next start does.
    (layout,) = (root / "c" / "backlog").glob("sources-*.json")
    kept = json.loads(layout.read_text())
    query = kept.pop("query")
    layout.write_text(json.dumps(kept))
    layout.with_name(f".{layout.name}.crc").unlink(missing_ok=True)
    assert "error" not in findings(write(name="another", interval="1 s"))
    run()
    assert rows() == [(1, 3, 1), (2, 3, 20), (4, 1, 4)]
    (layout,) = (root / "c" / "backlog").glob("sources-*.json")
    assert json.loads(layout.read_text())["query"] == query
    # A lake that was moved as a whole.
    (root / "t").rename(root / "moved")
    write(at="moved")
    run()
    (layout,) = (root / "c" / "backlog").glob("sources-*.json")
    assert json.loads(layout.read_text())["query"]["sinks"][""]["path"].endswith("/moved")
