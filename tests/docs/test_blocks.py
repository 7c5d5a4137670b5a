"""Every code block is checked. Blocks of Python run, a page at a time, in the other files of this folder.

A page may show a language only if `CHECKS` has it, and SQL only if `ENGINES` says where it runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner

from backlog_spark.common.settings import parse_settings
from backlog_spark.connectors.mysql_cdc.snapshot.signals import Signal, parsed
from backlog_spark.pipelines.parsing import parse
from backlog_spark.pipelines.running import session_for, start, wait
from backlog_spark.spi.registry import ENTRY_POINTS
from backlog_spark.tools.command import command
from docs.hybrid import redaction_line
from tests.integration.topics import Topic
from tests.pipelines.conftest import own_paths  # noqa: F401

from . import commands
from .blocks import ROOT, blocks, spans
from .test_pages import PAGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.kafka import KafkaServer
    from servers.mysql import MySQLServer

ALL = [(page, language, code) for page in PAGES for language, code in blocks(page)]
ENGINES = {
    "history.md": "spark", "mysql_cdc_signals.md": "mysql", "quickstart.md": "mysql", "scripts.md": "script",
    "sinks.md": "spark",
}  # fmt: skip
"""Which engine a page's SQL is for. test_scripts runs the script."""


def _yaml(page: Path, code: str) -> None:
    found = yaml.safe_load(code)
    if page.name == "metrics.md":  # Prometheus' own file; `make test-prometheus` runs one
        assert all((ROOT / "conf" / file).is_file() for file in found["rule_files"])
    else:  # test_pipelines and the tests of the targets compare the pipelines of the page with those that run
        assert page.name in ("pipelines.md", "databases.md", "iceberg.md", "topics.md")
    for file in re.findall(r"\$schema=\S+/main/(\S+)", code):
        assert (ROOT / file).is_file()


def _json(page: Path, code: str) -> None:
    assert page.name == "mysql_cdc_signals.md"
    assert parsed(Signal("1", "execute-snapshot", code))


def _sql(page: Path, code: str) -> None:
    assert page.name in ENGINES, f"say in ENGINES which engine runs the SQL of {page.name}"


def _ini(page: Path, code: str) -> None:
    parser = ConfigParser()
    parser.read_string(code)
    (line,) = parser["options.entry_points"][ENTRY_POINTS].strip().splitlines()
    # The page's own example is registered under the same names.
    name, module, entry = re.split(" = |:", line)
    assert f'add_connector("{name}", "{module}", "{entry}")' in page.read_text()


def _properties(page: Path, code: str) -> None:
    if code.strip() != redaction_line():
        parse_settings(dict(line.split(None, 1) for line in code.splitlines()))


def _dockerfile(page: Path, code: str) -> None:
    assert re.findall("^FROM spark:(.*)-python3$", code, re.MULTILINE) == [commands.PINS["pyspark"]]
    for words in re.findall("^RUN (.*)$", code, re.MULTILINE):
        assert words.startswith("pip install '/tmp/")
        commands.requirement(words.removeprefix("pip install ").strip("'"))
    assert {line.split()[0] for line in code.splitlines()} <= {"FROM", "USER", "COPY", "RUN"}


def _elsewhere(page: Path, code: str) -> None:
    """Another test checks it."""


CHECKS: dict[str, Callable[[Path, str], None]] = {
    "python": _elsewhere,  # test_pages: a test runs the page
    "console": _elsewhere,  # below
    "sh": _elsewhere,
    "text": _elsewhere,  # what a program prints, or a drawing: no reader types it
    "yaml": _yaml,
    "json": _json,
    "sql": _sql,
    "ini": _ini,
    "properties": _properties,
    "dockerfile": _dockerfile,
}
"""Language -> its check. A page that shows another language adds one here."""


@pytest.mark.parametrize(("page", "language", "code"), ALL, ids=[f"{page.name}-{lang}" for page, lang, _ in ALL])
def test_a_check_knows_the_block(page: Path, language: str, code: str) -> None:
    assert language, f"begin the block with ``` and a language, one of {', '.join(CHECKS)}:\n{code}"
    assert language in CHECKS, f"nothing checks {language}: add it to CHECKS in {__file__}"
    CHECKS[language](page, code)


def script(page: Path) -> str:
    """All that a reader of the page types, in order."""
    return "\n".join(
        commands.typed(code, console=language == "console")
        for language, code in blocks(page)
        if language in ("sh", "console")
    )


@pytest.mark.process
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_have_words_that_exist(page: Path, tmp_path: Path) -> None:
    for words in commands.calls(script(page), tmp_path):
        commands.check(words)
    if page.name != "CHANGELOG.md":  # it also names what was there once
        for words in commands.calls("\n".join(commands.named(spans(page))), tmp_path):
            commands.check(words, whole=False)


