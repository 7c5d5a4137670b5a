"""The candidates of the lake benchmark: how each one's program is started."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final

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
    target : str
        The Delta table in the job's folder.
    environment : mapping of str to str
    """

    title: str
    about: str
    program: str
    versions: Callable[[], str]
    sees_deletes: bool = True
    python: Callable[[], str] = lambda: sys.executable
    broker: Callable[[], KafkaServer] | None = None
    target: str = "orders"
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, job: Path) -> Sequence[str]:
        """The command line of a run."""
        return [self.python(), "-m", f"benchmarks.peers.lake.{self.program}", str(job)]


def _versions(*packages: str) -> Callable[[], str]:
    return lambda: ", ".join(f"{name} {version(name)}" for name in packages)


_PATH = {"PYTHONPATH": str(_ROOT)}

CANDIDATES: Final[Mapping[str, Candidate]] = {
    "ours": Candidate(
        "`mysql_cdc`, `DeltaUpsert`",
        "`bs.source(\"mysql_cdc\")` into `bs.DeltaUpsert`, with an interval during backlog of 0 and of 1 second after it.",
        "ours",
        _versions("backlog-spark", "pyspark", "deltalake"),
        environment=_PATH,
    ),
    "spark_jdbc": Candidate(
        "Spark JDBC, MERGE by hand",
        "Spark's JDBC reader with 8 partitions into a new Delta table. Then, a second after the last time, the rows with "
        "a newer `updated_at` and Delta's MERGE. It does not see deleted rows: the targets are compared without them.",
        "spark_jdbc",
        _versions("pyspark", "delta-spark"),
        sees_deletes=False,
        environment=_PATH,
    ),
}  # fmt: skip
