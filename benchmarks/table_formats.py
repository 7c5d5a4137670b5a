"""Delta and Iceberg tables of the benchmarks: the upsert sink by ``id``, the commits with their times, and the rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import backlog_spark as bs
from examples.freshness import Commit, read_log

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DELTA", "ICEBERG", "TableFormat"]

_TABLE: Final = "shop.t"


@dataclass(frozen=True)
class TableFormat:
    """A kind of table in a folder of its own.

    Parameters
    ----------
    upsert : callable
        Takes the folder, and returns a sink that keeps the newest row of each ``id``.
    commits : callable
        All commits of the table, oldest first, with the files that each one added.
    rows : callable
        The table's rows.
    """

    upsert: Callable[[str], bs.Sink]
    commits: Callable[[Path], list[Commit]]
    rows: Callable[[SparkSession, Path], DataFrame]


def _delta_rows(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.format("delta").load(str(folder))


def _iceberg_upsert(folder: str) -> bs.Sink:
    # By default only the newest 100 files with metadata stay. Their times are those of the commits.
    kept = {"write.metadata.previous-versions-max": "100000"}
    return bs.IcebergUpsert(_TABLE, keys=["id"], catalog={"warehouse": folder}, properties=kept)


def _iceberg(folder: Path) -> Table:
    from pyiceberg.catalog import load_catalog

    return load_catalog("default", type="sql", uri=f"sqlite:///{folder}/catalog.db").load_table(_TABLE)


def _iceberg_commits(folder: Path) -> list[Commit]:
    from pyiceberg.manifest import ManifestEntryStatus

    table = _iceberg(folder)
    # A snapshot's own time is from before its files with metadata were written.
    written: dict[int, float] = {}
    for name in (*(entry.metadata_file for entry in table.metadata.metadata_log), table.metadata_location):
        file = Path(name.removeprefix("file://"))
        written.setdefault(json.loads(file.read_text()).get("current-snapshot-id"), file.stat().st_mtime)
    found = []
    for snapshot in table.metadata.snapshots:
        manifests = [m for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id]
        entries = [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]
        added = [entry.data_file.file_path for entry in entries if entry.status == ManifestEntryStatus.ADDED]
        files = [{"path": path.removeprefix("file://")} for path in added]
        found.append(Commit(written[snapshot.snapshot_id], files))
    return found


def _iceberg_rows(spark: SparkSession, folder: Path) -> DataFrame:
    # Without delete files, which the sink never writes, the rows are those of the data files.
    return spark.read.parquet(*(task.file.file_path for task in _iceberg(folder).scan().plan_files()))


DELTA: Final = TableFormat(lambda folder: bs.DeltaUpsert(folder, keys=["id"]), read_log, _delta_rows)
ICEBERG: Final = TableFormat(_iceberg_upsert, _iceberg_commits, _iceberg_rows)
