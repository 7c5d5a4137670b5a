"""The options of a phase of files that goes on to find new ones, each declared once (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from backlog_spark.errors import SettingError
from backlog_spark.spi.options import choice, duration, integer, option, options_of, parsed, text, values
from backlog_spark.spi.user_options import UserOptions

from ..hysteresis import Flag, Thresholds, leave
from .byte_sizes import byte_size

__all__ = ["DiscoveryOptions", "FileThresholds", "SizeThresholds", "refuse_with_once"]

_RULES = ("refuse", "ignore", "read")


def _bytes(given: UserOptions, name: str, low: int = 0) -> int | None:
    return byte_size(given, name, None, low)


@dataclass(frozen=True)
class SizeThresholds(Thresholds):
    """Thresholds of a phase whose unread bytes are known."""

    bytes: int | None = option(
        "backlogBytesThreshold", lambda given, name: _bytes(given, name, 1), None, type="bytes", bounds=">= 1"
    )
    """It enters backlog while more bytes of files than this are unread."""
    bytes_leave: int = option(
        "backlogBytesLeaveThreshold", leave(_bytes), 0, type="bytes",
        shown="half of backlogBytesThreshold", bounds="0..backlogBytesThreshold",
    )  # fmt: skip
    """It leaves backlog when at most this many bytes are unread."""

    @property
    def is_set(self) -> bool:
        """Whether there is a threshold."""
        return (self.lag_ms, self.bytes) != (None, None)

    def decided(
        self, flag: Flag | None, counted: tuple[int | None, int, int], size: int, oldest_s: float, now_ms: float
    ) -> Flag:
        """The flag from now on.

        Parameters
        ----------
        flag : Flag or None
            The flag before; None when it may change at once.
        counted : tuple of (int or None, int, int)
            The thresholds to enter and leave, and the number, of what else is counted. Nothing is unread without any.
        size : int
            Unread bytes.
        oldest_s : float
            When the oldest was changed, in seconds since 1970; infinity if no time is known.
        now_ms : float
        """

        def exceeded(inside: bool) -> bool:
            if not counted[2]:
                return False
            bounds = (counted, (self.bytes, self.bytes_leave, size))
            if any(enter is not None and found > (leave if inside else enter) for enter, leave, found in bounds):
                return True
            return self.lag_ms is not None and now_ms - oldest_s * 1000 > (self.lag_leave_ms if inside else self.lag_ms)

        return Flag.next(flag, exceeded, self.min_stay_ms, now_ms)


@dataclass(frozen=True)
class FileThresholds(SizeThresholds):
    """Thresholds of files, which count after the first listing."""

    files: int | None = integer("backlogFilesThreshold", None, 1)
    """It enters backlog while more files than this are unread."""
    files_leave: int = option(
        "backlogFilesLeaveThreshold", leave(lambda given, name: given.integer(name, None, 0)), 0, type="int",
        shown="half of backlogFilesThreshold", bounds="0..backlogFilesThreshold",
    )  # fmt: skip
    """It leaves backlog when at most this many are unread."""

    @property
    def is_set(self) -> bool:
        """Whether there is a threshold."""
        return super().is_set or self.files is not None

    def next(self, flag: Flag | None, files: int, size: int, oldest_s: float, now_ms: float) -> Flag:
        """The flag from now on.

        Parameters
        ----------
        flag : Flag or None
            The flag before; None when it may change at once.
        files, size : int
            Unread files, and their bytes.
        oldest_s : float
            When the oldest of them was changed, in seconds since 1970; infinity if no time is known.
        now_ms : float
        """
        return self.decided(flag, (self.files, self.files_leave, files), size, oldest_s, now_ms)


# Phases of Kafka and Delta beside this one have them too.
_SHARED = frozenset(o.name for o in options_of(SizeThresholds))


def refuse_with_once(kind: type[Any], given: UserOptions) -> None:
    """Refuse the options of a class that say how a phase without an end goes on, for a phase with an end.

    Raises
    ------
    SettingError
    """
    for name in (o.name for o in options_of(kind)):
        if given.has(name) and name not in ("discovery", *_SHARED):
            raise SettingError(
                name, given.text(name), "has no meaning with discovery=once.",
                f"Leave out {name}, or set discovery=continuous. With several phases name the phase: "
                f"phase.<name>.{name}.",
            )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DiscoveryOptions:
    """How a phase finds files."""

    discovery: str = choice("discovery", ("once", "continuous"))
    """once: the files of the query's first start. continuous: also those that come later. The phase then has no end, so
    it is the last one."""
    interval_ms: int = duration("discoveryInterval", 10_000, flink="source.monitor-interval")
    """continuous: least time between the end of a listing and the next one. 0: before each batch."""
    order: str = choice("discoveryOrder", ("modified", "name"))
    """continuous: the order within a listing. modified: oldest first, then by path, as in Spark. name: by path, for
    names that grow, such as `2026/01/31/…`. Then a file is late if its path is smaller than one that was found
    before."""
    late: str = choice("lateFiles", _RULES)
    """With `discoveryOrder=name`, for a new file with a smaller path. refuse: the query stops and names it. ignore: it
    is not read, and a warning names it. read: it is read like the others."""
    rewritten: str = choice("rewrittenFiles", _RULES)
    """continuous: for a file with the path of an earlier one and another size, ETag or time of change. refuse: the
    query stops and names it, because rows of the earlier content may be in the target. ignore: it is not read, and a
    warning names it. read: all its rows are read again."""
    clean: str = choice("cleanSource", ("off", "archive", "delete"), spark="cleanSource")
    """continuous: what happens to a file after the batch with its last row was committed. archive: it is moved to
    `sourceArchiveDir`."""
    archive: str = text("sourceArchiveDir", type="path", spark="sourceArchiveDir")
    """For `cleanSource=archive`: a directory in the same file system, outside of `path`. The whole path of the file is
    kept below it, as in Spark."""
    thresholds: FileThresholds = parsed(lambda given: FileThresholds(**values(FileThresholds, given)), FileThresholds)

    @property
    def is_continuous(self) -> bool:
        """Whether the phase has no end."""
        return self.discovery == "continuous"

    @property
    def lists_after_last(self) -> bool:
        """Whether only names greater than the last one matter."""
        return self.order == "name" and self.late == self.rewritten == "ignore"

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
        if given.has("lateFiles") and found.order != "name":
            raise SettingError(
                "lateFiles", found.late, "has no meaning without discoveryOrder=name.", "Leave out one, or set both."
            )
        if (found.clean == "archive") != bool(found.archive.strip()):
            if found.archive:
                raise SettingError(
                    "sourceArchiveDir", found.archive, "has no meaning without cleanSource=archive.", "Leave it out."
                )
            raise SettingError(
                "sourceArchiveDir", None, "is needed with cleanSource=archive.", "Set it to a directory."
            )
        return found

    def check_paths(self, paths: Sequence[str], fixed: Sequence[str], archive: str) -> None:
        """Refuse an archive whose files would be found again, and names of several directories.

        Parameters
        ----------
        paths : sequence of str
            As given.
        fixed : sequence of str
            Their directories up to the first wildcard, as paths in the store.
        archive : str
            ``sourceArchiveDir`` as a path in the store; "" without one.
        """
        if self.is_continuous and self.order == "name" and len(paths) > 1:
            raise SettingError(
                "discoveryOrder", "name", f"needs one path, but there are {len(paths)}: their names do not grow "
                "together.", "Read them in one phase each, or leave out discoveryOrder.",
            )  # fmt: skip
        for path, directory in zip(paths, fixed, strict=True):
            if archive and f"{archive.rstrip('/')}/".startswith(f"{directory.rstrip('/')}/"):
                raise SettingError(
                    "sourceArchiveDir", self.archive, f"is below {path}, so its files would be found again.",
                    "Set it to a directory beside that.",
                )  # fmt: skip
