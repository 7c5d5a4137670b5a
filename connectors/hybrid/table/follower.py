"""Follows the log of a Delta table: finds new commits, and says when one is gone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import replace

from backlog_spark.common.stores import Store
from backlog_spark.errors import BacklogError

from ..files.entries import DataFile
from .commits import Commit, TableState, parsed
from .options import FollowingOptions
from .rules import added_columns, check_feed, check_state, files_of, refused_changes, wrong_table
from .window import Entry, Window

__all__ = ["Follower"]

_log = logging.getLogger(__name__)
# Commits that are found beyond the place that is read. More are counted only when these are read.
_AHEAD = 1_000
# Between two looks at the whole log, which show that the table is another one. The last commit is looked at each time.
_VERIFY_S = 60.0


class Follower:
    """Reads the commits of one table.

    Parameters
    ----------
    store : Store
    prefix : str
        Put before paths in the table; "" or ends with a slash.
    url : str
        The table, for errors.
    options : FollowingOptions
    columns : collection of str
        The stream's data columns.
    open_state : callable
        The version and state of the table at a version, or at the latest one for None. Raises `BacklogError`.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        url: str,
        options: FollowingOptions,
        columns: Collection[str],
        open_state: Callable[[int | None], tuple[int, TableState]],
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._url = url
        self._options = options
        self._columns = columns
        self._open_state = open_state
        self._window: Window | None = None
        self._verified: float | None = None
        self._mark: tuple[int, object] | None = None

    def window(self, table: str, version: int, until: int) -> Window:
        """The commits from a version on, up to another one or further.

        Parameters
        ----------
        table : str
            The table's id.
        version, until : int
            The first one, and the one after the last that is needed. These must exist.

        Raises
        ------
        BacklogError
            A commit is gone, or may not be read.
        """
        window = self._window
        if window is None or not window.first <= version <= window.end:
            window = Window(version, self._state_before(table, version))
        elif version - window.first > _AHEAD:
            window = Window(version, window.state, window.entries[version - window.first :])
        while window.end < until:
            commit = self._read(window.end)
            if commit is None:
                raise self._gone(window.end)
            window = self._with(window, commit)
        self._window = window
        return window

    def discover(self, table: str, version: int) -> Window:
        """The commits from a version on, with those that are new.

        Raises
        ------
        BacklogError
            The table is another one, a commit is gone, or may not be read.
        """
        window = self.window(table, version, version)
        if self._verified is None or self._is_changed(window.end - 1):
            self._verify(table, window.end - 1)
        start = window.end
        while window.end < version + _AHEAD and (commit := self._read(window.end)) is not None:
            try:
                window = self._with(window, commit)
            except BacklogError:
                # The rows before it are read first.
                if window.end == version or not any(entry.files for entry in window.entries[version - window.first :]):
                    raise
                break
        self._window = window
        if window.end == start and self._verified is not None and time.monotonic() - self._verified > _VERIFY_S:
            self._verify(table, window.end - 1)
        self._remember(window.end - 1)
        return window

    def _path(self, version: int) -> str:
        return f"{self._prefix}_delta_log/{version:020d}.json"

    def _read(self, version: int) -> Commit | None:
        path = self._path(version)
        try:
            data = self._store.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BacklogError(
                f"{self._store.name(path)} cannot be read: {error}.", "Check its permissions, and start again."
            ) from None
        return parsed(self._store.name(path), version, data)

    # -- is it the same table? -----------------------------------------------------------------------------------

    def _state_before(self, table: str, version: int) -> TableState:
        try:
            _, state = self._open_state(version - 1)
        except BacklogError:
            # The version before may be gone if this one was begun with a checkpoint.
            commit = self._read(version)
            if commit is None:
                self._verify(table, version - 1)
                raise self._gone(version) from None
            if commit.metadata is not None or commit.protocol is not None:
                raise
            _, state = self._open_state(version)
        if state.id != table:
            raise wrong_table(self._url, state.id, table)
        return state

    def _tag(self, version: int) -> object:
        found = self._store.stat(self._path(version))
        return None if found is None else (found.size, found.tag)

    def _remember(self, version: int) -> None:
        if self._mark is None or self._mark[0] != version:
            self._mark = version, self._tag(version)

    def _is_changed(self, version: int) -> bool:
        """Whether the file of the last known commit is another one. The log's cleaning removes it after weeks."""
        return self._mark is not None and self._mark[0] == version and self._tag(version) != self._mark[1]

    def _verify(self, table: str, last: int) -> None:
        """Look at the whole log.

        Raises
        ------
        BacklogError
            It is another table, or lacks a commit.
        """
        latest, state = self._open_state(None)
        if state.id != table:
            raise wrong_table(self._url, state.id, table)
        if latest < last:
            raise BacklogError(
                f"The Delta table {self._url} is at version {latest}, but the query has read version {last}: an "
                "earlier state of its directory was restored.",
                "Restore the later one, or start again with a new checkpoint.",
            )
        if latest > last and self._read(last + 1) is None:
            raise self._gone(last + 1)
        self._verified, self._mark = time.monotonic(), (last, self._tag(last))

    def _gone(self, version: int) -> BacklogError:
        return BacklogError(
            f"The commit {self._store.name(self._path(version))} of version {version} is gone, and not all of its rows "
            "are read: the log was cleaned.",
            "Start again with a new checkpoint, which reads the whole table. A query may stop, or be behind, for at "
            "most the table's property delta.logRetentionDuration (30 days by default): set it higher.",
        )

    # -- what a commit gives -------------------------------------------------------------------------------------

    def _with(self, window: Window, commit: Commit) -> Window:
        state = commit.after(window.state)
        if state is not window.state:
            check_state(self._url, commit, window.state, state, self._columns)
            self._check_added(commit, added_columns(window.state, state, self._columns))
        files = self._files(commit, state)
        entry = Entry(tuple(files), commit.time_ms, is_whole=self._options.reads_changes and bool(commit.cdc))
        return Window(window.first, state, (*window.entries, entry))

    def _check_added(self, commit: Commit, added: list[str]) -> None:
        if not added:
            return
        names = ", ".join(added)
        what = f"Version {commit.version} of the Delta table {self._url} adds the column {names}"
        if self._options.added == "refuse":
            raise BacklogError(
                f"{what}, which the stream does not have.",
                "Start the query again: it then has the column, with NULL in earlier rows. If schema is set, add the "
                "column there. Or set addedColumns=ignore to go on without it.",
            )
        _log.warning("%s: it is not read", what)

    def _files(self, commit: Commit, state: TableState) -> list[DataFile]:
        if self._options.reads_changes:
            check_feed(self._url, commit.version, state)
        elif commit.changes:
            if not self._options.skips_changes:
                raise refused_changes(self._url, commit)
            _log.warning(
                "Version %d of the Delta table %s is skipped: it %s", commit.version, self._url, commit.changes
            )
            return []
        found = files_of(self._url, commit, state, as_changes=self._options.reads_changes)
        return [replace(file, path=self._prefix + file.path) for file in found]
