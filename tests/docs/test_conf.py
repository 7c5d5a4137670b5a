"""The files of conf/ are explained, complete and well formed."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import yaml

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