@pytest.mark.process
@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("backlog-spark inspekt x", "No such command"),
        ("backlog-spark reset --yess", "No such option"),
        ("backlog-spark inspect", "Missing argument"),
        ("make demoo", "no target"),
        ("make demo KEYS=1", "reads no KEYS"),
        ("pip install 'backlog-spark[clii]'", "no such extra"),
        ("pip install delta-spark==4.3.0", "constraints.txt has"),
        ("spark-submit --pakages x job.py", "has no --pakages"),
        ("spark-submit --packages io.delta:delta-spark_2.13:4.4.0 job.py", "not the version"),
        ("spark-submit --conf spark.backlog.intervall=1s job.py", "intervall"),
        ("spark-submit --archives dist/environment.tar.gz#environment job.py", "builds no"),
        ("flink run job.jar", "nothing checks 'flink'"),
    ],
)
def test_a_mistake_in_a_command_is_found(typed: str, told: str, tmp_path: Path) -> None:
    (words,) = commands.calls(typed, tmp_path)
    with pytest.raises(Exception, match=re.escape(told)):
        commands.check(words)


@pytest.mark.process
def test_a_mistake_in_the_shell_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="DELTAA: unbound variable"):
        commands.calls("spark-submit $DELTAA job.py", tmp_path)


def statements(name: str) -> list[str]:
    code = "".join(code for language, code in blocks(ROOT / "docs" / name) if language == "sql")
    return [each for each in map(str.strip, code.split(";")) if each]


def test_the_sql_runs_on_a_server(mysql: MySQLServer) -> None:
    for statement in ("DROP USER IF EXISTS reader", "DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop"):
        mysql.execute(statement)
    for name in (name for name, engine in ENGINES.items() if engine == "mysql"):
        for statement in statements(name):
            mysql.execute(statement)
    ((name, kind, data),) = mysql.execute("SELECT * FROM shop.signals")
    assert parsed(Signal(name, kind, data)) == {"data-collections": ["shop.orders"]}
    with mysql.connect(user="reader", password="secret") as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        assert cursor.fetchall()


def test_the_sql_runs_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/orders` (id INT, _deleted_at TIMESTAMP) USING delta")
    for name in (name for name, engine in ENGINES.items() if engine == "spark"):
        for statement in statements(name):
            spark.sql(statement.replace("/lake/", f"{tmp_path}/"))
    found = dict(spark.sql(f"SHOW TBLPROPERTIES delta.`{tmp_path}/orders`").collect())
    assert found["delta.logRetentionDuration"] == "interval 1 day"


def numberless(text: str) -> str:
    """The text without what differs from run to run."""
    return re.sub(r"\d[\d.,:]*", "N", text)


@pytest.mark.slow
def test_the_commands_run(
    spark: SparkSession, mysql: MySQLServer, kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those about files and checkpoints, as a reader would type them one after the other."""
    for statement in (
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, amount INT)",
        "INSERT INTO shop.orders VALUES (1, 10)",
        "DROP USER IF EXISTS reader",
        *statements("quickstart.md"),
    ):
        mysql.execute(statement)
    typed = [words for page in PAGES for words in commands.calls(script(page), tmp_path) if words[0] == "backlog-spark"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DB_PASSWORD", "secret")
    Topic(kafka, "orders").send([{"id": 1, "at": "2026-01-01T00:00:00Z"}])
    spark.range(3).write.parquet(str(tmp_path / "data"))
    file, checkpoint = tmp_path / "pipeline.yaml", ""
    here = {"db": "127.0.0.1", "kafka:9092": kafka.address(), "/data/orders/*.parquet": f"{tmp_path}/data/*.parquet"}

    def run(name: str, *more: str, having: str = "") -> list[str]:
        told = []
        for words in (words[1:] for words in typed if words[1:2] == [name] and (not having or having in words)):
            given = [checkpoint if "/checkpoint" in word else here.get(word, word) for word in words]
            ran = CliRunner().invoke(command, [*given, *more])
            assert ran.exit_code == 0, f"{words}: {ran.output}"
            told.append(ran.stdout)
        return told

    assert len(run("init", having="--brokers")) == 2
    text, other = run("init", "--port", str(mysql.port), "--root", str(tmp_path / "lake"), having="--host")
    assert "type: delta_upsert" in text
    assert "type: jdbc_upsert" in other
    file.write_text(text)
    (tmp_path / "orders.sql").write_text(
        "CREATE TABLE o (id INT) WITH ('connector' = 'datagen'); CREATE TABLE p (id INT) WITH ('connector' = 'print');"
        f"SET 'execution.checkpointing.dir' = '{tmp_path}/c'; INSERT INTO p SELECT id FROM o"
    )
    checked = run("check")
    assert all("error " not in each for each in checked)
    [shown] = [code for language, code in blocks(ROOT / "docs" / "command.md") if language == "text"]
    for line in shown.replace("db:3306", "127.0.0.1:1").splitlines():
        assert not line.startswith("ok ") or numberless(line) in numberless(checked[0]), line
    pipeline = parse(text.replace("pipeline:\n", "pipeline:\n  availableNow: true\n"), str(file), os.environ)
    assert wait(start(pipeline, session_for(pipeline)))
    checkpoint = yaml.safe_load(text)["pipeline"]["checkpoint"]
    assert all("orders" in each for each in run("inspect"))
    assert run("report")
    assert (tmp_path / "orders.html").read_text().startswith("<!doctype html>")
    dry, deleted, target = run("reset")
    assert dry.startswith("would delete checkpoint")
    assert deleted.startswith("deleted checkpoint")
    assert target.startswith("deleted target")
    assert not (tmp_path / "lake" / "orders").exists()
