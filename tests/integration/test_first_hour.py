"""Typical mistakes and setups of the first hour, in real sessions: clear errors, and no noise."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

import backlog_spark as bs
from backlog_spark.common.requirements import check_pyspark, refuse_other_than
from backlog_spark.spark.jvm.session import check_session
from tests.operators.conftest import Collect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A session as a user makes it, with Spark's own log.
SESSION = """
    import os, sys
    import backlog_spark as bs
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.backlog.restart.maxAttempts", "0").getOrCreate()

    class Nothing(bs.Sink):
        def open(self, context):
            pass

        def write(self, batch_df, batch):
            print("rows", batch_df.count())

    def start(number):
        files = dict(phases="files", path=sys.argv[1] + "/in", fileFormat="json", schema="a int")
        rows = bs.source("hybrid", name="s", options=files)
        writer = rows.write("q").option("checkpointLocation", f"{sys.argv[1]}/c{number}").trigger(available_now=True)
        return writer.to(Nothing()).start(spark)
"""


def run(code: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script. A variable of the environment that is empty is left out."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"a": 1}\n')
    script = textwrap.dedent(SESSION) + textwrap.dedent(code)
    given = {name: value for name, value in {**os.environ, **environment}.items() if value}
    return subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=given, capture_output=True,
        text=True, timeout=600, start_new_session=True,
    )  # fmt: skip


KEYED = """
    import signal, threading, time
    from pathlib import Path
    from backlog_spark.spi import add_connector

    add_connector("lines", "examples.lines_source", "LinesDataSource")
    root = Path(sys.argv[1])
    (root / "lines").write_text("a\\nb\\n" * 20)

    class Counts(bs.Sink):
        def open(self, context):
            pass

        def write(self, batch_df, batch):
            batch_df.collect()

    def end():
        while query.isProcessingBacklog:
            time.sleep(0.1)
        with open(root / "lines", "a") as more:
            more.write("a\\n")
        while not query.backlogProgress.commits_after:
            time.sleep(0.1)
        os.killpg(0, signal.SIGINT)  # as a terminal does

    lines = bs.source("lines", name="lines", path=root / "lines")
    writer = lines.key_by("line").aggregate("count(*) AS n").write("counts")
    writer = writer.trigger(processing_time="100 ms", interval_during_backlog=0)
    query = writer.option("checkpointLocation", str(root / "c")).to(Counts()).start(spark)
    threading.Thread(target=end, daemon=True).start()
    query.awaitTermination()
    print("not reached")
"""


@pytest.mark.slow
@pytest.mark.process
def test_a_log_has_our_lines_and_a_good_run_has_no_others(tmp_path: Path) -> None:
    """A keyed query in a session of the user's own, with its output in a file, until Ctrl-C."""
    done = run(KEYED, tmp_path, PYSPARK_PYTHON=sys.executable, BACKLOG_SPARK_INTERNALS="on")
    assert (done.returncode, done.stdout) == (-signal.SIGINT, ""), done.stderr[-3000:]
    text, begin = done.stderr, "Query counts has started in backlog mode, without a commit until the backlog ends."
    assert begin in text, text[-3000:]
    lines = text[text.index(begin) :].splitlines()
    # Spark's own start, before there is a query, is the user's.
    assert lines[0] == f"{begin} Its checkpoint is {tmp_path}/c."
    switch = "counts: stream mode from batch 1 on, because source lines has left its backlog"
    assert lines.index(switch) < lines.index(
        "Query counts ends after its running batch. Press Ctrl-C again to end it at once."
    )
    assert re.fullmatch(
        r"Query counts has ended after a whole batch: 41 rows in 2 commits, .* s, to Counts\.", lines[-1]
    )
    ours = re.compile(r"(Query counts|counts:|lines:) .*")
    assert [line for line in lines if not ours.fullmatch(line)] == []


@pytest.mark.grid
@pytest.mark.process
def test_starts_do_not_warn_of_replaced_sources(tmp_path: Path) -> None:
    done = run(
        """
        for number in range(2):
            start(number).awaitTermination()
        environment = spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource("hybrid")
        print("BACKLOG_SPARK_FORK_SERVER" in dict(environment.dataSourceCls().envVars()))
        """,
        tmp_path,
        PYSPARK_PYTHON=sys.executable,
        BACKLOG_SPARK_INTERNALS="on",  # without them Spark registers its sources again, and warns
    )
    assert done.stdout.split("\n")[:2] == ["rows 1", "rows 1"], done.stderr[-3000:]
    assert "data source" not in done.stderr
    assert done.stdout.split("\n")[2] == "True", "the sources that Spark found start as fast as registered ones"


