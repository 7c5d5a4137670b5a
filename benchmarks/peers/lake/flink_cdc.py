"""Flink CDC into an upsert topic of Kafka, in one JVM. The topic stands for the table: the newest record of a key."""

from __future__ import annotations

import subprocess
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.peers.lake.job import Job
from servers.cache import cache_dir, locked, scratch, sha256_of
from servers.flink_cdc_jars import flink_cdc_class_path
from servers.jars import java_executable

__all__ = ["PARTITIONS", "TOPIC", "prepare"]

TOPIC, PARTITIONS = "orders", 2
_SOURCE = Path(__file__).with_name("FlinkCdc.java")
_OPENED = ("java.lang", "java.util", "java.time", "java.math")


def prepare() -> Path:
    """The folder with the compiled program. Only the first call for a source compiles it."""
    folder = cache_dir() / f"flink-cdc-peer-{sha256_of(_SOURCE)[:8]}"
    with locked("flink-cdc-peer"):
        if not folder.is_dir():
            compiler = Path(java_executable()).resolve().with_name("javac")
            with scratch() as work:
                command = [str(compiler), "-nowarn", "-d", str(work / "made"), "-cp", _path(), str(_SOURCE)]
                subprocess.run(command, check=True)
                (work / "made").rename(folder)
    return folder


def _path() -> str:
    return ":".join(map(str, flink_cdc_class_path()))


def main() -> None:
    job = Job.read()
    over = job.until_end()
    topic = NewTopic(TOPIC, PARTITIONS, 1, config={"message.timestamp.type": "LogAppendTime"})
    admin = AdminClient({"bootstrap.servers": job.kafka})
    admin.create_topics([topic])[TOPIC].result()
    properties = {
        "host": job.host, "port": job.port, "user": job.user, "kafka": job.kafka, "topic": TOPIC,
        "checkpoints": f"file://{job.folder}/checkpoints",
    }  # fmt: skip
    path = Path(job.folder) / "flink.properties"
    path.write_text("\n".join(f"{name}={value}" for name, value in properties.items()))
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    command = [java_executable(), "-Xmx4g", *opened, "-cp", f"{prepare()}:{_path()}", "FlinkCdc", str(path)]
    job.ready()
    consumer = Consumer({"bootstrap.servers": job.kafka, "group.id": "ends", "log_level": 0})
    copied = False
    with (Path(job.folder) / "flink.log").open("wb") as log:
        flink = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while not over.wait(0.5):
                if flink.poll() is not None:
                    raise RuntimeError(f"Flink ended: {Path(log.name).read_text()[-3_000:]}")
                ends = [consumer.get_watermark_offsets(TopicPartition(TOPIC, at))[1] for at in range(PARTITIONS)]
                if not copied and sum(ends) >= job.rows:
                    job.copied()
                    copied = True
        finally:
            flink.kill()
            flink.wait()


if __name__ == "__main__":
    main()
