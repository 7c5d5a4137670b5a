"""Tells errors that a user can cause from faults of this package."""

from __future__ import annotations

import json
from typing import Final

from backlog_spark.common.failure_causes import first_line, next_step
from backlog_spark.errors import BacklogError

__all__ = ["told"]

# Clients of servers and stores, and Spark. Each has errors of its own for a wrong address, missing rights and so on.
_CLIENTS: Final = frozenset(
    (
        "adlfs", "aiobotocore", "aiohttp", "azure", "botocore", "confluent_kafka", "deltalake", "fsspec", "gcsfs",
        "google", "pymysql", "pyspark", "s3fs",
    )
)  # fmt: skip


def told(error: Exception) -> str | None:
    """What to tell the user; None for an error that nobody expects, whose traceback is needed."""
    if isinstance(error, BacklogError):
        return str(error)
    if type(error).__module__.partition(".")[0] in _CLIENTS or type(error).__name__.startswith("Py4J"):
        return f"{type(error).__name__}: {first_line(error)} {next_step(str(error))}".strip()
    if isinstance(error, OSError):
        names = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        return f"{names}: {error.strerror or error}.".removeprefix(": ")
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return f"A file that was read is damaged: {error}."
    return None
