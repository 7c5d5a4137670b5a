"""Debezium's engine into a topic of Kafka, and a job of Spark's own Kafka source with Delta's MERGE behind it.

The engine sends its envelopes as JSON, without their schemas. Batches that have only rows of the snapshot are
appended, which takes less time than MERGE, but would repeat rows if the engine began its snapshot again. Of other
batches the newest record of each key is merged.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import Window
from pyspark.sql import functions as F

from benchmarks.by_hand import merge
from benchmarks.peers.lake.job import Job
from servers.cache import cache_dir, locked, scratch, sha256_of
from servers.debezium_jars import debezium_jars
from servers.jars import java_executable, spark_kafka_jars
from servers.kafka_jars import kafka_jars
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["prepare"]

_SOURCE = Path(__file__).parents[3] / "tests" / "integration" / "DebeziumToKafka.java"
_TOPIC, _PARTITIONS = "lake.shop.orders", 2
_COLUMNS = (
    "id BIGINT, customer_id INT, status STRING, amount DECIMAL(12,2), discount DOUBLE, quantity INT, note STRING, "
    "ordered_on INT, created_at BIGINT, updated_at STRING"
)
_JSON = f"op STRING, before STRUCT<id BIGINT>, after STRUCT<{_COLUMNS}>"


def prepare() -> Path:
    """The folder with the compiled program of the engine. Only the first call for a source compiles it."""
    folder = cache_dir() / f"debezium-peer-{sha256_of(_SOURCE)[:8]}"
    with locked("debezium-peer"):
        if not folder.is_dir():
            compiler = Path(java_executable()).resolve().with_name("javac")
            with scratch() as work:
                command = [str(compiler), "-nowarn", "-d", str(work / "made"), "-cp", _path(), str(_SOURCE)]
                subprocess.run(command, check=True)
                (work / "made").rename(folder)
    return folder


def _path() -> str:
    lz4 = [jar for jar in kafka_jars() if jar.name.startswith("lz4-java-")]
    return ":".join(map(str, [*debezium_jars(), *lz4]))


@contextlib.contextmanager
def _engine(job: Job) -> Iterator[subprocess.Popen[bytes]]:
    folder = Path(job.folder)
    properties = {
        "name": "lake",
        "topic.prefix": "lake",
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "kafka.bootstrap.servers": job.kafka,
        "kafka.compression.type": "lz4",
        "database.hostname": job.host,
        "database.port": job.port,
        "database.user": job.user,
        "database.password": job.password,
        "database.server.id": 65002,
        "database.ssl.mode": "disabled",
        "driver.allowPublicKeyRetrieval": "true",
        "table.include.list": "shop.orders",
        "snapshot.mode": "initial",
        "include.schema.changes": "false",
        "tombstones.on.delete": "false",
        "decimal.handling.mode": "string",
        # Ten times the defaults, which are for small events.
        "max.batch.size": 20_480,
        "max.queue.size": 81_920,
        "poll.interval.ms": 50,
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": folder / "offsets",
        "offset.flush.interval.ms": 1000,
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": folder / "history",
    }
    (folder / "engine.properties").write_text("\n".join(f"{name}={value}" for name, value in properties.items()))
    command = [java_executable(), "-Xmx2g", "-cp", f"{prepare()}:{_path()}", "DebeziumToKafka"]
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, str(folder / "engine.properties")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def main() -> None:
    job = Job.read()
    over = job.until_end()
    admin = AdminClient({"bootstrap.servers": job.kafka})
    admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)])[_TOPIC].result()
    conf = {"spark.jars": ",".join(map(str, spark_kafka_jars()))}
    spark = local_session("lake benchmark", conf=conf)
    job.ready()
    copied = 0

    def write(batch: DataFrame, batch_id: int) -> None:
        nonlocal copied
        batch.persist()
        rows = batch.count()
        if batch.where("op <> 'r'").isEmpty():
            batch.drop("op", "offset").write.format("delta").mode("append").save(job.target)
            copied += rows
            if copied >= job.rows > copied - rows:
                job.copied()
        else:
            order = Window.partitionBy("id").orderBy(F.col("offset").desc())
            newest = batch.withColumn("rank", F.row_number().over(order)).where("rank = 1").drop("rank", "offset")
            kind = F.when(F.col("op") == "d", "delete").otherwise("update")
            merge(newest.withColumn("_change_type", kind).drop("op"), Path(job.target), "id")
        batch.unpersist()

    options = {"kafka.bootstrap.servers": job.kafka, "subscribe": _TOPIC, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**options).load()
    parsed = records.select(F.from_json(F.col("value").cast("string"), _JSON).alias("event"), "offset")
    rows = (
        parsed.select("event.op", "event.after.*", "offset", F.col("event.before.id").alias("old"))
        .withColumn("id", F.coalesce("id", "old"))
        .withColumn("ordered_on", F.expr("date_add(DATE'1970-01-01', ordered_on)"))
        .withColumn("created_at", F.timestamp_millis("created_at"))
        .withColumn("updated_at", F.col("updated_at").cast("timestamp"))
        .drop("old")
    )
    writer = rows.writeStream.foreachBatch(write).trigger(processingTime="1 second")
    query = writer.option("checkpointLocation", f"{job.folder}/checkpoint").start()
    with _engine(job) as engine:
        while not over.wait(0.5):
            if query.exception() or engine.poll() is not None:
                log = Path(job.folder, "engine.log").read_text()[-3_000:]
                raise RuntimeError(f"the job ended: {query.exception()}; the engine says {log}")
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
