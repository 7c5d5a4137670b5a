"""Tables that a query looks up: bounded data that is read again after an interval."""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote

from backlog_spark.common.durations import parse_duration
from backlog_spark.common.familiar_names import described
from backlog_spark.errors import BacklogError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LookupTable", "lookup"]

_LOG = logging.getLogger(__name__)


def lookup(
    rows: DataFrame | Callable[[SparkSession], DataFrame], *, refresh: str | timedelta | None = None
) -> LookupTable:
    """A bounded table for `backlog_spark.sql`: rows of a stream are joined with it as they are processed.

    Parameters
    ----------
    rows : DataFrame or callable
        A DataFrame of files, of a Delta table, of JDBC; not a stream. Or a function that makes it from the session.
    refresh : str or timedelta, optional
        After this time the table is read again. Default: it is read when the query starts, and at each restart.

    Returns
    -------
    LookupTable

    Raises
    ------
    BacklogError
        For a stream, and for what is no DataFrame.

    Examples
    --------
    ``bs.sql(spark, "SELECT * FROM bids AS b JOIN names FOR SYSTEM_TIME AS OF PROCTIME() AS n ON b.id = n.id",
    bids=bids, names=bs.lookup(spark.read.parquet("/lake/names"), refresh="10 minutes"))``
    """
    if not callable(rows) and not hasattr(rows, "isStreaming"):
        raise BacklogError(f"lookup was given {described(rows)}.", "Pass a DataFrame: bs.lookup(spark.read.…).")
    return LookupTable(rows, None if refresh is None else parse_duration(refresh, "refresh"))


class LookupTable:
    """See `lookup`. Its rows are kept in Spark's cache."""

    def __init__(self, rows: DataFrame | Callable[[SparkSession], DataFrame], refresh_ms: int | None) -> None:
        self._given = rows
        self._refresh_ms = refresh_ms
        self._lock = threading.Lock()
        self._frame: DataFrame | None = None
        self._root = ""

    def rows(self, spark: SparkSession) -> DataFrame:
        """The rows, cached. Spark reads them when a batch needs them.

        Raises
        ------
        BacklogError
            If they are a stream.
        """
        with self._lock:
            if self._frame is None or self._frame.sparkSession.sparkContext is not spark.sparkContext:
                made = self._given(spark) if callable(self._given) else self._given
                if made.isStreaming:
                    raise BacklogError("lookup: the rows are a stream.", "Pass it to bs.sql as a stream.")
                # Of a cached frame Spark tells no files.
                self._root = _root_of(made.inputFiles()) if self._refresh_ms else ""
                self._frame = made.persist()
                weakref.finalize(self, _drop, self._frame).atexit = False
                if self._refresh_ms:
                    again = threading.Thread(target=_refresh, args=(weakref.ref(self), self._refresh_ms), daemon=True)
                    again.start()
            return self._frame

    def read_again(self) -> None:
        """Let the next batch read the table anew, with files that have come since."""
        with self._lock:
            frame = self._frame
        if frame is None:
            return
        # Spark lists the files of cached plans again, so this comes before the rows are dropped.
        if self._root:
            frame.sparkSession.catalog.refreshByPath(self._root)
        frame.unpersist()
        frame.persist()


def _drop(frame: DataFrame) -> None:
    from backlog_spark.spark.jvm.session import is_stopped

    if not is_stopped(frame.sparkSession):
        frame.unpersist()


def _root_of(files: Sequence[str]) -> str:
    """A directory that all these files are below, above directories of partitions; empty if there is none."""
    directories = [unquote(name).split("/")[:-1] for name in files]
    plain = [list(itertools.takewhile(lambda part: "=" not in part, parts)) for parts in directories]
    together = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*plain, strict=False))
    return "/".join(parts[0] for parts in together)


def _refresh(table: weakref.ref[LookupTable], interval_ms: int) -> None:
    """Read a table again after each interval, as long as a stream uses it."""
    from backlog_spark.spark.jvm.session import is_stopped

    waits = threading.Event()
    while not waits.wait(interval_ms / 1000):
        found = table()
        if found is None or found._frame is None or is_stopped(found._frame.sparkSession):
            return
        try:
            found.read_again()
        except Exception as error:  # the next batch reports a table that cannot be read
            _LOG.warning("A lookup table could not be read again: %s", str(error).split("\n", 1)[0])
        del found
