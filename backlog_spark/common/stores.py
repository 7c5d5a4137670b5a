"""Stores of files: the local file system, or any file system of fsspec."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from backlog_spark.common.fsspec_stores import FsspecStore, S3Store
from backlog_spark.common.requirements import required
from backlog_spark.common.store_interface import SCHEMES, FileFound, Store, is_hidden, scheme_of
from backlog_spark.errors import BacklogError

__all__ = ["FileFound", "LocalStore", "Store", "arguments_for", "is_hidden", "plain_path", "scheme_of", "store_of"]

_PIECE = 1 << 20
_NAMED_IN_URL = ("abfs", "hdfs", "webhdfs")  # the account, or host and port
_SECRET = re.compile(
    r"secret|password|passwd|token|credential|connection_string|sas|(account|api|private)_?key", re.IGNORECASE
)


class LocalStore(Store):
    """The local file system."""

    is_remote = False

    def name(self, path: str) -> str:
        return path

    def stat(self, path: str) -> FileFound | None:
        try:
            return self._found(path, Path(path).stat(), Path(path).is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return None

    @staticmethod
    def _found(path: str, status: os.stat_result, is_directory: bool) -> FileFound:
        return FileFound(path, is_directory, status.st_size, str(status.st_mtime_ns), status.st_mtime)

    def children(self, path: str) -> list[FileFound]:
        return list(self.entries(path))

    def entries(self, path: str) -> Iterator[FileFound]:
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    # A file that disappears meanwhile does not count.
                    with contextlib.suppress(FileNotFoundError):
                        yield self._found(entry.path, entry.stat(), entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return

    def delete(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)

    def move(self, path: str, to: str) -> None:
        Path(to).parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, to)

    def open(self, path: str) -> pa.NativeFile:
        # Not mapped into memory: if the file were truncated meanwhile, the process would die with SIGBUS.
        return pa.OSFile(path, "rb")

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        with self._replacing(path) as file:
            file.write(data)

    def put(self, path: str, source: BinaryIO) -> None:
        with self._replacing(path) as file:
            shutil.copyfileobj(source, file, _PIECE)

    @staticmethod
    @contextlib.contextmanager
    def _replacing(path: str) -> Iterator[BinaryIO]:
        """A file that takes the path's place once it is written."""
        directory = Path(path).parent
        directory.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".", dir=directory)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def plain_path(url: str) -> str:
    """The path in a URL, for a comparison with others of the same scheme. "" has none."""
    if not url or scheme_of(url) != "file":
        return re.sub(r"^[^:/]+:/*", "", url)
    return str(Path(re.sub(r"^(file|local):(//(?=/))?", "", url, flags=re.IGNORECASE)).absolute())


def arguments_for(url: str, storage: Mapping[str, str], *, plain: bool = True) -> dict[str, str]:
    """The arguments of one file system, selected from those of all.

    Parameters
    ----------
    url : str
        URL in the file system.
    storage : mapping
        The options ``fs.*``. ``s3.key`` is for ``s3://`` only. None of fsspec's own names has a dot.
    plain : bool
        Whether names without a scheme are for this file system too.

    Examples
    --------
    >>> arguments_for("s3a://bucket/x", {"token": "a", "s3.key": "b", "abfs.account_key": "c"}, plain=False)
    {'key': 'b'}
    """
    found = {name: text for name, text in storage.items() if plain and "." not in name}
    for name, text in storage.items():
        scheme, dot, own = name.partition(".")
        if dot and SCHEMES.get(scheme, scheme) == scheme_of(url):
            found[own] = text
    return found


def store_of(url: str, storage: Mapping[str, str]) -> tuple[Store, str]:
    """The store of a URL, and the path in it.

    Parameters
    ----------
    url : str
        With a scheme, or a local path.
    storage : mapping
        Arguments for fsspec's file system. ``true``, ``false`` and texts in JSON brackets are parsed as JSON.

    Raises
    ------
    BacklogError
        If no package for the scheme is installed, or the file system refuses the arguments.
    """
    scheme = scheme_of(url)
    if scheme == "file":
        return LocalStore(), plain_path(url)
    with required(f"{scheme}://"):
        import fsspec  # not needed where all is local

    arguments = {name: _argument(text) for name, text in storage.items()}
    try:
        if scheme in _NAMED_IN_URL:
            arguments = {**fsspec.get_filesystem_class(scheme)._get_kwargs_from_urls(url), **arguments}
        system = fsspec.filesystem(scheme, **arguments)
    except OSError as error:
        if scheme != "hdfs":
            raise
        raise BacklogError(
            f"{url} cannot be read: {str(error).splitlines()[0]}.",
            "hdfs:// takes Hadoop's libhdfs here, with HADOOP_HOME and CLASSPATH. Give webhdfs://HOST:PORT/…, with the "
            "port of the name node's web page, also as metadataLocation if the checkpoint is on HDFS, or read the "
            "files with bs.hybrid, by Spark's own readers.",
        ) from None
    except (ImportError, ValueError) as error:
        # Only a missing package is reported in its own words: other errors may show secrets.
        words = str(error) if isinstance(error, ImportError) else f"fsspec knows no such file system as {scheme}"
        raise BacklogError(
            f"{scheme}:// cannot be read: {words}.",
            "Install fsspec's package for it on the driver and the executors: pip install 'backlog-spark[s3]', "
            "'backlog-spark[gcs]' or 'backlog-spark[azure]'.",
        ) from None
    except TypeError:
        raise BacklogError(
            f"{scheme}:// cannot be read: its file system refuses the options fs.{', fs.'.join(storage)}.",
            "Use the argument names of fsspec's file system, such as fs.key and fs.secret for s3. With several file "
            "systems add the scheme: fs.s3.key.",
        ) from None
    kind = S3Store if scheme == "s3" and hasattr(system, "call_s3") else FsspecStore
    return kind(system, set(_secrets(arguments))), str(system._strip_protocol(re.sub(r"^[^:]+", scheme, url)))


def _argument(text: str) -> Any:
    if text in ("true", "false") or text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    return text


def _secrets(arguments: Any, name: str = "") -> Iterator[str]:
    """Nested texts whose names say that they are secret."""
    if isinstance(arguments, dict):
        for inner, value in arguments.items():
            yield from _secrets(value, inner)
    elif isinstance(arguments, list):
        for value in arguments:
            yield from _secrets(value, name)
    elif isinstance(arguments, str) and arguments and _SECRET.search(name):
        yield arguments
