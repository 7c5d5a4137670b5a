"""The metrics that a driver serves to Prometheus: what there is, and who counts it.

The registry is our own. A program's other metrics stay apart from these, and these have nothing of the process. All
queries of a driver that ask for the same address share a server. It serves until the driver ends, also the last values
of queries that have ended.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from backlog_spark.common.figures import freshness_s
from backlog_spark.common.requirements import missing
from backlog_spark.common.settings import METRICS_HOST, METRICS_PORT
from backlog_spark.errors import SettingError
from backlog_spark.spi.offset_flags import committed_ms, rows_behind

if TYPE_CHECKING:
    from backlog_spark.decide.reports import ProgressReport
    from backlog_spark.runner.estimate import SourceRows
    from backlog_spark.runner.query_progress import Switch

__all__ = ["METRICS", "Metric", "QueryMetrics", "metrics_table", "served"]

_log = logging.getLogger(__name__)

_FRESHNESS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0)
_DURATION_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0)


@dataclass(frozen=True)
class Metric:
    """One metric.

    Parameters
    ----------
    name : str
        As Prometheus shows it. A counter ends with ``_total``.
    type : "gauge", "counter" or "histogram"
    unit : str
        Empty for numbers of things.
    labels : tuple of str
    help : str
    buckets : tuple of float
        Upper bounds of a histogram's buckets.
    """

    name: str
    type: Literal["gauge", "counter", "histogram"]
    unit: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


_QUERY, _SOURCE = ("query",), ("query", "source")

METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric(
            "backlog_spark_source_rows_behind", "gauge", "rows", _SOURCE,
            "Rows of the backlog that are not read yet, as the source counts or estimates them. A running batch counts "
            "by its finished tasks. 0 out of backlog.",
        ),
        Metric(
            "backlog_spark_source_is_processing_backlog", "gauge", "", _SOURCE,
            "1 while the source is processing backlog, else 0.",
        ),
        Metric("backlog_spark_source_rows_total", "counter", "rows", _SOURCE, "Rows of committed batches."),
        Metric(
            "backlog_spark_source_freshness_seconds", "histogram", "seconds", _SOURCE,
            "Time from a commit at the source to the commit of its rows in the main output, for the oldest row of each "
            "live batch. Only mysql_cdc has it, and a source of your own that sets committedMs in its offset. The "
            "source hybrid and Spark's own do not. It includes the difference between the two machines' clocks.",
            _FRESHNESS_S,
        ),
        Metric(
            "backlog_spark_query_running", "gauge", "", _QUERY,
            "1 while the query runs or is about to be restarted, 0 after its end.",
        ),
        Metric(
            "backlog_spark_query_is_processing_backlog", "gauge", "", _QUERY,
            "1 while any source of the query is processing backlog, else 0.",
        ),
        Metric(
            "backlog_spark_query_commit_interval_seconds", "gauge", "seconds", _QUERY,
            "Commit interval in force. +Inf: no commit until the backlog ends.",
        ),
        Metric(
            "backlog_spark_query_switches_total", "counter", "", ("query", "mode"),
            "Switches to a mode, backlog or stream. The mode at the start counts as none.",
        ),
        Metric(
            "backlog_spark_query_batches_total", "counter", "batches", ("query", "phase"),
            "Committed batches with rows of the backlog (backlog), with live rows (live) and without rows (empty).",
        ),
        Metric(
            "backlog_spark_query_batch_duration_seconds", "histogram", "seconds", _QUERY,
            "Duration of committed batches with rows, from trigger to commit.",
            _DURATION_S,
        ),
        Metric(
            "backlog_spark_query_last_commit_timestamp_seconds", "gauge", "seconds since 1970", _QUERY,
            "When the runner learned of the newest committed batch.",
        ),
        Metric("backlog_spark_query_restarts_total", "counter", "", _QUERY, "Restarts after failures."),
        Metric(
            "backlog_spark_query_state_rows", "gauge", "rows", _QUERY,
            "Entries in Spark's state stores. A key group's state is one or a few entries.",
        ),
        Metric("backlog_spark_query_state_bytes", "gauge", "bytes", _QUERY, "Memory or disk of Spark's state stores."),
    )
}  # fmt: skip


def metrics_table() -> str:
    """The metrics as a Markdown table, one row each; ends with a newline."""
    rows = ["| metric | type | unit | labels | |", "|---|---|---|---|---|"]
    rows += [
        f"| `{m.name}` | {m.type} | {m.unit} | {', '.join(f'`{label}`' for label in m.labels)} | {m.help} |"
        for m in METRICS.values()
    ]
    return "\n".join(rows) + "\n"


class _Server:
    """The metrics of one address."""

    def __init__(self, host: str, port: int) -> None:
        import prometheus_client as client

        class Registry(client.CollectorRegistry):
            """Without the time at which each series was created. It doubles the series, and the package's own switch
            for it would change a program's other metrics."""

            def collect(self) -> Iterator[client.Metric]:
                for metric in super().collect():
                    metric.samples = [each for each in metric.samples if not each.name.endswith("_created")]
                    yield metric

        self._registry = Registry()
        makers: dict[str, Any] = {"gauge": client.Gauge, "counter": client.Counter}
        self.metrics: dict[str, Any] = {
            m.name: client.Histogram(m.name, m.help, m.labels, registry=self._registry, buckets=m.buckets)
            if m.type == "histogram"
            else makers[m.type](m.name, m.help, m.labels, registry=self._registry)
            for m in METRICS.values()
        }
        server, _ = client.start_http_server(port, host, self._registry)
        self.port = int(server.server_port)


