"""Looks after an Iceberg table between live batches: merges small files, and removes old snapshots with their files."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from backlog_spark.sinks.iceberg.commits import Changes, commit_compacted, conflicts, delete_files
from backlog_spark.sinks.iceberg.files import TableFiles

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot

    from backlog_spark.sinks.iceberg.marks import IcebergState

__all__ = ["expired", "look_after", "merged_files"]

_log = logging.getLogger(__name__)

# Planning reads all manifests, so it is not done after each batch.
_COMMITS_BETWEEN: Final = 16
_SMALL: Final = 4 << 20
_FEWEST: Final = 16
# The driver reads and writes so much in about a second.
_MOST_BYTES: Final = 64 << 20
# Removing a few snapshots reads as many manifests as removing many.
_FEWEST_SNAPSHOTS: Final = 16


def look_after(state: IcebergState, *, compact: bool, expire_ms: int | None) -> None:
    """Do what is due. Failures are logged: the batch has been written."""
    try:
        if compact and state.version and state.version % _COMMITS_BETWEEN == 0:
            merged_files(state)
        if expire_ms is not None:
            expired(state.table, round(time.time() * 1000) - expire_ms)
    except conflicts():
        pass  # another writer was faster; it is due again later
    except Exception as error:
        # Its text may have an address with credentials.
        _log.warning("Small files or old snapshots of an Iceberg table stay: %s.", type(error).__name__)


def merged_files(state: IcebergState) -> int:
    """Merge small files of each partition. Returns how many files are gone."""
    files = TableFiles.of(state.table)
    small: dict[str, list[FileScanTask]] = defaultdict(list)
    for task in state.table.scan().plan_files():
        is_current = task.file.spec_id == files.metadata.default_spec_id
        if is_current and not task.delete_files and task.file.file_size_in_bytes < _SMALL:
            small[str(task.file.partition)].append(task)
    chosen: list[FileScanTask] = []
    added = []
    size = 0
    for tasks in small.values():
        sizes = itertools.accumulate((task.file.file_size_in_bytes for task in tasks), initial=size)
        tasks = [task for task, before in zip(tasks, sizes, strict=False) if before < _MOST_BYTES]
        if len(tasks) >= _FEWEST:
            size += sum(task.file.file_size_in_bytes for task in tasks)
            added += files.write(pa.concat_tables([files.read(task) for task in tasks]))
            chosen += tasks
    if not chosen:
        return 0
    try:
        commit_compacted(state, Changes(added, [task.file for task in chosen]))
    except conflicts()[0]:
        delete_files(state.table.io, added)
        raise
    return len(chosen) - len(added)


def expired(table: Table, before_ms: int) -> int:
    """Remove snapshots that were made before a time, and the files that no other snapshot has. Returns their number.

    A crash in between leaves files that no snapshot refers to; an engine's removal of orphan files finds them.
    """
    table = table.refresh()
    kept_ids = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [
        each for each in table.metadata.snapshots if each.timestamp_ms < before_ms and each.snapshot_id not in kept_ids
    ]
    if len(old) < _FEWEST_SNAPSHOTS:
        return 0
    gone = {each.snapshot_id for each in old}
    rest = [each for each in table.metadata.snapshots if each.snapshot_id not in gone]
    paths = _only_in(table, old, rest)
    table.maintenance.expire_snapshots().by_ids(sorted(gone)).commit()
    for path in paths:
        with contextlib.suppress(Exception):
            table.io.delete(path)
    return len(old)


def _only_in(table: Table, old: list[Snapshot], rest: list[Snapshot]) -> list[str]:
    """Files that only old snapshots need: data, manifests and their lists."""
    io = table.io
    needed = {manifest.manifest_path: manifest for each in rest for manifest in each.manifests(io)}
    manifests = {manifest.manifest_path: manifest for each in old for manifest in each.manifests(io)}
    unneeded = [manifest for path, manifest in manifests.items() if path not in needed]
    data = {entry.data_file.file_path for each in unneeded for entry in each.fetch_manifest_entry(io)}
    if data:
        for manifest in needed.values():
            data -= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io)}
    return [*data, *(each.manifest_path for each in unneeded), *(each.manifest_list for each in old)]
