"""The report page: what a query's event log tells, as one HTML file without any reference to another."""

from __future__ import annotations

import time
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

from backlog_spark.common.durations import in_words
from backlog_spark.common.requirements import required
from backlog_spark.tools.charts import TimeAxis, charts, clock, mode_bars, thousands
from backlog_spark.tools.history import History, percentile, read_history
from backlog_spark.tools.stored_checkpoint import StoredCheckpoint

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["body", "page", "templates"]

_PERCENTILES = (50, 75, 95, 99, 100)
_LAST_EVENTS = 500
_SPOKEN_SPANS = 20


def page(checkpoint: StoredCheckpoint, *, live: bool = False) -> str:
    """The whole page.

    Parameters
    ----------
    checkpoint : StoredCheckpoint
    live : bool
        With the script that `backlog_spark.tools.ui` serves. Default: without any script.
    """
    history = read_history(checkpoint.events, runs=checkpoint.driver_runs)
    title = f"{history.query or 'A query'}: backlog_spark"
    return templates().get_template("report.html").render(title=title, live=live, **_values(checkpoint, history))


def body(checkpoint: StoredCheckpoint, history: History) -> str:
    """The part of the page that changes."""
    return templates().get_template("body.html").render(**_values(checkpoint, history))


@cache
def templates() -> Environment:
    """The templates. Everything that they insert is escaped."""
    with required("The report page"):
        from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("backlog_spark.tools"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )


def _values(checkpoint: StoredCheckpoint, history: History) -> dict[str, Any]:
    restarts = len(history.of_kind("restart"))
    spans = [f"{s.mode} for {in_words((s.ended - s.began) / 1000)}" for s in history.spans[-_SPOKEN_SPANS:]]
    shown = f", the last {len(spans)} of {len(history.spans):,}" if len(history.spans) > len(spans) else ""
    return {
        "h": history,
        "location": checkpoint.location,
        "there": checkpoint.is_there,
        "now": round(time.time() * 1000),
        "facts": _facts(history),
        "bars": mode_bars(history),
        "spoken_modes": f"Timeline{shown}: {', then '.join(spans)}. The table has each switch.",
        "switches": history.of_kind("switch")[-_LAST_EVENTS:],
        "charts": charts(history),
        "freshness_columns": [f"{p} %" if p < 100 else "longest" for p in _PERCENTILES],
        "freshness": [
            (name, [in_words(percentile(waits, p)) for p in _PERCENTILES])
            for name, waits in (
                ("oldest row", history.freshness()),
                ("newest row", history.freshness(newest=True)),
            )
            if waits
        ],
        "life": history.of_kind("start", "restart", "refused", "end")[-_LAST_EVENTS:],
        "restarts": f"{restarts} restart{'' if restarts == 1 else 's'} after failures.",
        "shortened": in_words(TimeAxis(history).shortened / 1000) if TimeAxis(history).shortened else "",
        "age": in_words(max(0, round(time.time()) - history.ended // 1000)),
        "clock": clock,
        "seconds": in_words,
    }


def _facts(history: History) -> list[tuple[str, str]]:
    """The summary at the top."""
    first = history.batches[0].number if history.batches else 0
    since = f" since batch {first:,}" if first else ""  # the log has dropped those before
    commits = Counter(batch.phase for batch in history.batches)
    rows = sum(batch.rows for batch in history.batches)
    backlog = sum(batch.rows for batch in history.batches if batch.backlog)
    facts = [("status", history.status), ("mode", history.mode), ("rows", f"{thousands(rows)}{since}")]
    if backlog:
        took = sum(span.ended - span.began for span in history.spans if span.mode == "backlog") / 1000
        facts.append(("backlog", f"{thousands(backlog)} rows{since}"))
        if took:
            told = f"{commits['backlog']:,} commit{'' if commits['backlog'] == 1 else 's'}{since}"
            facts.append(("time in backlog", f"{in_words(took)}, {told}"))
    if history.done:
        done, total = history.done
        share = f"{done / total:.0%} of about {thousands(total)} rows"
        facts.append(("backlog done", share if done else f"reading the first of about {thousands(total)} rows"))
    if history.behind:
        left = history.seconds_left
        facts.append(("rows behind", thousands(history.behind)))
        if left is not None:
            facts.append(("time left", f"about {in_words(left)}"))
    facts.append(("live commits", f"{commits['live']:,}{since}"))
    facts.append(("rate", f"{thousands(history.rate)} rows/s"))
    if waits := history.freshness():
        facts.append(("freshness (median)", in_words(percentile(waits, 50))))
        facts.append(("freshness (95 %)", in_words(percentile(waits, 95))))
    facts.append(("restarts", str(len(history.of_kind("restart")))))
    return facts
