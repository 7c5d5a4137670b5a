"""The phase of a Delta table that goes on with the table's later commits. It has no end."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql.datasource import InputPartition

from backlog_spark.errors import BacklogError

from ..delta import DeltaPhase
from ..files.entries import DataFile, FilePartition
from ..files.planning import Planner
from ..files.reading import Reader
from ..phases import Columns, Limit, Position, Step
from .changes import ChangeReader
from .commits import TableState
from .follower import Follower
from .options import FollowingOptions
from .position import TablePosition
from .rules import check_feed
from .window import Window

__all__ = ["FollowingDeltaPhase"]


class FollowingDeltaPhase(DeltaPhase):
    """Reads one version of a table, then its later commits, one after the other. It is the last phase.

    The first version is backlog. Later the thresholds decide. A position names a version and a place in its files, and
    the log of the table fixes these. So a replay reads the same rows. Parameters as of `DeltaPhase`.
    """

    is_bounded = False

    def __init__(self, name: str, options: Mapping[str, str], others: Collection[str] = ()) -> None:
        super().__init__(name, options, others)
        self._looked: float | None = None

    @property
    def starts_in_backlog(self) -> bool:
        return True

    @property
    def _following(self) -> FollowingOptions:
        return self.options.following

    def _forget(self) -> None:
        super()._forget()
        self._follower: Follower | None = None
        self._planned: tuple[Window, Planner] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_follower": None, "_planned": None}

    # -- columns -------------------------------------------------------------------------------------------------

    def schema(self) -> pa.Schema:
        """The columns of the latest version: a restart finds those that were added."""
        return self._schema_of(self._table(None, None))

    def schema_at(self, position: Position) -> pa.Schema | None:
        at = TablePosition.from_json(position)
        try:
            was = self._schema_of(self._table(at.version if at.in_first else at.version - 1, None))
            now = self.schema()
        except BacklogError:
            return None
        has_all = all(field.name in now.names and now.field(field.name).type == field.type for field in was)
        return now if has_all else was

    def check(self) -> None:
        version, state = self._state(self._table(self.options.version, self.options.time))
        if self._following.reads_changes:
            check_feed(self.options.path, version, state)

    # -- planning ------------------------------------------------------------------------------------------------

    def _begin(self) -> Position:
        table = self._table(self.options.version, self.options.time)
        version, state = self._state(table)
        if self._following.reads_changes:
            check_feed(self.options.path, version, state)
        files = self._files_of(table)
        self._lists = {repr({"table": state.id, "version": version}): files}
        now, count = int(time.time() * 1000), len(files)
        return TablePosition(
            table=state.id, first=version, files=count, version=version if count else version + 1, file=0, offset=0,
            rows=0, is_backlog=count > 0, since=now, began_since=now,
        ).to_json()  # fmt: skip

    def first(self, position: Position) -> Position:
        at = TablePosition.from_json(position)
        return replace(
            at, version=at.first if at.files else at.first + 1, file=0, offset=0, rows=0, is_backlog=at.files > 0,
            since=at.began_since,
        ).to_json()  # fmt: skip

    def is_backlog(self, position: Position) -> bool:
        return TablePosition.from_json(position).is_backlog

    def _fixed(self, position: Position) -> dict[str, Any]:
        at = TablePosition.from_json(position)
        return {"table": at.table, "version": at.first}

    def _list(self, position: Position) -> list[DataFile]:
        return list(super()._list(self._fixed(position)))

    def next(self, start: Position, limit: Limit, now_ms: float) -> Step:
        at = TablePosition.from_json(start)
        if not at.in_first and self._is_due():
            self._discover(at)
        return self._step(start, at, limit, None, now_ms)

    def target(self, start: Position) -> Position:
        at = TablePosition.from_json(start)
        version = at.first + 1 if at.in_first else at.version
        end = self._discover(replace(at, version=version)).end
        return replace(at, version=end, file=0, offset=0).to_json()

    def next_until(self, start: Position, target: Position, limit: Limit, now_ms: float) -> Step:
        at, goal = TablePosition.from_json(start), TablePosition.from_json(target)
        if not at.in_first:
            self._known(at, goal.version)
        step = self._step(start, at, limit, goal.version, now_ms)
        return replace(step, is_finished=TablePosition.from_json(step.position).version >= goal.version)

    def _step(self, start: Position, at: TablePosition, limit: Limit, until: int | None, now_ms: float) -> Step:
        end, planner, place = self._in_first(at, limit) if at.in_first else self._in_commits(at, limit, until)
        is_moved = (end.version, end.file, end.offset) != (at.version, at.file, at.offset)
        has_rows = is_moved and (at.in_first or end.rows > at.rows)
        thresholds = self._following.thresholds
        ends_first = at.in_first and not end.in_first
        unread = 0
        if not end.in_first:
            # What came meanwhile may be backlog too.
            window = self._discover(end) if ends_first and thresholds.is_set else self._known(end, end.version)
            unread, size, oldest_s = window.unread(end.version, end.file)
            flag = thresholds.next(None if ends_first else at.flag, unread, size, oldest_s, now_ms)
            end = replace(end, is_backlog=flag.is_backlog, since=flag.since_ms)
        rows = max(end.rows - at.rows, 1) if has_rows else 0
        end = replace(end, rows=at.rows + rows)
        total = end.rows + planner.rows_after(place) if end.is_backlog else None
        found = end.to_json()
        return Step(start if found == start else found, rows, is_backlog=end.is_backlog, total=total,
                    is_behind=unread > 0)  # fmt: skip

    def _in_first(self, at: TablePosition, limit: Limit) -> tuple[TablePosition, Planner, tuple[int, int]]:
        planner = self._planner(at.to_json())
        place, rows = planner.next((at.file, at.offset), limit.rows)
        moved = replace(at, file=place[0], offset=place[1], rows=at.rows + rows)
        if place == planner.end:
            moved = replace(moved, version=at.first + 1, file=0, offset=0)
        return moved, planner, place

    def _in_commits(
        self, at: TablePosition, limit: Limit, until: int | None
    ) -> tuple[TablePosition, Planner, tuple[int, int]]:
        window = self._known(at, at.version)
        planner = self._planner_of(window)
        begin = window.index(at.version, at.file)
        end = window.index(min(until, window.end)) if until is not None else len(window.files)
        place, rows = planner.next((begin, at.offset), limit.rows, max(end, begin))
        whole = window.whole(*place)
        if whole is not None:
            place, (_, rows) = (whole, 0), planner.next((begin, at.offset), None, whole)
        version, file = window.place(place[0])
        if until is not None and version > until:
            version, file = until, 0
        is_moved = place != (begin, at.offset)
        moved = replace(
            at, version=version, file=file, offset=place[1], rows=at.rows + (max(rows, 1) if is_moved else 0)
        )
        return moved, planner, place

    def partitions(self, start: Position, end: Position) -> list[FilePartition]:
        a, b = TablePosition.from_json(start), TablePosition.from_json(end)
        if a.in_first:
            planner = self._planner(start)
            found = planner.partitions((a.file, a.offset), (b.file, b.offset) if b.in_first else planner.end)
            if b.in_first or (b.version, b.file, b.offset) == (b.first + 1, 0, 0):
                return found
            a = replace(a, version=a.first + 1, file=0, offset=0)
        else:
            found = []
        window = self._known(a, b.version + (1 if b.file or b.offset else 0))
        planner = self._planner_of(window)
        places = [(window.index(at.version, at.file), at.offset) for at in (a, b)]
        found += planner.partitions(*places)
        self._check_files([piece.file for partition in found for piece in partition.pieces])
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FilePartition)
        if not self._following.reads_changes:
            return super().read(partition)
        assert self._columns is not None, "the columns are not known yet"
        return ChangeReader(self._columns, self._reader_of).batches(partition.pieces)

    # -- the log -------------------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        return self._looked is None or (time.monotonic() - self._looked) * 1000 >= self._following.interval_ms

    def _discover(self, at: TablePosition) -> Window:
        found = self._log().discover(at.table, at.version)
        self._looked = time.monotonic()
        return found

    def _known(self, at: TablePosition, until: int) -> Window:
        return self._log().window(at.table, at.version, until)

    def _log(self) -> Follower:
        if self._follower is None:
            assert self._columns is not None, "the columns are not known yet"
            self._follower = Follower(
                self._store(), self._prefix(), self.options.path, self._following, self._columns.data.names,
                lambda version: self._state(self._table(version, None)),
            )  # fmt: skip
        return self._follower

    @staticmethod
    def _state(table: DeltaTable) -> tuple[int, TableState]:
        about = table.metadata()
        return table.version(), TableState(
            str(about.id),
            json.loads(table.schema().to_json())["fields"],
            about.partition_columns,
            about.configuration,
            frozenset(table.protocol().reader_features or ()),
        )

    def _planner_of(self, window: Window) -> Planner:
        if self._planned is None or self._planned[0] is not window:
            self._planned = window, self._plan(window.files)
        return self._planned[1]

    def _check_files(self, files: list[DataFile]) -> None:
        """Refuse files of commits that are gone, before a task reads others."""
        if not self._read.fails_on_loss:
            return  # the task warns
        store = self._store()
        there = {file.path: dict(file.metadata)["version"] for file in files}
        for (path, version), found in zip(there.items(), store.each(store.stat, list(there)), strict=True):
            if found is None:
                raise BacklogError(
                    f"{store.name(path)} of version {version} of the Delta table {self.options.path} is gone, and not "
                    "all of its rows are read: VACUUM has removed it.",
                    "Start again with a new checkpoint, or set failOnDataLoss=false to skip its rows. A query may "
                    "stop, or be behind, for at most the table's property delta.deletedFileRetentionDuration (7 days "
                    "by default): set it higher.",
                )

    def _reader_of(self, columns: Columns) -> Reader:
        return Reader(self.name, self._store(), self.format, columns, self._read.fails_on_loss)
