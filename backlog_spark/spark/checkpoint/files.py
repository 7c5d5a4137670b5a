"""Reads and writes files of a checkpoint. A file is either complete or absent, even after a crash.

Reaches for: ``CheckpointFileManager``, with which Spark writes its own logs (seen in Spark 4.2; entry "checkpoint
files" of `backlog_spark.spark.jvm.internals`). The fallback is Hadoop's public ``FileContext``: it writes a temporary
file and renames it, like Spark's default manager. A file system without a ``FileContext`` is refused, because a rename
with ``FileSystem`` may delete the older file first. A custom manager named in the session is refused too, because the
fallback does not know it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, cast

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.common.failure_causes import first_line
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spark.jvm.internals import is_usable
from backlog_spark.spark.jvm.py4j_helpers import file_system, hadoop_conf, java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Files", "files_of"]

_CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"
_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_OURS_TOO = ("FileContextBasedCheckpointFileManager", "FileSystemBasedCheckpointFileManager")


class Output(Protocol):
    """A file that is being written."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Finish the file under its final name."""

    def cancel(self) -> None:
        """Discard the file."""


class Files(Protocol):
    """Spark's manager or the fallback. Paths are Hadoop's."""

    def exists(self, path: Any) -> bool: ...

    def mkdirs(self, path: Any) -> None: ...

    def list(self, path: Any) -> Iterable[Any]:
        """Hadoop's ``FileStatus`` of each entry of a directory."""

    def open(self, path: Any) -> Any:
        """Hadoop's input stream of a file."""

    def createAtomic(self, path: Any, overwrite: bool) -> Output: ...


def files_of(spark: SparkSession, root: Any) -> Files:
    """The object that reads and writes files below a path.

    Raises
    ------
    BacklogError
        If the fallback is needed and cannot write there.
    """
    if is_usable("checkpoint files"):
        managers = java_class(spark, f"{_CHECKPOINTING}.CheckpointFileManager")
        return cast("Files", managers.create(root, hadoop_conf(spark)))
    return _HadoopFiles(spark, root)


class _HadoopFiles:
    """The fallback, over Hadoop's public API."""

    def __init__(self, spark: SparkSession, root: Any) -> None:
        named = spark.conf.get(_MANAGER, None)
        if named and not named.endswith(_OURS_TOO):
            raise SettingError(_MANAGER, named, "does not work with this Spark.", "Unset it, or use Spark 4.2.")
        self._spark = spark
        self._system = file_system(spark, root)
        contexts = java_class(spark, "org.apache.hadoop.fs.FileContext")
        try:
            self._context = contexts.getFileContext(root.toUri(), hadoop_conf(spark))
        except Py4JJavaError as error:
            raise BacklogError(
                f"The file system of {root} cannot rename a file atomically: {first_line(error)}",
                "Put the checkpoint on a local disk, HDFS or a store with a Hadoop FileContext, or use Spark 4.2.",
            ) from None

    def exists(self, path: Any) -> bool:
        return bool(self._system.exists(path))

    def mkdirs(self, path: Any) -> None:
        self._system.mkdirs(path)

    def list(self, path: Any) -> Iterable[Any]:
        return cast("Iterable[Any]", self._system.listStatus(path))

    def open(self, path: Any) -> Any:
        return self._system.open(path)

    def createAtomic(self, path: Any, overwrite: bool) -> _Renamed:
        temporary = java_class(self._spark, "org.apache.hadoop.fs.Path")(
            path.getParent(), f".{path.getName()}.{uuid.uuid4()}.tmp"
        )
        kinds = java_class(self._spark, "org.apache.hadoop.fs.Options").Rename
        how = cast("Any", self._spark.sparkContext)._gateway.new_array(kinds, 1)
        how[0] = kinds.OVERWRITE if overwrite else kinds.NONE
        stream = self._system.create(temporary, False)
        return _Renamed(
            stream, lambda: self._context.rename(temporary, path, how), lambda: self._system.delete(temporary, False)
        )


class _Renamed:
    """A temporary file that gets its final name when it is closed."""

    def __init__(self, stream: Any, rename: Any, delete: Any) -> None:
        self._stream, self._rename, self._delete = stream, rename, delete

    def write(self, data: bytes) -> None:
        self._stream.write(data)

    def close(self) -> None:
        self._stream.close()
        self._rename()

    def cancel(self) -> None:
        self._stream.close()
        self._delete()