@pytest.mark.grid
@pytest.mark.process
def test_a_stop_in_the_middle_of_a_batch_is_one_line(tmp_path: Path) -> None:
    done = run(
        """
        import threading, time

        class Long(bs.Sink):
            def open(self, context):
                pass

            def write(self, batch_df, batch):
                batch_df.persist().foreach(lambda row: (print("here", file=open(mark, "a")), time.sleep(60)))

        mark = sys.argv[1] + "/here"
        files = dict(phases="files", path=sys.argv[1] + "/in", fileFormat="json", schema="a int")
        rows = bs.source("hybrid", name="s", options=files)
        writer = rows.write("q").option("checkpointLocation", f"{sys.argv[1]}/c").to(Long())
        query = writer.start(spark)
        while not os.path.exists(mark):
            time.sleep(0.1)
        query.stop()
        """,
        tmp_path,
        PYSPARK_PYTHON="",  # Spark then registers the sources that it has found once more
        BACKLOG_SPARK_INTERNALS="on",  # without them the log is not filtered
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "DataSourceManager" not in done.stderr
    lines = done.stderr[done.stderr.index("Query q has started") :].splitlines()
    assert re.fullmatch(r"Query q was stopped: .* Its next start replays the batch that was running\.", lines[-1])
    assert [line for line in lines if not line.startswith(("Query q ", "q:", "s:"))] == []


@pytest.mark.grid
@pytest.mark.process
def test_rows_that_are_kept_for_a_batch_are_freed_without_a_word(tmp_path: Path) -> None:
    done = run(
        """
        from backlog_spark.spark.plan.batch_frames import kept

        start(0).awaitTermination()
        with kept(spark.range(3).toDF("a")) as rows:
            print(rows.count(), rows.count(), spark.sparkContext._jsc.getPersistentRDDs().size())
        print(spark.sparkContext._jsc.getPersistentRDDs().size())
        """,
        tmp_path,
        PYSPARK_PYTHON=sys.executable,
        BACKLOG_SPARK_INTERNALS="on",  # without them Spark frees the rows later
    )
    assert done.stdout.split("\n")[1:3] == ["3 3 1", "0"], done.stderr[-3000:]
    assert "locally checkpointed" not in done.stderr


@pytest.mark.slow
@pytest.mark.process
def test_a_missing_interpreter_is_reported(tmp_path: Path) -> None:
    done = run("start(0)", tmp_path, PYSPARK_PYTHON="/nonexistent/python")
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("backlog_spark.errors.BacklogError: ")
    assert 'Cannot run program "/nonexistent/python"' in last
    assert "with PYSPARK_PYTHON, which is /nonexistent/python, on the driver" in last
    assert "rows" not in done.stdout


@pytest.mark.parametrize(
    ("source_format", "hint"),
    [
        ("mysql", "Did you mean mysql_cdc? There are: avro, "),
        ("kafkaa", "Did you mean kafka?"),
        ("jdbc", "There are: avro, csv, datagen, delta, hybrid, json, kafka, mysql_cdc, "),
    ],
)
def test_a_format_that_does_not_stream_is_answered_with_those_that_do(
    spark: SparkSession, tmp_path: Path, source_format: str, hint: str
) -> None:
    writer = bs.source(source_format, name="a", url="x").write("q").option("checkpointLocation", str(tmp_path))
    with pytest.raises(bs.BacklogError, match=f"no streaming source with the format '{source_format}'") as told:
        writer.to(Collect()).start(spark)
    assert hint in told.value.hint
    assert "\n" not in str(told.value)


class ForgottenReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
        return {"at": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(1)]

    def read(self, partition: InputPartition) -> Any:
        import a_forgotten_package  # type: ignore[import-not-found]

        yield (a_forgotten_package.one,)


class Forgotten(DataSource):
    @classmethod
    def name(cls) -> str:
        return "forgotten"

    def schema(self) -> str:
        return "a int"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return ForgottenReader()


class Reads(bs.Sink):
    def open(self, context: bs.sinks.SinkContext) -> None:
        pass

    def write(self, batch_df: DataFrame, batch: Any) -> None:
        batch_df.collect()


def test_a_package_that_executors_lack_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(Forgotten)
    spark.conf.set("spark.backlog.restart.maxAttempts", "0")
    try:
        writer = bs.source("forgotten", name="a").write("q").option("checkpointLocation", str(tmp_path))
        query = writer.to(Reads()).start(spark)
        with pytest.raises(bs.BacklogError, match="No module named 'a_forgotten_package'") as told:
            query.awaitTermination(120)
        assert "on every executor. Install the package there (pip install a_forgotten_package)" in told.value.hint
    finally:
        spark.conf.unset("spark.backlog.restart.maxAttempts")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda frame: None, "The function of a transform returned None. Return a DataFrame."),
        (lambda frame: frame.groupBy("value").count(), "A transform works on single rows. To group, write .key_by"),
    ],
)
def test_transforms_that_cannot_be(spark: SparkSession, tmp_path: Path, function: Any, said: str) -> None:
    stream = bs.source("rate", name="a").transform(function)
    with pytest.raises(bs.BacklogError) as told:
        stream.write("q").option("checkpointLocation", str(tmp_path)).to(Collect()).start(spark)
    assert said in str(told.value)


