"""Removes a pipeline's checkpoints and targets, for a new start. Without Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.locations import opened
from backlog_spark.pipelines.model import Pipeline
from backlog_spark.pipelines.sections import FilesSinkSection
from backlog_spark.spark.checkpoint.driver_claim import is_dead

__all__ = ["Removal", "removals", "remove"]

_MARKS: Final = "_backlog_tables"  # of sinks.delta.tables, which imports PySpark


@dataclass(frozen=True)
class Removal:
    """A directory that a reset removes.

    Parameters
    ----------
    what : str
        ``"checkpoint"``, ``"target"`` or ``"notes"`` (which tables a query has begun).
    location : str
    files, size : int
        How many files, and their bytes.
    """

    what: str
    location: str
    files: int
    size: int


def removals(pipeline: Pipeline, *, target: bool, force: bool = False) -> list[Removal]:
    """What a reset would remove: what there is of the pipeline's checkpoints, and of its targets if asked for.

    Parameters
    ----------
    force : bool
        Also if a driver may still use a checkpoint.

    Raises
    ------
    BacklogError
        A directory is no checkpoint or no Delta table, a driver uses the checkpoint, a table or checkpoint is in a
        directory that would be removed, or a file of the checkpoint is damaged.
    """
    found: list[Removal] = []
    for output in pipeline.outputs():
        sink = output.section
        files, root = opened(pipeline.checkpoint_of(output.query), "checkpoint")
        if not output.side and files.isdir(root):
            # Before its first batch a query has only its claim and its event log.
            if not any(files.isdir(f"{root}/{name}") for name in ("offsets", "backlog/drivers", "backlog/events")):
                raise BacklogError(
                    f"{root} is no checkpoint of a streaming query.",
                    "Correct checkpoint in the file. Nothing was removed.",
                )
            if not force:
                _refuse_running(files, root)
            _refuse_others_below(files, root, "checkpoint")
            found.append(_measured("checkpoint", files, root))
        if not target:
            continue
        path = getattr(sink, "path", None)
        # Other queries may write there, or a catalog has the table.
        if path is None or isinstance(sink, FilesSinkSection) or getattr(sink, "table", None):
            raise BacklogError(
                f"The sink {output.name} does not say where it writes.",
                "Remove its target yourself, and leave out --target.",
            )
        files, root = opened(str(path), "path")
        tables, notes = [root], ""
        if sink.SYNC:
            identity = _identity(pipeline.checkpoint_of(sink))
            if not identity:
                continue  # the query has begun no table: those that are there are of other queries
            notes = f"{root}/{_MARKS}/{identity}"
            tables = _begun_tables(files, root, notes)
        for table in tables:
            if files.isdir(table):
                if not files.isdir(f"{table}/_delta_log"):
                    raise BacklogError(f"{table} is no Delta table.", "Correct path in the file. Nothing was removed.")
                _refuse_others_below(files, table, "target")
                found.append(_measured("target", files, table))
        if notes and files.isdir(notes):
            found.append(_measured("notes", files, notes))
    return list(dict.fromkeys(found))  # two sinks may write to one table


def remove(found: list[Removal]) -> None:
    """Remove what `removals` has found: the checkpoints last, so that an interrupted reset can be repeated."""
    order = ("target", "notes", "checkpoint")
    for each in sorted(found, key=lambda removal: order.index(removal.what)):
        files, root = opened(each.location, each.what)
        files.rm(root, recursive=True)


def _measured(what: str, files: Any, root: str) -> Removal:
    sizes = files.du(root, total=False)
    return Removal(what, str(files.unstrip_protocol(root)), len(sizes), sum(sizes.values()))


def _refuse_others_below(files: Any, root: str, what: str) -> None:
    """Refuse tables and checkpoints that would be removed with a directory, also those of this pipeline."""
    for path in files.find(root, withdirs=True):
        parts = str(path)[len(root) :].strip("/").split("/")
        for kind, mark in (("table", "_delta_log"), ("checkpoint", "offsets")):
            inner = "/".join([root, *parts[: parts.index(mark)]]) if mark in parts[1:] else root
            if inner != root and (kind == "table" or files.isdir(f"{inner}/commits")):
                raise BacklogError(
                    f"The {kind} {inner} is in the {what} {root} and would be removed with it.",
                    f"Move it, or remove the {what} yourself. Nothing was removed.",
                )


def _refuse_running(files: Any, root: str) -> None:
    drivers = f"{root}/backlog/drivers"
    for claim in files.ls(drivers, detail=False) if files.isdir(drivers) else ():
        if not str(claim).endswith(".json"):
            continue
        try:
            who = _values(files, str(claim), "pid", "host", "at", "machine")
        except FileNotFoundError:
            continue  # the driver has ended meanwhile
        except BacklogError as error:
            raise BacklogError(
                f"A driver may run on the checkpoint {root}. {error.problem}",
                "Stop the pipeline's drivers, then use --force.",
            ) from None
        if is_dead(who):
            continue
        raise BacklogError(
            f"A driver runs on the checkpoint {root}, or was killed: process {who['pid']} on {who['host']}, "
            f"{who['at']}.",
            "Stop it first. If it was killed, use --force.",
        )


def _values(files: Any, path: str, *names: str) -> dict[str, Any]:
    """A small file of JSON with at least these values."""
    try:
        found = json.loads(files.cat_file(path))
        if set(names) <= set(found):
            return dict(found)
    except (ValueError, TypeError):
        pass
    raise BacklogError(f"{path} is damaged: it is no JSON with {', '.join(names)}.", "Nothing was removed.")


def _identity(checkpoint: str) -> str:
    """The id of the checkpoint's query, which is in its transactions and its notes; empty if there is none."""
    files, root = opened(checkpoint, "checkpoint")
    path = f"{root}/backlog/identity.json"
    return str(_values(files, path, "id")["id"]) if files.exists(path) else ""


def _begun_tables(files: Any, root: str, notes: str) -> list[str]:
    """The tables that the query of these notes has begun. Other queries may write below the same root."""
    found = set()
    marks = files.ls(f"{notes}/tables", detail=False) if files.isdir(f"{notes}/tables") else []
    for mark in (mark for mark in marks if str(mark).endswith(".json")):
        # Hadoop takes the percent signs of names as they are, also in a URL.
        found.add(opened(str(_values(files, str(mark), "path")["path"]), "path")[1])
    outside = [table for table in found if not table.startswith(f"{root}/")]
    if outside:
        raise BacklogError(f"The table {outside[0]} is not below {root}.", "Remove it yourself. Nothing was removed.")
    return sorted(found)
