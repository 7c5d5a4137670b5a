"""The phase of files that goes on to find new ones. It has no end."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from backlog_spark.common.stores import store_of
from backlog_spark.errors import BacklogError

from ..phases import DecoderOf, Limit, Position, Step
from .cleaning import Cleaner
from .continuous_position import FilesPosition
from .discovery_options import DiscoveryOptions
from .entries import FilePartition
from .found import FOUND, chunks, compared, gathered, ordered, release
from .ledger import Ledger, Window
from .phase import FilePhase
from .planning import Planner
from .reading import Reader

__all__ = ["ContinuousFilePhase"]

_log = logging.getLogger(__name__)

# Lists that are not read yet. With more of them the next listing waits, so that heads stay small.
_LISTS = 64
# Heads between two sweeps of those that no longer count.
_SWEEP = 100
_NAMED = 5


class ContinuousFilePhase(FilePhase):
    """Reads the files of a first listing, then those of further listings. It is the last phase.

    The first listing is backlog. Later the thresholds decide. Found files are in a `Ledger`, which is written before a
    position names them. So a replay reads the same files. Parameters as of `FilePhase`.
    """

    is_bounded = False

    def __init__(
        self, name: str, options: Mapping[str, str], others: Collection[str] = (), decoder_of: DecoderOf | None = None
    ) -> None:
        super().__init__(name, options, others, decoder_of)
        self._told: object = None
        self._listed: float | None = None

    @property
    def starts_in_backlog(self) -> bool:
        return True

    @property
    def _discovery(self) -> DiscoveryOptions:
        return self.options.discovery

    def _forget(self) -> None:
        super()._forget()
        self._ledgers: dict[str, Ledger] = {}
        self._cleaners: dict[str, Cleaner] = {}
        self._planned: tuple[str, Planner] | None = None
        self._swept = 0

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_ledgers": {}, "_cleaners": {}, "_planned": None}

    # -- planning -----------------------------------------------------------------------------------------------

    def pin(self) -> None:  # type: ignore[override]
        """Nothing: the files are listed when the phase begins, and files that come meanwhile are read."""

    def _begin(self) -> Position:
        listing = gathered(self._walk(may_be_empty=self.options.may_be_empty), self._order)
        self._listed = time.monotonic()
        own, now = uuid.uuid4().hex[:12], int(time.time() * 1000)
        head = self._ledger(own).begin(listing)
        release()
        count = len(listing)
        return FilesPosition(
            id=own, began=head, head=head, first=count, files=count, file=0, offset=0, rows=0, is_backlog=count > 0,
            since=now, began_since=now,
        ).to_json()  # fmt: skip

    def first(self, position: Position) -> Position:
        at = FilesPosition.from_json(position)
        return replace(
            at, head=at.began, files=at.first, file=0, offset=0, rows=0, is_backlog=at.first > 0, since=at.began_since
        ).to_json()

    def is_backlog(self, position: Position) -> bool:
        return FilesPosition.from_json(position).is_backlog

    def next(self, start: Position, limit: Limit, now_ms: float) -> Step:
        at = FilesPosition.from_json(start)
        if not at.in_first and self._is_due(at):
            at = self._discover(at, at.file)
        step = self._step(at, limit, at.first if at.in_first else None, now_ms)
        return replace(step, position=start) if step.position == start else step

    def target(self, start: Position) -> Position:
        at = FilesPosition.from_json(start)
        return self._discover(at, at.file).to_json()

    def next_until(self, start: Position, target: Position, limit: Limit, now_ms: float) -> Step:
        at, goal = FilesPosition.from_json(start), FilesPosition.from_json(target)
        if goal.files > at.files:
            at = replace(at, head=goal.head, files=goal.files)
        step = self._step(at, limit, at.first if at.in_first else goal.files, now_ms)
        end = FilesPosition.from_json(step.position)
        step = replace(step, is_finished=end.file >= goal.files)
        return replace(step, position=start) if step.position == start else step

    def _step(self, at: FilesPosition, limit: Limit, until: int | None, now_ms: float) -> Step:
        window, planner = self._window(at), self._planner_of(at)
        base = window.base
        (file, offset), rows = planner.next(
            (at.file - base, at.offset), limit.rows, None if until is None else max(until, at.file) - base
        )
        is_moved = (file + base, offset) != (at.file, at.offset)
        # A batch with rows never looks empty.
        rows = max(rows, 1) if is_moved else 0
        end = replace(at, file=file + base, offset=offset, rows=at.rows + rows)
        thresholds = self._discovery.thresholds
        ends_first = at.in_first and not end.in_first
        if ends_first and thresholds.is_set:
            end = self._discover(end, at.file)  # what came meanwhile may be backlog too
            window = self._window(end)
        files, size, oldest_s = window.unread(end.file)
        if not end.in_first:
            flag = thresholds.next(None if ends_first else at.flag, files, size, oldest_s, now_ms)
            end = replace(end, is_backlog=flag.is_backlog, since=flag.since_ms)
        total = end.rows + planner.rows_after((file, offset)) if end.is_backlog else None
        return Step(end.to_json(), rows, is_backlog=end.is_backlog, total=total, is_behind=files > 0)

    def partitions(self, start: Position, end: Position) -> list[FilePartition]:
        # The list of the end has all files of the batch.
        a, b = FilesPosition.from_json(start), FilesPosition.from_json(end)
        base = self._window(b).base
        return self._planner_of(b).partitions((a.file - base, a.offset), (b.file - base, b.offset))

    def committed(self, position: Position) -> None:
        at = FilesPosition.from_json(position)
        if self._discovery.clean != "off" and self._cleaner(at.id).done < at.file:
            self._cleaner(at.id).clean(self._window(at), at.file)
        seq = Ledger.seq_of(at.head)
        if seq - self._swept >= _SWEEP:
            self._swept = seq
            try:
                self._ledger(at.id).sweep(at.head)
            except (BacklogError, OSError) as error:
                _log.warning("Old lists of the phase %s cannot be deleted now: %s", self.name, error)

    # -- listing ------------------------------------------------------------------------------------------------

    @property
    def _order(self) -> tuple[str, ...]:
        return ("path",) if self._discovery.order == "name" else ("modified", "path")

    def _is_due(self, at: FilesPosition) -> bool:
        if self._listed is not None and (time.monotonic() - self._listed) * 1000 < self._discovery.interval_ms:
            return False
        head = self._ledger(at.id).head(at.head)
        return len(head.lists) < _LISTS or self._window(at).unread(at.file)[0] == 0

    def _discover(self, at: FilesPosition, needed: int) -> FilesPosition:
        """The same position, with the files of a new listing. The head keeps the list from file ``needed`` on."""
        ledger, options = self._ledger(at.id), self._discovery
        last = ledger.head(at.head).last if options.order == "name" else ""
        walk = self._walk(may_be_empty=True, after=last if options.lists_after_last else "")
        found = compared(chunks(walk), ledger.seen(at.head), last)
        release()
        self._listed = time.monotonic()
        parts: list[pa.Table] = [found.new]
        ignored: list[pa.Table] = []
        for rule, option, files, what in (
            (options.late, "lateFiles", found.late, "has a smaller name than files that were found before"),
            (options.rewritten, "rewrittenFiles", found.rewritten, "was found before with another content"),
        ):
            if rule == "refuse" and len(files):
                raise self._refused(option, files, what)
            (parts if rule == "read" else ignored).append(files)
        self._tell(pa.concat_tables(ignored) if ignored else FOUND.empty_table())
        new = ordered(pa.concat_tables(parts), self._order)
        if not len(new):
            return at
        if options.clean != "off":
            needed = min(needed, self._cleaner(at.id).done)
        head = ledger.add(at.head, new, needed)
        return replace(at, head=head, files=at.files + len(new))

    def _refused(self, option: str, files: pa.Table, what: str) -> BacklogError:
        more = f" (and {len(files) - 1} more)" if len(files) > 1 else ""
        name = self._store().name(files.column("path")[0].as_py())
        return BacklogError(
            f"{name}{more} {what} by the phase {self.name}, and {option}=refuse.",
            f"Move it away, or restore it with its time of change. Or set {option}=read to read all its rows"
            f"{' again' if option == 'rewrittenFiles' else ''}, or {option}=ignore to go on without them.",
        )

    def _tell(self, ignored: pa.Table) -> None:
        """Warn of ignored files, once for the same ones."""
        names = ignored.column("path").slice(0, _NAMED).to_pylist()
        state = (len(ignored), names)
        if len(ignored) and state != self._told:
            shown = ", ".join(self._store().name(name) for name in names)
            _log.warning("%d late or rewritten files are ignored by the phase %s: %s%s", len(ignored), self.name, shown,
                         ", …" if len(ignored) > _NAMED else "")  # fmt: skip
        self._told = state

    # -- what is kept open ---------------------------------------------------------------------------------------

    def _ledger(self, own: str) -> Ledger:
        if own not in self._ledgers:
            store, directory = self._metadata()
            self._ledgers[own] = Ledger(store, f"{directory.rstrip('/')}/continuous-{own}")
        return self._ledgers[own]

    def _cleaner(self, own: str) -> Cleaner:
        if own not in self._cleaners:
            metadata, directory = self._metadata()
            archive = store_of(self._discovery.archive, self._storage)[1] if self._discovery.archive else ""
            mark = f"{directory.rstrip('/')}/continuous-{own}/cleaned.json"
            self._cleaners[own] = Cleaner(self._store(), archive, metadata, mark)
        return self._cleaners[own]

    def _window(self, at: FilesPosition) -> Window:
        return self._ledger(at.id).window(at.head)

    def _planner_of(self, at: FilesPosition) -> Planner:
        if self._planned is None or self._planned[0] != at.head:
            self._planned = at.head, self._plan(self._window(at).files)
        return self._planned[1]

    def _reader(self) -> Reader:
        reader = super()._reader()
        # The new content is read from another entry of the list.
        reader.skips_changed = self._discovery.rewritten == "read"
        return reader
