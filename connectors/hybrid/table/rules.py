"""Which commits of a Delta table can be read, and which files their rows are in (pure).

As Spark's source for Delta has it (``DeltaSource.validateCommitAndDecideSkipping``, ``CDCReader.changesToDF``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import unquote

from backlog_spark.errors import BacklogError

from ..files.entries import DataFile
from .commits import Action, Commit, TableState
from .fields import chars_of, names_of, own_name, unsupported

__all__ = [
    "added_columns",
    "check_feed",
    "check_state",
    "files_of",
    "refused_changes",
    "sequence",
    "wrong_table",
]

_FEED = "delta.enableChangeDataFeed"


def wrong_table(url: str, found: str, was: str) -> BacklogError:
    """The error for another table in the table's place."""
    return BacklogError(
        f"The Delta table {url} is not the table of the query's start: its id is {found}, and was {was}.",
        "Restore the table, or start again with a new checkpoint.",
    )


def check_feed(url: str, version: int, state: TableState) -> None:
    """Refuse a version without a change data feed.

    Raises
    ------
    BacklogError
    """
    if state.configuration.get(_FEED, "").lower() != "true":
        raise BacklogError(
            f"The Delta table {url} has no change data feed at version {version}, and readChangeFeed=true.",
            f"Set the table's property {_FEED}=true and start with a new checkpoint, or leave out readChangeFeed.",
        )


def check_state(url: str, commit: Commit, before: TableState, after: TableState, columns: Collection[str]) -> None:
    """Refuse a commit after which the table cannot be read as before.

    Parameters
    ----------
    url : str
        Of the table.
    commit : Commit
    before, after : TableState
        Of the table without and with the commit.
    columns : collection of str
        Those of the stream.

    Raises
    ------
    BacklogError
    """
    if after.id != before.id:
        raise wrong_table(url, after.id, before.id)
    unknown = unsupported(after.features, after.configuration)
    if unknown:
        raise BacklogError(
            f"Version {commit.version} of the Delta table {url} adds features that are not supported here: "
            f"{', '.join(unknown)}.",
            "Read a copy of the table without them, with a new checkpoint.",
        )
    now = {column["name"].casefold(): column for column in after.fields}
    read = {name.casefold() for name in columns}
    for column in before.fields:
        name = column["name"]
        found = now.get(name.casefold())
        if name.casefold() not in read:
            continue
        if found is None or own_name(found) != own_name(column):
            raise BacklogError(
                f"Version {commit.version} of the Delta table {url} drops or renames the column {name}.",
                f"Start again with a new checkpoint, and without {name} in schema if that is set.",
            )
        if _plain(found["type"]) != _plain(column["type"]):
            raise BacklogError(
                f"Version {commit.version} of the Delta table {url} changes the type of the column {name} from "
                f"{_shown(column['type'])} to {_shown(found['type'])}.",
                "Start again with a new checkpoint, which reads the whole table in the new type.",
            )


def added_columns(before: TableState, after: TableState, columns: Collection[str]) -> list[str]:
    """The columns that a commit adds and that the stream does not have."""
    known = {name.casefold() for name in (*columns, *(column["name"] for column in before.fields))}
    return [column["name"] for column in after.fields if column["name"].casefold() not in known]


def _plain(kind: Any) -> Any:
    """A type without remarks, and with all parts nullable."""
    if isinstance(kind, list):
        return [_plain(part) for part in kind]
    if not isinstance(kind, dict):
        return kind
    left_out = ("metadata", "nullable", "containsNull", "valueContainsNull")
    return {name: _plain(part) for name, part in kind.items() if name not in left_out}


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])


def refused_changes(url: str, commit: Commit) -> BacklogError:
    """The error for a commit that is no append."""
    operation = f" ({commit.operation})" if commit.operation else ""
    return BacklogError(
        f"Version {commit.version} of the Delta table {url}{operation} is no append: it {commit.changes}.",
        "Set readChangeFeed=true and start with a new checkpoint to read changes. Or set skipChangeCommits=true to go "
        "on without the rows of such commits.",
    )


def files_of(url: str, commit: Commit, state: TableState, *, as_changes: bool) -> list[DataFile]:
    """The files with the rows of a commit, in the order of the log.

    Paths are relative to the table. Files of the change data feed have ``_change_type`` in their rows, so not in
    ``metadata``.

    Parameters
    ----------
    url : str
    commit : Commit
    state : TableState
        With the commit.
    as_changes : bool
        Also deletes and updates. Otherwise the commit is an append.

    Raises
    ------
    BacklogError
    """
    if not as_changes:
        return [_data_file(url, commit, state, add, "insert") for add in commit.adds]
    if commit.cdc:
        return [_data_file(url, commit, state, cdc, None) for cdc in commit.cdc]
    if any(action.get("deletionVector") for action in (*commit.adds, *commit.removes)):
        raise BacklogError(
            f"Version {commit.version} of the Delta table {url} changes rows by deletion vectors, and has no files of "
            "the change data feed for them.",
            "Set delta.enableDeletionVectors=false for the table and start with a new checkpoint.",
        )
    return [
        *(_data_file(url, commit, state, remove, "delete") for remove in commit.removes),
        *(_data_file(url, commit, state, add, "insert") for add in commit.adds),
    ]


def _data_file(url: str, commit: Commit, state: TableState, action: Action, change: str | None) -> DataFile:
    """A file of a commit, with the values of its directories and of metadata columns.

    Raises
    ------
    BacklogError
        If it is not below the table.
    """
    path = unquote(action["path"])
    if path.startswith("/") or "://" in path:
        raise BacklogError(
            f"Version {commit.version} of the Delta table {url} has files of another place, such as {path}: a shallow "
            "clone, or files that were added by their URL, are not supported here.",
            "Read the table that has the files, or a deep clone.",
        )
    if "size" not in action or (state.partitioning and "partitionValues" not in action):
        raise BacklogError(
            f"Version {commit.version} of the Delta table {url} does not say the size and directory of {path}.",
            "Start again with a new checkpoint: its writer left that out, so this version cannot be read as changes.",
        )
    own = {own_name(column): column["name"] for column in state.fields}
    values = action.get("partitionValues") or {}
    # An empty text is NULL. (Delta protocol, "Partition Value Serialization")
    partition = tuple((own.get(name, name), text or None) for name, text in values.items())
    metadata = {"_commit_timestamp": None if commit.time_ms is None else commit.time_ms * 1000}
    if change is not None:
        metadata |= {"_change_type": change, "_commit_seq": sequence(commit.version, change)}  # type: ignore[dict-item]
    return DataFile(
        path,
        int(action["size"]),
        values=partition,
        rows=_rows(action),
        names=names_of(state.fields),
        chars=chars_of(state.fields),
        metadata=(("version", commit.version), *metadata.items()),
    )


def sequence(version: int, change: str) -> int:
    """``_commit_seq``: rows that a version removes come before those that it adds."""
    return 2 * version + (change in ("insert", "update_postimage"))


def _rows(action: Mapping[str, Any]) -> int | None:
    try:
        found = json.loads(action.get("stats") or "{}").get("numRecords")
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, int) and not action.get("deletionVector") else None
