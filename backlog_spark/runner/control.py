"""The control source: sends watermarks, due timers and record attributes to every key group.

Each operator that needs time has one. It is a small Python source next to the seed source. Its offsets contain the
messages that it sent, so a replayed batch gets the same ones. It asks the query's runner for new messages over a
loopback connection. A new message starts a batch even if all other sources are idle.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from backlog_spark.common.gc_tuning import keep_imports
from backlog_spark.common.loopback import LoopbackLine, LoopbackServer
from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import END_OF_TIME, MIN_WATERMARK, Watermark
from backlog_spark.state.seeds import SEED_SCHEMA, Control, packed_control
from backlog_spark.state.store import AT_EVERY_TICK, NEVER

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["ControlDataSource", "ControlMessages", "ControlServer"]

# The shortest time between two ticks for processing-time timers. Each tick is a batch.
_TICK_MS = 100
# Offset field: the time of a batch that carries no message.
_WOKEN = "woken"


@dataclass
class _Known:
    """The last report of an operator."""

    next_event: int = NEVER
    next_processing: int = 0
    """0: unknown. After a start the key groups must be asked first."""
    is_firing: bool = False
    budget: int | None = None


class ControlMessages:
    """Decides the next message for each control source. The runner updates it between batches (pure but for the clock).

    Parameters
    ----------
    clock : callable
        Milliseconds since 1970.
    """

    def __init__(self, *, clock: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._watermarks: Callable[[], Mapping[str, Watermark]] = dict
        self._backlog: dict[str, int] = {}
        self._holding = True
        self._woken: int | None = None
        self._lock = threading.Lock()

    def tell(self, *, watermarks: Callable[[], Mapping[str, Watermark]], backlog: Mapping[str, int]) -> None:
        """Set the messages from the next batch on.

        Parameters
        ----------
        watermarks : callable
            Gives each operator's watermark, as of now. An operator that is missing gets none.
        backlog : mapping of str to int
            Each operator's record attributes, as in `backlog_spark.operators.fold.Clock`.
        """
        with self._lock:
            self._holding = False
            self._watermarks, self._backlog = watermarks, dict(backlog)

    def report(
        self, operator: str, *, next_event: int, next_processing: int, is_firing: bool, budget: int | None
    ) -> None:
        """Take an operator's report after a batch: the timers that its key groups still have to fire.

        Parameters
        ----------
        operator : str
        next_event, next_processing : int
            When the next timers are due.
        is_firing : bool
            Whether timers are left that the watermark made due. They continue at once; until then time stands still.
        budget : int or None
            How many timers a key group may fire in the next batch; None: all.
        """
        with self._lock:
            self._known[operator] = _Known(next_event, next_processing, is_firing, budget)

    def begin(self, budgets: Mapping[str, int | None]) -> None:
        """Called when a run starts. Forgets all reports: the batch that they came from may be replayed.

        Parameters
        ----------
        budgets : mapping of str to int or None
            How many timers a key group of each operator may fire in the first batch.
        """
        with self._lock:
            self._known = {name: _Known(budget=budget) for name, budget in budgets.items()}

    def hold(self, *, wakes: bool = False) -> None:
        """Send nothing new, for runs without a control-source consumer.

        Parameters
        ----------
        wakes : bool
            Whether to start one batch even if no rows come.
        """
        with self._lock:
            self._holding = True
            self._woken = self._clock() if wakes else None

    def answer(self, operator: str, start: Mapping[str, Any], *, at_once: bool) -> dict[str, Any]:
        """The offset after ``start``; the same if there is nothing new.

        Parameters
        ----------
        operator : str
        start : mapping
            The offset of the operator's last message.
        at_once : bool
            For runs that end when all is read: timers that become due later do not count.
        """
        with self._lock:
            if self._holding:
                return dict(start) if self._woken is None else {**start, _WOKEN: self._woken}
            known, now = self._known.get(operator, _Known()), self._clock()
            offset = {**start, "isBacklog": self._backlog.get(operator, start["isBacklog"])}
            if known.is_firing:
                # Spark starts a batch only for a new offset.
                offset["firing"] = (start.get("firing") or 0) + 1
            else:
                offset["firing"] = None
                offset["watermark"] = self._reached(operator, start["watermark"], known, now, at_once=at_once)
            # The end of a backlog wakes operators whose rows wait for it.
            is_new = offset["isBacklog"] != start["isBacklog"] and known.next_processing <= AT_EVERY_TICK
            if is_new or self._ticks(start["now"], known, now, at_once=at_once):
                offset["now"] = now
            if known.is_firing or (offset["watermark"], offset["now"]) != (start["watermark"], start["now"]):
                offset["budget"] = known.budget
            elif offset["isBacklog"] == start["isBacklog"]:
                return dict(start)
            return {**offset, "at": now}

    def _reached(self, operator: str, before: int | None, known: _Known, now: int, *, at_once: bool) -> int | None:
        """The watermark for an operator's next message."""
        found = self._watermarks().get(operator)
        if found is None:
            return before
        reached = found.at(now)
        # Processing time advances all the time: it is sent when a timer is due, and at most once per tick.
        by_clock = found.use_processing_time and reached < END_OF_TIME and before is not None
        is_unknown = known.next_processing == 0
        if by_clock and not is_unknown and (now - (before or 0) < _TICK_MS or known.next_event > now or at_once):
            return before
        if reached == MIN_WATERMARK or (before is not None and reached <= before):
            return before
        return reached

    @staticmethod
    def _ticks(before: int | None, known: _Known, now: int, *, at_once: bool) -> bool:
        """Whether an operator's next message has the time, for its processing-time timers."""
        # Timers that were due at the last message and are still left were interrupted.
        is_left = known.budget is not None and before is not None and AT_EVERY_TICK < known.next_processing <= before
        due = known.next_processing <= now and (is_left or now - (before or 0) >= _TICK_MS)
        return due and not (at_once and known.next_processing and before and not is_left)


