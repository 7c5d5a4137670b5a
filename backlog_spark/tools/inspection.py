"""``backlog-spark inspect``: where a query is, from its checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from backlog_spark.common.durations import format_duration, in_words
from backlog_spark.errors import BacklogError
from backlog_spark.spi import offset_flags
from backlog_spark.tools.history import LIFE, History, newest, percentile, read_history, status_of
from backlog_spark.tools.output import table
from backlog_spark.tools.stored_checkpoint import StoredCheckpoint

__all__ = ["inspected", "shown"]

_DIRECTORIES = ("offsets", "commits", "state", "backlog")
_LAST_SWITCHES = 10
# So many of the newest live batches count for the freshness, as the query may have been slower or faster long ago.
_FRESH_OF: Final = 100


def inspected(checkpoint: StoredCheckpoint) -> dict[str, Any]:
    """The state of a query, as values of JSON.

    Returns
    -------
    dict
        ``query`` and ``status`` are None if the query writes no event log. ``status`` after a start without an end is
        "running" or "killed" if the query was started on this machine, else "running or killed". ``mode`` is "backlog"
        or "stream". It follows the newest offsets; if they have no flags, since rules decide, the newest switch. It is
        always "stream" while the interval during backlog is unset. ``rows_behind`` is an estimate, None if unknown.
        ``freshness_s`` has seconds from the commit at the source to that in the target, of the newest live batches.
        ``switches`` and ``restarts`` are those that the event log still has; a switch at the start has no batch.
    """
    events = checkpoint.events
    history = read_history(events)
    formats = {source["name"]: source.get("format") for source in newest(events, "start").get("sources") or ()}
    started, last = newest(events, "start"), newest(events, "batch")
    declared = [source["name"] for source in started.get("sources") or ()]
    names = checkpoint.source_names or {str(number): name for number, name in enumerate(declared)}
    return {
        "location": checkpoint.location,
        "query": events[-1].get("query") if events else None,
        "identity": checkpoint.identity,
        "status": _status(newest(events, *LIFE), checkpoint.driver_runs),
        "mode": _mode(checkpoint, events),
        "planned": checkpoint.planned,
        "committed": checkpoint.committed,
        "backlog_rows": last.get("backlog_rows"),
        "backlog_total": last.get("backlog_total"),
        "rows_behind": history.behind if events else None,
        "seconds_left": history.seconds_left if events else None,
        "freshness_s": _freshness(history),
        "last_batch": {name: last.get(name) for name in ("at", "rows", "took_ms")} if last else None,
        "sources": [
            {
                "number": source.number,
                "name": names.get(source.number) if source.number.isdecimal() else source.number,
                "is_processing_backlog": offset_flags.is_processing_backlog(source.offset),
                "is_finished": offset_flags.is_finished(source.offset),
                "tables": _tables(formats.get(names.get(source.number, source.number)), source.offset),
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
        "switches": [_switch(event) for event in events if event["kind"] == "switch"],
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
    if found["rows_behind"] is not None:
        rows.append(("rows behind", _behind(found["rows_behind"], found["seconds_left"])))
    if fresh := found["freshness_s"]:
        told = f"{in_words(fresh['median'])}, 95 % within {in_words(fresh['p95'])}"
        rows.append(("freshness", f"{told}, in the newest {fresh['batches']:,} live batches"))
    if last := found["last_batch"]:
        rows.append(
            (
                "last batch",
                f"{last['at'][:19]}, {last['rows'] or 0:,} rows in {in_words((last['took_ms'] or 0) / 1000)}",
            )
        )
    if found["intervals_ms"]:
        during = found["intervals_ms"]["during_backlog"]
        shown_during = "not set" if during is None else format_duration(during)
        normal = found["intervals_ms"]["normal"]
        shown_normal = "unknown" if normal is None else format_duration(normal)
        rows.append(("interval", f"{shown_normal}, during backlog {shown_during}"))
    if found["started"]:
        started = found["started"]
        rows.append(("last start", f"{started['at'][:19]}, Spark {started['spark']}, Python {started['python']}"))
    if found["restarts"]:
        rows.append(("restarts", f"{len(found['restarts'])}, last: {found['restarts'][-1].get('error', 'unknown')}"))
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
        (
            "start" if switch["batch"] is None else str(switch["batch"]),
            switch["at"][:19],
            switch["mode"],
            switch.get("why", ""),
        )
        for switch in found["switches"][-_LAST_SWITCHES:]
    ]
    tables = [
        (each["name"], each["phase"], f"{each['rows']:,}") for source in found["sources"] for each in source["tables"]
    ]
    return [
        table(("", ""), rows, title=found["location"]),
        table(("name", "phase"), sources, title="sources"),
        *([table(("table", "snapshot", "rows read"), tables, title="tables")] if tables else []),
        table(("batch", "at", "mode", "because"), switches, title="switches"),
    ]


def _tables(source_format: str | None, offset: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """How far the snapshot of each table is; empty after it, and without the packages of the source's connector."""
    if source_format is None or offset is None or not offset_flags.is_processing_backlog(offset):
        return []
    from backlog_spark.spi.registry import table_progress

    with contextlib.suppress(BacklogError, ImportError):
        return [
            {"name": name, "phase": phase, "rows": rows} for name, phase, rows in table_progress(source_format, offset)
        ]
    return []


def _freshness(history: History) -> dict[str, Any] | None:
    waits = history.freshness()[-_FRESH_OF:]
    return {"median": percentile(waits, 50), "p95": percentile(waits, 95), "batches": len(waits)} if waits else None


def _switch(event: dict[str, Any]) -> dict[str, Any]:
    """A switch. The mode at the start of a new checkpoint has no batch: the event has -1."""
    return {**_without_head(event), "batch": event["batch"] if event["batch"] >= 0 else None}


def _status(last: dict[str, Any], runs: bool | None) -> str | None:
    if not last or last["kind"] == "start":
        return status_of(last, runs=runs) or None
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
        return f"all committed; the newest is batch {planned}"
    done = "none is committed" if committed is None else f"committed up to batch {committed}"
    return f"{done}; batch {planned} is under way, and a restart replays it"


def _backlog(rows: int | None, total: int | None) -> str:
    if rows is None:
        return "unknown"
    if total is None or total <= rows:
        return f"{rows:,} rows committed"
    return f"{rows:,} of about {total:,} rows committed ({100 * rows // total} %)"


def _behind(rows: int, seconds_left: float | None) -> str:
    if not rows:
        return "none of the backlog"
    left = "" if seconds_left is None else f", about {in_words(seconds_left)} at the present rate"
    return f"about {rows:,} of the backlog{left}"
