"""Tells from a Delta table's log whether batches that it counts as written have been taken out again.

The transaction numbers by which a sink knows its batches outlive RESTORE, REPLACE TABLE and CLONE, the rows do not.
Edits of rows (DELETE, UPDATE, MERGE, an overwrite, OPTIMIZE) are the owner's business and say nothing about batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.spark.delta_log import read_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Commit", "TableState", "commits_back", "parse_commit", "read_commits", "undoing"]

# After a long stop beside busy writers there may be thousands of small files, each a round trip.
_READERS: Final = 8


@dataclass(frozen=True)
class TableState:
    """What a sink has to know of a version of its table, whoever looked.

    Parameters
    ----------
    version : int
        -1 if there is no table.
    batch : int or None
        The newest batch of the query that the table has.
    configuration : mapping of str to str
        Table properties.
    schema : str
        JSON of the table's columns, as in its log.
    """

    version: int
    batch: int | None
    configuration: Mapping[str, str]
    schema: str


@dataclass(frozen=True)
class Commit:
    """One commit of a Delta table.

    Parameters
    ----------
    version : int
        The table's version that it made.
    operation : str
        As in ``DESCRIBE HISTORY``; empty if its writer has not said.
    batch : int or None
        The batch of our query that it wrote.
    restored : int or None
        The version that its content comes from, if that is not the one before: -1 for a table that takes the place of
        the old one, and for a RESTORE by time, which does not tell the version.
    """

    version: int
    operation: str = ""
    batch: int | None = None
    restored: int | None = None


def undoing(commits: Iterable[Commit], base: int) -> Commit | None:
    """The commit by which rows of ours have left the table without a trace in its transaction numbers.

    Parameters
    ----------
    commits : iterable of Commit
        All commits from some version on to the newest, in any order.
    base : int
        Up to this version all is known to be well; -1 if the query had written nothing then.

    Returns
    -------
    Commit or None
        None if the newest version still descends from `base` and from each commit of a batch. So a RESTORE that took
        out other writers' work alone is none of ours, and one may be undone by another.
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
    """A commit's file: one action a line."""
    operation, batch, restored = "", None, None
    for line in text.splitlines():
        # Most lines are files, with their statistics.
        if '"commitInfo"' not in line and '"txn"' not in line:
            continue
        action = json.loads(line)
        if (txn := action.get("txn")) and txn["appId"] == txn_app_id:
            batch = int(txn["version"])
        if info := action.get("commitInfo"):
            operation = str(info.get("operation") or "")
            restored = _restored(operation, info.get("operationParameters") or {})
    return Commit(version, operation, batch, restored)


def _restored(operation: str, parameters: dict[str, Any]) -> int | None:
    if operation == "RESTORE":
        told = parameters.get("version")
        return -1 if told is None else int(told)
    return -1 if operation == "CLONE" or "REPLACE TABLE" in operation else None


def read_commits(spark: SparkSession, log_path: Any, versions: Sequence[int], txn_app_id: str) -> list[Commit | None]:
    """Commits of these versions; None where the log has none any more.

    Parameters
    ----------
    spark : SparkSession
        Any classic session.
    log_path : object
        Hadoop's path of the table's ``_delta_log``.
    versions : sequence of int
        In any order, which the result has too.
    txn_app_id : str
        Whose batches to look for.
    """

    def read(version: int) -> Commit | None:
        text = read_text(spark, log_path, f"{version:020d}.json")
        return None if text is None else parse_commit(version, text, txn_app_id)

    if len(versions) < _READERS:
        return [read(version) for version in versions]
    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(read, versions))


def commits_back(spark: SparkSession, log_path: Any, newest: int, txn_app_id: str) -> Iterator[Commit]:
    """Commits from the newest back to the oldest that the log has, read a few at a time."""
    at, count = newest, 2
    while at >= 0:
        versions = range(at, max(-1, at - count), -1)
        for commit in read_commits(spark, log_path, versions, txn_app_id):
            if commit is None:
                return
            yield commit
        at, count = at - count, min(2 * count, 64 * _READERS)
