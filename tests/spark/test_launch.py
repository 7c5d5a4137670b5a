"""How Spark's JVM is started. What reaches its command line: tests/pipelines/test_running.py."""

from __future__ import annotations

import os
from typing import Any

import pytest
from delta import configure_spark_with_delta_pip
from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from backlog_spark.spark.jvm.internals import SWITCH
from backlog_spark.spark.jvm.launch import delta_package, launch


def test_the_package_of_delta_is_that_which_delta_itself_names() -> None:
    builder = configure_spark_with_delta_pip(SparkSession.Builder())
    assert builder._options["spark.jars.packages"] == delta_package()


@pytest.mark.parametrize("road", ["on", "off"])
def test_the_switch_leaves_the_start_to_pyspark(monkeypatch: pytest.MonkeyPatch, road: str) -> None:
    seen: list[str] = []

    def start(popen_kwargs: dict[str, Any]) -> None:
        assert popen_kwargs == {"start_new_session": True}
        seen.append(os.environ["PYSPARK_SUBMIT_ARGS"])

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda gateway: None)
    monkeypatch.setattr(java_gateway, "launch_gateway", start)
    monkeypatch.setenv(SWITCH, road)
    launch({"spark.hadoop.fs.s3a.secret.key": "correct-horse"})
    assert [("--properties-file" in each, "correct-horse" in each) for each in seen] == [(True, False)] * (road == "on")
