"""The options of a phase of Delta that goes on with later commits, each declared once (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from backlog_spark.errors import SettingError
from backlog_spark.spi.options import choice, duration, flag, integer, option, parsed, values
from backlog_spark.spi.user_options import UserOptions

from ..files.discovery_options import SizeThresholds, refuse_with_once
from ..hysteresis import Flag, leave

__all__ = ["FollowingOptions", "VersionThresholds"]


@dataclass(frozen=True)
class VersionThresholds(SizeThresholds):
    """Thresholds of later commits, which count after the first version."""

    versions: int | None = integer("backlogVersionsThreshold", None, 1)
    """It enters backlog while more versions than this are unread."""
    versions_leave: int = option(
        "backlogVersionsLeaveThreshold", leave(lambda given, name: given.integer(name, None, 0)), 0, type="int",
        shown="half of backlogVersionsThreshold", bounds="0..backlogVersionsThreshold",
    )  # fmt: skip
    """It leaves backlog when at most this many are unread."""

    @property
    def is_set(self) -> bool:
        """Whether there is a threshold."""
        return super().is_set or self.versions is not None

    def next(self, flag: Flag | None, versions: int, size: int, oldest_s: float, now_ms: float) -> Flag:
        """The flag from now on. As `FileThresholds.next`, with versions for files."""
        return self.decided(flag, (self.versions, self.versions_leave, versions), size, oldest_s, now_ms)


@dataclass(frozen=True, kw_only=True)
class FollowingOptions:
    """How a phase goes on after the first version."""

    discovery: str = choice("discovery", ("once", "continuous"))
    """once: one version of the table. continuous: also the commits that come later. The phase then has no end, so it is
    the last one."""
    interval_ms: int = duration("discoveryInterval", 10_000, flink="source.monitor-interval")
    """continuous: least time between two looks for new commits. 0: before each batch."""
    reads_changes: bool = flag("readChangeFeed", spark="readChangeFeed")
    """continuous: later commits are read as changes: inserts, updates and deletes, by the table's change data feed.
    false: as appended rows."""
    skips_changes: bool = flag("skipChangeCommits", spark="skipChangeCommits")
    """continuous, without `readChangeFeed`: for a commit that deletes or updates rows, or restores a version. false:
    the query stops and names it. true: the whole commit gives no rows, with a warning."""
    added: str = choice("addedColumns", ("refuse", "ignore"))
    """continuous: for a commit that adds a column that the stream does not have. refuse: the query stops and names it.
    ignore: the column is not read, and a warning names it."""
    thresholds: VersionThresholds = parsed(
        lambda given: VersionThresholds(**values(VersionThresholds, given)), VersionThresholds
    )

    @property
    def is_continuous(self) -> bool:
        """Whether the phase has no end."""
        return self.discovery == "continuous"

    @classmethod
    def parse(cls, given: UserOptions) -> Self:
        """Parse the options.

        Raises
        ------
        SettingError
        """
        found = cls(**values(cls, given))
        if not found.is_continuous:
            refuse_with_once(cls, given)
        if found.reads_changes and found.skips_changes:
            raise SettingError(
                "skipChangeCommits", given.text("skipChangeCommits"), "has no meaning with readChangeFeed=true.",
                "Leave out one of them.",
            )  # fmt: skip
        return found
