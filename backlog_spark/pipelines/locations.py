"""Paths of this machine, and addresses of stores, which fsspec opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from backlog_spark.common.failure_causes import first_line
from backlog_spark.common.requirements import missing, required
from backlog_spark.errors import SettingError

__all__ = ["local_path", "opened"]


def local_path(location: str) -> Path | None:
    """A path of this machine; None for a path elsewhere."""
    parts = urlsplit(location)
    if not location or parts.scheme not in ("", "file"):
        return None
    return Path(parts.path if parts.scheme else location)


def opened(location: str, setting: str) -> tuple[Any, str]:
    """The file system of a location, and the path in it without a slash at its end. Each listing is a new one.

    Parameters
    ----------
    location : str
        A path, or an address that fsspec knows. ``s3a://`` is ``s3://``.
    setting : str
        Where the user wrote it, for errors.

    Raises
    ------
    BacklogError
        fsspec does not know such addresses, cannot use this one, or needs another package.
    """
    with required("A checkpoint or target"):
        import fsspec
    try:
        # By default some stores list a directory once and never again.
        files, root = fsspec.core.url_to_fs(location.replace("s3a://", "s3://", 1), use_listings_cache=False)
    except ImportError as error:
        cause = error.__cause__
        name = cause.name if isinstance(cause, ModuleNotFoundError) and cause.name else "fsspec"
        raise missing(f"The location {location}", name) from None
    except Exception as error:  # each kind of store has errors of its own
        raise SettingError(
            setting, location, f"cannot be opened: {first_line(error)}.",
            "Give a path, or an address that fsspec knows, such as s3://bucket/path.",
        ) from None  # fmt: skip
    return files, str(root).rstrip("/") or "/"
