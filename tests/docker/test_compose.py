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

from examples.cluster_data import parser
from servers.kafka_jars import KAFKA_VERSION
from servers.spark_cluster import SCRIPTS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
SERVICES: dict[str, Any] = yaml.safe_load(TEXT)["services"]
ENVIRONMENT = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / ".env").read_text(), re.MULTILINE))
# What `make demo-cluster` and the tests run: examples/demo_cluster.py and servers/spark_cluster.py.
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
    code = "".join((ROOT / path).read_text() for path in ("examples/demo_cluster.py", "servers/spark_cluster.py"))
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


# Variables of docker/Dockerfile, and those that the scripts of a container make themselves.
SET_IN_IMAGE = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}


def test_each_variable_that_a_script_needs_is_set() -> None:
    for name, service in SERVICES.items():
        for script in (Path(word).name for word in words(service) if Path(word).name in RUN_HERE):
            text = (SCRIPTS / script).read_text()
            if "spark-env.sh" in text:
                text = (SCRIPTS / "spark-env.sh").read_text() + text
            code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
            made = set(re.findall(r"(?:^|[\s;])(\w+)=", code))
            # Not those with another value, or with a part that is left out, if they are not set.
            optional = set(re.findall(r"\$\{(\w+):[-+]", code))
            needed = set(re.findall(r"\$\{?([A-Za-z_]\w*)", code)) - made - optional
            assert needed <= {*service.get("environment", {}), *SET_IN_IMAGE}, name
            # And none is given that nothing reads.
            read = set(re.findall(r"\b[A-Z][A-Z_]+\b", code + (ROOT / "examples" / "cluster_data.py").read_text()))
            assert {each for each in service.get("environment", {}) if not each.startswith("MYSQL_")} <= read, name


def test_programs_take_the_options_that_they_are_given() -> None:
    for name in ("changes", "job"):
        _, _, *options = SERVICES[name]["command"]
        found = parser(name).parse_args(options)
        assert found.folder.is_relative_to("/shared")
        assert address(found.mysql) == ("mysql", "3306")
        # Where the broker says that it is, and listens.
        host, port = address(found.broker)
        assert host == SERVICES["kafka"]["environment"]["KAFKA_HOST"]
        assert f"${{KAFKA_PORT:-{port}}}" in (SCRIPTS / "kafka.sh").read_text()
        assert {host, "mysql"} <= reached(name)


def test_the_cluster_is_where_workers_and_job_look_for_it() -> None:
    master = SERVICES["spark-master"]
    host, port = address(SERVICES["job"]["environment"]["SPARK_MASTER_URL"].removeprefix("spark://"))
    assert host == master["environment"]["SPARK_MASTER_HOST"] == "spark-master"
    script = (SCRIPTS / "spark-master.sh").read_text()
    assert f"${{SPARK_MASTER_PORT:-{port}}}" in script
    [(_, inside)] = [published.split(":") for published in master["ports"]]
    assert f"${{SPARK_MASTER_WEBUI_PORT:-{inside}}}" in script
    for name in ("spark-worker-1", "spark-worker-2"):
        own = SERVICES[name]["environment"]
        assert (own["SPARK_WORKER_HOST"], own["SPARK_MASTER_URL"]) == (name, f"spark://{host}:{port}")
        assert name in reached("job")
    assert SERVICES["job"]["environment"]["SPARK_DRIVER_HOST"] == "job"
    published = [each.split(":")[0] for service in SERVICES.values() for each in service.get("ports", [])]
    assert len(set(published)) == len(published)
    # What the scripts of the image see of each other is in the volume that all have.
    assert all("shared:/shared" in service["volumes"] for service in SERVICES.values() if "build" in service)


def test_grafana_gets_what_it_knows() -> None:
    """By Grafana's conf/defaults.ini, and the samples in its conf/provisioning."""
    known = {"AUTH_ANONYMOUS_ENABLED", "SECURITY_ADMIN_PASSWORD", "DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"}
    assert set(SERVICES["grafana"]["environment"]) == {f"GF_{name}" for name in known}
    sources = yaml.safe_load((SCRIPTS / "grafana-datasources.yml").read_text())
    assert (sources.pop("apiVersion"), set(sources)) == (1, {"datasources"})
    (source,) = sources["datasources"]
    types = {"name": str, "type": str, "access": str, "url": str, "isDefault": bool}
    assert {name: type(value) for name, value in source.items()} == types
    assert source["access"] in ("proxy", "direct")
    boards = yaml.safe_load((SCRIPTS / "grafana-dashboards.yml").read_text())
    assert (boards.pop("apiVersion"), set(boards)) == (1, {"providers"})
    (provider,) = boards["providers"]
    assert set(provider) <= {"name", "orgId", "folder", "type", "options"}
    # The dashboard finds the provisioned source: its variable lists all of the type.
    dashboard = json.loads((ROOT / "conf" / "grafana-dashboard.json").read_text())
    variable = dashboard["templating"]["list"][0]
    assert (variable["type"], variable["query"]) == ("datasource", source["type"])
    used = {panel["datasource"]["uid"] for panel in dashboard["panels"]}
    assert used == {"${" + variable["name"] + "}"}
    # A file with an id of another server would not be loaded twice.
    assert dashboard.get("id") is None
    assert dashboard["uid"]


def address(text: str) -> tuple[str, str]:
    host, _, port = text.partition(":")
    return host, port


def reached(name: str) -> set[str]:
    """The services that are started before one."""
    direct = SERVICES[name].get("depends_on", [])
    return {*direct, *(each for other in direct for each in reached(other))}


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
