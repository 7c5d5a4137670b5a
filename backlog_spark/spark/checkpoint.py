"""Reads Spark's offset and commit logs of a checkpoint, and keeps our own small metadata next to them.

All access goes through `backlog_spark.spark.checkpoint_files`: a file is either complete or absent.

Reaches for: Hadoop's public classes, and the text of Spark's offset and commit logs (formats 1 and 2, seen in Spark
4.2). Another format is refused.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spark.checkpoint_files import files_of
from backlog_spark.spark.py4j_helpers import hadoop_conf, java_class, qualified
from backlog_spark.spi import offset_flags
from backlog_spark.spi.offset_flags import parse_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Checkpoint", "check_is_no_pattern", "offset_lines"]

_IDENTITY = "identity"
_REPLACING = "replacing"
# Spark's OffsetSeqLog: a source without an offset in this batch.
_NO_OFFSET = "-"
_BATCHES_KNOWN = 3
# Special characters of Hadoop's path patterns.
_PATTERN = "*?[{\\"


class Checkpoint:
    """A streaming query's checkpoint, read from the driver.

    Each call reads the present state. Only the offsets of the newest batches are cached: an entry of that log never
    changes. A read costs a few py4j calls and one small file. Call it once a batch or once a start.

    Parameters
    ----------
    spark : SparkSession
        Any classic (not Connect) session; its Hadoop configuration is used.
    location : str
        The ``checkpointLocation`` of the query. It need not exist yet.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        # py4j is untyped: a JVM proxy accepts any name.
        self._path_class: Any = java_class(spark, "org.apache.hadoop.fs.Path")
        self._conf: Any = hadoop_conf(spark)
        self._root = qualified(spark, location)
        self._files = files_of(spark, self._root)
        self._lines: dict[int, dict[str, str | None]] = {}

    def offsets(self, batch_id: int) -> list[dict[str, Any] | None] | None:
        """The end offsets of a batch, from Spark's offset log: one per source in plan order. Named sources: any order.

        Parameters
        ----------
        batch_id : int
            The micro-batch, from 0. Its entry is written before the batch runs.

        Returns
        -------
        list of (dict or None), or None
            None if the log has no such batch (not planned yet, or purged: Spark keeps the last 100 by
            default). A source's entry is None when it has no offset yet or when its offset is not a JSON
            object; the last ones without an offset may be missing.

        Raises
        ------
        BacklogError
            If the entry is not in one of Spark's text formats, versions 1 and 2.
        """
        lines = self._offset_lines(batch_id)
        if lines is None:
            return None
        if not all(name.isdecimal() for name in lines):
            return [parse_offset(line) for line in lines.values()]
        count = max(map(int, lines), default=-1) + 1
        return [parse_offset(lines.get(str(index))) for index in range(count)]

    def latest_batch(self) -> int | None:
        """Newest planned batch: the last entry of the offset log, perhaps not committed. None before the first."""
        return max(self._ids("offsets"), default=None)

    def latest_committed(self) -> int | None:
        """Newest batch in the commit log; None before the first commit."""
        return max(self._ids("commits"), default=None)

    def is_backlog(self, batch_id: int) -> bool:
        """RecordAttributes of a batch: whether any of its rows is a backlog record.

        Called in ``foreachBatch``, where the batch's offsets are already logged, so a replay gets the same
        answer. A source counts if its offset changed in this batch and was in backlog at the batch's *start*
        offset; in a source's first batch, which has no start offset, ``isBacklog`` of its end offset decides.

        Raises
        ------
        BacklogError
            If the offset log has no such batch.
        """
        starts, ends = self._ends_of(batch_id)
        return any(_is_backlog(starts.get(source), end) for source, end in ends.items())

    def has_table_events(self, batch_id: int) -> bool:
        """Whether a batch may have rows of type ``truncate`` or ``drop``, as its sources say. As `is_backlog`."""
        starts, ends = self._ends_of(batch_id)
        return any(
            offset_flags.has_table_events(parse_offset(end))
            for source, end in ends.items()
            if end != starts.get(source)
        )

    def _ends_of(self, batch_id: int) -> tuple[dict[str, str | None], dict[str, str | None]]:
        """The offsets at a batch's start and end, by source."""
        ends = self._offset_lines(batch_id)
        if ends is None:
            raise BacklogError(
                f"The offset log of {self.location} has no batch {batch_id} (newest: {self.latest_batch()}).",
                "Ask only for a batch that Spark has planned, with the checkpointLocation of that query.",
            )
        return (self._offset_lines(batch_id - 1) if batch_id > 0 else None) or {}, ends

    def in_backlog(self) -> bool | None:
        """Whether any running source was in backlog at the newest planned batch's end.

        Returns
        -------
        bool or None
            None before the first batch. A source that is finished does not count.
        """
        newest = self.latest_batch()
        offsets = None if newest is None else self.offsets(newest)
        if offsets is None:
            return None
        return any(map(offset_flags.is_processing_backlog, offsets))

    def identity(self) -> str:
        """A UUID that belongs to this checkpoint for ever. Sinks use it as their transaction id.

        Called before every start. The first call creates ``<checkpoint>/backlog/identity.json``. If several processes
        call it at once, one creates the file and all return its UUID.

        Returns
        -------
        str
            The UUID in its canonical form.

        Raises
        ------
        BacklogError
            If the file is missing although the checkpoint has an offset log. With a new identity sinks would take a
            replayed batch for a new one, and write it twice. Also if the file is not ours.
        """
        found = self.read_metadata(_IDENTITY)
        if found is None:
            newest = self.latest_batch()
            if newest is not None:
                raise BacklogError(
                    f"{self._path_of(_IDENTITY)} is missing, but the checkpoint has batches up to {newest}: "
                    "it was made by a plain Spark query, or the file was deleted.",
                    "Restore the file, or start on a new checkpointLocation. A new identity on an old "
                    "checkpoint would write the replayed batch twice.",
                )
            self.write_metadata(_IDENTITY, {"version": 1, "id": str(uuid.uuid4())})
            found = self.read_metadata(_IDENTITY)
        try:
            if found is None:
                raise ValueError("vanished")
            return str(uuid.UUID(found["id"]))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise BacklogError(
                f"{self._path_of(_IDENTITY)} contains no identity: {found!r}.", "Restore the file from a backup."
            ) from error

    def read_metadata(self, name: str) -> dict[str, Any] | None:
        """Read ``<checkpoint>/backlog/<name>.json``.

        Returns
        -------
        dict or None
            None if there is no such file.

        Raises
        ------
        BacklogError
            If the file is not a JSON object.
        """
        text = self._read(self._path_of(name))
        if text is None:
            return None
        value = parse_offset(text)
        if value is None:
            raise BacklogError(f"{self._path_of(name)} is not a JSON object: {text[:80]!r}.", "Restore the file.")
        return value

    def write_metadata(self, name: str, value: dict[str, Any]) -> bool:
        """Write ``<checkpoint>/backlog/<name>.json`` atomically: readers see the whole file or none.

        Parameters
        ----------
        name : str
            File name without ``.json``.
        value : dict
            A small JSON object: it goes through py4j.

        Returns
        -------
        bool
            True if the file now has this value. False if the file existed, or another driver created it at the same
            moment.
        """
        self._files.mkdirs(self._path("backlog"))
        path = self._path_of(name)
        if self._files.exists(path):
            return False
        stream = None
        try:
            stream = self._files.createAtomic(path, False)
            stream.write(json.dumps(value).encode())
            stream.close()
        except Py4JJavaError as error:
            if stream is not None:
                stream.cancel()
            if _is_a(error, "FileAlreadyExistsException"):
                return False
            raise
        return True

    def newest_metadata(self, name: str) -> dict[str, Any] | None:
        """The newest value that `replace_metadata` wrote; None if there is none."""
        versions = self._versions(name)
        return self.read_metadata(f"{name}-{versions[-1]}") if versions else None

    def replace_metadata(self, name: str, value: dict[str, Any]) -> bool:
        """Write ``<checkpoint>/backlog/<name>-<n>.json`` with the next n, and remove the older ones.

        Some filesystems cannot replace a file, or delete the old one before they write the new one.

        Returns
        -------
        bool
            False if another driver wrote the same file at the same moment. Then nothing has changed.
        """
        versions = self._versions(name)
        if not self.write_metadata(f"{name}-{versions[-1] + 1 if versions else 0}", value):
            return False
        for old in versions:
            self.delete(f"backlog/{name}-{old}.json")
        return True

    def _versions(self, name: str) -> list[int]:
        form = re.compile(rf"{re.escape(name)}-(\d+)\.json")
        return sorted(int(found[1]) for file in self.names_in("backlog") if (found := form.fullmatch(file)))

    # -- files of our own, by their path below the checkpoint -----------------------------------------------

    def qualified(self) -> str:
        """The location with its filesystem, in one canonical form."""
        return str(self._root.toString())

    def location_of(self, name: str) -> str:
        """Full path of a file or directory below the checkpoint, with its filesystem. Works outside Spark too."""
        return str(self._path(name).toString())

    def names_in(self, name: str) -> list[str]:
        """Names in a directory; empty if the directory does not exist."""
        return [str(status.getPath().getName()) for status in self._listed(name)]

    def sizes_in(self, name: str) -> list[int]:
        """Bytes of each file in a directory; empty if the directory does not exist."""
        return [int(status.getLen()) for status in self._listed(name)]

    def _listed(self, name: str) -> Iterable[Any]:
        directory = self._path(name)
        return self._files.list(directory) if self._files.exists(directory) else ()

    def make_directory(self, name: str) -> None:
        """Create a directory and its parents, where they are missing."""
        self._files.mkdirs(self._path(name))

    def read_file(self, name: str) -> str | None:
        """The text of a small file; None if the file does not exist."""
        return self._read(self._path(name))

    def write_file(self, name: str, text: str) -> None:
        """Write a small file atomically, over an older one. Its directory must exist.

        If the filesystem cannot replace a file, the older one is deleted first.
        """
        path = self._path(name)
        for _ in range(2):
            stream = self._files.createAtomic(path, True)
            try:
                stream.write(text.encode())
                stream.close()
            except Py4JJavaError:
                stream.cancel()
                raise
            # Spark's manager over ``FileSystem.rename`` only logs that the older file stays. After a crash the checksum
            # of an older file may be left; no other text matches it.
            if self._holds(path, text):
                return
            self.delete(name)
        raise BacklogError(f"{path} cannot be written: it has other content.", "Start the query on one driver only.")

    def _holds(self, path: Any, text: str) -> bool:
        try:
            return self._read(path) == text
        except Py4JJavaError as error:
            if _is_a(error, "ChecksumException"):
                return False
            raise

    def replace_file(self, name: str, text: str) -> None:
        """Write a small file over an older one that must never be missing, for example in Spark's own log.

        A filesystem may delete the older file first. So the new text is first written to a separate file. After a crash
        `finish_replacing` moves it to its final name.
        """
        self.replace_metadata(_REPLACING, {"name": name, "text": text})
        self.finish_replacing()

    def finish_replacing(self) -> None:
        """Finish an interrupted `replace_file`. Called before each start."""
        found = self.newest_metadata(_REPLACING)
        if found is None:
            return
        self.write_file(found["name"], found["text"])
        for version in self._versions(_REPLACING):
            self.delete(f"backlog/{_REPLACING}-{version}.json")

    def delete(self, name: str) -> None:
        """Remove a file, or a directory with its content. No effect if it does not exist."""
        path = self._path(name)
        if self._files.exists(path):
            self._file_system(path).delete(path, True)

    def rename(self, name: str, to: str) -> None:
        """Move a file within the checkpoint.

        Raises
        ------
        BacklogError
            If the filesystem refuses, for example because the target exists.
        """
        source, target = self._path(name), self._path(to)
        if not self._file_system(source).rename(source, target):
            raise BacklogError(f"{source} could not be renamed to {target}.", "Check the checkpoint's permissions.")

    def _file_system(self, path: Any) -> Any:
        return path.getFileSystem(self._conf)

    def _path(self, *names: str) -> Any:
        return self._path_class(self._root, "/".join(names))

    def _path_of(self, name: str) -> Any:
        return self._path("backlog", f"{name}.json")

    def _read(self, path: Any) -> str | None:
        # PySpark takes 30 ms to translate an exception, so look first.
        if not self._files.exists(path):
            return None
        try:
            stream = self._files.open(path)
        except Py4JJavaError as error:
            # Spark may purge old entries meanwhile.
            if _is_a(error, "FileNotFoundException"):
                return None
            raise
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def _ids(self, log: str) -> list[int]:
        # Other names are temporary files of a running write, or checksums.
        return [int(name) for name in self.names_in(log) if name.isascii() and name.isdigit()]

    def _offset_lines(self, batch_id: int) -> dict[str, str | None] | None:
        """A raw line per source, by name or index: None for a source without an offset. None without that batch."""
        known = self._lines.get(batch_id)
        if known is not None:
            return known
        path = self._path("offsets", str(batch_id))
        text = self._read(path)
        if text is None:
            return None
        found = offset_lines(text, path)
        self._lines = {number: lines for number, lines in self._lines.items() if number > batch_id - _BATCHES_KNOWN}
        self._lines[batch_id] = found
        return found


