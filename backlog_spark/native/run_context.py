"""The context of one run of a query of Spark's own sources."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backlog_spark.decide.steps import Mode
from backlog_spark.errors import BacklogError
from backlog_spark.spi.pacing import PROBE_ROWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RunContext"]


@dataclass(frozen=True)
class RunContext:
    """The argument of ``build``: the run that a query is built for.

    Parameters
    ----------
    spark : SparkSession
    mode : Mode
        ``Mode.BACKLOG`` for a round, ``Mode.STREAM`` for the normal run.
    read_limit : int or None
        Rows that a batch should have, for ``maxOffsetsPerTrigger``. None: no limit in a round, the query's own limit
        in the normal run.
    phase : str
        The present phase, if the query has phases.
    starting_timestamp : int or None
        Where the last phase may begin, in milliseconds since 1970, for Kafka's option ``startingTimestamp``: the newest
        time of the earlier phases minus the overlap. None in earlier phases, without a ``timestamp_column``, and if no
        row had a time.
    """

    spark: SparkSession
    mode: Mode
    read_limit: int | None
    phase: str = ""
    starting_timestamp: int | None = None
    _frame: DataFrame | None = field(default=None, repr=False, compare=False)

    @property
    def frame(self) -> DataFrame:
        """The streaming DataFrame of the present phase.

        Raises
        ------
        BacklogError
            If the query has no phases.
        """
        if self._frame is None:
            raise BacklogError("ctx.frame is for a query with phases.", "Pass backlog_query(…, source=bs.hybrid(…)).")
        return self._frame

    @property
    def in_backlog(self) -> bool:
        """Whether this is a round."""
        return self.mode is Mode.BACKLOG

    def scaled(self, normal: int) -> int:
        """Scale a limit in another unit, files or bytes, like `read_limit`; without a read limit it does not change.

        Parameters
        ----------
        normal : int
            The limit of the normal run, such as that of ``maxFilesPerTrigger``.
        """
        if self.read_limit is None:
            return 2**31 - 1 if self.in_backlog else normal
        return max(1, normal * self.read_limit // PROBE_ROWS)
