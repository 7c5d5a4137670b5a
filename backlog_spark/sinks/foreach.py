"""Gives each batch to a function of the user."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backlog_spark.common.familiar_names import checked_arguments, described
from backlog_spark.errors import SettingError
from backlog_spark.sinks.base import BatchInfo, Sink, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ForeachSink"]

_log = logging.getLogger(__name__)


class ForeachSink(Sink):
    """Calls a function with each batch, as Spark's ``foreachBatch`` does. At least once.

    After a failure the function is called again with the same batch: the same `BatchInfo` and the same rows. It makes
    the batch take effect once by writing ``batch.batch_id`` in the transaction that writes the rows, and by skipping a
    batch that is there already.

    Parameters
    ----------
    fn : callable
        Gets ``batch_df``, a DataFrame, and ``batch``, a `BatchInfo`. It must execute ``batch_df`` at most once, or
        persist it: each action reads the sources again. Its error fails the query.

    Raises
    ------
    SettingError
        ``fn`` cannot be called with two arguments.

    Examples
    --------
    >>> ForeachSink(lambda batch_df, batch: batch_df.write.mode("append").saveAsTable("orders"))
    ForeachSink(<lambda>)
    """

    @checked_arguments
    def __init__(self, fn: Callable[[DataFrame, BatchInfo], Any]) -> None:
        hint = "Give a function of two parameters: batch_df and batch."
        if not callable(fn):
            raise SettingError("ForeachSink fn", fn, f"is {described(fn)}, not a function.", hint)
        try:
            inspect.signature(fn).bind(None, None)
        except TypeError as error:
            raise SettingError("ForeachSink fn", self._name_of(fn), f"cannot be called: {error}.", hint) from None
        except ValueError:
            pass  # some functions of C do not say what they take
        self._fn = fn

    def described(self) -> dict[str, Any]:
        return {"kind": "ForeachSink"}

    def open(self, context: SinkContext) -> None:
        _log.warning("%r writes at least once: after a failure it is called again with the last batch.", self)

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        self._fn(batch_df, batch)

    @staticmethod
    def _name_of(fn: Any) -> str:
        return str(getattr(fn, "__name__", type(fn).__name__))

    def __repr__(self) -> str:
        return f"ForeachSink({self._name_of(self._fn)})"
