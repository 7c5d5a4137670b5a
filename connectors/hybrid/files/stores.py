"""Where files lie: the local file system, or any that fsspec knows."""

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

from backlog_spark.errors import BacklogError

__all__ = ["FileFound", "FsspecStore", "LocalStore", "Store", "arguments_for", "is_hidden", "scheme_of", "store_of"]

# What other implementations of the same storage call their scheme.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "local": "file"}
# What a file system calls the mark of a content, and the time of the last change.
_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "checksum")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "modify", "created")
_SECRET = re.compile(
    r"secret|password|passwd|token|credential|connection_string|sas|(account|api|private)_?key", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class FileFound:
    """What a store tells of a path.

    Parameters
    ----------
    path : str
    is_directory : bool
    size : int
        Bytes.
    tag : str
        See `DataFile`.
    modified : float
        Seconds since 1970; 0 where the store does not tell.
    """

    path: str
    is_directory: bool
    size: int
    tag: str
    modified: float


class Store(ABC):
    """A file system. Not pickled: made anew from its URL and options where it is needed."""

    #: Whether reading a few bytes takes a request.
    is_remote = True

    @abstractmethod
    def name(self, path: str) -> str:
        """The path as users write it."""

    @abstractmethod
    def stat(self, path: str) -> FileFound | None:
        """What is there; None if nothing is."""

    @abstractmethod
    def children(self, path: str) -> list[FileFound]:
        """What a directory holds; nothing if it is not there."""

    @abstractmethod
    def open(self, path: str) -> pa.NativeFile:
        """Open a file for reading at any offset. Raises FileNotFoundError."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """All of a small file. Raises FileNotFoundError."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write a small file with its directories; nobody finds half of it, where the store has such a way."""

    def tree(self, path: str) -> Iterator[FileFound]:
        """All files beneath a directory that are not hidden."""
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
    """Whether Spark leaves a file or directory of this name out (``HadoopFSUtils.shouldFilterOutPathName``)."""
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
                    # One that goes away meanwhile was not there.
                    with contextlib.suppress(FileNotFoundError):
                        found.append(self._found(entry.path, entry.stat(), entry.is_dir()))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return found

    def open(self, path: str) -> pa.NativeFile:
        # Not mapped into memory: a file that is cut short meanwhile would kill the process with SIGBUS.
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
    """A file system of fsspec. Object stores make a written file visible as a whole.

    Parameters
    ----------
    system : fsspec.AbstractFileSystem
    secrets : collection of str, optional
        What its errors must not show.
    """

    def __init__(self, system: Any, secrets: Collection[str] = ()) -> None:
        self._system = system
        self._secrets = sorted(secrets, key=len, reverse=True)

    def name(self, path: str) -> str:
        return str(self._system.unstrip_protocol(path))

    @contextlib.contextmanager
    def _asking(self, path: str) -> Iterator[None]:
        """Its own errors, which are of any class, as ours; that something is not there is no error here."""
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
                "Check the address, the credentials and what they allow in the options fs.…, or "
                f"fs.{scheme}.… where there are files of another file system too, and start again.",
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
        # Some list the directory itself among what it holds.
        return [_found(info) for info in found if info["name"].rstrip("/") != path.rstrip("/")]

    def tree(self, path: str) -> Iterator[FileFound]:
        # One listing of all, as object stores have no directories to walk.
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
    # The same time is a number in a listing and a datetime in an answer on one file.
    tag = repr(seconds) if tag is time and seconds else str(tag or "")
    return FileFound(info["name"], info["type"] == "directory", int(info.get("size") or 0), tag, seconds)


def scheme_of(url: str) -> str:
    """The scheme of a URL or path, "file" without one."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", url)
    scheme = found[1].lower() if found else "file"
    return _SCHEMES.get(scheme, scheme)


def arguments_for(url: str, storage: Mapping[str, str], *, plain: bool = True) -> dict[str, str]:
    """The arguments of one file system out of those of all.

    Parameters
    ----------
    url : str
        Of the file system.
    storage : mapping
        As ``fs.*`` has them. ``s3.key`` is of ``s3://`` alone; of fsspec's own names none has a dot.
    plain : bool
        Whether names without a scheme are for this one too.

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
        Arguments for fsspec's file system. ``true``, ``false`` and texts in JSON's brackets are taken as JSON.

    Raises
    ------
    BacklogError
        If no package for the scheme is installed, or it does not take the arguments.
    """
    scheme = scheme_of(url)
    if scheme == "file":
        return LocalStore(), str(Path(re.sub(r"^(file|local):(//(?=/))?", "", url, flags=re.IGNORECASE)).absolute())
    import fsspec  # not needed where all is local

    arguments = {name: _argument(text) for name, text in storage.items()}
    try:
        system = fsspec.filesystem(scheme, **arguments)
    except (ImportError, ValueError) as error:
        # Only a missing package is told in its own words: other errors may show what is secret.
        words = str(error) if isinstance(error, ImportError) else f"fsspec knows no such file system as {scheme}"
        raise BacklogError(
            f"{scheme}:// cannot be read: {words}.",
            "Install the package of fsspec for it, such as s3fs, gcsfs or adlfs, where driver and workers run.",
        ) from None
    except TypeError:
        raise BacklogError(
            f"{scheme}:// cannot be read: its file system does not take the options fs.{', fs.'.join(storage)}.",
            "Name the arguments of fsspec's file system, such as fs.key and fs.secret for s3. Where there are several "
            "file systems say which: fs.s3.key.",
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
    """Texts, however deep, whose names say that they are secret."""
    if isinstance(arguments, dict):
        for inner, value in arguments.items():
            yield from _secrets(value, inner)
    elif isinstance(arguments, list):
        for value in arguments:
            yield from _secrets(value, name)
    elif isinstance(arguments, str) and arguments and _SECRET.search(name):
        yield arguments
