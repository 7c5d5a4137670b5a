"""A pipeline into a database: what its file may say, what ``check`` finds, and that it runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.parsing import load
from backlog_spark.pipelines.preflight import preflight
from backlog_spark.pipelines.running import session_for, start, wait
from backlog_spark.spi.examination import Severity
from tests.pipelines.conftest import own_paths  # noqa: F401

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer
    from servers.postgres import PostgresServer

DATABASE = "into_databases"


@pytest.fixture
def file(mysql: MySQLServer, postgres: PostgresServer, tmp_path: Path) -> Any:
    """Writes a pipeline from MySQL to PostgreSQL, with changes of its sink."""
    mysql.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
    mysql.execute(f"CREATE DATABASE {DATABASE}")
    mysql.execute(f"CREATE TABLE {DATABASE}.orders (id INT PRIMARY KEY, amount INT)")
    mysql.execute(f"INSERT INTO {DATABASE}.orders VALUES (1, 10), (2, 20)")
    postgres.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
    postgres.execute(f"CREATE DATABASE {DATABASE}")

    def write(**sink: Any) -> str:
        given: dict[str, Any] = {
            "type": "jdbc_upsert", "url": f"postgresql://127.0.0.1:{postgres.port}/{DATABASE}", "table": "orders",
            "keys": ["id"], "user": "postgres", "sslMode": "disabled",
        }  # fmt: skip
        source = {
            "type": "mysql_cdc", "name": "orders", "host": "127.0.0.1", "port": mysql.port, "user": "root",
            "startup.mode": "snapshot", "table": f"{DATABASE}.orders",
        }  # fmt: skip
        pipeline = {"name": "p", "checkpoint": f"{tmp_path}/c", "interval": "100 ms", "availableNow": True}
        path = tmp_path / "p.yaml"
        path.write_text(json.dumps({"source": source, "sink": {**given, **sink}, "pipeline": pipeline}))
        return str(path)

    return write


def told(file: str) -> list[tuple[Severity, str]]:
    found = preflight(file)
    return [(each.severity, each.problem) for each in found.findings if each.subject.startswith("sink")]


def test_check_tries_to_reach_and_to_write(file: Any, postgres: PostgresServer) -> None:
    [(severity, problem)] = told(file())
    assert (severity, "the first start creates it" in problem) == (Severity.OK, True)
    postgres.execute("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)", dbname=DATABASE)
    [(severity, problem)] = told(file())
    assert (severity, problem.endswith("can be written.")) == (Severity.OK, True)
    for changed, said in (
        ({"user": "nobody", "password": "s3cret"}, "refuses user 'nobody'"),
        ({"url": "postgresql://127.0.0.1:1/x"}, "cannot be reached"),
        ({"keys": ["amount"]}, "no unique index on exactly amount"),
        ({"url": "postgresql://me:s3cret@127.0.0.1/x"}, "has a user or a password"),
    ):
        report = preflight(file(**changed))
        assert report.fails
        text = "\n".join(f"{each.problem} {each.hint}" for each in report.findings)
        assert said in text
        assert "s3cret" not in text
    assert (Severity.WARNING, "password stands in the file, in line 1.") in told(file(password="s3cret"))
    assert postgres.execute("SELECT count(*) FROM orders", dbname=DATABASE) == [(0,)]


def test_it_runs(spark: SparkSession, file: Any, postgres: PostgresServer, own_paths: None) -> None:  # noqa: F811
    pipeline = load(file())
    assert wait(start(pipeline, session_for(pipeline)))
    rows = Counter(postgres.execute("SELECT id, amount FROM orders", dbname=DATABASE))
    assert rows == Counter([(1, 10), (2, 20)])
    changed = load(file(table="others"))
    with pytest.raises(BacklogError, match=r"JdbcUpsert place = .*: the checkpoint was made with"):
        start(changed, session_for(changed))
    assert not preflight(file()).fails
    moved = [each for each in preflight(file(table="others")).findings if each.severity is Severity.WARNING]
    assert any("The query only starts if the target was moved there" in each.problem for each in moved)


def test_mistakes_in_the_section(file: Any) -> None:
    for changed, said in (
        ({"keys": []}, "at least 1 item"),
        ({"sslMode": "always"}, "sslMode: input should be"),
        ({"pasword": "s3cret"}, "pasword: sink has no such key. Did you mean password?"),
        ({"user": None}, "user: input should be a valid string"),
    ):
        with pytest.raises(BacklogError) as raised:
            load(file(**changed))
        assert said in str(raised.value)
        assert "s3cret" not in str(raised.value)
