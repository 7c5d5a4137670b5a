"""``backlog-spark run`` on a real server, as a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.parsing import load
from backlog_spark.pipelines.running import session_for, start, wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

LIMIT_S = 300


def wait_for(condition: Callable[[], bool], what: str, every_s: float = 0.05) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, f"{what} did not come"
        time.sleep(every_s)


def create(server: MySQLServer, database: str, rows: int = 1_000) -> None:
    server.execute(f"DROP DATABASE IF EXISTS {database}")
    server.execute(f"CREATE DATABASE {database}")
    server.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, customer INT, amount INT)")
    server.execute(
        f"INSERT INTO {database}.orders VALUES " + ",".join(f"({i}, {i % 7}, {i % 100})" for i in range(rows))
    )


def rows_of(spark: SparkSession, path: str | Path) -> Counter[Any]:
    return Counter(tuple(row) for row in spark.read.format("delta").load(str(path)).collect())


@contextmanager
def running(file: Path, log: Path, command: str = "run", **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """``backlog-spark run`` or another command in a process group of its own, with Delta's jars from the cache."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "backlog_spark.tools", command, str(file), "--json"],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **environment},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def settings(**more: str) -> str:
    from servers.jars import delta_jars

    given = {
        "spark.master": "local[2,4]",
        "spark.jars": ",".join(map(str, delta_jars())),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        **more,
    }
    return "".join(f"    {name}: {json.dumps(text)}\n" for name, text in given.items())


@pytest.mark.slow
def test_sql_and_functions(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql, "piped")
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"""\
source:
  type: mysql_cdc
  name: orders
  host: 127.0.0.1
  port: {mysql.port}
  user: root
  table: piped.orders
  startup.mode: snapshot
transform:
  - name: large
    function: tests.pipelines.jobs:large
    arguments: {{least: 50}}
  - name: sums
    sql: SELECT customer, sum(amount) AS total, count(*) AS n FROM large GROUP BY customer
sink:
  - type: delta_upsert
    name: orders
    from: orders
    path: {tmp_path}/orders
    keys: [id]
    checkpoint: {tmp_path}/c/orders
  - type: delta_upsert
    name: sums
    path: {tmp_path}/sums
    keys: [customer]
    checkpoint: {tmp_path}/c/sums
pipeline:
  name: piped
  interval: 100 ms
  intervalDuringBacklog: 0
""")
    pipeline = load(str(file))
    queries = start(pipeline, session_for(pipeline))
    assert [query.name for query in queries] == ["piped-orders", "piped-sums"]
    assert wait(queries)
    assert rows_of(spark, tmp_path / "orders") == Counter(mysql.execute("SELECT * FROM piped.orders"))
    sums = (
        "SELECT customer, CAST(SUM(amount) AS SIGNED), COUNT(*) FROM piped.orders WHERE amount >= 50 GROUP BY customer"
    )
    assert rows_of(spark, tmp_path / "sums") == Counter(mysql.execute(sums))


def test_a_query_that_is_stopped_through_spark_is_no_success(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path
) -> None:
    """The other query of the pipeline ends too, after its batch."""
    create(mysql, "halted", 10)
    sinks = "".join(
        f"  - type: delta_upsert\n    name: {name}\n    from: orders\n    path: {tmp_path}/{name}\n    keys: [id]\n"
        f"    checkpoint: {tmp_path}/c/{name}\n"
        for name in ("one", "two")
    )
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"""\
source:
  type: mysql_cdc
  name: orders
  host: 127.0.0.1
  port: {mysql.port}
  user: root
  table: halted.orders
sink:
{sinks}pipeline:
  name: halted
  interval: 100 ms
""")
    pipeline = load(str(file))
    queries = start(pipeline, session_for(pipeline))
    for query in queries:
        query.processAllAvailable()
    queries[1].streamingQuery.stop()
    with pytest.raises(BacklogError, match=r"halted-two was stopped through Spark.*next run continues"):
        wait(queries)
    assert not any(query.isActive for query in queries)
    assert [query.exception() for query in queries] == [None, None]


