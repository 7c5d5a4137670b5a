"""The signals that users sent to a query, kept in its checkpoint until the sources have taken them.

Each is a file of its own, ``backlog/signals-<source>-<number>.json``, written atomically before `send` returns. The
source's offset has the number of the newest one that it took (`backlog_spark.spi.signals`). So a kill at any point
neither loses nor repeats a signal, and the source needs no access to the checkpoint.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from backlog_spark.errors import SettingError
from backlog_spark.model.nodes import SourceSpec
from backlog_spark.model.trees import state_name
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.jvm.session import loading
from backlog_spark.spi.registry import check_signal
from backlog_spark.spi.signals import Signal, signals_heard
from backlog_spark.spi.source_info import SourceInfo

__all__ = ["SignalLog"]

Offsets = Callable[[], Sequence[Mapping[str, Any] | None]]


class SignalLog:
    """The signals of one query.

    Parameters
    ----------
    checkpoint : Checkpoint
    sources : sequence of SourceSpec
        The query's, in plan order.
    """

    def __init__(self, checkpoint: Checkpoint, sources: Sequence[SourceSpec]) -> None:
        self._checkpoint = checkpoint
        self._sources = sources
        self._known: dict[str, list[Signal]] = {}
        self._lock = threading.Lock()

    def recall(self) -> None:
        """Read what earlier runs left. Called before the first run."""
        with self._lock:
            for name in (state_name(spec.name) for spec in self._sources):
                found = self._checkpoint.numbered_metadata(_file(name))
                self._known[name] = [Signal(s["id"], s["type"], s["data"], number) for number, s in found.items()]

    def of(self, name: str) -> Sequence[Signal]:
        """The signals of a source, in order, by its `state_name`. Called from threads of the loopback server."""
        with self._lock:
            return tuple(self._known.get(name, ()))

    def send(
        self,
        kind: str,
        data: Mapping[str, Any] | None,
        source: str | None,
        signal_id: str | None,
        infos: Sequence[SourceInfo | None],
        offsets: Offsets,
    ) -> str:
        """Check and keep a signal: ``BacklogQuery.signal``.

        Parameters
        ----------
        infos : sequence of (SourceInfo or None)
            Those of the sources.
        offsets : callable
            The newest offsets of the sources.

        Returns
        -------
        str
            The signal's id.

        Raises
        ------
        BacklogError
            No source takes signals, or this one cannot carry out the signal.
        """
        described = zip(self._sources, infos, strict=True)
        taking = {s.name: n for n, (s, info) in enumerate(described) if info is not None and info.takes_signals}
        if source is None and len(taking) == 1:
            source = next(iter(taking))
        if source not in taking:
            named = ", ".join(map(repr, taking)) or "none"
            raise SettingError("source", source, "is no source that takes signals.", f"There are: {named}.")
        spec = self._sources[taking[source]]
        made = Signal(_checked_id(signal_id), kind, _as_json(data))
        with loading(spec.format):
            check_signal(spec.format, spec.options, made)
        self._append(state_name(spec.name), made, signals_heard(offsets()[taking[source]]))
        return made.id

    def _append(self, name: str, made: Signal, heard: int) -> None:
        """Keep a signal. Those before the number ``heard`` are removed; that one stays, so that none comes twice."""
        with self._lock:
            known = self._known.setdefault(name, [])
            for old in [s for s in known if s.number < heard]:
                self._checkpoint.delete(f"backlog/{_file(name)}-{old.number}.json")
                known.remove(old)
            number = max(heard, known[-1].number if known else 0) + 1
            value = {"id": made.id, "type": made.type, "data": made.data}
            while not self._checkpoint.write_metadata(f"{_file(name)}-{number}", value):
                number += 1  # another driver wrote it: Spark will stop one of the two
            known.append(Signal(made.id, made.type, made.data, number))


def _checked_id(given: object) -> str:
    if given is None:
        return uuid.uuid4().hex
    if not isinstance(given, str) or not given or not given.isprintable():
        raise SettingError("id", given, "is no printable text.", "Leave it out for a random one.")
    return given


def _as_json(data: object) -> str:
    try:
        return json.dumps({} if data is None else dict(cast("Mapping[str, Any]", data)))
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingError(
            "data", type(data).__name__, f"cannot be written as a JSON object: {error}.",
            'Give a mapping such as {"data-collections": ["shop.orders"]}.',
        ) from None  # fmt: skip


def _file(name: str) -> str:
    return f"signals-{name}"
