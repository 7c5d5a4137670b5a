"""Spark's limits of a batch of a Python source. Spark 4.0 and 4.1 have none: there, equal classes of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["HAS_LIMITS", "ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]

HAS_LIMITS = True
"""Whether Spark gives a source the start of a batch and a limit."""

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:
        from dataclasses import dataclass

        HAS_LIMITS = False

        class ReadLimit:
            """Base of the limits."""

        class ReadAllAvailable(ReadLimit):
            """No limit."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """At most so many rows."""

            max_rows: int

        class SupportsTriggerAvailableNow:
            """Spark 4.0 and 4.1 do not ask a Python source for it."""
