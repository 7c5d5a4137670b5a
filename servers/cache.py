"""The download cache: its directory, its lock for one writer at a time, and the checksums of its files."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backlog_spark.errors import BacklogError

__all__ = ["ChecksumError", "cache_dir", "check_sum", "locked", "scratch", "sha256_of"]


class ChecksumError(BacklogError):
    """A downloaded file has another checksum than expected.

    Parameters
    ----------
    path : Path
        The file.
    expected, found : str
        The expected and the actual SHA-256, in hexadecimal.
    """

    def __init__(self, path: Path, expected: str, found: str) -> None:
        self.path, self.expected, self.found = path, expected, found
        super().__init__(
            f"{path.name}: expected SHA-256 {expected}, found {found}.",
            "The download is damaged, or somebody replaced the file. Try again, or check the proxy and the mirror.",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.path, self.expected, self.found))


def cache_dir() -> Path:
    """The directory for downloads. It is created if it is missing.

    Returns
    -------
    Path
        ``$BACKLOG_SPARK_CACHE``, else ``$XDG_CACHE_HOME/backlog_spark``, else ``~/.cache/backlog_spark``. Absolute.
    """
    own = os.environ.get("BACKLOG_SPARK_CACHE")
    if own:
        path = Path(own)
    else:
        base = os.environ.get("XDG_CACHE_HOME")
        path = (Path(base) if base else Path.home() / ".cache") / "backlog_spark"
    path = path.expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BacklogError(
            f"cannot create the cache directory {path}: {error.strerror}.",
            "Set BACKLOG_SPARK_CACHE to a directory that this user can write.",
        ) from error
    return path


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_sum(path: Path, expected: str) -> None:
    """Raise `ChecksumError` unless the file has the expected SHA-256."""
    found = sha256_of(path)
    if found != expected:
        raise ChecksumError(path, expected, found)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock ``name``. Waits while another process or thread holds it.

    Look into the cache again once you have the lock: the process before may have added the file. The kernel frees the
    lock of a process that dies. The lock is not reentrant: a thread that takes it twice waits for ever.
    """
    with (cache_dir() / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary directory on the cache's file system. So a rename from it into the cache is atomic."""
    path = Path(tempfile.mkdtemp(prefix="partial-", dir=cache_dir()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
