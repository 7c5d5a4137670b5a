"""How Spark's JVM is started. What reaches its command line: tests/pipelines/test_running.py."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from typing import Any

import pytest
from delta import configure_spark_with_delta_pip
from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from backlog_spark.spark.jvm.internals import SWITCH
from backlog_spark.spark.jvm.launch import delta_package, launch, relaying


def test_the_package_of_delta_is_that_which_delta_itself_names() -> None:
    builder = configure_spark_with_delta_pip(SparkSession.Builder())
    assert builder._options["spark.jars.packages"] == delta_package()


@pytest.mark.parametrize("switch", ["on", "off"])
def test_the_switch_leaves_the_start_to_pyspark(monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    seen: list[str] = []

    def launched(popen_kwargs: dict[str, Any]) -> None:
        assert popen_kwargs == {"stderr": None, "start_new_session": True}
        seen.append(os.environ["PYSPARK_SUBMIT_ARGS"])

    monkeypatch.setattr(java_gateway, "launch_gateway", launched)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda gateway: None)
    monkeypatch.setenv(SWITCH, switch)
    launch({"spark.hadoop.fs.s3a.secret.key": "correct-horse"})
    assert [("--properties-file" in each, "correct-horse" in each) for each in seen] == [(True, False)] * (
        switch == "on"
    )


IVY = """\
:: loading settings :: url = jar:file:/x/ivy-2.5.3.jar!/org/apache/ivy/core/settings/ivysettings.xml
Ivy Default Cache set to: /x/.ivy2.5.2/cache
The jars for the packages stored in: /x/.ivy2.5.2/jars
io.delta#delta-spark_4.2_2.13 added as a dependency
:: resolving dependencies :: org.apache.spark#spark-submit-parent-7f2c;1.0
\tconfs: [default]
\tfound io.delta#delta-spark_4.2_2.13;4.4.0 in central
downloading https://repo1.maven.org/maven2/io/delta/delta-spark_4.2_2.13-4.4.0.jar ...
\t[SUCCESSFUL ] io.delta#delta-spark_4.2_2.13;4.4.0!delta-spark_4.2_2.13.jar (812ms)
:: resolution report :: resolve 3012ms :: artifacts dl 812ms
\t:: modules in use:
\tio.delta#delta-spark_4.2_2.13;4.4.0 from central in [default]
\t---------------------------------------------------------------------
\t|                  |            modules            ||   artifacts   |
\t|       conf       | number| search|dwnlded|evicted|| number|dwnlded|
:: retrieving :: org.apache.spark#spark-submit-parent-7f2c
\t0 artifacts copied, 1 already retrieved (0kB/12ms)
"""
# It ends with what it could not read on the way.
SUMMARY = """\
\t---------------------------------------------------------------------

:: problems summary ::
:::: WARNINGS
\tHost repos.spark-packages.org not found. url=https://repos.spark-packages.org/own/thing/1.0/thing-1.0.pom

\t==== central: tried

:: USE VERBOSE OR DEBUG MESSAGE LEVEL FOR MORE DETAILS
"""
OTHERS = """\
WARNING: Using incubator modules: jdk.incubator.vector
26/11/28 21:21:31 WARN Utils: Your hostname resolves to a loopback address
java.lang.IllegalStateException: It broke.
\tat org.apache.spark.SparkContext.<init>(SparkContext.scala:12)
"""


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("runs", [True, False])
def test_ivys_report_is_printed_only_if_the_jvm_does_not_start(
    seed: int, runs: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """However the lines are cut and mixed."""
    rng = random.Random(seed)
    lines = [*IVY.splitlines(keepends=True), *OTHERS.splitlines(keepends=True)]
    at = sorted(rng.sample(range(len(lines)), OTHERS.count("\n")))
    ivy, others = iter(IVY.splitlines(keepends=True)), iter(OTHERS.splitlines(keepends=True))
    text = "".join(next(others) if n in at else next(ivy) for n in range(len(lines)))
    text = (text + SUMMARY + "26/11/28 WARN After: it.\n").encode()
    with contextlib.suppress(ValueError), relaying("io.delta:delta-spark") as stderr:
        jvm = os.dup(stderr)
        while text:
            size = rng.randrange(1, 200)
            os.write(jvm, text[:size])
            text = text[size:]
        if not runs:
            raise ValueError
    os.write(jvm, b"26/11/28 WARN Later: :: half a line")
    os.close(jvm)
    for thread in threading.enumerate():
        if thread.name == "jvm-stderr":
            thread.join()
    told = capsys.readouterr().err
    assert told.endswith("26/11/28 WARN Later: :: half a line")
    found = [line for line in told.splitlines(keepends=True)[:-1] if not line.startswith("Getting io.delta")]
    others = [*OTHERS.splitlines(keepends=True), "26/11/28 WARN After: it.\n"]
    assert [line for line in found if line in others] == others
    assert "".join(line for line in found if line not in others) == ("" if runs else IVY + SUMMARY)
