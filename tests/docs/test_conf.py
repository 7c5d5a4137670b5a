"""The files of conf/ are explained, complete and well formed."""

from __future__ import annotations

import json
import re
from configparser import ConfigParser
from pathlib import Path

import yaml

from backlog_spark.runner.metrics import METRICS
from servers.session import _LOG4J2

CONF = Path(__file__).parents[2] / "conf"


def test_the_page_explains_each_file() -> None:
    page = (CONF / "README.md").read_text()
    links = set(re.findall(r"\]\(([^)]+)\)", page))
    assert all((CONF / link).exists() for link in links)
    assert {path.name for path in CONF.iterdir()} - {"README.md"} <= links


def test_the_unit_restarts_a_driver_for_ever() -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(CONF / "backlog-job.service")
    assert unit["Service"]["Restart"] == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert "spark-submit" in unit["Service"]["ExecStart"]


def test_kubernetes_runs_one_driver_at_a_time_and_executors_find_it() -> None:
    found = {each["kind"]: each for each in yaml.safe_load_all((CONF / "kubernetes.yaml").read_text())}
    assert set(found) == {"ServiceAccount", "Role", "RoleBinding", "Service", "Deployment"}
    spec = found["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    assert found["Service"]["spec"]["selector"] == spec["template"]["metadata"]["labels"]
    pod = spec["template"]["spec"]
    assert pod["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]
    conf = dict(each.removeprefix("--conf=").split("=", 1) for each in pod["containers"][0]["args"] if "=" in each)
    assert conf["spark.driver.host"] == found["Service"]["metadata"]["name"]
    ports = {str(each["port"]) for each in found["Service"]["spec"]["ports"]}
    assert {conf["spark.driver.port"], conf["spark.driver.blockManager.port"]} == ports


def named(expressions: list[str]) -> set[str]:
    """The metrics that expressions of Prometheus name. A histogram has three series."""
    found = {name for each in expressions for name in re.findall(r"\bbacklog_spark_\w+", each)}
    return {re.sub("_(bucket|sum|count)$", "", name) for name in found}


def test_the_dashboard_and_the_alerts_name_metrics_that_exist() -> None:
    dashboard = json.loads((CONF / "grafana-dashboard.json").read_text())
    shown = named([target["expr"] for panel in dashboard["panels"] for target in panel["targets"]])
    assert shown == METRICS.keys() - {"backlog_spark_query_state_rows", "backlog_spark_source_is_processing_backlog"}
    queries = [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    assert named(queries) <= METRICS.keys()
    [group] = yaml.safe_load((CONF / "prometheus-rules.yml").read_text())["groups"]
    assert named([rule["expr"] for rule in group["rules"]]) < METRICS.keys()
    # Labels in {…} and by (…) exist too. A bucket has a limit, and Prometheus adds the job.
    labels = {label for metric in METRICS.values() for label in metric.labels} | {"le", "job"}
    for expression in [rule["expr"] for rule in group["rules"]]:
        for used in re.findall(r"(?:by|on) \(([^)]*)\)|\{(\w+)=", expression):
            assert set(re.findall(r"\w+", " ".join(used))) <= labels


def test_each_panel_says_what_it_shows_and_none_overlaps() -> None:
    panels = json.loads((CONF / "grafana-dashboard.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_a_local_session_logs_by_the_same_rules() -> None:
    lines = (CONF / "log4j2.properties").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == _LOG4J2.splitlines()
