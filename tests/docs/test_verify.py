"""The examples of docs/verify.md run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from tests.verify.jobs import create, run_to_the_end, source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

PAGE = (Path(__file__).parents[2] / "docs" / "verify.md").read_text()
_START, COMPARE, ELSEWHERE, REPAIR = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_shows_a_result_as_it_is_printed() -> None:
    found = bs.Verification(
        ("shop.orders",), "file:/lake/orders", 1842, 1790, "binlog.000007:8812", 1_000_000, 999_999,
        missing=1, different=1, differences=(
            bs.Difference("missing", {"id": 17}), bs.Difference("different", {"id": 1204}, ("amount", "state")),
        ),
    )  # fmt: skip
    assert re.findall(r"```text\n(.*?)\n```", PAGE, re.DOTALL) == [str(found)]


@pytest.mark.slow
def test_the_examples_find_and_repair_a_difference(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(mysql, "orders", 20)
    orders = source(mysql, "verify.orders")
    (tmp_path / "_checkpoints").mkdir()
    sink = bs.DeltaUpsert(f"{tmp_path}/orders", keys=["id"])
    query = run_to_the_end(orders, tmp_path, sink, spark)
    names: dict[str, Any] = {"bs": bs, "query": query, "orders": orders}
    exec(COMPARE, names)
    assert "equal: verify.orders" in capsys.readouterr().out
    spark.sql(f"DELETE FROM delta.`{tmp_path}/orders` WHERE id = 17")
    spark.sql(f"UPDATE delta.`{tmp_path}/orders` SET v = 'other' WHERE id = 3")
    with pytest.raises(bs.TargetDiffers):
        exec(COMPARE, names)
    told = capsys.readouterr().out
    assert told.startswith("1 missing, 1 different: verify.orders")
    assert told.splitlines()[1:] == ["  different id=3: v", "  missing id=17"]
    elsewhere = ELSEWHERE.replace("/lake/_checkpoints/orders", f"{tmp_path}/checkpoint")
    exec(elsewhere.replace("/lake", str(tmp_path)), names)
    assert names["result"].count == 2
    exec(REPAIR, names)
    assert names["result"].repaired == 2
    exec(COMPARE, names)
    rows = spark.read.format("delta").load(f"{tmp_path}/orders").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(i, float(i), f"s{i}") for i in range(20)]
