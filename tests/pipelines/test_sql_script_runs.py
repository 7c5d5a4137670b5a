"""Flink SQL scripts on real servers."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.parsing import load
from backlog_spark.pipelines.preflight import preflight
from backlog_spark.pipelines.running import wait
from backlog_spark.pipelines.scripts import explained_script
from backlog_spark.spi.examination import Severity
from tests.integration.topics import Topic
from tests.sinks.kafka.topics import Topics

from .test_running import rows_of, running, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.kafka import KafkaServer
    from servers.mysql import MySQLServer

# FLIP-326, "Example Usage", word by word.
FLIP_326 = """
-- Create mysql cdc source table (dimension table)
CREATE TEMPORARY TABLE user_info (
    user_id INTEGER PRIMARY KEY NOT ENFORCED, 
    gender STRING
) WITH (
    'connector' = 'mysql-cdc',
    'database-name' = 'example_database',
    'hostname' = 'localhost',
    'username' = 'root',
    'password' = 'root',
    'table-name' = 'user_info'
);

-- Create datagen source table (fact table)
CREATE TEMPORARY TABLE click_event (
    user_id INTEGER,
    item_id INTEGER,
    proctime AS PROCTIME()
) WITH (
    'connector' = 'datagen',
    'rows-per-second' = '1',
    'fields.user_id.min' = '0',
    'fields.user_id.max' = '9'
);

-- Create a print sink table
CREATE TEMPORARY TABLE print_sink (
    user_id INTEGER,
    item_id INTEGER,
    gender STRING
) WITH (
    'connector' = 'print'
);

-- Processing time temporal join
INSERT INTO print_sink
SELECT click_event.user_id AS user_id, item_id, gender FROM click_event 
LEFT JOIN user_info FOR SYSTEM_TIME AS OF click_event.proctime
ON click_event.user_id = user_info.user_id;
"""  # noqa: W291


def at(server: MySQLServer) -> str:
    return f"'hostname' = '127.0.0.1', 'port' = '{server.port}', 'username' = 'root'"


def ran(spark: SparkSession, script: str, checkpoint: Path) -> list[bs.BacklogQuery]:
    queries = bs.sql_script(spark, script, checkpoint=str(checkpoint))
    assert wait(queries)
    return queries


def test_the_example_of_flip_326(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every click has its user: none is joined before the snapshot is complete."""
    for statement in (
        "DROP DATABASE IF EXISTS example_database",
        "CREATE DATABASE example_database",
        "CREATE TABLE example_database.user_info (user_id INT PRIMARY KEY, gender VARCHAR(9))",
        "INSERT INTO example_database.user_info VALUES " + ",".join(f"({i}, '{'fm'[i % 2]}')" for i in range(9)),
    ):
        mysql.execute(statement)
    script = FLIP_326.replace("'hostname' = 'localhost'", f"'hostname' = '127.0.0.1',\n 'port' = '{mysql.port}'")
    script = script.replace("    'password' = 'root',\n", "")
    (query,) = bs.sql_script(spark, script, checkpoint=str(tmp_path / "c"))
    printed = ""
    try:
        limit = time.monotonic() + 300
        while printed.count("\n") < 10:
            assert query.isActive, query.exception()
            assert time.monotonic() < limit
            time.sleep(0.2)
            printed += capsys.readouterr().out
    finally:
        query.stop()
    for line in printed.splitlines():
        assert line.startswith("+I[")
        assert line.endswith("]")
        user, item, gender = line[3:-1].split(", ")
        assert -(2**31) <= int(item) < 2**31
        assert gender == ("null" if user == "9" else "fm"[int(user) % 2])


