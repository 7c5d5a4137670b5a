"""One commit of a Delta table, from its file in the log (pure). (Delta protocol, "Actions")"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backlog_spark.errors import BacklogError

__all__ = ["Action", "Commit", "TableState", "parsed"]

#: A file of a commit: the value of ``add``, ``remove`` or ``cdc``.
Action = Mapping[str, Any]


@dataclass(frozen=True)
class TableState:
    """What a version says of the table, beside its files.

    Parameters
    ----------
    id : str
    fields : sequence of mapping
        Columns, as in the log.
    partitioning : sequence of str
        Names of the columns of the directories.
    configuration : mapping
    features : frozenset of str
        That a reader must know.
    """

    id: str
    fields: Sequence[Mapping[str, Any]]
    partitioning: Sequence[str]
    configuration: Mapping[str, str]
    features: frozenset[str]


@dataclass(frozen=True)
class Commit:
    """One commit.

    Parameters
    ----------
    version : int
    time_ms : int or None
        When it was written, by the writer's clock, in milliseconds since 1970.
    operation : str
        Its name by the writer, such as ``WRITE``; "" if unknown.
    adds, removes, cdc : list of Action
        Files with changed data, in the order of the commit. Not those of an OPTIMIZE.
    metadata, protocol : mapping or None
        If the commit sets them.
    """

    version: int
    time_ms: int | None = None
    operation: str = ""
    adds: list[Action] = field(default_factory=list)
    removes: list[Action] = field(default_factory=list)
    cdc: list[Action] = field(default_factory=list)
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None

    @property
    def changes(self) -> str:
        """Why it is no append; "" if it is one, or changes no rows."""
        if self.removes:
            return f"removes {len(self.removes)} data file{'s' if len(self.removes) > 1 else ''}"
        if any(add.get("deletionVector") for add in self.adds):
            return "adds a deletion vector"
        return "adds files of an earlier version" if self.adds and self.operation.upper() == "RESTORE" else ""

    def after(self, before: TableState) -> TableState:
        """The table's state from this commit on."""
        if self.metadata is None and self.protocol is None:
            return before
        data, features = self.metadata, before.features
        if self.protocol is not None:
            features = frozenset(self.protocol.get("readerFeatures") or ())
        if data is None:
            return TableState(before.id, before.fields, before.partitioning, before.configuration, features)
        return TableState(
            data["id"],
            json.loads(data["schemaString"])["fields"],
            data.get("partitionColumns") or (),
            data.get("configuration") or {},
            features,
        )


def parsed(name: str, version: int, data: bytes) -> Commit:
    """The commit in a file of the log.

    Parameters
    ----------
    name : str
        Of the file, for errors.
    version : int
    data : bytes

    Raises
    ------
    BacklogError
        If it is damaged.
    """
    found: dict[str, list[Any]] = {}
    try:
        for line in data.splitlines():
            if line.strip():
                for kind, value in json.loads(line).items():
                    found.setdefault(kind, []).append(value)
    except (ValueError, AttributeError) as error:
        raise BacklogError(
            f"{name} cannot be read as a commit of a Delta table: {error}.",
            "Restore the file, or start again with a new checkpoint.",
        ) from None
    info = (found.get("commitInfo") or [{}])[0]
    # An in-commit timestamp is the writer's too, but never goes back.
    time = info.get("inCommitTimestamp", info.get("timestamp"))
    return Commit(
        version,
        time if isinstance(time, int) else None,
        str(info.get("operation") or ""),
        [add for add in found.get("add", ()) if add.get("dataChange", True)],
        [remove for remove in found.get("remove", ()) if remove.get("dataChange", True)],
        found.get("cdc", []),
        (found.get("metaData") or [None])[-1],
        (found.get("protocol") or [None])[-1],
    )
