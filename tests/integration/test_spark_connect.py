"""Spark Connect: the sources run in a real server; what needs a classic session says so."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.jars import delta_jars
from servers.launch import launch
from servers.mysql import MySQLServer
from servers.server import free_port
from tests.docs.blocks import python_blocks

ROOT = Path(__file__).parents[2]
LIMIT_S = 180
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server, which has this package."""
    import pyspark

    port, log = free_port(), tmp_path_factory.mktemp("connect") / "log"
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": log.parent / "warehouse",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": 2,
    }
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--class", SERVER, "--master", "local[2]", "--jars", ",".join(map(str, delta_jars()))),
        *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
    ]
    mine = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    with log.open("wb") as out:
        process = launch(command, os.environ | mine, out)
    try:
        limit = time.monotonic() + LIMIT_S
        while not _answers(port):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < limit, log.read_text()[-3000:]
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


JOB = """
    import json, sys
    import pymysql
    from pyspark.sql import SparkSession

    example, merging, folder, port = sys.argv[1:]
    names = {}
    exec(example, names)
    spark, options, query = names["spark"], names["options"], names["query"]
    query.processAllAvailable()
    query.stop()
    exec(merging, names)
    names["merged"].processAllAvailable()
    server = pymysql.connect(host="127.0.0.1", port=int(port), user="root", autocommit=True)
    for statement in (
        "UPDATE connect.t SET v = 'uno' WHERE id = 1",
        "INSERT INTO connect.t VALUES (3, 'three'), (4, 'four')",
        "UPDATE connect.t SET v = 'ein' WHERE id = 1",
        "DELETE FROM connect.t WHERE id IN (2, 3)",
    ):
        server.cursor().execute(statement)
    names["merged"].processAllAvailable()
    names["merged"].stop()

    def run(stream, name, kind):
        out = stream.writeStream.format(kind).option("checkpointLocation", f"{folder}/c-{name}")
        query = out.trigger(availableNow=True).start(f"{folder}/{name}")
        assert query.awaitTermination(150)
        return sorted(tuple(row)[:2] for row in spark.read.format(kind).load(f"{folder}/{name}").collect())

    spark.range(3).selectExpr("id", "id * 2 AS n").write.parquet(f"{folder}/old")
    files = spark.readStream.format("hybrid").option("phases", "files").option("metadataLocation", f"{folder}/m")
    found = {
        "files": run(files.load(f"{folder}/old"), "files", "parquet"),
        "table": sorted(tuple(r)[:2] for r in spark.read.format("delta").load(f"{folder}/orders").collect()),
        "newest": sorted(map(tuple, spark.read.format("delta").load(f"{folder}/newest").collect())),
    }

    import backlog_spark as bs

    frame = spark.readStream.format("rate").load()
    write = bs.source("mysql_cdc", name="t", options=options).write("t").option("checkpointLocation", f"{folder}/c")
    write = write.to(bs.DeltaAppend(f"{folder}/no"))
    built = []
    calls = {
        "register": lambda: bs.register(spark),
        "start": lambda: write.start(),
        "start(spark)": lambda: write.start(spark),
        "stream": lambda: bs.stream(frame),
        "explain": lambda: bs.explain(bs.source("rate", name="r"), spark=spark),
        "sql": lambda: bs.sql(spark, "SELECT id FROM t", t=bs.source("mysql_cdc", name="t", options=options)),
        "backlog_query": lambda: bs.backlog_query(built.append, checkpoint=f"{folder}/c", spark=spark),
        "backlog_query()": lambda: bs.backlog_query(built.append, checkpoint=f"{folder}/c"),
        "hybrid": lambda: bs.hybrid(spark, "h", phases={"a": built.append, "b": built.append}),
    }
    refused = {}
    for name, call in calls.items():
        try:
            call()
        except bs.BacklogError as error:
            refused[name] = str(error)
    assert not built
    print(json.dumps({"found": found, "refused": refused, "calls": list(calls)}))
    spark.stop()
"""


@pytest.mark.grid
def test_sources_run_and_the_rest_is_refused(server: str, mysql: MySQLServer, tmp_path: Path) -> None:
    mysql.execute("CREATE DATABASE connect")
    mysql.execute("CREATE TABLE connect.t (id INT PRIMARY KEY, v VARCHAR(10))")
    mysql.execute("INSERT INTO connect.t VALUES (1, 'one'), (2, 'two')")
    example, merging = python_blocks(ROOT / "docs" / "spark_versions.md")
    for old, new in (
        ("sc://server:15002", server),
        ('"host": "db"', f'"host": "127.0.0.1", "port": "{mysql.port}"'),
        ('"user": "reader", "passwordFile": "/etc/backlog/mysql-password"', '"user": "root"'),
        ("shop.orders", "connect.t"),
        ("/lake/", f"{tmp_path}/"),
        ("query.awaitTermination()", ""),
    ):
        assert old in example
        example = example.replace(old, new)
    merging = merging.replace("/lake/", f"{tmp_path}/")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(JOB), example, merging, str(tmp_path), str(mysql.port)],
        capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["found"] == {
        "files": [[0, 0], [1, 2], [2, 4]],
        "table": [[1, "one"], [2, "two"]],
        "newest": [[1, "ein"], [4, "four"]],
    }
    assert list(result["refused"]) == result["calls"]
    for name, text in result["refused"].items():
        what = "DataFrame" if name == "stream" else "SparkSession"
        assert text.startswith(f"This is a {what} of Spark Connect. backlog_spark needs a classic session"), name
        assert "\n" not in text
    assert not (tmp_path / "c").exists()
    assert not (tmp_path / "no").exists()
