"""What a checkpoint and its targets were made with, and which of it a later start must not change (pure).

The checkpoint keeps it with the layout of its sources. Not recorded, so free to change: servers, users, passwords,
intervals, sizes of batches, and what functions without state do. A connector compares what its own offsets say, such as
tables, columns and the server (`check_resume`). The ledger compares what keyed operators do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from backlog_spark.common.stored_values import check_version, checked, reading_stored
from backlog_spark.errors import SettingError

__all__ = ["LAYOUT_VERSION", "QueryRecord", "SourceRecord", "check_layout_version", "check_table_keys", "same_place"]

LAYOUT_VERSION: Final = 1
"""Of the file that has the record, and the layout of the sources."""

_ANEW: Final = "Set it as it was, or start with a new checkpointLocation and an empty target."
# By setting: what would happen. All are of sinks.
_BECAUSE: Final = {
    "kind": "The rows in the target were written in another way.",
    "path": "The target there lacks the rows that the checkpoint counts as written.",
    "table": "The table of that name lacks the rows that the checkpoint counts as written.",
    "place": "The target there lacks the rows that the checkpoint counts as written.",
    "topic": "The topic lacks the records that the checkpoint counts as written.",
    "keys": "Rows that are in the target would be replaced and deleted by other columns than they were written by.",
    "format": "Readers of the target expect the values as they were.",
    "change_type": "Rows in the target would be updated and deleted by another column than before.",
    "sequence": "The newest change of a key would be found by another column than before.",
    "metadata_columns": "The target has columns for the others.",
    "history": "The rows in the target are written in another way: one for each key, or one for each version.",
    "version_columns": "The versions in the target have their times in these columns.",
    "deletes": "The target has rows that are marked as deleted, and would never be removed.",
    "deleted_column": "Rows in the target are marked in the other column.",
}


def check_layout_version(found: Mapping[str, Any]) -> None:
    """Refuse a file of another version. ``found``: ``backlog/sources-<n>.json``."""
    check_version("backlog/sources-<n>.json of the checkpoint", found.get("version"), LAYOUT_VERSION)


@dataclass(frozen=True)
class SourceRecord:
    """One source.

    Parameters
    ----------
    name, format : str
    reads : mapping of str to str
        Options that say what it reads. Empty if its connector compares that. Never secrets.
    """

    name: str
    format: str
    reads: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class QueryRecord:
    """What a query is made of.

    Parameters
    ----------
    sources : tuple of SourceRecord
        In plan order.
    sinks : mapping
        `Sink.described` of each target, by name: that of its side output, "" for the main output; of further targets of
        an output followed by ``#2``, ``#3`` …
    operators : tuple of str
        Names of the keyed operators.
    """

    sources: tuple[SourceRecord, ...]
    sinks: Mapping[str, Mapping[str, Any]]
    operators: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "sources": [asdict(source) for source in self.sources],
            "sinks": {name: dict(sink) for name, sink in self.sinks.items()},
            "operators": list(self.operators),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> QueryRecord:
        """Read back what `to_json` wrote.

        Raises
        ------
        BacklogError
            If it is damaged.
        """
        with reading_stored("backlog/sources-<n>.json of the checkpoint"):
            sources = tuple(SourceRecord(each["name"], each["format"], each["reads"]) for each in data["sources"])
            return checked(cls(sources, data["sinks"], tuple(data["operators"])))

    def check(self, now: QueryRecord, has_moved: Callable[[str], bool]) -> None:
        """Refuse what a query must not change on its checkpoint. The first difference counts.

        Parameters
        ----------
        now : QueryRecord
            What the query is made of at this start. Sources, outputs and settings that only one of both has are not
            compared.
        has_moved : callable
            Whether the target that an output has now contains the query's rows: then its path may be another.

        Raises
        ------
        SettingError
            Names the setting, the recorded value, the value found and the next step.
        """
        names, others = ([source.name for source in each.sources] for each in (self, now))
        if names == others or sorted(names) != sorted(
            others
        ):  # another order is refused with the layout of the sources
            for before, source in zip(self.sources, now.sources, strict=False):
                _check_source(before, source)
        for name in self.sinks.keys() & now.sinks.keys():
            _check_sink(name, self.sinks[name], now.sinks[name], has_moved)
        if bool(self.operators) != bool(now.operators):
            raise SettingError(
                "keyed operators", _listed(now.operators),
                f"the checkpoint was made with {_listed(self.operators)}. The rows that it has read would be missing in"
                " the operators' state, or their results in the target.",
                "Declare the query as it was, or start with a new checkpointLocation and an empty target.",
            )  # fmt: skip


def _check_source(before: SourceRecord, now: SourceRecord) -> None:
    if before.format != now.format:
        raise SettingError(
            f"the format of source {now.name!r}", now.format,
            f"the checkpoint was made with {before.format} ({before.name!r}), whose offsets it has.", _ANEW,
        )  # fmt: skip
    for option, text in now.reads.items():
        recorded = before.reads.get(option, text)
        if recorded != text and not same_place(recorded, text):
            raise SettingError(
                f"{option} of source {now.name!r}", text,
                f"the checkpoint was made with {recorded!r}: it is of other data, and its offsets do not fit.", _ANEW,
            )  # fmt: skip


# What sinks did before these settings were recorded.
_FORMERLY: Final = {"deletes": "remove", "history": None}


def _check_sink(
    output: str, before: Mapping[str, Any], now: Mapping[str, Any], has_moved: Callable[[str], bool]
) -> None:
    before = {**{key: value for key, value in _FORMERLY.items() if key in now}, **before}
    side, _, number = output.partition("#")
    of = (f" of target {number}" if number else "") + (f" of side output {side!r}" if side else "")
    for setting, reason in _BECAUSE.items():
        if setting not in before or setting not in now or _is_same(setting, before[setting], now[setting]):
            continue
        if setting in ("path", "place", "table") and has_moved(output):
            continue
        raise SettingError(
            f"sink{of}" if setting == "kind" else f"{now['kind']} {setting}{of}", now[setting],
            f"the checkpoint was made with {before[setting]!r}. {reason}", _ANEW,
        )  # fmt: skip


def _is_same(setting: str, before: Any, now: Any) -> bool:
    if setting == "path":
        return same_place(str(before), str(now))
    if setting == "deletes":
        return bool(before == now or before != "soft")  # nothing in the target depends on the others
    if isinstance(before, Sequence) and isinstance(now, Sequence) and not isinstance(before, str):
        return _folded(before) == _folded(now)
    return bool(before == now)


def _folded(names: Sequence[str]) -> list[str]:
    # Spark and Delta ignore case in names, and the order of keys does not matter.
    return sorted(str(name).lower() for name in names)


def same_place(one: str, other: str) -> bool:
    """Whether two texts may name the same place. ``file:`` and S3's schemes are not compared, nor a missing scheme."""
    (scheme, host, path), (other_scheme, other_host, other_path) = _place(one), _place(other)
    return path == other_path and (not scheme or not other_scheme or (scheme, host) == (other_scheme, other_host))


def _place(text: str) -> tuple[str, str, str]:
    """Scheme, host and path. Hadoop writes paths as they are, so they are not read as URLs."""
    scheme, host, path = re.fullmatch(
        r"(?:([A-Za-z][\w+.-]*):(?=/))?(?://([^/]*)(?=/|$))?(.*)", text, re.DOTALL
    ).groups("")  # type: ignore[union-attr]
    return {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme), host, re.sub(r"/+", "/", path).rstrip("/") or "/"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def check_table_keys(path: str, keys: Sequence[str], recorded: Sequence[str]) -> None:
    """Refuse a table whose rows were written by other keys, by a query of another checkpoint.

    Raises
    ------
    SettingError
    """
    if _folded(keys) != _folded(recorded):
        raise SettingError(
            "keys", list(keys),
            f"the Delta table at {path} was made by a query of another checkpoint, with the keys "
            f"{', '.join(recorded)}. {_BECAUSE['keys']}",
            "Set the same keys, or use another path.",
        )  # fmt: skip
