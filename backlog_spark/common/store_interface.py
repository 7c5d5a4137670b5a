"""The interface of a store of files."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

import pyarrow as pa

__all__ = ["SCHEMES", "FileFound", "Store", "is_hidden", "scheme_of"]

# Scheme names of other implementations of the same storage.
SCHEMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "local": "file"}
_THREADS = 16
T = TypeVar("T")
R = TypeVar("R")


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
        Changes with the content.
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

    def put(self, path: str, source: BinaryIO) -> None:
        """Write a file and its directories from an open one. Nobody sees a part of it, if the store can do that."""
        self.write(path, source.read())

    def delete(self, path: str) -> None:
        """Delete a file. It need not exist."""
        raise AssertionError("nothing is deleted from a table")

    def move(self, path: str, to: str) -> None:
        """Move a file, and make the directories of ``to``. Overwrites."""
        raise AssertionError("nothing is moved in a table")

    def each(self, call: Callable[[T], R], values: Sequence[T]) -> list[R]:
        """The results of calls that take a request each, several at a time."""
        if not self.is_remote or len(values) < 2:
            return [call(value) for value in values]
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(call, values))

    def entries(self, path: str) -> Iterator[FileFound]:
        """Like `children`, one by one."""
        yield from self.children(path)

    def tree(self, path: str, after: str = "") -> Iterator[FileFound]:
        """All files below a directory that are not hidden.

        Parameters
        ----------
        path : str
        after : str
            Files whose paths are not greater may be left out.
        """
        pending = [path]
        while pending:
            for found in self.entries(pending.pop()):
                if is_hidden(found.path.rstrip("/").rpartition("/")[2]):
                    continue
                if found.is_directory:
                    pending.append(found.path)
                else:
                    yield found


def is_hidden(name: str) -> bool:
    """Whether Spark skips a file or directory with this name (``HadoopFSUtils.shouldFilterOutPathName``)."""
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")


def scheme_of(url: str) -> str:
    """The scheme of a URL or path; "file" if there is none."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", url)
    scheme = found[1].lower() if found else "file"
    return SCHEMES.get(scheme, scheme)
