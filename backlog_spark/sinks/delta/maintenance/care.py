"""Maintains a Delta table that receives small commits: merges small files, writes checkpoints, cleans up the log.

Without maintenance each commit adds a file, and the time of a commit grows with the number of files: from 8 ms with
25 files to over 100 ms after an hour of one commit per second. A query that reads the table has to open thousands of
files.

deltalake's ``optimize.compact`` is not used. It commits with retries, and does not notice that another OPTIMIZE
removed the same files meanwhile: every row would then be in the table twice (deltalake 1.6.6). A merge here is
committed at exactly the version after the one that was read, or not at all.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from backlog_spark.sinks.delta.maintenance.file_merger import FileMerger, OldCalendar
from backlog_spark.sinks.delta.maintenance.small_files import TARGET_SIZE, DataFile, TimeShare, merges

__all__ = ["Care", "TableCare"]

_log = logging.getLogger(__name__)

_TARGET_SIZE: Final = "delta.targetFileSize"
_CHECKPOINT_INTERVAL: Final = "delta.checkpointInterval"
_CLEAN_UP: Final = "delta.enableExpiredLogCleanup"
# Delta's default.
_CHECKPOINT_EVERY: Final = 10

# Maximum share of the driver's time. A merge of 64 MB takes about a second; the next one starts ten seconds later.
_SHARE: Final = 0.1
# Reading the list of files takes 20 microseconds per file.
_LOOK_EVERY: Final = 8
# A clean-up lists the whole log.
_CLEAN_UP_EVERY_S: Final = 600.0
# Pause after an error other than a conflict, for example when the storage is unreachable.
_REST_S: Final = 60.0

# deltalake may return a path decoded. These characters are the same encoded and decoded, so the path to remove equals
# the path in the log.
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_.=-]+(/[A-Za-z0-9_.=-]+)*")
_READER_FEATURES: Final = frozenset({"timestampNtz"})
# How many commits of other writers a merge follows before it gives up.
_TRIES: Final = 5
_NOTE: Final = "backlog_spark merged small files"
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@dataclass(frozen=True)
class Care:
    """What maintenance did for a table between two batches.

    Parameters
    ----------
    files, into : int
        How many small files were merged, and into how many files.
    size : int
        Bytes of the small files.
    version : int or None
        The table version that the merge created.
    checkpoint : int or None
        The version for which a checkpoint was written.
    seconds : float
        Duration of all steps.
    problem : str
        Why a step was postponed; empty if none was.
    """

    files: int = 0
    into: int = 0
    size: int = 0
    version: int | None = None
    checkpoint: int | None = None
    seconds: float = 0.0
    problem: str = ""


class TableCare:
    """Maintains one table on behalf of the query that writes to it; see the module.

    Parameters
    ----------
    storage_options : mapping of str to str, optional
        deltalake's options for the table's storage.
    compact : bool, default True
        Merge small files. If False, only write checkpoints and clean up the log.
    clock : callable, optional
        Returns seconds that never decrease.
    """

    def __init__(
        self,
        storage_options: Mapping[str, str] | None = None,
        *,
        compact: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage_options = dict(storage_options or {})
        self._compact = compact
        self._clock = clock
        self._share = TimeShare(_SHARE)
        self._batches = 0
        self._more = False  # the last call left files to merge for the next
        self._left: set[str] = set()
        self._checkpointed: int | None = None
        self._cleaned_at: float | None = None
        self._resting_until: float | None = None

    def after_batch(self, table: DeltaTable, *, merge: bool = True) -> Care | None:
        """Do what is due, within the time budget. Called once after each committed batch of the sink.

        The committing thread calls this, so it never runs during a commit of the query. It never changes the rows. An
        error is logged and reported in the result, as the batch is already in the table.

        Parameters
        ----------
        table : deltalake.DeltaTable
            At any version. Afterwards it is at the newest version that was read. deltalake must be allowed to write to
            it.
        merge : bool, default True
            Whether small files may be merged now.

        Returns
        -------
        Care or None
            None if nothing was due.
        """
        self._batches += 1
        began = self._clock()
        if not self._share.allows(began) or (self._resting_until is not None and began < self._resting_until):
            return None
        looks = merge and self._compact and (self._more or self._batches >= _LOOK_EVERY)
        merged = checkpoint = None
        problem = ""
        try:
            properties = {name: value for name, value in table.metadata().configuration.items() if value}
            checkpoint = self._checkpoint(table, properties, began)
            if looks:
                self._batches = 0
                merged = self._merge(table, properties)
            if checkpoint is None and not looks:
                return None
        except CommitFailedError:
            problem = "another writer was faster"
            _log.info("Merging small files of %s is postponed: %s", table.table_uri, problem)
        except Exception as error:
            problem = type(error).__name__
            if not self._storage_options:  # the error's text may contain them, with their secrets
                problem += f": {error}"
            self._resting_until = self._clock() + _REST_S
            _log.warning("Maintenance of the table at %s pauses for %d s: %s", table.table_uri, _REST_S, problem)
        ended = self._clock()
        self._share.spent(began, ended)
        done = merged or Care()
        if not (problem or done.files or checkpoint is not None):
            return None
        return Care(done.files, done.into, done.size, done.version, checkpoint, ended - began, problem)

    def _checkpoint(self, table: DeltaTable, properties: Mapping[str, str], now: float) -> int | None:
        """Write a checkpoint when `interval` versions have followed the last one, as Delta's other writers do."""
        interval = _number(properties, _CHECKPOINT_INTERVAL, _CHECKPOINT_EVERY)
        version = table.version()
        if self._checkpointed is None:
            # The first checkpoint of a run may come early: the version of the last one is unknown.
            self._checkpointed = version - version % interval
        if version // interval <= self._checkpointed // interval:
            return None
        table.create_checkpoint()
        _drop_checksum(table.table_uri)
        self._checkpointed = version
        if properties.get(_CLEAN_UP, "true").lower() == "true" and (
            self._cleaned_at is None or now >= self._cleaned_at + _CLEAN_UP_EVERY_S
        ):
            # Keeps what `delta.logRetentionDuration` demands, and all commits after the checkpoint that this range
            # needs.
            table.cleanup_metadata()
            self._cleaned_at = now
        return version

    def _merge(self, table: DeltaTable, properties: Mapping[str, str]) -> Care | None:
        self._more = False
        table.update_incremental()
        protocol = table.protocol()
        # Deletion vectors and mapped columns need a reader that supports them.
        if protocol.min_reader_version not in (1, 3) or set(protocol.reader_features or ()) - _READER_FEATURES:
            return None
        added = pa.table(table.get_add_actions())
        target_size = _number(properties, _TARGET_SIZE, TARGET_SIZE)
        due = merges((file for file in _files(added) if file.path not in self._left), target_size)
        if not due:
            return None
        writer = FileMerger(table, self._storage_options, added, properties)
        try:
            actions = [action for group in due for action in writer.merge(group)]
        except OldCalendar as found:
            self._left.add(found.args[0])
            self._more = True
            return None
        _commit(table, actions)
        table.update_incremental()
        self._more = True
        files = [file for group in due for file in group]
        return Care(len(files), len(due), sum(file.size for file in files), table.version())


