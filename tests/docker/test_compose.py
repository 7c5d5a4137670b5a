"""docker-compose.yml is valid and runs the scripts and versions that the tests run. No test here starts a container."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from backlog_spark.embedded.kafka_jars import KAFKA_VERSION
from backlog_spark.embedded.spark_cluster import SCRIPTS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
SERVICES: dict[str, Any] = yaml.safe_load(TEXT)["services"]
ENVIRONMENT = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / ".env").read_text(), re.MULTILINE))
# What `make demo-cluster` and the tests run: examples/demo_cluster.py and backlog_spark/embedded/spark_cluster.py.
RUN_HERE = {"changes.sh", "job.sh", "kafka.sh", "mysql.sh", "spark-master.sh", "spark-worker.sh"}


def words(service: dict[str, Any]) -> list[str]:
    return [*service.get("entrypoint", []), *service.get("command", [])]


def test_each_container_runs_a_script_that_runs_here_too() -> None:
    found = {
        name: [Path(word).name for word in words(service) if word.endswith(".sh")] for name, service in SERVICES.items()
    }
    # These two run as in their images, with files of this repository.
    assert {name for name, scripts in found.items() if not scripts} == {"prometheus", "grafana"}
    scripts = {scripts[0] for scripts in found.values() if scripts}
    assert scripts == RUN_HERE
    code = "".join(
        (ROOT / path).read_text() for path in ("examples/demo_cluster.py", "backlog_spark/embedded/spark_cluster.py")
    )
    for script in scripts:
        assert f'"{script}"' in code
        assert os.access(SCRIPTS / script, os.X_OK)


def test_versions_are_stated_once() -> None:
    assert set(re.findall(r"\$\{(\w+)\}", TEXT)) == set(ENVIRONMENT)
    for service in SERVICES.values():
        assert service["image"] == "backlog-spark" or service["image"].endswith("_VERSION}")
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert f"delta-spark=={ENVIRONMENT['DELTA_VERSION']}\n" in (ROOT / "constraints.txt").read_text()
    assert ENVIRONMENT["KAFKA_VERSION"] == KAFKA_VERSION
    assert f">={ENVIRONMENT['PYTHON_VERSION']}" in setup["options"]["python_requires"]
    dockerfile = (SCRIPTS / "Dockerfile").read_text()
    for extra in re.findall(r"\.\[([\w,]+)\]", dockerfile)[0].split(","):
        assert extra in setup["options.extras_require"], extra


def test_each_file_that_a_container_mounts_is_there() -> None:
    mounted = [volume.split(":") for service in SERVICES.values() for volume in service.get("volumes", [])]
    files = {inside: ROOT / outside for outside, inside, *_ in mounted if outside.startswith("./")}
    assert all(path.exists() for path in files.values())
    folder = Path("/etc/prometheus")
    config = yaml.safe_load(files["/etc/prometheus/prometheus.yml"].read_text())
    assert all(str(folder / name) in files for name in config["rule_files"])
    ((target,),) = [each["static_configs"][0]["targets"] for each in config["scrape_configs"]]
    assert target == f"job:{SERVICES['job']['environment']['METRICS_PORT']}"
    provisioned = Path("/etc/grafana/provisioning")
    (source,) = yaml.safe_load(files[str(provisioned / "datasources/backlog_spark.yml")].read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (provider,) = yaml.safe_load(files[str(provisioned / "dashboards/backlog_spark.yml")].read_text())["providers"]
    shown = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(shown).parent == Path(provider["options"]["path"])
    assert json.loads(files[shown].read_text())["title"] == "backlog_spark"


def test_passwords_fit() -> None:
    assert f"BY '{ENVIRONMENT['MYSQL_PASSWORD']}'" in (SCRIPTS / "mysql-user.sql").read_text()


@pytest.mark.grid
@pytest.mark.process
def test_compose_takes_the_file() -> None:
    compose = shutil.which("docker-compose")
    assert compose is not None, "needs Debian's package docker-compose"
    done = subprocess.run([compose, "config"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "variable is not set" not in done.stderr
    assert yaml.safe_load(done.stdout)["services"].keys() == SERVICES.keys()
