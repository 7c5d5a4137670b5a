"""Phases of Spark's own readers under one query and one checkpoint: files or Delta first, then Kafka, at JVM speed.

Each phase is a run of the query with that phase's source alone. The bounded ones end by themselves (``availableNow``),
the last one goes on. Spark lets the sources of a checkpoint change if they are named and if the offset log has its
second format, which keeps offsets by name; both are set for the runs of such a query, and nowhere else.

Source: Spark 4.2, ``spark.sql.streaming.queryEvolution.enableSourceEvolution``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from backlog_spark.errors import BacklogError, SettingError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader

    from backlog_spark.checkpoint import Checkpoint
    from backlog_spark.foreign import RunContext

    Phase = Callable[["DataStreamReader", "RunContext"], "DataFrame"]

__all__ = ["CONF", "NativeHybrid", "hybrid"]

_METADATA = "phases"
_PARTITIONS = "spark.sql.shuffle.partitions"
_VERSION = 1
CONF = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}


def hybrid(spark: SparkSession, name: str, *, phases: Mapping[str, Phase]) -> NativeHybrid:
    """Declare phases of Spark's own readers, for `backlog_query`.

    Parameters
    ----------
    spark : SparkSession
    name : str
        Of the source.
    phases : mapping of str to callable
        Name of each phase, in their order, and what makes its DataFrame: called with a ``DataStreamReader`` and the
        `RunContext` at the start of each run. All give the same columns. All but the last are read to what is there
        when their run starts.

    Returns
    -------
    NativeHybrid
        Pass it as ``source`` to `backlog_query`; ``build`` finds the present phase's DataFrame as ``ctx.frame``.

    Raises
    ------
    BacklogError
        For fewer than two phases, and for names that Spark does not take for a source.
    """
    if len(phases) < 2:
        raise BacklogError(
            f"bs.hybrid was given {len(phases)} phases.",
            "Give it two or more; one alone needs no hybrid.",
        )
    for text in (name, *phases):
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", text):
            raise SettingError("phases", text, "is no name of a source.", "Use letters, digits and _, a letter first.")
    return NativeHybrid(spark, name, phases)


class NativeHybrid:
    """Phases of Spark's own readers; see `hybrid`."""

    def __init__(self, spark: SparkSession, name: str, phases: Mapping[str, Phase]) -> None:
        self._spark = spark
        self.name = name
        self._phases = dict(phases)
        self._shape: list[tuple[str, str]] = []  # columns and their types

    @property
    def phases(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self._phases)

    def frame(self, phase: int, context: RunContext) -> DataFrame:
        """The streaming DataFrame of a phase. Needs `CONF` in the session while it is made and started."""
        name, make = list(self._phases.items())[phase]
        made = make(self._spark.readStream.name(f"{self.name}_{name}"), context)
        if not getattr(made, "isStreaming", False):
            raise BacklogError(
                f"The phase {name} of {self.name} gave no streaming DataFrame.", "Make it with the reader it is given."
            )
        shape = [(f.name, f.dataType.simpleString()) for f in made.schema]
        if shape != (self._shape or shape):
            raise BacklogError(
                f"The phase {name} of {self.name} has the columns {dict(shape)}, the one before {dict(self._shape)}.",
                "Select and cast, so that all phases have the same.",
            )
        self._shape = shape
        return made

    def recall(self, checkpoint: Checkpoint) -> int:
        """The phase that a checkpoint is in; 0 for a new one.

        Raises
        ------
        BacklogError
            If the checkpoint is about something else.
        """
        found = checkpoint.newest_metadata(_METADATA)
        if found is None:
            if checkpoint.latest_batch() is not None:
                raise BacklogError(
                    f"The checkpoint {checkpoint.location} was made by a query without phases.",
                    "Start with a new checkpoint.",
                )
            self.enter(checkpoint, 0)
            return 0
        if found.get("version") != _VERSION or (found["name"], found["phases"]) != (self.name, list(self._phases)):
            raise BacklogError(
                f"The checkpoint is about {found.get('name')} with the phases {found.get('phases')}; the query has "
                f"{self.name} with {list(self._phases)}.",
                "Give it the phases that it was started with, or a new checkpoint.",
            )
        return int(found["phase"])

    def mend(self, checkpoint: Checkpoint) -> None:
        """Make a batch that was planned and not committed one that Spark can go on with. Called before each start.

        Spark 4.2.0 compares the shuffle partitions of the two newest batches when it starts
        (``OfflineStateRepartitionUtils.isRepartitionBatch``), but the log's second format does not always keep them:
        it fails with ``None.get``, at every start, and for a difference says that state is being repartitioned. They
        are added here: as the other batch has them, else as the session does.
        """
        newest = checkpoint.latest_batch()
        if newest is None or newest == checkpoint.latest_committed():
            return
        logged: dict[str, tuple[dict[str, Any], list[str]]] = {}
        for batch in range(max(0, newest - 1), newest + 1):
            name = f"offsets/{batch}"
            version, told, *offsets = (checkpoint.read_file(name) or "\n").split("\n")
            if version == "v2":
                logged[name] = json.loads(told), offsets
        known = [metadata["conf"][_PARTITIONS] for metadata, _ in logged.values() if _PARTITIONS in metadata["conf"]]
        for name, (metadata, offsets) in logged.items():
            if _PARTITIONS not in metadata["conf"]:
                metadata["conf"][_PARTITIONS] = known[0] if known else self._spark.conf.get(_PARTITIONS)
                checkpoint.write_file(name, "\n".join(["v2", json.dumps(metadata), *offsets]))

    def enter(self, checkpoint: Checkpoint, phase: int) -> None:
        """Record that a phase begins. Called before its first run, when the run before has ended."""
        value = {"version": _VERSION, "name": self.name, "phases": list(self._phases), "phase": phase}
        checkpoint.replace_metadata(_METADATA, value)