def check_is_no_pattern(location: str) -> None:
    """Refuse a checkpoint location that Spark's readers take for a pattern. Streaming readers always do.

    Raises
    ------
    SettingError
        Before any row is read. Otherwise the state could not be handed over, or would be mixed with another query's.
    """
    found = [sign for sign in _PATTERN if sign in location]
    if found:
        raise SettingError(
            "checkpointLocation",
            location,
            f"it contains {' '.join(found)}, so Spark's readers would match it as a pattern.",
            "Choose a path without * ? [ { and backslashes: Spark reads the state of keyed operators from it.",
        )


def offset_lines(text: str, path: object) -> dict[str, str | None]:
    """The lines of an entry of Spark's offset log, by the source's name or number; None for a source without an offset.

    Parameters
    ----------
    text : str
    path : object
        For the error.

    Raises
    ------
    BacklogError
        If the entry is not in format v1 or v2.
    """
    lines = text.split("\n")
    # Line 1 is Spark's own metadata (watermark and fixed confs).
    offsets = [line for line in lines[2:] if line]
    if lines[0] == "v1":
        return {str(index): None if line == _NO_OFFSET else line for index, line in enumerate(offsets)}
    if lines[0] == "v2":
        # Format 2: each line starts with the source's name, or its index if it has no name. The order is arbitrary, and
        # sources without an offset are missing.
        named = (line.partition(":") for line in offsets)
        return {name: None if offset == _NO_OFFSET else offset for name, _, offset in named}
    raise BacklogError(
        f"{path} is in format {lines[0][:20]!r}; only Spark's offset log formats v1 and v2 can be read.",
        "Set spark.sql.streaming.offsetLog.formatVersion=1 and start on a new checkpointLocation.",
    )


def _is_backlog(start: str | None, end: str | None) -> bool:
    # Compared as text, as Spark does: an unchanged offset means that the source gave no rows to this batch.
    if end is None or start == end:
        return False
    return offset_flags.is_backlog(None if start is None else parse_offset(start) or {}, parse_offset(end))


def _is_a(error: Py4JJavaError, simple_name: str) -> bool:
    """True if the Java exception's class ends with this name; Java, NIO, Hadoop and Spark each have their own."""
    return bool(error.java_exception.getClass().getSimpleName().endswith(simple_name))
