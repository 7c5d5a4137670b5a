"""Event logs as a query writes them, made by hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["BEGAN", "QUERY", "checkpoint_of", "hostile", "story"]

BEGAN = datetime(2026, 11, 26, 16, 0, tzinfo=UTC).timestamp()
QUERY = "orders"


def line(kind: str, second: float, **fields: Any) -> dict[str, Any]:
    at = datetime.fromtimestamp(BEGAN + second, UTC).isoformat(timespec="milliseconds")
    return {"v": 1, "at": at, "kind": kind, "query": QUERY, **fields}


def batch(number: int, second: float, took: float, rows: int, backlog: bool, **fields: Any) -> dict[str, Any]:
    """A batch from ``second`` on; its report comes 0.2 s after its end."""
    return line(
        "batch", second + took + 0.2, batch=number, rows=rows, backlog=backlog, took_ms=round(took * 1000),
        started=datetime.fromtimestamp(BEGAN + second, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), **fields,
    )  # fmt: skip


def story() -> list[dict[str, Any]]:
    """A backlog of 4 batches, a switch, 20 live batches with a restart among them, and a stop."""
    events = [
        line(
            "start", 0, interval_ms=1_000, interval_during_backlog_ms=10_000, spark="4.2.0", python="3.11.7",
            sources=[{"name": "orders", "format": "mysql_cdc"}],
        ),
        line("run", 0, run_id="r", trigger_ms=0, why="its sources pace themselves"),
        line("switch", 0, batch=-1, mode="backlog", interval_ms=10_000, why="the mode at the start"),
    ]  # fmt: skip
    total = 1_000_000
    for number, rows in enumerate((50_000, 350_000, 350_000, 250_000)):
        done = (50_000, 400_000, 750_000, 1_000_000)[number]
        source = {"name": "orders", "rows": rows, "backlog": done < total, "rows_behind": total - done}
        events.append(
            batch(
                number, number * 10, 9.8, rows, True, interval_ms=10_000, backlog_rows=done, backlog_total=total,
                sources=[source], written_ms=round((BEGAN + number * 10 + 9.7) * 1000),
            )
        )  # fmt: skip
    why = "source orders has left its backlog"
    events.append(line("switch", 40, batch=4, mode="stream", interval_ms=1_000, why=why))
    for number in range(4, 24):
        second = 41.0 + (number - 4)
        committed = [round((BEGAN + second - 0.05 * (number - 3)) * 1000), round((BEGAN + second) * 1000)]
        source = {"name": "orders", "rows": 100, "backlog": False, "rows_behind": 0, "committed_ms": committed}
        events.append(
            batch(
                number, second, 0.4, 100, False, interval_ms=1_000, backlog_rows=total, backlog_total=total,
                sources=[source], written_ms=round((BEGAN + second + 0.35) * 1000),
                state=[{"name": "stateStoreSave", "rows": 10 * number, "bytes": 100_000 * number}], writer="direct",
            )
        )  # fmt: skip
        if number == 10:
            events.append(line("restart", second + 0.7, attempt=1, delay_ms=1_000, error="the disk was full"))
    events.append(line("end", 62, status="stopped"))
    return events


def hostile(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The same with a name in each place where a user's or a server's text can stand."""

    def put(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: put(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [put(each) for each in value]
        return name if key in ("query", "why", "error", "name", "format", "spark", "python", "writer") else value

    return [put(event) for event in events]


def checkpoint_of(root: Path, events: list[dict[str, Any]]) -> Path:
    """A checkpoint with this event log."""
    for name in ("offsets", "commits", "backlog/events"):
        (root / name).mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(event)}\n" for event in events)
    (root / "backlog" / "events" / "00000001-a.jsonl").write_text(text)
    return root
