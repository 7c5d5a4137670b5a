"""``backlog-spark inspect``: where a query is, from its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from backlog_spark.common.durations import format_duration
from backlog_spark.spi import offset_flags
from backlog_spark.tools.history import LIFE, newest, status_of
from backlog_spark.tools.output import table
from backlog_spark.tools.stored_checkpoint import StoredCheckpoint

__all__ = ["inspected", "shown"]

_DIRECTORIES = ("offsets", "commits", "state", "backlog")
_LAST_SWITCHES = 10


def inspected(checkpoint: StoredCheckpoint) -> dict[str, Any]:
    """The state of a query, as values of JSON.

    Returns
    -------
    dict
        ``query`` and ``status`` are None if the query writes no event log. ``status`` is "running or killed" after a
        start without an end: a checkpoint cannot tell the two apart. ``mode`` is "backlog" or "stream". It follows the
        newest offsets; if they have no flags, since rules decide, the newest switch. It is always "stream" while the
        interval during backlog is unset. ``switches`` and ``restarts`` are those that the event log still has.
    """
    events = checkpoint.events
    started, last = newest(events, "start"), newest(events, "batch")
    declared = [source["name"] for source in started.get("sources", ())]
    names = checkpoint.source_names or {str(number): name for number, name in enumerate(declared)}
    return {
        "location": checkpoint.location,
        "query": events[-1]["query"] if events else None,
        "identity": checkpoint.identity,
        "status": _status(newest(events, *LIFE)),
        "mode": _mode(checkpoint, events),
        "planned": checkpoint.planned,
        "committed": checkpoint.committed,
        "backlog_rows": last.get("backlog_rows"),
        "backlog_total": last.get("backlog_total"),
        "last_batch": {name: last.get(name) for name in ("at", "rows", "took_ms")} if last else None,
        "sources": [
            {
                "number": source.number,
                "name": names.get(source.number) if source.number.isdecimal() else source.number,
                "is_processing_backlog": offset_flags.is_processing_backlog(source.offset),
                "is_finished": offset_flags.is_finished(source.offset),
                "offset": source.offset,
            }
            for source in checkpoint.sources
        ],
        "started": {name: started.get(name) for name in ("at", "spark", "python")} if started else None,
        "intervals_ms": (
            {"normal": started.get("interval_ms"), "during_backlog": started.get("interval_during_backlog_ms")}
            if started
            else None
        ),
        "switches": [_without_head(event) for event in events if event["kind"] == "switch"],
        "restarts": [_without_head(event) for event in events if event["kind"] == "restart"],
        "sizes": {name: dict(zip(("bytes", "files"), checkpoint.size(name), strict=True)) for name in _DIRECTORIES},
    }


def shown(found: dict[str, Any]) -> list[Table]:
    """The same as tables for a terminal."""
    rows = [
        ("query", found["query"] or "unknown: it writes no event log"),
        ("status", found["status"] or "unknown"),
        ("mode", found["mode"]),
        ("batches", _batches(found["planned"], found["committed"])),
        ("backlog", _backlog(found["backlog_rows"], found["backlog_total"])),
    ]
    if found["intervals_ms"]:
        during = found["intervals_ms"]["during_backlog"]
        shown_during = "not set" if during is None else format_duration(during)
        rows.append(("interval", f"{format_duration(found['intervals_ms']['normal'])}, during backlog {shown_during}"))
    if found["started"]:
        started = found["started"]
        rows.append(("last start", f"{started['at'][:19]}, Spark {started['spark']}, Python {started['python']}"))
    if found["restarts"]:
        rows.append(("restarts", f"{len(found['restarts'])}, last: {found['restarts'][-1]['error']}"))
    rows += [(f"{name}/", f"{s['bytes']:,} bytes in {s['files']:,} files") for name, s in found["sizes"].items()]
    sources = [
        (
            source["name"] or source["number"],
            "finished" if source["is_finished"] else "backlog" if source["is_processing_backlog"] else "live",
        )
        for source in found["sources"]
        if source["name"] or not found["query"]  # else it is a source of our own, such as the state handed over
    ]
    switches = [
        (str(switch["batch"]), switch["at"][:19], switch["mode"], switch["why"])
        for switch in found["switches"][-_LAST_SWITCHES:]
    ]
    return [
        table(("", ""), rows, title=found["location"]),
        table(("name", "phase"), sources, title="sources"),
        table(("batch", "at", "mode", "because"), switches, title="switches"),
    ]


def _status(last: dict[str, Any]) -> str | None:
    if not last or last["kind"] == "start":
        return status_of(last) or None
    error = f": {last['error']}" if last.get("error") else ""
    return f"{status_of(last)} at {last['at'][:19]}{error}"


def _mode(checkpoint: StoredCheckpoint, events: Sequence[dict[str, Any]]) -> str:
    started, offsets = newest(events, "start"), [source.offset for source in checkpoint.sources]
    if started and started.get("interval_during_backlog_ms") is None:
        return "stream"  # the feature is off: a source in backlog changes nothing
    if any(map(offset_flags.has_flag, offsets)):
        return "backlog" if any(map(offset_flags.is_processing_backlog, offsets)) else "stream"
    return str(newest(events, "switch").get("mode", "stream"))


def _without_head(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in ("v", "kind", "query")}


def _batches(planned: int | None, committed: int | None) -> str:
    if planned is None:
        return "none planned yet"
    if planned == committed:
        return f"{planned} is committed"
    return f"{planned} is planned and not committed; the next start replays it"


def _backlog(rows: int | None, total: int | None) -> str:
    if rows is None:
        return "unknown"
    return f"{rows:,} rows" + (f" of about {total:,}" if total is not None and total > rows else "")