_servers: dict[tuple[str, int], _Server] = {}
_serving = threading.Lock()


def served(settings: Mapping[str, int | float | str | None]) -> _Server | None:
    """The server that the settings ask for, started if need be; None if they ask for none.

    Raises
    ------
    SettingError
        If the package is missing, or the address cannot be used.
    """
    if settings[METRICS_PORT] is None:
        return None
    port, host = int(settings[METRICS_PORT]), str(settings[METRICS_HOST])
    with _serving:
        if (host, port) in _servers:
            return _servers[host, port]
        try:
            server = _Server(host, port)
        except ModuleNotFoundError:
            error = missing("It", "prometheus_client")
            raise SettingError(METRICS_PORT, port, error.problem, error.hint) from None
        except OSError as error:
            raise SettingError(
                METRICS_PORT, port, f"cannot be used on {host}: {error.strerror or error}.",
                f"Set another port, or 0 for a free one. {METRICS_HOST} must be an address of this machine.",
            ) from None  # fmt: skip
        _servers[host, port] = server
    _log.info("Metrics are served on http://%s:%d/metrics", host, server.port)
    return server


class QueryMetrics:
    """Counts what happens to one query. Its methods are called by the query's thread.

    Parameters
    ----------
    server : result of `served`
    name : str
        The query's.
    """

    def __init__(self, server: _Server, name: str) -> None:
        self._metrics = server.metrics
        self._name = name
        self._flags: dict[str, bool] = {}

    def started(self, sources: Mapping[str, bool]) -> None:
        """Called when the first run has started.

        Parameters
        ----------
        sources : mapping of str to bool
            Each source's name, and whether it is in backlog.
        """
        self._of_query("running").set(1)
        self._flags = {**sources}
        self._show_flags()
        # What is counted from 0 on: Prometheus sees no increase in the first value of a series.
        for name in sources:
            self._of_source("rows_total", name)
        for phase in ("backlog", "live", "empty"):
            self._of_query("batches_total", phase=phase)
        for mode in ("backlog", "stream"):
            self._of_query("switches_total", mode=mode)
        self._of_query("restarts_total")
        self._of_query("batch_duration_seconds")

    def mode(self, switch: Switch, *, is_start: bool) -> None:
        """Called for the mode at the start, and for each switch."""
        interval = switch.commit_interval_ms
        self._of_query("commit_interval_seconds").set(math.inf if interval is None else interval / 1000)
        if not is_start:
            self._of_query("switches_total", mode=str(switch.mode)).inc()

    def batch(
        self, report: ProgressReport, names: Sequence[str | None], *, written_at: float | None, now: float
    ) -> None:
        """Called for each committed batch.

        Parameters
        ----------
        names : sequence of (str or None)
            Names of the report's sources. Those without one are not shown.
        written_at : float or None
            When the main output had it, seconds since 1970.
        now : float
            Seconds since 1970.
        """
        self._of_query("batches_total", phase=report.phase).inc()
        if report.num_input_rows:
            self._of_query("batch_duration_seconds").observe(report.duration_ms.get("triggerExecution", 0) / 1000)
        self._of_query("last_commit_timestamp_seconds").set(now)
        self._of_query("state_rows").set(sum(state.rows for state in report.state))
        self._of_query("state_bytes").set(sum(state.bytes for state in report.state))
        for name, source in zip(names, report.sources, strict=True):
            if name is None:
                continue
            self._flags[name] = source.is_processing_backlog
            self._of_source("rows_total", name).inc(source.num_input_rows)
            behind, committed = rows_behind(source.end_offset), committed_ms(source.end_offset)
            if behind is not None:
                self._of_source("rows_behind", name).set(behind)
            if committed is not None and written_at is not None and source.num_input_rows and not source.is_backlog:
                self._of_source("freshness_seconds", name).observe(freshness_s(committed[0], written_at * 1000))
        self._show_flags()

    def _show_flags(self) -> None:
        for name, flag in self._flags.items():
            self._of_source("is_processing_backlog", name).set(flag)

    def backlog(self, is_processing: bool) -> None:
        """Called after each report. ``is_processing``: any source is in backlog, also one without a name."""
        self._of_query("is_processing_backlog").set(is_processing)

    def estimated(self, sources: Sequence[SourceRows]) -> None:
        """Called now and then while a batch of the backlog runs."""
        for source in sources:
            if source.name in self._flags and source.left is not None:
                self._of_source("rows_behind", source.name).set(source.left)

    def restarted(self) -> None:
        """Called for each restart after a failure."""
        self._of_query("restarts_total").inc()

    def ended(self) -> None:
        """Called once, after the last run."""
        self._of_query("running").set(0)

    def _of_query(self, metric: str, **labels: str) -> Any:
        return self._metrics[f"backlog_spark_query_{metric}"].labels(query=self._name, **labels)

    def _of_source(self, metric: str, source: str) -> Any:
        return self._metrics[f"backlog_spark_source_{metric}"].labels(query=self._name, source=source)