@pytest.mark.slow
def test_side_outputs_have_sinks_of_the_same_query(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql, "split")
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"""\
source: {{type: mysql_cdc, name: orders, host: 127.0.0.1, port: {mysql.port}, user: root, table: split.orders,
  startup.mode: snapshot, metadataColumns: ""}}
transform:
  - {{name: parts, function: "tests.pipelines.jobs:split"}}
sink:
  type: delta_append
  path: {tmp_path}/small
  sideOutputs:
    large: {{type: delta_append, path: {tmp_path}/large}}
pipeline: {{name: split, checkpoint: {tmp_path}/c, interval: 100 ms, intervalDuringBacklog: 0}}
""")
    pipeline = load(str(file))
    assert wait(start(pipeline, session_for(pipeline)))
    small, large = "SELECT customer, id FROM {0} WHERE amount < 50", "SELECT customer, id, amount FROM {0}"
    assert rows_of(spark, tmp_path / "small") == Counter(mysql.execute(small.format("split.orders")))
    assert rows_of(spark, tmp_path / "large") == Counter(
        mysql.execute(large.format("split.orders") + " WHERE amount >= 50")
    )
    file.write_text(file.read_text().replace("large: {", "larger: {").replace(f"{tmp_path}/c,", f"{tmp_path}/c2,"))
    with pytest.raises(BacklogError, match="no such side output"):
        start(load(str(file)), spark)


# What Spark and Java print when they are ended in the middle of something.
NOISE = (
    "Traceback", "java.", "Connection refused", "Failed to cancel job group", "stateConnectionListenerThread",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "is_idle"),
    [
        pytest.param(signal.SIGINT, False, marks=pytest.mark.grid),
        (signal.SIGTERM, False),
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.grid),
    ],
)
def test_a_signal_to_the_process_group_ends_it_after_its_batch_and_the_next_run_goes_on(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, number: signal.Signals, is_idle: bool
) -> None:
    """As a terminal sends Ctrl-C, and ``timeout`` SIGTERM: in a batch, and while the source waits for rows."""
    create(mysql, "stopped")
    file, log = tmp_path / "pipeline.yaml", tmp_path / "log"
    file.write_text(f"""\
source: {{type: mysql_cdc, host: 127.0.0.1, port: {mysql.port}, user: root, password: "${{THE_PASSWORD}}",
  table: stopped.orders, maxRowsPerBatch: 100}}
sink: {{type: delta_upsert, path: {tmp_path}/t, keys: [id]}}
pipeline:
  name: stopped
  checkpoint: {tmp_path}/c
  interval: 100 ms
  settings:
{settings()}""")

    def batches(folder: str) -> list[int]:
        return sorted(int(path.name) for path in (tmp_path / "c" / folder).glob("[0-9]*"))

    def is_in_a_batch() -> bool:
        committed = batches("commits")  # first: the other one only grows
        return len(committed) >= 2 and len(batches("offsets")) > len(committed)

    def waits() -> bool:
        before = batches("commits")
        time.sleep(3)
        return bool(before) and before == batches("commits") == batches("offsets")

    moment = waits if is_idle else is_in_a_batch
    with running(file, log, THE_PASSWORD="") as process:
        wait_for(lambda: moment() or process.poll() is not None, "a batch", every_s=0.01)
        assert process.poll() is None, log.read_text()
        began = batches("offsets")
        os.killpg(process.pid, number)
        assert process.wait(LIMIT_S) == 0, log.read_text()
    told = log.read_text()
    assert "Query stopped ends after its running batch. Press Ctrl-C again to end it at once." in told
    assert re.search(
        r"Query stopped has ended after a whole batch: [\d,]+ rows in \d+ commits?, .* s, to file:.*/t\.", told
    )
    assert '"status": "CANCELED"' in told
    assert [word for word in NOISE if word in told] == []
    assert batches("offsets") == batches("commits")
    assert set(began) <= set(batches("commits"))
    mysql.execute("DELETE FROM stopped.orders WHERE id < 10")
    pipeline = load(str(file), {"THE_PASSWORD": ""})
    queries = start(pipeline, spark)
    try:
        wait_for(lambda: not queries[0].isProcessingBacklog, "the end of the backlog")
        queries[0].processAllAvailable()
    finally:
        queries[0].stop()
    assert rows_of(spark, tmp_path / "t") == Counter(mysql.execute("SELECT * FROM stopped.orders"))


