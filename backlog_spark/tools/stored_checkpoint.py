"""Reads a query's checkpoint without Spark: offsets, commits, events, sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from backlog_spark.common.stored_values import CHECKPOINT_VERSION, check_version, reading_stored
from backlog_spark.decide.query_record import check_layout_version
from backlog_spark.errors import SettingError
from backlog_spark.pipelines.locations import opened
from backlog_spark.runner.event_log import DIRECTORY, VERSION, in_order
from backlog_spark.spark.checkpoint.driver_claim import DIRECTORY as CLAIMS
from backlog_spark.spark.checkpoint.driver_claim import newest_claim, runs
from backlog_spark.spark.checkpoint.offset_entries import offset_lines
from backlog_spark.spi.offset_flags import parse_offset
from backlog_spark.tools.event_lines import event_of

__all__ = ["SourceOffset", "StoredCheckpoint"]

# Written by `backlog_spark.spark.checkpoint.source_layout`.
_LAYOUT = re.compile(r"sources-(\d+)\.json")
_RUNS_WITH = "Use the version of backlog_spark that the query runs with."
# What a query makes before its log.
_BEGINNING = ("backlog", "sources", "commits", "state")
# A query merges files every few minutes at most. A name that is listed and never there must not stop the reader.
_LISTINGS = 10


@dataclass(frozen=True)
class SourceOffset:
    """Where a source is.

    Parameters
    ----------
    number : str
        Its number in Spark's plan, or its name if Spark knows one.
    offset : dict or None
        None if it has none yet, or none of JSON.
    """

    number: str
    offset: dict[str, Any] | None


class StoredCheckpoint:
    """A checkpoint, as it stood when it was first read.

    Parameters
    ----------
    location : str
        A path, or an address that fsspec knows, such as ``s3://bucket/checkpoints/orders``.
    texts : dict of str to str, optional
        Files of the event log that were read before, by name. They never change. New ones are added, and those that
        are gone are removed.
    waits : bool
        There may be no checkpoint yet: no directory, or an empty one. Default false.

    Raises
    ------
    SettingError
        If there is no checkpoint.
    """

    def __init__(self, location: str, texts: dict[str, str] | None = None, *, waits: bool = False) -> None:
        self.location = location
        self._texts = {} if texts is None else texts
        self._files, self._root = opened(location, "CHECKPOINT")
        # Before its first batch a query has only its event log, perhaps with a start that was refused.
        self.is_there = any(self._files.isdir(f"{self._root}/{name}") for name in ("offsets", DIRECTORY))
        """Whether there is a checkpoint."""
        if not self.is_there and not (waits and self._may_come()):
            raise SettingError(
                "CHECKPOINT", location, "there is no checkpoint of a streaming query.",
                "Give the query's checkpointLocation: the directory with `offsets` and `commits` in it.",
            )  # fmt: skip

    def _may_come(self) -> bool:
        """Whether nothing is there that is no checkpoint. A query makes some directories before its first batch."""
        if not self._files.exists(self._root):
            parent = self._root.rpartition("/")[0]
            return not self._files.isfile(parent)
        if not self._files.isdir(self._root):
            return False
        return {name.lstrip(".").removesuffix(".crc") for name in self._names("")} <= {"metadata", *_BEGINNING}

    @cached_property
    def planned(self) -> int | None:
        """The newest planned batch; None before the first."""
        return max(self._numbers("offsets"), default=None)

    @cached_property
    def committed(self) -> int | None:
        """The newest committed batch; None before the first."""
        return max(self._numbers("commits"), default=None)

    @cached_property
    def identity(self) -> str | None:
        """The id under which sinks store this query's batches; None for a plain Spark query."""
        found = parse_offset(self._text("backlog/identity.json") or "")
        if found is not None:
            check_version(f"The checkpoint {self.location}", found.get("version"), CHECKPOINT_VERSION, _RUNS_WITH)
        return str(found["id"]) if found and found.get("id") is not None else None

    @cached_property
    def sources(self) -> list[SourceOffset]:
        """The sources' offsets at the end of the newest planned batch."""
        if self.planned is None:
            return []
        name = f"offsets/{self.planned}"
        lines = offset_lines(self._text(name) or "", f"{self.location}/{name}")
        return [SourceOffset(number, parse_offset(line)) for number, line in lines.items()]

    @cached_property
    def source_names(self) -> dict[str, str] | None:
        """The names of the declared sources by their number in Spark's plan; None if the checkpoint lacks them.

        Streaming DataFrames and our own sources, such as the state handed over, have numbers between them.
        """
        versions = {int(found[1]) for name in self._names("backlog") if (found := _LAYOUT.fullmatch(name))}
        text = self._text(f"backlog/sources-{max(versions)}.json") if versions else None
        layout = parse_offset(text or "")
        if layout:
            check_layout_version(layout)
        with reading_stored("backlog/sources-<n>.json of the checkpoint"):
            return layout and {
                str(at): str(name) for at, name in zip(layout["positions"], layout["names"], strict=True)
            }

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """All events of the log, oldest first; empty if the query writes none. Two drivers' lines may be mixed.

        Raises
        ------
        BacklogError
            If a newer version of backlog_spark wrote them.
        """
        found = (self._event(line) for line in dict.fromkeys(self._event_lines()))
        return sorted((event for event in found if event), key=lambda event: str(event["at"]))

    @cached_property
    def event_files(self) -> list[str]:
        """The names of the event log's files, oldest first."""
        return in_order(self._names(DIRECTORY))

    @property
    def driver_runs(self) -> bool | None:
        """Whether the process of the newest driver runs. None if there is none, or on another machine."""
        name = newest_claim(self._names(CLAIMS))
        who = parse_offset(self._text(f"{CLAIMS}/{name}") or "") if name else None
        return runs(who) if who else None

    def _event_lines(self) -> Iterator[str]:
        names, texts = self.event_files, self._read_events(self.event_files)
        for _ in range(_LISTINGS):
            if all(texts[name] is not None for name in names):
                break
            names = in_order(self._names(DIRECTORY))  # those that are gone were merged into a newer file
            texts |= self._read_events([name for name in names if texts.get(name) is None])
        for name in set(self._texts) - set(names):
            self._texts.pop(name, None)
        for text in texts.values():
            yield from (text or "").rpartition("\n")[0].splitlines()

    def _read_events(self, names: Sequence[str]) -> dict[str, str | None]:
        """The text of each file; None for one that is gone. Only whole ones are kept for the next time."""
        found = {name: self._texts.get(name) or self._text(f"{DIRECTORY}/{name}") for name in names}
        self._texts |= {name: text for name, text in found.items() if text and text.endswith("\n")}
        return found

    def _event(self, line: str) -> dict[str, Any] | None:
        """None for a line that a crash of the machine has torn, or that is damaged in another way."""
        found = parse_offset(line) or {}
        if type(version := found.get("v")) is int and version > VERSION:
            check_version(f"The event log of {self.location}", version, VERSION, _RUNS_WITH)
        return event_of(line)

    def size(self, name: str) -> tuple[int, int]:
        """Bytes and number of all files in a directory."""
        path = f"{self._root}/{name}"
        sizes = self._files.du(path, total=False) if self._files.exists(path) else {}
        return sum(sizes.values()), len(sizes)

    def _numbers(self, name: str) -> list[int]:
        return [int(found) for found in self._names(name) if found.isdecimal()]

    def _names(self, name: str) -> list[str]:
        path = f"{self._root}/{name}".rstrip("/")
        if not self._files.isdir(path):
            return []
        return [found.rpartition("/")[2] for found in self._files.ls(path, detail=False)]

    def _text(self, name: str) -> str | None:
        try:
            content: bytes = self._files.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:  # never written, or removed meanwhile
            return None
        return content.decode(errors="replace")
