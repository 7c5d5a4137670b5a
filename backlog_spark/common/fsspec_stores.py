"""Any file system of fsspec as a store, and S3 with listings page by page."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any, BinaryIO

import pyarrow as pa

from backlog_spark.errors import BacklogError

from .store_interface import FileFound, Store, is_hidden, scheme_of

__all__ = ["FsspecStore", "S3Store"]

# Keys under which file systems have the tag of a content. The time of the last change is the alternative.
_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "checksum")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "modify", "created")
_PIECE = 1 << 20


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

    def tree(self, path: str, after: str = "") -> Iterator[FileFound]:
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

    def put(self, path: str, source: BinaryIO) -> None:
        with self._asking(path):
            self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            try:
                with self._system.open(path, "wb") as file:
                    shutil.copyfileobj(source, file, _PIECE)
            except BaseException:
                self.delete(path)  # closing the file has made it visible
                raise

    def delete(self, path: str) -> None:
        with self._asking(path), contextlib.suppress(FileNotFoundError):
            self._system.rm_file(path)

    def move(self, path: str, to: str) -> None:
        with self._asking(path):
            self._system.makedirs(to.rpartition("/")[0], exist_ok=True)
            self._system.mv(path, to)


class S3Store(FsspecStore):
    """S3. A listing is read page by page, so that it takes no memory, and may begin after a name."""

    def tree(self, path: str, after: str = "") -> Iterator[FileFound]:
        bucket, _, key = path.strip("/").partition("/")
        prefix = f"{key}/" if key else ""
        more = {"StartAfter": after.partition("/")[2]} if after.startswith(f"{bucket}/{prefix}") else {}
        while True:
            try:
                with self._asking(path):
                    page = self._system.call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, **more)
            except (FileNotFoundError, NotADirectoryError):
                return
            for item in page.get("Contents", ()):
                name = item["Key"]
                parts = name[len(prefix) :].split("/")
                # A key that ends with a slash stands for a directory.
                if parts[-1] and not any(is_hidden(part) for part in parts if part):
                    yield _found({**item, "name": f"{bucket}/{name}", "type": "file", "size": item["Size"]})
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}


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