@pytest.mark.process
def test_a_mistake_is_told_before_spark_starts(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "source: {type: mysql_cdc, chunkSizze: 1}\nsink: {type: delta_append, path: /t}\npipeline: {name: x}\n"
    )
    with running(file, tmp_path / "log") as process:
        assert process.wait(LIMIT_S) == 1
    assert (
        f"error: {file}:1:27: chunkSizze: mysql_cdc has no such option. Did you mean chunkSize?"
        in (tmp_path / "log").read_text()
    )


@pytest.mark.slow
@pytest.mark.process
def test_a_signal_before_the_queries_run_ends_it(tmp_path: Path) -> None:
    file, log = tmp_path / "pipeline.yaml", tmp_path / "log"
    file.write_text(
        f"source: {{type: rate}}\nsink: {{type: delta_append, path: {tmp_path}/t}}\n"
        f"pipeline:\n  name: early\n  checkpoint: {tmp_path}/c\n  settings:\n{settings()}"
    )
    with running(file, log) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_for(lambda: process.poll() is not None or bool(children.read_text()), "Spark")
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(LIMIT_S) == 130, log.read_text()
    assert [word for word in NOISE if word in log.read_text()] == []


LAUNCHED = """
import json
import os
import sys
import time
from pathlib import Path
from backlog_spark.pipelines.parsing import load
from backlog_spark.pipelines.running import session_for

spark = session_for(load(sys.argv[1]))
java = spark._jvm.java.lang.ProcessHandle.current().pid()
Path(sys.argv[2]).with_suffix(".new").write_text(json.dumps([java, os.getpgid(java), os.getpgid(0)]))
Path(sys.argv[2]).with_suffix(".new").rename(sys.argv[2])
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.process
def test_spark_ends_with_a_killed_driver(tmp_path: Path) -> None:
    """Although no signal to the driver's process group reaches it."""
    file, program, found = tmp_path / "pipeline.yaml", tmp_path / "launched.py", tmp_path / "found"
    program.write_text(LAUNCHED)
    file.write_text(
        f"source: {{type: rate}}\nsink: {{type: delta_append, path: {tmp_path}/t}}\n"
        f"pipeline:\n  name: killed\n  checkpoint: {tmp_path}/c\n  settings:\n{settings()}"
    )
    process = subprocess.Popen([sys.executable, str(program), str(file), str(found)], start_new_session=True)
    try:
        wait_for(lambda: found.exists() or process.poll() is not None, "the session")
        java, group, own = json.loads(found.read_text())
        assert group != own
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not Path(f"/proc/{java}").exists(), "the end of Java")


HOSTILE = "=t: \\path\\u0041 #!'\" ${x} é \U0001f511\ttab\nsecond line \\"
PROBE = """
import json
import os
import sys
import tempfile
from pathlib import Path
from backlog_spark.pipelines.parsing import load
from backlog_spark.pipelines.running import session_for

pipeline = load(sys.argv[1])
spark = session_for(pipeline)
java = spark._jvm.java.lang
commands = []
for process in Path("/proc").glob("[0-9]*"):
    try:
        commands.append((process / "cmdline").read_bytes().decode(errors="replace"))
    except OSError:
        pass  # it has ended
print(json.dumps({
    "commands": commands,
    "conf": dict(spark.sparkContext.getConf().getAll()),
    "session": {name: spark.conf.get(name, None) for name in sys.argv[2:]},
    "hadoop": spark._jsc.hadoopConfiguration().get("own.key"),
    "files": os.listdir(tempfile.gettempdir()),
    "arguments": os.environ.get("PYSPARK_SUBMIT_ARGS"),
    "java": java.System.getProperty("own.property"),
    "memory": java.Runtime.getRuntime().maxMemory(),
}))
"""


