"""What decoding raises for bytes that no server writes, and the error that a user gets for it (pure).

The decoders check no lengths: that would cost time for each value. Their errors are converted once, where the events of
a dump are read.
"""

from __future__ import annotations

import struct

from backlog_spark.errors import BacklogError

from .log_position import DumpPosition

__all__ = ["UNREADABLE", "damaged"]

UNREADABLE = (LookupError, ValueError, ArithmeticError, TypeError, AttributeError, struct.error, RecursionError)
"""Unread bytes, unknown codes, bytes that are no text, and deep nesting."""


def damaged(error: Exception, position: DumpPosition) -> BacklogError:
    """The error for an event that cannot be decoded. ``position``: the one after the event."""
    return BacklogError(
        f"The binary log cannot be decoded in the event before {position.file}:{position.sent}: "
        f"{type(error).__name__} {error}.",
        "Check the server's disk: mysqlbinlog --verify-binlog-checksum shows whether the file is damaged. If it is "
        "not, report this with the server's version.",
    )
