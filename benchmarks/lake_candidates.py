"""The candidates of the lake benchmark: how each one's program is started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.lake_target import DeltaTarget, Target
from benchmarks.peers.lake.job import Job
from servers.cache import cache_dir, locked
from servers.debezium_jars import DEBEZIUM_VERSION
from servers.flink_cdc_jars import FLINK_CDC_VERSION
from servers.kafka import KafkaServer

__all__ = ["CANDIDATES", "Candidate"]

_ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Candidate:
    """One way to copy the table.

    Parameters
    ----------
    title, about : str
        For the page: a few words, and a sentence or two.
    program : str
        Module of `benchmarks.peers.lake`.
    versions : callable
        Returns the versions of its parts, as text.
    sees_deletes : bool
        If False, its target is compared without the deleted rows.
    python : callable
        Path of its interpreter. Prepares what the program needs.
    broker : callable, optional
        A broker that the candidate needs. It is a server: its time is apart.
    target : callable
        What it writes.
    environment : mapping of str to str
    """

    title: str
    about: str
    program: str
    versions: Callable[[], str]
    sees_deletes: bool = True
    python: Callable[[], str] = lambda: sys.executable
    broker: Callable[[], KafkaServer] | None = None
    target: Callable[[Job], Target] = lambda job: DeltaTarget(Path(job.target))
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, job: Path) -> Sequence[str]:
        """The command line of a run."""
        return [self.python(), "-m", f"benchmarks.peers.lake.{self.program}", str(job)]


def _versions(*packages: str) -> Callable[[], str]:
    return lambda: ", ".join(f"{name} {version(name)}" for name in packages)


def _dlt_python() -> str:
    """The interpreter of an environment with dlt, whose packages this project's environment need not have."""
    folder = cache_dir() / f"dlt-{_DLT['dlt']}"
    with locked("dlt"):
        if not (folder / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            packages = [f"{name}=={number}" for name, number in _DLT.items()]
            subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages], check=True)
            (folder / "complete").touch()
    return str(folder / "bin" / "python")


def _flink_python() -> str:
    from benchmarks.peers.lake.flink_cdc import prepare

    prepare()  # before the clock runs
    return sys.executable


def _topic(job: Job) -> Target:
    from benchmarks.lake_topic import TopicTarget
    from benchmarks.peers.lake.flink_cdc import PARTITIONS, TOPIC

    return TopicTarget(job.kafka, TOPIC, PARTITIONS, job.rows * 2, Path(job.folder))


def _debezium_python() -> str:
    from benchmarks.peers.lake.debezium_spark import prepare

    prepare()  # before the clock runs
    return sys.executable


_PATH = {"PYTHONPATH": str(_ROOT)}
_DLT = {
    "dlt": "1.31.0", "deltalake": "1.6.6", "pyarrow": "26.0.1", "SQLAlchemy": "2.1.9", "PyMySQL": "1.2.4",
    "connectorx": "0.4.6",
}  # fmt: skip

CANDIDATES: Final[Mapping[str, Candidate]] = {
    "ours": Candidate(
        "`mysql_cdc`, `DeltaUpsert`",
        """`bs.source("mysql_cdc")` into `bs.DeltaUpsert`, with an interval during backlog of 0, and of 1 second after
        it.""",
        "ours",
        _versions("backlog-spark", "pyspark", "deltalake"),
        environment=_PATH,
    ),
    "spark_jdbc": Candidate(
        "Spark JDBC, MERGE by hand",
        """Spark's JDBC reader with 8 partitions into a new Delta table. Then, a second after the last time, it reads
        the rows with a newer `updated_at` and calls Delta's MERGE. It does not see deleted rows: its target is compared
        without them.""",
        "spark_jdbc",
        _versions("pyspark", "delta-spark"),
        sees_deletes=False,
        environment=_PATH,
    ),
    "debezium_spark": Candidate(
        "Debezium, Kafka, Spark",
        """Debezium's embedded engine sends JSON, compressed by LZ4, to a topic with two partitions. A job of
        Spark's own Kafka source appends batches of snapshot rows to a Delta table, and merges other batches by key. The
        broker counts as a server.""",
        "debezium_spark",
        lambda: f"debezium-connector-mysql {DEBEZIUM_VERSION}, Kafka {KafkaServer.version}, {_versions('pyspark')()}",
        python=_debezium_python,
        broker=KafkaServer,
        environment=_PATH,
    ),
    "dlt": Candidate(
        "dlt",
        """dlt's source of SQL tables, by ConnectorX, into Delta on its file system destination. The first load is
        appended. Then, a second after the last time, the rows with a newer `updated_at` are merged. It does not see
        deleted rows: its target is compared without them.""",
        "dlt_job",
        lambda: ", ".join(f"{name} {number}" for name, number in _DLT.items()),
        sees_deletes=False,
        python=_dlt_python,
        target=lambda job: DeltaTarget(Path(job.folder) / "lake" / "shop" / "orders"),
        environment={**_PATH, "RUNTIME__DLTHUB_TELEMETRY": "false", "RUNTIME__LOG_LEVEL": "CRITICAL"},
    ),
    "flink_cdc": Candidate(
        "Flink CDC into Kafka",
        """Flink CDC in a cluster of one process, with parallelism 2, a checkpoint each second, chunks of 50,000 rows
        and polls each 5 ms, into an upsert topic of JSON. The topic stands for the table: the newest record of a key is
        its row. It writes no Parquet. The newest Flink CDC in the registry does not run on Flink 2. The broker counts
        as a server.""",
        "flink_cdc",
        lambda: f"Flink CDC {FLINK_CDC_VERSION}, Kafka {KafkaServer.version}",
        python=_flink_python,
        broker=KafkaServer,
        target=_topic,
        environment=_PATH,
    ),
}
"""By name, in the order of the page."""