def test_a_checkpoint_that_cannot_be_written_is_reported_in_one_line(spark: SparkSession) -> None:
    writer = bs.source("rate", name="a").write("q").option("checkpointLocation", "/proc/nowhere")
    with pytest.raises(bs.BacklogError, match=r"Query 'q' could not be started: .*/proc/nowhere") as told:
        writer.to(Collect()).start(spark)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("schema", ["id intt, n int", "id int n int"])
def test_a_schema_that_cannot_be_read_is_reported(spark: SparkSession, tmp_path: Path, schema: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("1,2\n")
    rows = bs.source("hybrid", name="a", phases="files", path=tmp_path / "in", fileFormat="csv", schema=schema)
    with pytest.raises(
        bs.BacklogError,
        match=r"schema of the source hybrid cannot be read: \[(PARSE_SYNTAX_ERROR|UNSUPPORTED_DATATYPE)\]",
    ):
        rows.write("q").option("checkpointLocation", str(tmp_path / "c")).to(Collect()).start(spark)


def test_the_name_of_a_running_query_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    def start(checkpoint: str) -> bs.BacklogQuery:
        writer = bs.source("rate", name="a").write("twice").option("checkpointLocation", str(tmp_path / checkpoint))
        return writer.trigger(processing_time="1 minute").to(Collect()).start(spark)

    query = start("one")
    try:
        with pytest.raises(
            bs.BacklogError, match=r"Query 'twice' could not be started: .*name.* Stop that query first"
        ):
            start("two")
    finally:
        query.stop()
    start("two").stop()


@pytest.mark.parametrize("source_format", ["mysql_cdc", "hybrid"])
def test_streams_are_not_read_as_batches_nor_written_to(spark: SparkSession, source_format: str) -> None:
    bs.register(spark)
    options = {"schema": "a int", "path": "/x", "phases": "files", "metadataLocation": "/x"}
    schema = "a int, _change_type string"
    with pytest.raises(Exception, match=rf"BacklogError: {source_format} is a stream.*Use spark.readStream"):
        spark.read.format(source_format).schema(schema).options(**options).load().collect()
    with pytest.raises(Exception, match=f"BacklogError: {source_format} is a source and cannot be written to"):
        spark.range(1).write.format(source_format).mode("append").options(**options).save()


def test_what_is_no_session_is_refused() -> None:
    with pytest.raises(bs.BacklogError, match="found None"):
        check_session(None)
    with pytest.raises(bs.BacklogError, match="found 'local'"):
        check_session("local")


@pytest.mark.parametrize("version", ["3.5.1", "4.1.1", "4.20.0", "5.0.0.dev0"])
def test_other_versions_are_refused(version: str) -> None:
    check_pyspark()
    with pytest.raises(bs.BacklogError, match=f"needs PySpark 4.2 or 4.3, found {version}.* Run it"):
        refuse_other_than(version, "PySpark", "Run it.")


@pytest.mark.parametrize("version", ["4.2", "4.2.0", "4.2.1.dev0"])
def test_this_version_is_not(version: str) -> None:
    refuse_other_than(version, "PySpark", "")
