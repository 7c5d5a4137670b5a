"""Stores of files: the local file system, or any file system of fsspec."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from backlog_spark.common.requirements import required
from backlog_spark.errors import BacklogError

__all__ = ["FileFound", "FsspecStore", "LocalStore", "Store", "arguments_for", "is_hidden", "scheme_of", "store_of"]

# Scheme names of other implementations of the same storage.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "local": "file"}
# Keys under which file systems have the tag of a content. The time of the last change is the alternative.
_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "checksum")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "modify", "created")
_SECRET = re.compile(
    r"secret|password|passwd|token|credential|connection_string|sas|(account|api|private)_?key", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class FileFound:
    """A store's information about a path.

    Parameters
    ----------
    path : str
    is_directory : bool
    size : int
        Bytes.
    tag : str
        See `DataFile`.
    modified : float
        Seconds since 1970; 0 if the store does not report it.
    """

    path: str
    is_directory: bool
    size: int
    tag: str
    modified: float


class Store(ABC):
    """A file system. Not pickled: it is made again from its URL and options."""

    #: Whether reading a few bytes takes a request.
    is_remote = True

    @abstractmethod
    def name(self, path: str) -> str:
        """The path as a user writes it."""

    @abstractmethod
    def stat(self, path: str) -> FileFound | None:
        """Information about a path; None if nothing is there."""

    @abstractmethod
    def children(self, path: str) -> list[FileFound]:
        """The entries of a directory; empty if it does not exist."""

    @abstractmethod
    def open(self, path: str) -> pa.NativeFile:
        """Open a file for reading at any offset. Raises FileNotFoundError."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The content of a small file. Raises FileNotFoundError."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write a small file and its directories. Atomically, if the store can do that."""

    def tree(self, path: str) -> Iterator[FileFound]:
        """All files below a directory that are not hidden."""
        pending = [path]
        while pending:
            for found in self.children(pending.pop()):
                if is_hidden(found.path.rstrip("/").rpartition("/")[2]):
                    continue
                if found.is_directory:
                    pending.append(found.path)
                else:
                    yield found


def is_hidden(name: str) -> bool:
    """Whether Spark skips a file or directory with this name (``HadoopFSUtils.shouldFilterOutPathName``)."""
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")


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
        found = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    # A file that disappears meanwhile does not count.
                    with contextlib.suppress(FileNotFoundError):
                        found.append(self._found(entry.path, entry.stat(), entry.is_dir()))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return found

    def open(self, path: str) -> pa.NativeFile:
        # Not mapped into memory: if the file were truncated meanwhile, the process would die with SIGBUS.
        return pa.OSFile(path, "rb")

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        directory = Path(path).parent
        directory.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".", dir=directory)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


class FsspecStore(Store):
    """A file system of fsspec. Object stores show a written file only when it is complete.

    Parameters
    ----------
    system : fsspec.AbstractFileSystem
    secrets : collection of str, optional
        Texts that its errors must not show.
    """

    def __init__(self, system: Any, secrets: Collection[str] = ()) -> None:
        self._system = system
        self._secrets = sorted(secrets, key=len, reverse=True)

    def name(self, path: str) -> str:
        return str(self._system.unstrip_protocol(path))

    @contextlib.contextmanager
    def _asking(self, path: str) -> Iterator[None]:
        """Turns its errors, which may be of any class, into ours. That a path does not exist is not an error here."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            raise
        except Exception as error:
            words = str(error)
            for secret in self._secrets:
                words = words.replace(secret, "***")
            scheme = scheme_of(self.name(path))
            raise BacklogError(
                f"{self.name(path)} cannot be reached: {type(error).__name__}: {words.rstrip('.')}.",
                "Check the address, the credentials and their permissions in the options fs.…, or "
                f"fs.{scheme}.… if there are files of another file system too, and start again.",
            ) from None

    def stat(self, path: str) -> FileFound | None:
        self._system.invalidate_cache()
        try:
            with self._asking(path):
                return _found(self._system.info(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def children(self, path: str) -> list[FileFound]:
        self._system.invalidate_cache()
        try:
            with self._asking(path):
                found = self._system.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        # Some file systems list the directory itself among its entries.
        return [_found(info) for info in found if info["name"].rstrip("/") != path.rstrip("/")]

    def tree(self, path: str) -> Iterator[FileFound]:
        # A single listing, because object stores have no directories to walk.
        self._system.invalidate_cache()
        above = len(path.rstrip("/"))
        try:
            with self._asking(path):
                listed = self._system.find(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name, info in listed.items():
            if not any(is_hidden(part) for part in name[above:].split("/") if part):
                yield _found(info)

    def open(self, path: str) -> pa.NativeFile:
        with self._asking(path):
            return pa.PythonFile(self._system.open(path, "rb"), mode="r")

    def read(self, path: str) -> bytes:
        with self._asking(path):
            return bytes(self._system.cat_file(path))

    def write(self, path: str, data: bytes) -> None:
        with self._asking(path):
            self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._system.pipe_file(path, data)


def _found(info: Mapping[str, Any]) -> FileFound:
    time = next((info[key] for key in _TIMES if info.get(key)), 0)
    tag = next((info[key] for key in _TAGS if info.get(key)), time)
    seconds = 0.0
    with contextlib.suppress(TypeError, ValueError):
        moment = datetime.fromisoformat(time) if isinstance(time, str) else time
        seconds = moment.timestamp() if isinstance(moment, datetime) else float(moment)
    # The same time is a number in a listing and a datetime for a single file.
    tag = repr(seconds) if tag is time and seconds else str(tag or "")
    return FileFound(info["name"], info["type"] == "directory", int(info.get("size") or 0), tag, seconds)


def scheme_of(url: str) -> str:
    """The scheme of a URL or path; "file" if there is none."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", url)
    scheme = found[1].lower() if found else "file"
    return _SCHEMES.get(scheme, scheme)


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
        if dot and _SCHEMES.get(scheme, scheme) == scheme_of(url):
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
        return LocalStore(), str(Path(re.sub(r"^(file|local):(//(?=/))?", "", url, flags=re.IGNORECASE)).absolute())
    with required(f"{scheme}://"):
        import fsspec  # not needed where all is local

    arguments = {name: _argument(text) for name, text in storage.items()}
    try:
        system = fsspec.filesystem(scheme, **arguments)
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
    return FsspecStore(system, set(_secrets(arguments))), str(system._strip_protocol(re.sub(r"^[^:]+", scheme, url)))


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
