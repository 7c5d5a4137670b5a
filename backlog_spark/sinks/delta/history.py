"""Detects in a Delta table's log whether batches that count as written have been removed again.

A sink knows its batches by transaction numbers. These survive RESTORE, REPLACE TABLE and CLONE; the rows do not.
Edits of rows (DELETE, UPDATE, MERGE, an overwrite, OPTIMIZE) are the owner's decision and say nothing about batches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.spark.jvm.delta_log import read_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Commit", "TableState", "commits_back", "parse_commit", "read_commits", "undoing"]

# Any writer's form of JSON. Quotes inside of a file's statistics are escaped.
_ADDS: Final = re.compile(r'"add"\s*:.*"dataChange"\s*:\s*true')

# After a long stop, busy writers may have left thousands of small files, and each takes a round trip.
_READERS: Final = 8


@dataclass(frozen=True)
class TableState:
    """What a sink has to know about a version of its table, read by delta-rs or by Spark.

    Parameters
    ----------
    version : int
        -1 if there is no table.
    batch : int or None
        The newest batch of this query in the table.
    configuration : mapping of str to str
        Table properties.
    schema : str
        JSON of the table's columns, as in its log.
    partition_columns : tuple of str
    """

    version: int
    batch: int | None
    configuration: Mapping[str, str]
    schema: str
    partition_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Commit:
    """One commit of a Delta table.

    Parameters
    ----------
    version : int
        The table version that it created.
    operation : str
        As in ``DESCRIBE HISTORY``; empty if its writer did not record it.
    batch : int or None
        The batch of this query that it wrote.
    restored : int or None
        The version that its content comes from, if that is not the previous one. -1 for a new table in place of the old
        one, and for a RESTORE by time, which does not record the version.
    adds : bool
        Whether it adds files with rows that the table did not have.
    """

    version: int
    operation: str = ""
    batch: int | None = None
    restored: int | None = None
    adds: bool = False


def undoing(commits: Iterable[Commit], base: int) -> Commit | None:
    """The commit that removed rows of this query but kept its transaction numbers.

    Parameters
    ----------
    commits : iterable of Commit
        All commits from some version to the newest one, in any order.
    base : int
        A version up to which everything is known to be correct; -1 if the query had written nothing then.

    Returns
    -------
    Commit or None
        None if the newest version still descends from `base` and from each commit of a batch. So a RESTORE that removed
        only other writers' work is not returned, and a second RESTORE may undo the first.
    """
    newest_first = sorted(commits, key=lambda commit: -commit.version)
    needed = [base, *(commit.version for commit in newest_first if commit.batch is not None)]
    at = newest_first[0].version if newest_first else base
    for commit in newest_first:
        if commit.restored is None or commit.version > at:
            continue
        at = commit.restored
        if any(at < version < commit.version for version in needed):
            return commit
    return None


def parse_commit(version: int, text: str, txn_app_id: str) -> Commit:
    """Parse a commit's file: one action per line."""
    operation, batch, restored, adds = "", None, None, False
    for line in text.splitlines():
        adds = adds or _ADDS.search(line) is not None
        # Most lines are files with their statistics; skip them without parsing.
        if '"commitInfo"' not in line and '"txn"' not in line:
            continue
        action = json.loads(line)
        if (txn := action.get("txn")) and txn["appId"] == txn_app_id:
            batch = int(txn["version"])
        if info := action.get("commitInfo"):
            operation = str(info.get("operation") or "")
            restored = _restored(operation, info.get("operationParameters") or {})
    return Commit(version, operation, batch, restored, adds)


def _restored(operation: str, parameters: dict[str, Any]) -> int | None:
    if operation == "RESTORE":
        version = parameters.get("version")
        return -1 if version is None else int(version)
    return -1 if operation == "CLONE" or "REPLACE TABLE" in operation else None


def read_commits(spark: SparkSession, log_path: Any, versions: Sequence[int], txn_app_id: str) -> list[Commit | None]:
    """Commits of these versions; None where the log no longer has one.

    Parameters
    ----------
    spark : SparkSession
        Any classic session.
    log_path : object
        Hadoop path of the table's ``_delta_log``.
    versions : sequence of int
        In any order; the result has the same order.
    txn_app_id : str
        The query whose batches to look for.
    """

    def read(version: int) -> Commit | None:
        text = read_text(spark, log_path, f"{version:020d}.json")
        return None if text is None else parse_commit(version, text, txn_app_id)

    if len(versions) < _READERS:
        return [read(version) for version in versions]
    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(read, versions))


def commits_back(spark: SparkSession, log_path: Any, newest: int, txn_app_id: str) -> Iterator[Commit]:
    """Commits from the newest to the oldest one in the log, read a few at a time."""
    at, count = newest, 2
    while at >= 0:
        versions = range(at, max(-1, at - count), -1)
        for commit in read_commits(spark, log_path, versions, txn_app_id):
            if commit is None:
                return
            yield commit
        at, count = at - count, min(2 * count, 64 * _READERS)
