"""Metrics, dashboard and alert rules with Prometheus itself, and the files of conf/ by their schemas."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
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
from backlog_spark.decide.reports import StateReport
from backlog_spark.decide.steps import Mode
from backlog_spark.runner.metrics import METRICS, QueryMetrics, served
from backlog_spark.runner.query_progress import Switch
from tests.runner.test_metrics import report, source

pytestmark = [pytest.mark.outside, pytest.mark.process]

ROOT = Path(__file__).parents[2]
RULES = ROOT / "conf" / "prometheus-rules.yml"
LIMIT_S = 120


def program(name: str) -> str:
    return str(Path(os.environ.get("PROMETHEUS", "/usr/bin")) / name)


class Driver:
    """A driver with three queries: one in backlog, one live, and one that has not committed yet."""

    def __init__(self, host: str) -> None:
        server = served(parse_settings({"spark.backlog.metrics.port": "0", "spark.backlog.metrics.host": host}))
        assert server is not None
        self.port = server.port
        self.loads, self.orders, self.waits = (QueryMetrics(server, name) for name in ("loads", "orders", "waits"))
        for query, mode in ((self.loads, Mode.BACKLOG), (self.waits, Mode.BACKLOG), (self.orders, Mode.STREAM)):
            in_backlog = mode is Mode.BACKLOG
            query.started({"rows": in_backlog})
            query.mode(Switch(-1, mode, 600_000 if in_backlog else 1_000, 0.0), is_start=True)
            query.backlog(in_backlog)
        self.batches = 0

    def works(self) -> None:
        """A batch of each query that commits."""
        now, self.batches = time.time(), self.batches + 1
        read = source(1_000, True, True, rows=1_000 * self.batches, total=10**9)
        self.loads.batch(report(self.batches, 900, read), ["rows"], written_at=None, now=now)
        live = source(7, False, False, committedMs=[int(now * 1000) - 800, int(now * 1000)])
        state = (StateReport("counts", 5, 1_000),)
        self.orders.batch(report(self.batches, 300, live, state=state), ["rows"], written_at=now, now=now)


@pytest.fixture(scope="module")
def drivers() -> list[Driver]:
    return [Driver("127.0.0.1"), Driver("localhost")]


@pytest.fixture(scope="module")
def prometheus(drivers: list[Driver], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that has seen the drivers before and after their first batches."""
    folder = tmp_path_factory.mktemp("prometheus")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    # The file of the containers, which has the rules beside it. Only the drivers are others, and time is shorter.
    config = yaml.safe_load((ROOT / "docker" / "prometheus.yml").read_text())
    [scrape] = config["scrape_configs"]
    scrape["static_configs"] = [{"targets": [f"127.0.0.1:{driver.port}" for driver in drivers]}]
    scrape["scrape_interval"] = "1s"
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(RULES, folder)
    line = [
        program("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(line, stderr=log)

    def until(expression: str) -> None:
        limit = time.monotonic() + LIMIT_S
        while len(asked(address, expression)) < len(drivers):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < limit, expression
            time.sleep(0.2)

    try:
        until('backlog_spark_source_rows_total{query="orders"} == 0')
        for _ in range(2):
            for driver in drivers:
                driver.works()
            until(f'backlog_spark_source_rows_total{{query="orders"}} == {7 * drivers[0].batches}')
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


def test_the_composition_has_what_its_schema_knows() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run([*command, "docker-compose.yml"], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_resources_of_kubernetes_have_what_its_schema_knows() -> None:
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", "conf/kubernetes.yaml"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_unit_has_what_systemd_knows(tmp_path: Path) -> None:
    """The unit as it is, but for the program, the user and the directory, which are not on this machine."""
    here = {"ExecStart": "/bin/true", "User": "root", "WorkingDirectory": "/tmp"}
    text = (ROOT / "conf" / "backlog-job.service").read_text()
    for name, value in here.items():
        text = re.sub(f"^{name}=.*", f"{name}={value}", text, count=1, flags=re.MULTILINE)
    unit = tmp_path / "backlog-job.service"
    unit.write_text(text)
    checked = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_the_exposition_has_no_findings(drivers: list[Driver]) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{drivers[0].port}/metrics") as answer:
        text = answer.read()
    checked = subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_prometheus_has_each_metric(prometheus: str) -> None:
    for metric in METRICS.values():
        name = f"{metric.name}_count" if metric.type == "histogram" else metric.name
        [result, *_] = asked(prometheus, f'{name}{{query="orders"}}') or asked(prometheus, f'{name}{{query="loads"}}')
        assert set(metric.labels) <= result["metric"].keys()
    for freshness in asked(prometheus, "backlog_spark_source_freshness_seconds_sum"):
        assert float(freshness["value"][1]) == pytest.approx(2 * 0.8, abs=0.02)


def test_a_backlog_stalls_also_before_its_first_commit(prometheus: str) -> None:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    rules = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    found = asked(prometheus, rules["BacklogSparkBacklogStalls"])
    assert [each["metric"]["query"] for each in found] == ["waits", "waits"]  # of each driver
    assert asked(prometheus, rules["BacklogSparkBatchesTakeLongerThanTheInterval"]) == []  # many-to-many would raise
    with urllib.request.urlopen(f"http://{prometheus}/api/v1/rules") as answer:
        [loaded] = json.load(answer)["data"]["groups"]
    assert {rule["health"] for rule in loaded["rules"]} <= {"ok", "unknown"}


# -- the dashboard, without Grafana: what its file says, by Grafana's own types, and what its panels get --------


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "conf" / "grafana-dashboard.json").read_text())
    return found


def test_grafana_knows_all_that_the_dashboard_says() -> None:
    """A field that Grafana's types do not have, or a value of another type, does not come back."""
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import dashboard as model
    from grafana_foundation_sdk.models import units

    plugins.register_default_plugins()
    given = dashboard()
    known = json.loads(json.dumps(model.Dashboard.from_json(given), cls=JSONEncoder))
    assert list(lost(given, known)) == []
    used = {panel["fieldConfig"]["defaults"]["unit"] for panel in given["panels"]}
    assert used <= {value for name, value in vars(units).items() if isinstance(value, str) and name[0].isupper()}
    assert {panel["type"] for panel in given["panels"]} <= {"timeseries", "stat", "state-timeline"}
    assert len({panel["id"] for panel in given["panels"]}) == len(given["panels"])
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in given["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert max(x for x, _ in cells) < 24
    assert len(cells) == len(set(cells))  # no panel covers another one


def lost(given: Any, known: Any, path: str = "") -> Iterator[str]:
    """The paths of what is given and not known."""
    if isinstance(given, dict) and isinstance(known, dict):
        for name, value in given.items():
            yield from lost(value, known.get(name), f"{path}/{name}")
    elif isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        for number, (value, other) in enumerate(zip(given, known, strict=True)):
            yield from lost(value, other, f"{path}/{number}")
    elif given != known:
        yield path


def test_each_panel_of_the_dashboard_has_values_and_legends(prometheus: str) -> None:
    given = dashboard()
    values = {"datasource": ["prometheus"], "__rate_interval": ["1m"]}
    for variable in given["templating"]["list"][1:]:
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert match is not None
        found = asked(prometheus, resolved(match[1], values))
        values[variable["name"]] = sorted({each["metric"][match[2]] for each in found})
    assert values["query"] == ["loads", "orders", "waits"]
    assert len(values["instance"]) == 2
    for panel in given["panels"]:
        for target in panel["targets"]:
            assert resolved(target["datasource"]["uid"], values) == "prometheus"
            every = asked(prometheus, resolved(target["expr"], values))
            assert {each["metric"]["instance"] for each in every} == set(values["instance"]), target["expr"]
            assert any(math.isfinite(float(each["value"][1])) for each in every), target["expr"]
            one = asked(prometheus, resolved(target["expr"], {**values, "instance": values["instance"][:1]}))
            assert len(one) * 2 == len(every)
            # With one driver each line has a name of its own.
            labels = re.findall(r"{{(\w+)}}", target["legendFormat"])
            legends = [tuple(each["metric"][label] for label in labels) for each in one]
            assert len(legends) == len(set(legends)), target["expr"]


def resolved(text: str, values: dict[str, list[str]]) -> str:
    """The text as Grafana sends it: each variable must be known, and several values are a pattern."""

    def value(match: re.Match[str]) -> str:
        found = values[match[1] or match[2]]
        if len(found) == 1:
            return found[0]
        return f"({'|'.join(re.escape(each) for each in found)})".replace("\\", "\\\\")

    return re.sub(r"\$(?:{(\w+)}|(\w+))", value, text)
