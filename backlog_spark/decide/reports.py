"""Reports about a query: batches, the end of a run (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backlog_spark.common import figures

__all__ = ["ProgressReport", "Report", "SourceReport", "StateReport", "Terminated"]

# Spark's class of such sources; their description is its name. Other sources have another class (Spark 4.2).
_UNLIMITED = re.compile(r"\bPythonMicroBatchStream\b")


@dataclass(frozen=True)
class SourceReport:
    """One source's part in one micro-batch.

    Parameters
    ----------
    index : int
        Position in the plan, from 0; the same as the line in Spark's offset log.
    description : str
        Spark's description of the source. Not unique: two readers of one topic have the same.
    start_offset, end_offset, latest_offset : dict or None
        The offsets when they are JSON objects, else None (absent, or a foreign source's own format).
    num_input_rows : int
        Rows read in this batch.
    is_processing_backlog : bool
        The source's flag from the batch's end on: ``isProcessingBacklog`` of the end offset, else false.
    is_backlog : bool
        RecordAttributes of the batch's rows: ``isProcessingBacklog`` of the start offset; in the first batch,
        which has no start offset, ``isBacklog`` of the end offset; else false.
    finished : bool
        ``isFinished`` of the end offset, else false: the source will never emit again.
    """

    index: int
    description: str
    start_offset: dict[str, Any] | None
    end_offset: dict[str, Any] | None
    latest_offset: dict[str, Any] | None
    num_input_rows: int
    is_processing_backlog: bool
    is_backlog: bool
    finished: bool

    @property
    def takes_no_limit(self) -> bool:
        """Whether it is a Python source whose ``latestOffset`` takes no `ReadLimit`, so Spark cannot limit it."""
        return bool(_UNLIMITED.search(self.description))


@dataclass(frozen=True)
class StateReport:
    """Spark's state of one stateful operator after a batch.

    Parameters
    ----------
    name : str
        Spark's name of the operator, such as ``stateStoreSave``.
    rows : int
        Entries in the state.
    bytes : int
        Memory or disk that it takes, as the state store reports it.
    """

    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class ProgressReport:
    """A committed micro-batch, from Spark's progress event.

    Parameters
    ----------
    query_id, run_id : str
        Spark's ids; the first survives a restart on the same checkpoint, the second does not.
    batch_id : int
        The micro-batch, from 0.
    timestamp : str
        Start of the trigger, ISO 8601 in UTC.
    duration_ms : dict of str to int
        Spark's phases (``triggerExecution``, ``addBatch``, …) in milliseconds.
    sources : tuple of SourceReport
        In plan order.
    watermark_ms : int or None
        Spark's event-time watermark, milliseconds since 1970; None without one.
    state : tuple of StateReport
        Spark's state of each stateful operator.
    event_times : mapping of int to int
        Greatest event time of each input of ``with_watermark`` that had rows, by its number, milliseconds since 1970.
    """

    query_id: str
    run_id: str
    batch_id: int
    timestamp: str
    duration_ms: dict[str, int]
    sources: tuple[SourceReport, ...]
    watermark_ms: int | None = None
    state: tuple[StateReport, ...] = ()
    event_times: Mapping[int, int] = field(default_factory=dict)

    @property
    def num_input_rows(self) -> int:
        """Rows read by these sources together."""
        return sum(source.num_input_rows for source in self.sources)

    @property
    def is_backlog(self) -> bool:
        """RecordAttributes of the batch. Offsets that are no JSON objects, such as those of ``rate``, are not known."""
        return any(s.is_backlog for s in self.sources if s.num_input_rows or s.start_offset != s.end_offset)

    @property
    def phase(self) -> figures.Phase:
        """What the batch counts as."""
        return figures.phase(self.num_input_rows, self.is_backlog)


@dataclass(frozen=True)
class Terminated:
    """The end of a run. `exception` is the error's text, or None after a stop or at the end of its input."""

    query_id: str
    run_id: str
    exception: str | None


Report = ProgressReport | Terminated
