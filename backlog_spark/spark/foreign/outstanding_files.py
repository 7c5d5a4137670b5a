"""Counts the files that Spark's file and Delta sources have not read yet. Progress reports do not have this figure.

Reaches for: the statistics of an optimised plan (seen in Spark 4.2; entry "file sizes" of
`backlog_spark.spark.jvm.internals`). Without them the size of each file is read on its own.
"""

from __future__ import annotations

import json
import logging
import re
import time
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.errors import AnalysisException

from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.jvm.internals import is_usable
from backlog_spark.spark.jvm.py4j_helpers import file_size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.decide.reports import ProgressReport, SourceReport

__all__ = ["Outstanding"]

_log = logging.getLogger(__name__)

FIGURES = frozenset({"filesOutstanding", "bytesOutstanding"})
# One look lists the files: some seconds for 100,000 files. At most a tenth of the time is spent on it.
_SHARE = 10
_DELTA_LOG = "_delta_log"
# A look reads one log file per commit. With more commits than this, the total is estimated from the first ones.
_MOST_COMMITS = 200
_DESCRIPTION = re.compile(r"(FileStreamSource|DeltaSource)\[(.*)\]")


class Outstanding:
    """Counts outstanding files, if a rule needs it.

    Parameters
    ----------
    spark : SparkSession
    checkpoint : Checkpoint
        The query's checkpoint.
    needs : frozenset of str
        Names of the figures that the rules need.
    """

    def __init__(self, spark: SparkSession, checkpoint: Checkpoint, needs: frozenset[str]) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._needed = bool(needs & FIGURES)
        self._not_before = 0.0
        self._last: dict[str, float] = {}
        self._unknown: set[str] = set()
        self._snapshots: dict[tuple[str, int], tuple[int, int]] = {}
        self._commits: dict[tuple[str, int], tuple[int, int]] = {}

    def of(self, report: ProgressReport, name: str = "") -> dict[str, float]:
        """The two figures after a batch, perhaps some seconds old; empty if no source has them.

        Never raises if a look fails: a missing figure is no reason to end the query. ``name`` is the name of the
        source, where Spark keeps the logs of sources by name.
        """
        began = time.monotonic()
        if not self._needed or began < self._not_before:
            return self._last
        found: list[tuple[int, int]] = []
        for source in report.sources:
            if not (match := _DESCRIPTION.fullmatch(source.description)):
                continue
            try:
                if match[1] == "FileStreamSource":
                    found.append(self._of_files(match[2], name or str(source.index)))
                else:
                    found.append(self._of_delta(match[2], source))
                self._unknown.discard(source.description)
            except Exception as error:
                if source.description not in self._unknown:
                    _log.warning("The outstanding files of %s could not be counted: %s", source.description, error)
                self._unknown.add(source.description)
        self._last = (
            {"filesOutstanding": float(sum(f for f, _ in found)), "bytesOutstanding": float(sum(b for _, b in found))}
            if found
            else {}
        )
        self._not_before = time.monotonic() + _SHARE * (time.monotonic() - began)
        return self._last

    def _of_files(self, path: str, source: str) -> tuple[int, int]:
        """Listed files minus the files in the source's own log (Spark's ``FileStreamSourceLog``)."""
        try:
            frame = self._spark.read.format("binaryFile").load(path)
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return 0, 0  # all files were read and then moved away
            raise
        files, size = _listing(frame)
        read = {_plain(name) for name in self._read_names(source)}
        left = sum(_plain(name) not in read for name in frame.inputFiles())
        return left, size * left // max(1, files)

    def _read_names(self, source: str) -> list[str]:
        folder = f"sources/{source}"
        logs: dict[int, str] = {}
        compacted = -1
        for name in self._checkpoint.names_in(folder):
            number, _, kind = name.partition(".")
            if number.isdecimal() and kind in ("", "compact"):
                logs[int(number)] = name
                compacted = max(compacted, int(number) if kind else -1)
        read = [logs[n] for n in logs if n >= compacted]
        return [
            json.loads(line)["path"]
            for name in read
            for line in (self._checkpoint.read_file(f"{folder}/{name}") or "").splitlines()[1:]
            if line
        ]

    def _of_delta(self, path: str, source: SourceReport) -> tuple[int, int]:
        """Files of the commits after the offset, and the rest of the snapshot that the source began with."""
        at = source.end_offset
        if at is None:
            return 0, 0
        version, index = int(at["reservoirVersion"]), int(at["index"])
        files = size = 0
        first = version
        if at.get("isStartingVersion"):
            first = version + 1
            of_all = self._snapshot(path, version)
            files = max(0, of_all[0] - max(0, index + 1))
            size = of_all[1] * files // max(1, of_all[0])
        log = Checkpoint(self._spark, path)
        names = (name.partition(".") for name in log.names_in(_DELTA_LOG))
        commits = sorted(n for v, _, kind in names if kind == "json" and v.isdecimal() and (n := int(v)) >= first)
        looked_at = [self._commit(log, path, n) for n in commits[:_MOST_COMMITS]]
        if looked_at:
            scale = len(commits) / len(looked_at)
            files += int(sum(f for f, _ in looked_at) * scale)
            size += int(sum(b for _, b in looked_at) * scale)
            if commits[0] == version:
                files -= min(files, max(0, index + 1))
        return files, size

    def _commit(self, log: Checkpoint, path: str, version: int) -> tuple[int, int]:
        """Files and bytes that a commit added. A commit never changes."""
        found = self._commits.get((path, version))
        if found is None:
            lines = (log.read_file(f"{_DELTA_LOG}/{version:020}.json") or "").splitlines()
            added = [action["add"] for line in lines if line and "add" in (action := json.loads(line))]
            sizes = [int(add["size"]) for add in added if add.get("dataChange", True)]
            found = self._commits[path, version] = len(sizes), sum(sizes)
        return found

    def _snapshot(self, path: str, version: int) -> tuple[int, int]:
        """Files and bytes of one version of a table."""
        found = self._snapshots.get((path, version))
        if found is None:
            frame = self._spark.read.format("delta").option("versionAsOf", version).load(path)
            found = self._snapshots[path, version] = _listing(frame)
        return found


def _plain(name: str) -> str:
    """A path in one canonical form: file:///a%20b and file:/a b are the same."""
    return unquote(re.sub(r"^([a-z][a-z0-9+.-]*):/+", r"\1:/", name))


def _listing(frame: DataFrame) -> tuple[int, int]:
    """Number of a relation's files, and their bytes as Spark's planner estimates them."""
    if not is_usable("file sizes"):
        names = frame.inputFiles()
        return len(names), sum(file_size(frame.sparkSession, name) for name in names)
    size = frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()
    return len(frame.inputFiles()), int(size)
