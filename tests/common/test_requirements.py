"""A missing package is one clear line that names the extra, on each path that imports it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from configparser import ConfigParser
from pathlib import Path

import pytest

from backlog_spark.common import requirements
from backlog_spark.errors import BacklogError

ROOT = Path(__file__).parents[2]

WITHOUT_EXTRAS = """
    import sys

    optional = (
        "confluent_kafka cryptography datasketches delta deltalake fsspec pymysql pymysqlreplication sqlglot"
    )
    sys.modules.update(dict.fromkeys(optional.split()))

    from pyspark.sql.types import StringType, StructType

    import backlog_spark as bs
    from backlog_spark.common.stores import store_of
    from backlog_spark.connectors.hybrid.kafka.workers import open_client
    from backlog_spark.connectors.hybrid.kafka.properties import Properties
    from backlog_spark.connectors.hybrid.kinds import KINDS
    from backlog_spark.operators.aggregates.distinct import ApproxCountDistinct
    from backlog_spark.spi.registry import data_source, inspect

    keyed = bs.source("hybrid", name="lines", phases="files", path="/lines").key_by("k")
    schema = StructType().add("k", StringType())
    calls = {
        "sql": lambda: bs.sql,
        "aggregate": lambda: keyed.aggregate("sum(v) AS total"),
        "window aggregate": lambda: keyed.window(bs.EndOfStreamWindows.get()).aggregate("sum(v) AS total"),
        "over": lambda: keyed.over("sum(v) AS total"),
        "sketch": lambda: ApproxCountDistinct("k").slots(schema),
        "mysql_cdc by the runner": lambda: inspect("mysql_cdc", {}),
        "mysql_cdc by Spark": lambda: data_source("mysql_cdc")({}).schema(),
        "confluent": lambda: open_client(Properties({"kafka.bootstrap.servers": "h:1"}), "g", 1),
        "s3": lambda: store_of("s3://bucket/x", {}),
        "delta phase": lambda: KINDS["delta"].make("old", {"path": "/table"}),
    }
    for name, call in calls.items():
        try:
            call()
        except bs.BacklogError as error:
            print(name, "|", error)
        except Exception as error:
            print(name, "|", type(error), error)
        else:
            print(name, "| nothing is missing")
"""


@pytest.mark.process
def test_a_missing_package_is_one_line_on_each_path() -> None:
    code = textwrap.dedent(WITHOUT_EXTRAS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    found = dict(line.split(" | ") for line in done.stdout.splitlines())
    expected = {
        "sql": ("sqlglot", "sql"),
        "aggregate": ("sqlglot", "sql"),
        "window aggregate": ("sqlglot", "sql"),
        "over": ("sqlglot", "sql"),
        "sketch": ("datasketches", "sql"),
        "mysql_cdc by the runner": ("pymysql", "mysql"),
        "mysql_cdc by Spark": ("pymysql", "mysql"),
        "confluent": ("confluent_kafka", "kafka"),
        "s3": ("fsspec", "files"),
        "delta phase": ("deltalake", "files"),
    }
    assert set(found) == set(expected), done.stderr
    for name, (package, extra) in expected.items():
        assert package in found[name], found[name]
        assert f"pip install 'backlog-spark[{extra}]'" in found[name], found[name]


def test_the_error_names_the_feature_the_package_and_the_command() -> None:
    with pytest.raises(BacklogError) as told, requirements.required("aggregate"):
        raise ModuleNotFoundError("No module named 'sqlglot.exp'", name="sqlglot.exp")
    python = sys.executable
    assert str(told.value) == (
        f"aggregate needs the Python package sqlglot, which {python} does not have. "
        f"Run {python} -m pip install 'backlog-spark[sql]'."
    )
    with pytest.raises(ModuleNotFoundError), requirements.required("aggregate"):
        raise ModuleNotFoundError("No module named 'theirs'", name="theirs")
    requirements.require("aggregate", "sqlglot")
    with pytest.raises(BacklogError, match="needs the Python package surely_not_there"):
        requirements.require("aggregate", "surely_not_there")


def test_the_extras_that_errors_name_exist() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for module in ("adlfs", "gcsfs", "s3fs", "sqlglot", "datasketches", "delta", "deltalake", "pyspark"):
        extra = requirements.package_of(module).partition("[")[2].removesuffix("]'")
        assert extra in setup["options.extras_require"], module
    assert requirements.package_of("pymysql") == "'backlog-spark[mysql]'"
    assert requirements.package_of("theirs") == "theirs"