def repository(folder: Path) -> Path:
    """A Maven repository with the empty package ``own:thing:1.0``."""
    version = folder / "own" / "thing" / "1.0"
    version.mkdir(parents=True)
    names = "<groupId>own</groupId><artifactId>thing</artifactId><version>1.0</version>"
    (version / "thing-1.0.pom").write_text(f"<project><modelVersion>4.0.0</modelVersion>{names}</project>")
    with zipfile.ZipFile(version / "thing-1.0.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    return folder


@pytest.mark.grid
@pytest.mark.process
@pytest.mark.parametrize(
    "theirs",
    [
        pytest.param(None, marks=pytest.mark.grid),
        "--conf spark.own.c=theirs --name x --properties-file {file} pyspark-shell",
    ],
)
def test_no_setting_is_on_a_command_line(tmp_path: Path, theirs: str | None) -> None:
    """On the real spark-submit: everybody can read /proc/*/cmdline of everybody's processes."""
    for name in ("conf", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.own.a defaults\nspark.own.b defaults\n")
    (tmp_path / "own").write_text("spark.own.b file\nspark.own.d file\\")
    file, probe = tmp_path / "pipeline.yaml", tmp_path / "probe.py"
    probe.write_text(PROBE)
    secret = f"s3cr{tmp_path}{HOSTILE}"
    more = {
        "spark.own.a": "pipeline", "spark.own.c": "pipeline", "spark.hadoop.own.key": secret, "spark.own.empty": "",
        "spark.own.spaces": f"  {secret}  ", "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": "-Down.property=set", "spark.backlog.progress": "off",
        "spark.jars.packages": "own:thing:1.0", "spark.jars.repositories": repository(tmp_path / "repository").as_uri(),
        "spark.jars.ivy": f"{tmp_path}/ivy",
    }  # fmt: skip
    file.write_text(
        f"source: {{type: rate}}\nsink: {{type: delta_append, path: {tmp_path}/t}}\n"
        f"pipeline:\n  name: named\n  checkpoint: {tmp_path}/c\n  settings:\n{settings(**more)}".replace("${", "$${")
    )
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path / "conf"), "TMPDIR": str(tmp_path / "tmp")}
    environment.pop("PYSPARK_SUBMIT_ARGS", None)
    if theirs:
        environment["PYSPARK_SUBMIT_ARGS"] = theirs.format(file=tmp_path / "own")
    done = subprocess.run(
        [sys.executable, str(probe), str(file), *more], env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    assert "Getting own:thing:1.0 and what it needs." in done.stderr
    # A stack trace of Spark is no part of Ivy's report.
    assert not re.search(r"^::|^\t(?!at |\.\.\.)|own#thing", done.stderr, re.MULTILINE), "what Ivy says about it"
    assert (tmp_path / "ivy" / "jars" / "own_thing-1.0.jar").exists()
    found = json.loads(done.stdout.splitlines()[-1])
    words = "\n".join(found["commands"])
    assert "backlog-spark-" in words  # the JVM's command line is among them
    assert "s3cr" + str(tmp_path) not in words
    of_java = [name for name in more if name.startswith("spark.driver.")]  # these are arguments of Java itself
    assert [name for name, text in more.items() if f"{name}={text}" in words] in (of_java, [])
    assert not [name for name in found["files"] if name.endswith(".conf")]
    assert found["arguments"] == environment.get("PYSPARK_SUBMIT_ARGS")
    assert found["conf"]["spark.driver.extraJavaOptions"].endswith(more.pop("spark.driver.extraJavaOptions"))
    assert {name: found["conf"][name] for name in more} == more
    assert found["hadoop"] == secret
    assert (found["java"], found["conf"]["spark.app.name"]) == ("set", "named")
    assert 400 << 20 < found["memory"] < 700 << 20
    assert found["session"]["spark.backlog.progress"] == "off"
    of_defaults = {"spark.own.b": "defaults"} if theirs is None else {"spark.own.b": "file", "spark.own.d": "file"}
    assert of_defaults.items() <= found["conf"].items()
