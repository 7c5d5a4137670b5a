"""Metrics, dashboard and alert rules with Prometheus itself: `make test-prometheus` brings it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from backlog_spark.common.settings import parse_settings
from backlog_spark.decide.coordinator import Mode
from backlog_spark.runner.metrics import METRICS, QueryMetrics, served
from backlog_spark.runner.query_progress import Switch
from tests.runner.test_metrics import report, source

pytestmark = [pytest.mark.outside, pytest.mark.process]

ROOT = Path(__file__).parents[2]
RULES = ROOT / "conf" / "prometheus-rules.yml"
LIMIT_S = 120


def program(name: str) -> str:
    return str(Path(os.environ.get("PROMETHEUS", "/usr/bin")) / name)


@pytest.fixture(scope="module")
def port() -> int:
    """A server with the metrics of one query, which has every kind of value."""
    server = served(parse_settings({"spark.backlog.metrics.port": "0"}))
    assert server is not None
    metrics = QueryMetrics(server, "orders")
    metrics.started({"orders": True})
    metrics.mode(Switch(-1, Mode.BACKLOG, None, 0.0), is_start=True)
    metrics.batch(
        report(0, 900, source(10, True, True, rows=10, total=30)), ["orders"], written_at=None, now=time.time()
    )
    metrics.mode(Switch(1, Mode.STREAM, 1_000, 0.0), is_start=False)
    now = time.time()
    live = source(7, False, False, committedMs=[int(now * 1000) - 800, int(now * 1000)])
    metrics.batch(report(1, 300, live), ["orders"], written_at=now, now=now)
    return server.port


@pytest.fixture(scope="module")
def prometheus(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    target = {"targets": [f"127.0.0.1:{port}"]}
    scrape = {"job_name": "backlog_spark", "scrape_interval": "1s", "static_configs": [target]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"rule_files": [str(RULES)], "scrape_configs": [scrape]}))
    line = [
        program("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(line, stderr=log)
    try:
        limit = time.monotonic() + LIMIT_S
        while not (result := asked(address, "backlog_spark_query_running")):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < limit
            time.sleep(0.2)
        assert result[0]["value"][1] == "1"
        yield address
    finally:
        process.terminate()
        process.wait()


def asked(address: str, expression: str) -> list[dict[str, Any]]:
    """What an expression gives now; nothing while the server starts."""
    try:
        url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(url) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
    except urllib.error.URLError:
        pass
    return []


def test_the_rules_are_right(tmp_path: Path) -> None:
    checked = subprocess.run([program("promtool"), "check", "rules", str(RULES)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    cases = tmp_path / "cases.yml"
    cases.write_text((Path(__file__).parent / "prometheus_cases.yml").read_text().replace("RULES", str(RULES)))
    tested = subprocess.run([program("promtool"), "test", "rules", str(cases)], capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_the_configuration_of_the_containers_is_right(tmp_path: Path) -> None:
    for path in (ROOT / "docker" / "prometheus.yml", RULES):
        shutil.copy(path, tmp_path)
    config = tmp_path / "prometheus.yml"
    checked = subprocess.run([program("promtool"), "check", "config", str(config)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_exposition_has_no_findings(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read()
    checked = subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_prometheus_has_each_metric(prometheus: str) -> None:
    for metric in METRICS.values():
        name = f"{metric.name}_count" if metric.type == "histogram" else metric.name
        [result, *_] = asked(prometheus, f'{name}{{query="orders"}}')
        assert set(metric.labels) <= result["metric"].keys()
    [freshness] = asked(prometheus, "backlog_spark_source_freshness_seconds_sum")
    assert float(freshness["value"][1]) == pytest.approx(0.8, abs=0.01)


def test_the_dashboard_asks_what_prometheus_can_answer(prometheus: str) -> None:
    dashboard = json.loads((ROOT / "conf" / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for expression in expressions:
        asked(prometheus, expression.replace("$__rate_interval", "1m").replace("$query", ".*"))  # an error would raise
    with urllib.request.urlopen(f"http://{prometheus}/api/v1/rules") as answer:
        [group] = json.load(answer)["data"]["groups"]
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