class ControlServer(LoopbackServer):
    """Answers control sources with `ControlMessages`."""

    def __init__(self, messages: ControlMessages) -> None:
        super().__init__(lambda asked: messages.answer(asked["operator"], asked["start"], at_once=asked["atOnce"]))

    @property
    def options(self) -> dict[str, str]:
        """Source options: port and token."""
        return {"port": str(self.port), "token": self.token}


class ControlDataSource(DataSource):
    """Options: port, token, operator, keyGroups."""

    @classmethod
    def name(cls) -> str:
        return "backlog_control"

    def schema(self) -> str:
        return SEED_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _ControlReader(dict(self.options))


class _Message(InputPartition):
    def __init__(self, groups: int, control: Control) -> None:
        self.groups, self.control = groups, control


class _ControlReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._line = LoopbackLine(int(options["port"]), options["token"])
        self._at_once = False

    def initialOffset(self) -> dict[str, Any]:
        return {"watermark": None, "now": None, "isBacklog": None, "firing": None, "budget": None, "at": None}

    def prepareForTriggerAvailableNow(self) -> None:
        self._at_once = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        asked = {"operator": self._options["operator"], "start": start, "atOnce": self._at_once}
        try:
            return self._line.ask(asked)
        except (EOFError, OSError) as error:
            raise BacklogError(
                f"The query's runner does not answer on 127.0.0.1:{self._options['port']}: {error}",
                "The runner has ended, or the machine forbids connections to itself. Start the query again.",
            ) from None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if {**start, _WOKEN: None} == {**end, _WOKEN: None}:
            return []
        control = Control(
            watermark=Control.watermark if end["watermark"] is None else end["watermark"],
            now=end["now"] if end["now"] != start["now"] else None,
            backlog=end["isBacklog"],
            budget=end["budget"],
            at=end.get("at"),
        )
        return [_Message(int(self._options["keygroups"]), control)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Message)
        keep_imports()
        yield packed_control(partition.groups, partition.control)
