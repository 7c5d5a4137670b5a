"""A query's outputs: the main one and the side outputs, each with a sink of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.base import BatchInfo, Sink, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Outputs"]


class Outputs:
    """The sinks of one query.

    Parameters
    ----------
    sinks : mapping of str to Sink
        The main output's sink under ``""``, the side outputs' sinks by name.
    """

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self._sinks = {name: sink.for_output() for name, sink in sinks.items()}
        self.main = self._sinks[""]

    @property
    def several(self) -> bool:
        """Whether a batch is read more than once."""
        return len(self._sinks) > 1

    def described(self) -> dict[str, dict[str, Any]]:
        """`Sink.described` of each output."""
        return {name: sink.described() for name, sink in self._sinks.items()}

    def targets(self) -> list[str]:
        """Where the outputs write, for people: paths, or the sinks' classes."""
        return [str(sink.described().get("path") or type(sink).__name__) for sink in self._sinks.values()]

    def has_rows_of(self, output: str, spark: SparkSession, txn_app_id: str) -> bool:
        """`Sink.has_rows_of` of an output."""
        return self._sinks[output].has_rows_of(spark, _app_id(txn_app_id, output))

    def open(self, context: SinkContext, side_outputs: Mapping[str, StructType]) -> None:
        """Open each sink, as `Sink.open` says.

        Parameters
        ----------
        context : SinkContext
            The main output's context.
        side_outputs : mapping of str to StructType
            Columns of the existing side outputs.

        Raises
        ------
        SettingError
            For a sink of a side output that does not exist.
        BacklogError
            For a side output without a sink: its rows would be lost.
        """
        for name in self._sinks:
            if name and name not in side_outputs:
                raise SettingError(
                    "side_output", name, "the last operator of the stream has no such side output.",
                    f"It has {', '.join(side_outputs) or 'none'}.",
                )  # fmt: skip
        for name, schema in side_outputs.items():
            if name not in self._sinks:
                raise BacklogError(
                    f"The side output {name!r} has no sink.", f"Add .to(sink, side_output={name!r}) to the writer."
                )
            side = replace(
                context,
                txn_app_id=_app_id(context.txn_app_id, name),
                schema=schema,
                key_is_unique_in_backlog=False,
                rows_are_results=False,
                snapshot_of=(),
            )
            self._sinks[name].open(side)
        self.main.open(context)

    def write(self, rows: DataFrame, sides: Mapping[str, DataFrame], batch: BatchInfo) -> None:
        """Write a batch of each output. Each output that already has the batch skips it."""
        self.main.write(rows, batch)
        for name, side in sides.items():
            self._sinks[name].write(side, batch)


def _app_id(txn_app_id: str, output: str) -> str:
    return f"{txn_app_id}-{output}" if output else txn_app_id