def test_files_are_looked_up(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A lookup join as in the benchmark of streaming SQL, with options of an old Flink."""
    (tmp_path / "side.csv").write_text("".join(f"{key},v{key}\n" for key in range(0, 10, 2)))
    script = f"""
    CREATE TABLE bid (auction BIGINT) WITH ('connector' = 'datagen', 'rows-per-second' = '1000',
        'fields.auction.kind' = 'sequence', 'fields.auction.start' = '0', 'fields.auction.end' = '29');
    CREATE TABLE side_input (key BIGINT, `value` VARCHAR)
    WITH ('connector.type' = 'filesystem', 'connector.path' = 'file://{tmp_path}/side.csv', 'format.type' = 'csv');
    CREATE TABLE shown (auction BIGINT, `value` VARCHAR) WITH ('connector' = 'print');
    INSERT INTO shown SELECT b.auction, s.`value` FROM (SELECT *, PROCTIME() AS p_time FROM bid) AS b
    JOIN side_input FOR SYSTEM_TIME AS OF b.p_time AS s ON mod(b.auction, 10) = s.key
    """
    ran(spark, script, tmp_path / "c")
    wanted = [f"+I[{n}, v{n % 10}]" for n in range(30) if n % 2 == 0]
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(wanted)
    (tmp_path / "side.csv").rename(tmp_path / "other.csv")
    file = tmp_path / "s.sql"
    file.write_text(script)
    (found,) = [each for each in preflight(str(file), checkpoint=str(tmp_path / "d")).findings if each.severity is
                Severity.ERROR]  # fmt: skip
    assert f"lookup side_input: there is no {tmp_path}/side.csv" in f"{found.subject}: {found.problem}"
    with pytest.raises(BacklogError, match=r"side_input cannot be read: .*side\.csv"):
        bs.sql_script(spark, script, checkpoint=str(tmp_path / "d"))


def test_a_union_of_two_views_of_one_table(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each view reads the files itself, with a directory of its own in the checkpoint."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("".join(f"{n}\n" for n in range(9)))
    script = f"""
    CREATE TABLE numbers (n INT) WITH ('connector' = 'filesystem', 'path' = '{tmp_path}/in', 'format' = 'csv');
    CREATE VIEW low AS SELECT n FROM numbers WHERE n < 5; CREATE VIEW high AS SELECT -n AS n FROM numbers WHERE n > 3;
    CREATE TABLE shown (n INT) WITH ('connector' = 'print');
    INSERT INTO shown SELECT n FROM low UNION ALL SELECT n FROM high UNION ALL SELECT n + 100 FROM numbers
    """
    ran(spark, script, tmp_path / "c")
    wanted = [*range(5), *range(-8, -3), *range(100, 109)]
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(f"+I[{n}]" for n in wanted)
    kept = tmp_path / "c" / "shown" / "backlog" / "sources"
    assert sorted(each.name for each in kept.iterdir()) == ["numbers", "numbers_2", "numbers_3"]


def test_rows_of_datagen_are_counted_and_the_same_at_each_reading(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = """
    CREATE TABLE made (
        n BIGINT, small TINYINT, part DECIMAL(5, 2), share DOUBLE, word VARCHAR(7), data BYTES, yes BOOLEAN,
        at TIMESTAMP(3), twice AS n * 2
    ) WITH (
        'connector' = 'datagen', 'rows-per-second' = '1000', 'number-of-rows' = '100',
        'fields.n.kind' = 'sequence', 'fields.n.start' = '1', 'fields.n.end' = '500',
        'fields.small.min' = '-3', 'fields.small.max' = '3', 'fields.share.max' = '1', 'fields.word.length' = '7',
        'fields.data.length' = '3'
    );
    CREATE TABLE shown (
        n BIGINT, twice BIGINT, small TINYINT, part DECIMAL(5, 2), share DOUBLE, word STRING, data BYTES, yes BOOLEAN,
        is_now BOOLEAN
    ) WITH ('connector' = 'print', 'print-identifier' = 'made');
    INSERT INTO shown SELECT n, twice, small, part, share, word, data, yes,
        at BETWEEN current_timestamp() - INTERVAL '5' MINUTE AND current_timestamp() + INTERVAL '5' MINUTE FROM made
    """
    printed = []
    for run in ("one", "two"):
        (query,) = ran(spark, script, tmp_path / run)
        assert query.backlogProgress.rows == 100
        printed.append(sorted(capsys.readouterr().out.splitlines()))
    assert printed[0] == printed[1]
    rows = [line.removeprefix("made> +I[").removesuffix("]").split(", ") for line in printed[0]]
    assert {int(row[0]) for row in rows} == set(range(1, 101))
    for n, twice, small, part, share, word, *data, yes, is_now in rows:
        assert int(twice) == 2 * int(n)
        assert -3 <= int(small) <= 3
        assert 0 <= float(part) <= 999
        assert 0 <= float(share) < 1
        assert len(word) == 7
        assert len(data) == 3
        assert (yes in ("true", "false"), is_now) == (True, "true")
    assert len({row[5] for row in rows}) == 100
    assert len({row[2] for row in rows}) == 7


@pytest.mark.slow
def test_a_table_is_copied_and_followed(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    """Types become those of the declaration. An update of the key removes the row under its old one."""
    for statement in (
        "DROP DATABASE IF EXISTS scripted",
        "CREATE DATABASE scripted",
        "CREATE TABLE scripted.orders (id INT PRIMARY KEY, customer INT, price DECIMAL(10,2), at DATETIME, note TEXT)",
        "INSERT INTO scripted.orders VALUES (1, 7, 1.50, '2024-01-01 10:00:00', 'a'), (2, 8, 2, NULL, NULL)",
    ):
        mysql.execute(statement)
    script = f"""
    CREATE TABLE orders (
        id BIGINT, customer INT, price DECIMAL(12, 2), at TIMESTAMP(3), total AS price * 10,
        db STRING METADATA FROM 'database_name' VIRTUAL, PRIMARY KEY (id) NOT ENFORCED
    ) WITH ('connector' = 'mysql-cdc', {at(mysql)}, 'database-name' = 'scripted', 'table-name' = 'orders',
            'scan.incremental.snapshot.chunk.size' = '1000');
    CREATE TABLE copy (id BIGINT, total DECIMAL(20, 2), at TIMESTAMP(3), db STRING, nothing INT,
        PRIMARY KEY (id) NOT ENFORCED)
    WITH ('connector' = 'delta', 'table-path' = '{tmp_path}/copy', 'delta.appendOnly' = 'false');
    SET 'execution.checkpointing.interval' = '100 ms';
    SET 'execution.checkpointing.dir' = '{tmp_path}/c';
    INSERT INTO copy (db, id, total, at) SELECT db, id, total, at FROM orders WHERE customer > 0;
    """
    (query,) = bs.sql_script(spark, script)
    try:
        wait_for(lambda: not query.isProcessingBacklog or not query.isActive, "the end of the snapshot")
        mysql.execute("UPDATE scripted.orders SET id = 3 WHERE id = 1")
        mysql.execute("INSERT INTO scripted.orders VALUES (4, 9, 4, NULL, NULL), (5, 0, 5, NULL, NULL)")
        mysql.execute("DELETE FROM scripted.orders WHERE id = 2")
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.checkpointLocation == f"{tmp_path}/c/copy"
    wanted = "SELECT id, price * 10, at, 'scripted', NULL FROM scripted.orders WHERE customer > 0"
    assert rows_of(spark, tmp_path / "copy") == Counter(mysql.execute(wanted))
    made = dict(spark.read.format("delta").load(f"{tmp_path}/copy").dtypes)
    assert made == {
        "id": "bigint", "total": "decimal(20,2)", "at": "timestamp_ntz", "db": "string", "nothing": "int"
    }  # fmt: skip
    wrong = script.replace("customer INT,", "customer INT, custmer INT,")
    line = next(n for n, each in enumerate(script.splitlines(), 1) if "customer INT" in each)
    with pytest.raises(BacklogError, match=rf"script.sql:{line}:{8 + 1 + len('id BIGINT, customer INT, ')}: .*custmer"):
        bs.sql_script(spark, wrong, checkpoint=str(tmp_path / "c2"))


@pytest.mark.grid
def test_a_statement_set_over_csv_files(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two INSERTs are two queries. Sums are printed with their retractions, the rows of the files only once."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("1;7;'x;y';2024-01-01 10:00:00\n2;8;b;2024-01-01 10:00:01.5\n3;7;\\N;\\N\n")
    script = f"""
    SET execution.checkpointing.interval-during-backlog = 10 s;
    CREATE TABLE sales (id INT, shop INT, `note` STRING, at TIMESTAMP(3)) WITH (
        'connector' = 'filesystem', 'path' = 'file://{tmp_path}/in', 'format' = 'csv', 'csv.field-delimiter' = ';',
        'csv.quote-character' = '''', 'csv.null-literal' = '\\N'
    );
    CREATE VIEW named (number, shop, text, at) AS SELECT id, shop, note, at FROM sales;
    CREATE TABLE kept (id BIGINT, note STRING, at TIMESTAMP(3)) PARTITIONED BY (id)
    WITH ('connector' = 'delta', 'table-path' = '{tmp_path}/kept');
    CREATE TABLE sums (shop INT, n BIGINT) WITH ('connector' = 'print');
    CREATE TABLE nothing (shop INT) WITH ('connector' = 'blackhole');
    EXECUTE STATEMENT SET BEGIN
    INSERT INTO kept SELECT number, text, at FROM named;
    INSERT INTO sums SELECT shop, count(*) FROM named GROUP BY shop;
    INSERT INTO nothing SELECT shop FROM sales;
    END;
    """
    queries = ran(spark, script, tmp_path / "c")
    assert [query.name for query in queries] == ["script-kept", "script-sums", "script-nothing"]
    assert [query.backlogProgress.rows for query in queries] == [3, 3, 3]
    kept = spark.read.format("delta").load(f"{tmp_path}/kept").selectExpr("id", "note", "CAST(at AS STRING)")
    assert Counter(map(tuple, kept.collect())) == Counter(
        [(1, "x;y", "2024-01-01 10:00:00"), (2, "b", "2024-01-01 10:00:01.5"), (3, None, None)]
    )
    assert sorted(line for line in capsys.readouterr().out.splitlines() if "[" in line) == ["+I[7, 2]", "+I[8, 1]"]


@pytest.mark.slow
def test_topics_databases_and_files_are_written(
    spark: SparkSession, mysql: MySQLServer, kafka: KafkaServer, tmp_path: Path
) -> None:
    """Rows that are added, and upserts, into each kind of target that Flink has."""
    (tmp_path / "in").mkdir()
    lines = [f'{{"k": {k}, "v": "v{n}"}}\n' for n, k in enumerate([1, 2, 1, 3, 1])]
    (tmp_path / "in" / "a.json").write_text("".join(lines))
    mysql.execute("DROP DATABASE IF EXISTS targets")
    mysql.execute("CREATE DATABASE targets")
    brokers, topics = f"'properties.bootstrap.servers' = '{kafka.address()}'", ("rows", "newest", "keyed")
    for topic in topics:
        Topic(kafka, f"script-{topic}")
    script = f"""
    CREATE TABLE f (k INT, v STRING) WITH ('connector' = 'filesystem', 'path' = '{tmp_path}/in', 'format' = 'json');
    CREATE TABLE t1 (k INT, v STRING) WITH ('connector' = 'kafka', 'topic' = 'script-rows', {brokers},
        'format' = 'json', 'scan.startup.mode' = 'earliest-offset');
    CREATE TABLE t2 (k INT, v STRING, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'upsert-kafka',
        'topic' = 'script-newest', {brokers}, 'key.format' = 'json', 'value.format' = 'json');
    CREATE TABLE t3 (k INT, v STRING) WITH ('connector' = 'kafka', 'topic' = 'script-keyed', {brokers},
        'format' = 'debezium-json', 'sink.delivery-guarantee' = 'at-least-once');
    CREATE TABLE p (v STRING, k INT) PARTITIONED BY (k) WITH ('connector' = 'filesystem', 'path' = '{tmp_path}/out',
        'format' = 'csv', 'sink.partition-commit.policy.kind' = 'success-file');
    CREATE TABLE d (k INT, v STRING, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'jdbc',
        'url' = 'jdbc:mysql://127.0.0.1:{mysql.port}/targets', 'table-name' = 'newest', 'username' = 'root');
    INSERT INTO t1 SELECT k, v FROM f;
    INSERT INTO t2 SELECT k, v FROM f;
    INSERT INTO t3 SELECT k, v FROM f;
    INSERT INTO p SELECT v, k FROM f;
    INSERT INTO d SELECT k, v FROM f;
    """
    ran(spark, script, tmp_path / "c")
    found = {name: list(map(repr, Topics(kafka).messages(f"script-{name}"))) for name in topics}
    rows = [(k, f"v{n}") for n, k in enumerate([1, 2, 1, 3, 1])]
    assert Counter(found["rows"]) == Counter(repr((None, {"k": k, "v": v})) for k, v in rows)
    newest = {1: "v4", 2: "v1", 3: "v3"}
    assert Counter(found["newest"]) == Counter(repr(({"k": k}, {"k": k, "v": v})) for k, v in newest.items())
    added = [json.loads(value) for _, value in Topics(kafka).records("script-keyed") if value is not None]
    assert Counter((each["op"], each["after"]["k"], each["after"]["v"]) for each in added) == Counter(
        ("c", k, v) for k, v in rows
    )
    written = spark.read.schema("v STRING, k INT").csv(f"{tmp_path}/out").collect()
    assert Counter((row.k, row.v) for row in written) == Counter(rows)
    assert sorted(each.name for each in (tmp_path / "out").glob("k=*")) == ["k=1", "k=2", "k=3"]
    assert dict(mysql.execute("SELECT k, v FROM targets.newest")) == newest


@pytest.mark.grid
def test_a_function_and_rows_that_replace_each_other(spark: SparkSession, tmp_path: Path) -> None:
    """The last row of a key stays. A self-join reads its table twice."""
    (tmp_path / "in").mkdir()
    lines = [f'{{"k": {k}, "v": "v{n}"}}\n' for n, k in enumerate([1, 2, 1, 3, 1])]
    (tmp_path / "in" / "a.json").write_text("".join(lines))
    script = f"""
    CREATE FUNCTION shout AS 'tests.pipelines.jobs.shout' LANGUAGE PYTHON;
    CREATE TABLE f (k INT, v STRING) WITH ('connector' = 'filesystem', 'path' = '{tmp_path}/in', 'format' = 'json');
    CREATE TABLE newest (k INT, v STRING, PRIMARY KEY (k) NOT ENFORCED)
    WITH ('connector' = 'delta', 'table-path' = '{tmp_path}/newest');
    CREATE TABLE pairs (k INT, v STRING, w STRING) WITH ('connector' = 'delta', 'table-path' = '{tmp_path}/pairs');
    INSERT INTO newest WITH loud AS (SELECT k, shout(v) AS v FROM f) SELECT k, v FROM loud;
    INSERT INTO pairs SELECT a.k, a.v, b.v FROM f AS a JOIN f AS b ON a.k = b.k WHERE a.v < b.v;
    """
    ran(spark, script, tmp_path / "c")
    assert rows_of(spark, tmp_path / "newest") == Counter([(1, "V4"), (2, "V1"), (3, "V3")])
    pairs = Counter([(1, "v0", "v2"), (1, "v0", "v4"), (1, "v2", "v4")])
    assert rows_of(spark, tmp_path / "pairs") == pairs
    with pytest.raises(BacklogError, match=r"script\.sql:8:23: The result's rows are updated or deleted"):
        bs.sql_script(
            spark,
            script.replace("SELECT a.k, a.v, b.v", "SELECT a.k, a.v, max(b.v)").replace(
                "WHERE a.v < b.v", "GROUP BY a.k, a.v"
            ),
            checkpoint=str(tmp_path / "c2"),
        )


@pytest.mark.grid
def test_updates_and_deletes_are_printed(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for statement in (
        "DROP DATABASE IF EXISTS shown",
        "CREATE DATABASE shown",
        "CREATE TABLE shown.t (id INT PRIMARY KEY, v INT)",
        "INSERT INTO shown.t VALUES (1, 10), (2, 20)",
    ):
        mysql.execute(statement)
    script = f"""
    CREATE TABLE t (id INT, v INT) WITH ('connector' = 'mysql-cdc', {at(mysql)}, 'database-name' = 'shown',
        'table-name' = 't');
    CREATE TABLE p (id INT, v INT) WITH ('connector' = 'print');
    CREATE TABLE s (total BIGINT) WITH ('connector' = 'print', 'print-identifier' = 's');
    INSERT INTO p SELECT * FROM t;
    INSERT INTO s SELECT sum(v) FROM t;
    """
    queries = bs.sql_script(spark, script, checkpoint=str(tmp_path))
    try:
        for query in queries:
            query.processAllAvailable()
        mysql.execute("UPDATE shown.t SET v = 11 WHERE id = 1")
        for query in queries:
            query.processAllAvailable()
        mysql.execute("DELETE FROM shown.t WHERE id = 2")
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    lines = [line for line in capsys.readouterr().out.splitlines() if "[" in line]
    rows = [line for line in lines if not line.startswith("s>")]
    assert sorted(rows[:2]) == ["+I[1, 10]", "+I[2, 20]"]
    assert rows[2:] == ["-U[1, 10]", "+U[1, 11]", "-D[2, 20]"]
    sums = [line for line in lines if line.startswith("s>")]
    assert sums == ["s> +I[30]", "s> -U[30]", "s> +U[31]", "s> -U[31]", "s> +U[11]"]


@pytest.mark.slow
def test_check_and_explain(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    """`check` compares the declared columns with the server's, and tells each at its place."""
    for statement in (
        "DROP DATABASE IF EXISTS looked",
        "CREATE DATABASE looked",
        "CREATE TABLE looked.t (id INT PRIMARY KEY, v INT)",
    ):
        mysql.execute(statement)
    file = tmp_path / "looked.sql"
    script = f"""\
CREATE TABLE t (id INT, v BIGINT) WITH ('connector' = 'mysql-cdc', {at(mysql)}, 'database-name' = 'looked',
  'password' = '', 'table-name' = 't');
CREATE TABLE s (v BIGINT, n BIGINT, PRIMARY KEY (v) NOT ENFORCED)
WITH ('connector' = 'delta', 'table-path' = '{tmp_path}/s');
INSERT INTO s SELECT v, count(*) FROM t GROUP BY v;
"""
    file.write_text(script)
    found = preflight(str(file), checkpoint=str(tmp_path / "c"))
    assert [finding.problem for finding in found.findings if finding.severity is Severity.ERROR] == []
    assert [table.name for table in found.tables] == ["looked.t"]
    file.write_text(script.replace("v BIGINT)", "w BIGINT)").replace(" v,", " w,").replace("BY v", "BY w"))
    mistakes = preflight(str(file), checkpoint=str(tmp_path / "c")).findings
    told = {finding.subject: finding.problem for finding in mistakes if finding.severity is Severity.ERROR}
    assert told == {f"{file}:1:25": "there is no column 'w'."}
    file.write_text(script)
    shown = explained_script(load(str(file), checkpoint=str(tmp_path / "c")), spark)
    assert list(shown) == ["s"]
    assert re.search(r"aggregate v_aggregate by v.*\n(.*\n)*.*source t_source: mysql_cdc", shown["s"])


@pytest.mark.grid
def test_a_killed_script_goes_on_where_it_was(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    """`backlog-spark sql` in a process of its own. Each record is in the target once."""
    from servers.jars import delta_jars

    records = range(20_000)
    Topic(kafka, "scripted").send(
        {"id": n, "at": f"2024-01-01 00:00:{n % 60:02}", "who": {"name": f"n{n % 3}"}} for n in records
    )
    file, log = tmp_path / "copy.sql", tmp_path / "log"
    settings = {
        "spark.master": "local[2,4]", "spark.jars": ",".join(map(str, delta_jars())), "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "table.local-time-zone": "UTC",
        "execution.checkpointing.dir": "${ROOT}/c", "execution.checkpointing.interval": "100 ms",
    }  # fmt: skip
    file.write_text(
        "".join(f"SET '{name}' = '{text}';\n" for name, text in settings.items())
        + """
    CREATE TABLE records (
        id INT, at TIMESTAMP(3), who ROW<name STRING>, part INT METADATA FROM 'partition' VIRTUAL,
        WATERMARK FOR at AS at - INTERVAL '5' SECOND
    ) WITH (
        'connector' = 'kafka', 'topic' = 'scripted', 'properties.bootstrap.servers' = '${BROKERS}',
        'properties.group.id' = 'any', 'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset',
        'format' = 'json', 'maxRowsPerBatch' = '1000'
    );
    CREATE TABLE copy (id BIGINT, name STRING, at TIMESTAMP(3), part INT)
    WITH ('connector' = 'delta', 'table-path' = '${ROOT}/copy');
    INSERT INTO copy SELECT id, records.who.name, at, part FROM records;
    """
    )
    given = {"ROOT": str(tmp_path), "BROKERS": kafka.address()}

    def commits() -> int:
        return len([*(tmp_path / "c" / "copy" / "commits").glob("[0-9]*")])

    with running(file, log, "sql", **given) as process:
        wait_for(lambda: commits() >= 3 or process.poll() is not None, "three commits", every_s=0.01)
        assert process.poll() is None, log.read_text()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert commits() < 20
    with running(file, log, **given) as process:
        assert process.wait(300) == 0, log.read_text()
    shown = "id", "name", "second(at)", "part >= 0"
    found: Any = spark.read.format("delta").load(f"{tmp_path}/copy").selectExpr(*shown)
    assert Counter(map(tuple, found.collect())) == Counter((n, f"n{n % 3}", n % 60, True) for n in records)
