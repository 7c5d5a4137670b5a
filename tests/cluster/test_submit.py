"""The ways of docs/submit.md bring the package to a standalone cluster: driver, processes beside it and executors."""

from __future__ import annotations

import re
import shlex
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from servers.spark_cluster import SparkCluster
from tests.cluster.conftest import REPOSITORY
from tests.integration.submitting import archived, bare_python, submit, zipped_package
from tests.integration.topics import Topic

if TYPE_CHECKING:
    from servers.kafka import KafkaServer

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zipped_package(tmp_path_factory.mktemp("zipped"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def archive(bare: Path, zipped: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archived(bare, zipped, tmp_path_factory.mktemp("archived"))


@pytest.fixture(scope="module")
def cluster(bare: Path) -> Iterator[SparkCluster]:
    """A master and two workers with directories of their own. No variable of theirs leads to the package."""
    with SparkCluster(environment={"PYSPARK_PYTHON": str(bare), "PYTHONPATH": ""}) as running:
        yield running


def small(cluster: SparkCluster) -> dict[str, str]:
    memory = {"spark.driver.memory": "700m", "spark.executor.memory": "640m"}
    return {"spark.master": cluster.url, "spark.driver.host": "127.0.0.1", **memory}


def executors_have_it(found: dict[str, Any], cluster: SparkCluster) -> bool:
    """Whether the tasks imported the package from below the workers' own directories."""
    folders = [str(worker.datadir) for worker in cluster.workers]
    return all(any(place.startswith(folder) for folder in folders) for place in found["tasks"])


@pytest.mark.grid
def test_an_archive_that_is_unpacked_beside_the_driver(cluster: SparkCluster, archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "environment", filter="fully_trusted")
    sent = ["--archives", f"{archive}#environment"]
    found = submit(tmp_path, *sent, python="./environment/bin/python", conf=small(cluster))
    assert found["package"].startswith(str(tmp_path / "environment"))
    assert found["rows"] == [["a", 1], ["a", 3], ["b", 2]]
    assert executors_have_it(found, cluster), found["tasks"]


@pytest.mark.grid
def test_py_files_on_a_cluster(cluster: SparkCluster, zipped: Path, bare: Path, tmp_path: Path) -> None:
    found = submit(tmp_path, "--py-files", str(zipped), python=bare, conf=small(cluster))
    assert found["rows"] == [["a", 1], ["a", 3], ["b", 2]]
    assert executors_have_it(found, cluster), found["tasks"]


@pytest.mark.grid
def test_jars_from_maven_central(cluster: SparkCluster, kafka: KafkaServer, tmp_path: Path) -> None:
    """The command of docs/submit.md, with the package installed everywhere, and with the jars of Delta and Kafka."""
    page = (REPOSITORY / "docs" / "submit.md").read_text()
    delta, added = re.findall(r"^PACKAGES=(\S+)$", page, re.MULTILINE)
    (settings,) = re.findall(r'^DELTA="([^"]*)"$', page, re.MULTILINE)
    Topic(kafka, "packaged").send(["one", "two"])
    options = ["--packages", added.replace("$PACKAGES", delta), *shlex.split(settings)]
    conf = {**small(cluster), "spark.jars.ivy": str(tmp_path / "ivy")}
    given = [kafka.address(), "packaged"]
    found = submit(tmp_path, *options, python=sys.executable, conf=conf, given=given, jars=False)
    assert found["rows"] == [["a", 1], ["a", 3], ["b", 2]]
    assert found["records"] == ['"one"', '"two"']
    assert any((tmp_path / "ivy" / "jars").glob("org.apache.spark_spark-sql-kafka*"))
