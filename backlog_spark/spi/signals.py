"""Signals: what a running query asks of one of its sources.

A signal survives a kill at any point. The query writes it to its checkpoint before `signal` returns, with a number. The
source, in a process of its own, asks the query's runner for those after the last number in its offset, and puts that
number, with what is left to do, into its next offset. So each is carried out exactly once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from typing import Any

from backlog_spark.common.loopback import LoopbackLine

__all__ = ["HEARD", "SIGNALS_TOKEN", "QuerySignals", "Signal", "answer_signals", "signals_heard"]

_log = logging.getLogger(__name__)

SIGNALS_TOKEN = "signalsToken"
"""The option with the address of the query's runner, and the source's name there. Spark hides such values."""
HEARD = "signalsHeard"
"""In the source's offset: the number of the newest signal that it took."""


@dataclass(frozen=True)
class Signal:
    """A signal, as in Debezium.

    Parameters
    ----------
    id, type : str
    data : str
        A JSON object, or "".
    number : int
        Its place in the query's log; 0 if it does not come from there.
    """

    id: str
    type: str
    data: str = ""
    number: int = 0


def signals_heard(offset: Mapping[str, Any] | None) -> int:
    """The number of the newest signal that a source took."""
    found = (offset or {}).get(HEARD, 0)
    return found if isinstance(found, int) else 0


def answer_signals(asked: Mapping[str, Any], known: Sequence[Signal]) -> dict[str, Any]:
    """The runner's answer to `QuerySignals`: those after a number."""
    return {"signals": [[s.number, s.id, s.type, s.data] for s in known if s.number > asked["after"]]}


class QuerySignals:
    """Asks the query's runner for signals.

    Parameters
    ----------
    token : str
        The option `SIGNALS_TOKEN`; "" in a query without a runner.
    """

    def __init__(self, token: str = "") -> None:
        port, _, rest = token.partition(":")
        key, _, self._source = rest.partition(":")
        self._line = LoopbackLine(int(port), key) if port.isdecimal() else None
        self._is_warned = False

    def after(self, number: int) -> list[Signal]:
        """Signals with a greater number, in order. Empty if the runner does not answer: they wait in its log."""
        if self._line is None:
            return []
        try:
            found = self._line.ask({"signals": self._source, "after": number}).get("signals", [])
        except (EOFError, OSError, AuthenticationError) as error:
            if not self._is_warned:
                self._is_warned = True
                _log.warning(
                    "The query's runner does not answer on port %d (%s). Signals wait.", self._line.port, error
                )
            return []
        return [Signal(id_, kind, data, n) for n, id_, kind, data in found]