def _drop_checksum(uri: str) -> None:
    """Remove Hadoop's checksum file of ``_last_checkpoint`` in a local table, after deltalake has rewritten that file.

    With a wrong checksum Spark treats ``_last_checkpoint`` as corrupt, and lists and reads the whole log.
    """
    url = urlparse(uri)
    if url.scheme == "file":
        Path(unquote(url.path), "_delta_log", "._last_checkpoint.crc").unlink(missing_ok=True)


def _commit(table: DeltaTable, actions: Sequence[AddAction | RemoveAction]) -> None:
    """Commit at the next version. After other writers' commits, commit only if the files to remove still exist.

    Raises
    ------
    CommitFailedError
        Nothing was committed.
    """
    removed = {action.path for action in actions if isinstance(action, RemoveAction)}
    seen = _declared(table)
    for again in range(_TRIES - 1, -1, -1):
        try:
            table.create_write_transaction(
                list(actions),
                "append",
                table.schema(),
                table.metadata().partition_columns,
                commit_properties=CommitProperties(custom_metadata={"userMetadata": _NOTE}, max_commit_retries=0),
                post_commithook_properties=_NO_HOOKS,
            )
        except CommitFailedError:
            table.update_incremental()
            live = set(pa.table(table.get_add_actions())["path"].to_pylist())
            if not again or not removed <= live or _declared(table) != seen:
                raise
        else:
            return


def _declared(table: DeltaTable) -> tuple[Any, ...]:
    protocol = table.protocol()
    features = (tuple(protocol.reader_features or ()), tuple(protocol.writer_features or ()))
    return table.metadata(), table.schema(), protocol.min_reader_version, protocol.min_writer_version, features


def _files(added: pa.Table) -> list[DataFile]:
    """The files whose paths and partitions can be written exactly as in the log, oldest first."""
    names = ["path", "size_bytes", "modification_time", *({"partition"} & set(added.column_names))]
    found = sorted(added.select(names).to_pylist(), key=lambda row: row["modification_time"])
    files = []
    for row in found:
        partition = tuple((row.get("partition") or {}).items())
        if _PLAIN_PATH.fullmatch(row["path"]) and all(map(_is_plain, (value for _, value in partition))):
            files.append(DataFile(row["path"], row["size_bytes"], partition))
    return files


def _is_plain(value: Any) -> bool:
    return value is None or (isinstance(value, int | str | date) and not isinstance(value, datetime) and value != "")


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    try:
        return max(1, int(properties.get(name, default)))
    except ValueError:  # for example "64mb", which Databricks accepts
        return default
