"""Offsets of sources whose servers are gone: real ones, with what the servers said when they were made."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import backlog_spark as bs
from servers.kafka import KafkaServer
from servers.mysql import MySQLServer
from tests.integration.topics import Topic

__all__ = ["made"]

_TABLE = "upgrades.orders"
_LIMIT_S = 120


def made(spark: Any, place: Path) -> dict[str, Any]:
    """Run queries of `mysql_cdc` and of `hybrid` with Kafka. Returns offsets and facts by name.

    Parameters
    ----------
    spark : SparkSession
    place : Path
        For checkpoints and targets.
    """
    found: dict[str, Any] = {}
    with MySQLServer(fast=True) as server:
        found |= _of_mysql(spark, server, place)
    with KafkaServer() as broker:
        found |= _of_kafka(spark, broker, place)
    return found


def _of_mysql(spark: Any, server: MySQLServer, place: Path) -> dict[str, Any]:
    server.execute("CREATE DATABASE upgrades")
    server.execute(
        f"CREATE TABLE {_TABLE} (id BIGINT PRIMARY KEY, name VARCHAR(20) NOT NULL, amount DECIMAL(10,2), "
        "at TIMESTAMP(3) NULL, kind ENUM('a','b'))"
    )
    rows = ",".join(f"({n},'n{n}',{n}.25,'2026-01-01 00:00:00','a')" for n in range(400))
    server.execute(f"INSERT INTO {_TABLE} VALUES {rows}")
    options = {
        "host": "127.0.0.1", "port": server.port, "user": "root", "table": _TABLE, "chunkSize": 20,
        "maxRowsPerBatch": 40,
    }  # fmt: skip
    stream = bs.source("mysql_cdc", name="orders", options=options)
    target, checkpoint = str(place / "mysql target"), place / "mysql"

    def start() -> Any:
        writer = stream.write("orders").to(bs.DeltaUpsert(target, keys=["id"]))
        writer = writer.option("checkpointLocation", str(checkpoint))
        return writer.trigger(processing_time="100 ms", interval_during_backlog="1 second").start(spark)

    query = start()
    _until(lambda: len(_offsets(checkpoint)) > 2, query)
    query.stop()
    ((uuid,),) = server.execute("SELECT @@server_uuid")
    facts = {"server": uuid, "table": _TABLE, "columns": ["id", "name", "amount", "at", "kind"], "total": 400}
    found = {"mysql_cdc in a snapshot": {"offset": _newest(checkpoint), "facts": facts}}
    query = start()
    query.processAllAvailable()
    server.execute(f"UPDATE {_TABLE} SET amount = 1 WHERE id = 7")
    server.execute(f"DELETE FROM {_TABLE} WHERE id = 8")
    query.processAllAvailable()
    query.stop()
    ((gtids,),) = server.execute("SELECT @@global.gtid_executed")
    file, position = server.binlog_end()
    live = {**facts, "gtids": gtids.replace("\n", ""), "file": file, "position": position}
    return found | {"mysql_cdc live": {"offset": _newest(checkpoint), "facts": live}}


def _of_kafka(spark: Any, broker: KafkaServer, place: Path) -> dict[str, Any]:
    topic = Topic(broker, "upgrades", 2)
    topic.send({"k": n} for n in range(50))
    (place / "history").mkdir(parents=True)
    (place / "history" / "0.json").write_text("".join(f'{{"k": {n}}}\n' for n in range(30)))
    options = {
        "schema": "k LONG", "path": str(place / "history"), "fileFormat": "json", "valueFormat": "json",
        "kafka.bootstrap.servers": broker.address(), "subscribe": "upgrades", "startingOffsets": "earliest",
    }  # fmt: skip
    checkpoint = place / "kafka"
    writer = bs.source("hybrid", name="events", options=options).write("events")
    writer = writer.to(bs.DeltaAppend(str(place / "kafka target"))).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processing_time="100 ms", interval_during_backlog="1 second").start(spark)
    query.processAllAvailable()
    topic.send({"k": n} for n in range(10))
    query.processAllAvailable()
    query.stop()
    facts = {"topic": "upgrades", "records": 60, "rows": 90}
    return {"hybrid in Kafka": {"offset": _newest(checkpoint), "facts": facts}}


def _offsets(checkpoint: Path) -> list[int]:
    return sorted(int(path.name) for path in (checkpoint / "offsets").glob("*") if path.name.isdigit())


def _newest(checkpoint: Path) -> str:
    """A source's offset, as Spark keeps it."""
    return (checkpoint / "offsets" / str(_offsets(checkpoint)[-1])).read_text().splitlines()[2]


def _until(condition: Any, query: Any) -> None:
    limit = time.monotonic() + _LIMIT_S
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < limit
        time.sleep(0.01)
