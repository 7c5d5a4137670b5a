"""The error that ends a stream whose position is no longer in the binary log (pure)."""

from __future__ import annotations

from backlog_spark.errors import BacklogError

__all__ = ["LogGone"]


class LogGone(BacklogError):
    """The server does not have the log after a checkpoint: purged, reset, or the log of another server.

    Waiting does not help. With ``snapshot.mode=when_needed`` the stream reads the tables again.
    """

    def __str__(self) -> str:
        return f"{super().__str__()} With snapshot.mode=when_needed the query reads the tables again instead."
