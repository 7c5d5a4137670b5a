"""Small files below a checkpoint: our own metadata, and the primitives to read and replace any file there.

All access goes through `backlog_spark.spark.checkpoint.files`: a file is either complete or absent.

Reaches for: Hadoop's public classes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.common.fault_points import reached
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spark.checkpoint.files import files_of
from backlog_spark.spark.jvm.py4j_helpers import hadoop_conf, java_class, qualified
from backlog_spark.spi.offset_flags import parse_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CheckpointStore", "check_is_no_pattern"]

_REPLACING = "replacing"
# Both managers write a file under such a name. Spark's leaves it if closing the file fails.
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.tmp")
# Special characters of Hadoop's path patterns.
_PATTERN = "*?[{\\"


class CheckpointStore:
    """The files of a checkpoint. `backlog_spark.spark.checkpoint.logs.Checkpoint` adds what Spark's logs say.

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
        return self.read_object(f"backlog/{name}.json")

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
        return self._created(self._path_of(name), json.dumps(value))

    def create_file(self, name: str, text: str) -> bool:
        """Write a small file atomically. False if there is one of this name. Its directory must exist."""
        return self._created(self._path(name), text)

    def _created(self, path: Any, text: str) -> bool:
        if self._files.exists(path):
            return False
        reached("checkpoint.write")
        stream = None
        try:
            stream = self._files.createAtomic(path, False)
            stream.write(text.encode())
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

    def numbered_metadata(self, name: str) -> dict[int, dict[str, Any]]:
        """The values of ``<checkpoint>/backlog/<name>-<n>.json``, in the order of n."""
        found = {version: self.read_metadata(f"{name}-{version}") for version in self._versions(name)}
        return {version: value for version, value in found.items() if value is not None}

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

    def read_object(self, name: str) -> dict[str, Any] | None:
        """The JSON object in a small file; None if the file does not exist.

        Raises
        ------
        BacklogError
            If the file is not a JSON object.
        """
        text = self.read_file(name)
        value = parse_offset(text)
        if text is not None and value is None:
            raise BacklogError(f"{self._path(name)} is not a JSON object: {text[:80]!r}.", "Restore the file.")
        return value

    def write_file(self, name: str, text: str) -> None:
        """Write a small file atomically, over an older one. Its directory must exist.

        If the filesystem cannot replace a file, the older one is deleted first.
        """
        path = self._path(name)
        reached("checkpoint.write")
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

    def remove_unfinished(self) -> None:
        """Remove what a crash or a full disk has left of files that were being written.

        Called once, when this driver is the newest and before it writes anything else. A newer one writes only its
        claim until this one has ended.
        """
        for directory in ("backlog", "backlog/events"):
            for name in self.names_in(directory):
                if _UNFINISHED.fullmatch(name):
                    self.delete(f"{directory}/{name}")

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


def _is_a(error: Py4JJavaError, simple_name: str) -> bool:
    """True if the Java exception's class ends with this name; Java, NIO, Hadoop and Spark each have their own."""
    return bool(error.java_exception.getClass().getSimpleName().endswith(simple_name))
