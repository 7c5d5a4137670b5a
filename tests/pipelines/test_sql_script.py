"""A Flink SQL script as a pipeline: what each statement becomes, and each mistake with its line and column."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.document import PipelineError
from backlog_spark.pipelines.model import Pipeline
from backlog_spark.pipelines.parsing import load, parse_script
from backlog_spark.pipelines.preflight import preflight
from backlog_spark.pipelines.script.connectors import CONNECTORS
from backlog_spark.pipelines.script.tokens import Cursor, Refused, statements
from backlog_spark.pipelines.script.types import spark_type

SECRET = "hunter2-and-more"
MYSQL = (
    "'connector' = 'mysql-cdc', 'hostname' = 'db', 'username' = 'u', 'password' = '${DB_PASSWORD}',\n"
    "'database-name' = 'shop', 'table-name' = 'orders'"
)
KAFKA = (
    "'connector' = 'kafka', 'topic' = 'orders', 'properties.bootstrap.servers' = 'k:9092',\n"
    "'scan.startup.mode' = 'earliest-offset', 'format' = 'json'"
)
SOURCE = "CREATE TABLE o (id INT) WITH ('connector' = 'datagen');\n"
SINK = "CREATE TABLE p (id INT) WITH ('connector' = 'print');\n"
NAMES = (
    "CREATE TABLE names (id INT, name STRING) WITH ('connector.type' = 'filesystem', 'connector.path' = '/n', "
    "'format.type' = 'csv', 'csv.field-delimiter' = '|', 'lookup.full-cache.periodic-reload.interval' = '5 min');\n"
)
LOOKED_UP = (
    "CREATE TABLE q (id INT) WITH ('connector' = 'print'); INSERT INTO q SELECT o.id FROM o "
    "JOIN names FOR SYSTEM_TIME AS OF PROCTIME() AS n ON o.id = n.id "
)
INSERT = "INSERT INTO p SELECT id FROM o;\n"
GOOD = SOURCE + SINK + INSERT


def read(text: str, **more: Any) -> Pipeline:
    return parse_script(text, "s.sql", {"DB_PASSWORD": SECRET}, **{"checkpoint": "/c", **more})


def mistakes(text: str, **more: Any) -> list[str]:
    with pytest.raises(PipelineError) as found:
        read(text, **more)
    assert SECRET not in str(found.value)
    return str(found.value).splitlines()


def source_of(columns: str, options: str) -> tuple[str, str, dict[str, str]]:
    """Type, name and options of the source that a table becomes."""
    made = read(f"CREATE TABLE t ({columns}) WITH ({options});\n{SINK}INSERT INTO p SELECT 1 FROM t")
    (source,) = made.sources
    assert SECRET not in repr(made)
    return source.section.type, source.section.name, source.options


# -- what statements become -----------------------------------------------------------------------------------------


def test_a_whole_script() -> None:
    made = read(
        """
    SET 'execution.checkpointing.interval' = '10 s'; SET execution.checkpointing.interval-during-backlog = 30 min;
    SET 'pipeline.name' = 'it''s'; SET 'pipeline.max-parallelism' = '64'; SET 'spark.sql.shuffle.partitions' = '4';
    SET 'state.checkpoints.dir' = 'file:///lake/c/'; SET 'table.local-time-zone' = 'UTC';
    SET 'execution.runtime-mode' = 'streaming'; SET 'sql-client.execution.result-mode' = 'tableau';
    DROP TABLE IF EXISTS orders;
    CREATE FUNCTION twice AS 'jobs.numbers.twice' LANGUAGE PYTHON;
    CREATE TABLE IF NOT EXISTS orders ( -- a comment; with a semicolon
        id BIGINT NOT NULL COMMENT 'the key', `at` TIMESTAMP(3), cost AS price * quantity COMMENT 'made; here',
        price DECIMAL(10, 2), quantity INT,
        WATERMARK FOR `at` AS `at` - INTERVAL '5' SECOND
    ) COMMENT 'orders' WITH ('connector' = 'kafka', 'topic' = 'o', 'properties.bootstrap.servers' = 'k:9092',
        'scan.startup.mode' = 'timestamp', 'scan.startup.timestamp-millis' = '5', 'value.format' = 'csv',
        'properties.fetch.max.bytes' = '7', 'csv.field-delimiter' = '|', 'csv.ignore-parse-errors' = 'true');
    CREATE TABLE unused (a INT) WITH ('connector' = 'datagen');
    CREATE TEMPORARY VIEW large (number, cost) AS SELECT id, cost FROM orders WHERE cost > 10;
    CREATE TABLE lake (number BIGINT, cost DECIMAL(20, 2), PRIMARY KEY (number) NOT ENFORCED) PARTITIONED BY (cost)
    WITH ('connector' = 'delta', 'table-path' = '/lake/t', 'delta.appendOnly' = 'false', 'mergeSchema' = 'true');
    BEGIN STATEMENT SET;
    INSERT INTO lake SELECT * FROM large;
    END;
    """,
        checkpoint=None,
    )
    (source,) = made.sources
    assert (source.section.type, source.section.name, source.section.watermark) == ("hybrid", "orders_source", None)
    assert source.options == {
        "phases": "kafka", "subscribe": "o", "kafka.bootstrap.servers": "k:9092", "startingTimestamp": "5",
        "valueFormat": "csv", "kafka.fetch.max.bytes": "7", "sep": "|", "mode": "DROPMALFORMED", "escape": "",
        "schema": "`id` BIGINT, `at` TIMESTAMP_NTZ, `price` DECIMAL(10, 2), `quantity` INT",
    }  # fmt: skip
    columns, orders, large, rows = made.transforms
    assert [" ".join((each.sql or "").split()) for each in (columns, orders)] == [
        "SELECT `id`::BIGINT AS `id`, CAST(`at`::TIMESTAMP_NTZ AS TIMESTAMP) AS `at`, `price`::DECIMAL(10, 2) AS "
        "`price`, `quantity`::INT AS `quantity` FROM orders_source",
        "SELECT `id`, `at`, price * quantity AS `cost`, `price`, `quantity` FROM orders_columns",
    ]
    assert orders.watermark is not None
    assert (orders.watermark.column, orders.watermark.delay) == ("at", "5 second")
    assert (large.name, large.columns) == ("large", {"number": None, "cost": None})
    assert (rows.sql, rows.columns, rows.changes) == (
        "SELECT * FROM large", {"number": "BIGINT", "cost": "DECIMAL(20, 2)"}, "upsert"
    )  # fmt: skip
    (sink,) = made.sinks
    assert sink.model_dump(exclude_unset=True) == {
        "type": "delta_upsert", "name": "lake", "input": rows.name, "path": "/lake/t", "keys": ["number"],
        "properties": {"delta.appendOnly": "false"}, "partition_by": ["cost"], "merge_schema": True,
        "checkpoint": "file:///lake/c/lake",
    }  # fmt: skip
    assert made.pipeline.model_dump(exclude_unset=True) == {
        "name": "it's", "interval": "10 s", "interval_during_backlog": "30 min",
        "functions": {"twice": "jobs.numbers:twice"},
        "settings": {
            "pipeline.max-parallelism": "64", "spark.sql.shuffle.partitions": "4", "spark.sql.session.timeZone": "UTC",
            "execution.runtime-mode": "streaming",
        },
    }  # fmt: skip


def test_options_of_mysql_cdc() -> None:
    more = (
        f"{MYSQL}, 'port' = '3307', 'server-id' = '5400-5499', 'scan.startup.mode' = 'latest-offset',"
        "'scan.incremental.snapshot.chunk.size' = '8096', 'server-time-zone' = 'UTC', 'tableEvents' = 'skip',"
        "'scan.incremental.snapshot.enabled' = 'true', 'connect.timeout' = '30s', 'heartbeat.interval' = '10s'"
    )
    assert source_of("id INT PRIMARY KEY NOT ENFORCED, n STRING METADATA FROM 'table_name' VIRTUAL", more) == (
        "mysql_cdc", "t_source",
        {
            "host": "db", "port": "3307", "user": "u", "password": SECRET, "table": "shop.orders",
            "serverId": "5400-5499", "startup.mode": "latest", "chunkSize": "8096", "tableEvents": "skip",
            "connect.timeout": "30s", "heartbeat.interval": "10s",
            "metadataColumns": "_change_type,_commit_timestamp,_commit_seq,_table",
        },
    )  # fmt: skip
    several = MYSQL.replace("'orders'", "'orders_[0-9]+'")
    assert source_of("id INT", several)[2]["tablePattern"] == r"shop\.orders_[0-9]+"


def test_options_of_kafka_and_filesystem() -> None:
    kind, name, options = source_of("id INT, o BIGINT METADATA FROM 'offset' VIRTUAL", f"{KAFKA}, 'sink.x' = 'y'")
    assert (kind, name) == ("hybrid", "t_source")
    assert options == {
        "phases": "kafka", "subscribe": "orders", "kafka.bootstrap.servers": "k:9092", "startingOffsets": "earliest",
        "valueFormat": "json", "mode": "FAILFAST", "schema": "`id` INT", "metadataColumns": "_offset",
    }  # fmt: skip
    files = "'connector' = 'filesystem', 'path' = '/in', 'format' = 'parquet', 'pathGlobFilter' = '*.pq'"
    assert source_of("id INT, who ROW<a INT, `b c` ARRAY<STRING>>", files) == (
        "hybrid", "t",
        {
            "phases": "files", "path": "/in", "fileFormat": "parquet", "pathGlobFilter": "*.pq",
            "schema": "`id` INT, `who` STRUCT<`a`: INT, `b c`: ARRAY<STRING>>",
        },
    )  # fmt: skip
    found = source_of("id INT", f"{files}, 'source.monitor-interval' = '5 s', 'rewrittenFiles' = 'ignore'")[2]
    assert (found["discovery"], found["discoveryInterval"], found["rewrittenFiles"]) == ("continuous", "5 s", "ignore")
    registry = KAFKA.replace("'json'", "'avro-confluent'") + ", 'avro-confluent.url' = 'http://r'"
    assert source_of("id INT", registry)[2]["schema.registry.url"] == "http://r"
    keys = (
        f"{registry}, 'key.format' = 'avro-confluent', 'key.avro-confluent.url' = 'http://r', 'key.fields' = 'k_id', "
        "'key.fields-prefix' = 'k_'"
    )
    of_value = source_of("k_id INT, v INT", keys)[2]
    assert [name for name in of_value if name.startswith("key")] == []
    of_key = source_of("k_id INT, v INT", f"{keys}, 'value.fields-include' = 'EXCEPT_KEY'")[2]
    assert of_key == {**of_value, "keyFormat": "avro", "keyFields": "k_id", "keyFieldsPrefix": "k_"}


def target_of(columns: str, options: str) -> dict[str, Any]:
    made = read(f"{SOURCE}CREATE TABLE p ({columns}) WITH ({options});\n{INSERT}")
    return {"type": made.sinks[0].type, **made.sinks[0].arguments()}


def test_options_of_targets() -> None:
    topic = "'topic' = 't', 'properties.bootstrap.servers' = 'k:9092', 'properties.acks' = 'all'"
    options = {"kafka.bootstrap.servers": "k:9092", "kafka.acks": "all"}
    assert target_of("id BIGINT", f"'connector' = 'kafka', {topic}, 'format' = 'json', 'scan.startup.mode' = 'x'") == {
        "type": "kafka", "topic": "t", "format": "json", "options": options, "change_type": None, "sequence": None,
        "metadata_columns": [],
    }  # fmt: skip
    registry = f"{topic}, 'value.format' = 'avro-confluent', 'value.avro-confluent.url' = 'http://r'"
    key = "id BIGINT, PRIMARY KEY (id) NOT ENFORCED"
    assert target_of(key, f"'connector' = 'upsert-kafka', {registry}, 'key.format' = 'avro-confluent'") == {
        "type": "kafka", "topic": "t", "key": ["id"], "format": "avro",
        "options": {**options, "schema.registry.url": "http://r"},
    }  # fmt: skip
    jdbc = "'url' = 'jdbc:postgresql://h/d', 'table-name' = 'x.y', 'username' = 'u', 'password' = 's3cr3t'"
    assert target_of(key, f"'connector' = 'jdbc', {jdbc}, 'sink.buffer-flush.max-rows' = '1'") == {
        "type": "jdbc_upsert", "keys": ["id"], "url": "jdbc:postgresql://h/d", "table": "x.y", "user": "u",
        "password": "s3cr3t",
    }  # fmt: skip
    files = "'connector' = 'filesystem', 'path' = '/out', 'format' = 'parquet'"
    assert target_of("id BIGINT", files) == {"type": "files", "path": "/out", "format": "parquet"}
    lines = "'connector' = 'filesystem', 'path' = '/out', 'format' = 'csv', 'csv.field-delimiter' = ';'"
    more = "'sink.partition-commit.policy.kind' = 'success-file', 'partition.time-extractor.timestamp-pattern' = '$day'"
    assert target_of("id BIGINT) PARTITIONED BY (id", f"{lines}, {more}") == {
        "type": "files", "path": "/out", "format": "csv", "options": {"sep": ";"}, "partition_by": ["id"],
    }  # fmt: skip


def test_files_that_are_looked_up() -> None:
    """They are no source. Options of Flink before 1.11 are known."""
    made = read(GOOD + NAMES + LOOKED_UP)
    assert [source.section.name for source in made.sources] == ["o_source"]
    (found,) = made.lookups
    assert found.section.name == "names"
    assert found.section.format == "csv"
    assert found.section.schema_ == "`id` INT, `name` STRING"
    assert found.section.refresh == "5 min"
    assert found.options == {"path": "/n", "sep": "|", "mode": "FAILFAST", "escape": ""}
    as_stream = read(SOURCE + SINK + NAMES.replace(", 'lookup.full-cache.periodic-reload.interval' = '5 min'", "")
                     + "INSERT INTO p SELECT o.id FROM o JOIN names ON o.id = names.id")  # fmt: skip
    assert {source.section.name for source in as_stream.sources} == {"o_source", "names"}


def test_a_script_beside_its_modules(tmp_path: Path) -> None:
    file = tmp_path / "clicks.SQL"
    file.write_text(GOOD)
    made = load(str(file), {}, checkpoint="/c")
    assert (made.pipeline.name, made.directory) == ("clicks", str(tmp_path))
    assert made.checkpoint_of(made.sinks[0]) == "/c/p"


def test_columns_of_an_insert() -> None:
    sink = "CREATE TABLE p (a INT, b STRING, c AS a + 1, d DATE) WITH ('connector' = 'print');\n"
    made = read(f"{SOURCE}{sink}INSERT INTO p (d, a) SELECT CURRENT_DATE, id FROM o")
    assert [transform.columns for transform in made.transforms[1:]] == [{"d": "DATE", "a": "INT"}, {}]
    assert made.transforms[-1].sql == "SELECT `a`, NULL::STRING AS `b`, `d` FROM p_rows"
    assert made.input_of(made.sinks[0]) == "p_all_rows"


def test_several_inserts_are_queries_of_their_own() -> None:
    other = SINK.replace("TABLE p", "TABLE q").replace("'print'", "'blackhole'")
    made = read(GOOD + other + INSERT.replace("INTO p", "INTO q"))
    assert [(made.query_name(sink), made.checkpoint_of(sink)) for sink in made.sinks] == [
        ("s-p", "/c/p"), ("s-q", "/c/q"),
    ]  # fmt: skip


def test_a_stream_that_the_script_does_not_name_gets_a_free_name() -> None:
    made = read(GOOD.replace("INSERT", SOURCE.replace("TABLE o", "TABLE o_source") + "INSERT"))
    assert [source.section.name for source in made.sources] == ["o_source_"]


@pytest.mark.parametrize(
    ("flink", "spark"),
    [
        ("STRING", "STRING"), ("VARCHAR", "STRING"), ("varchar(20)", "STRING"), ("CHAR(3)", "STRING"),
        ("BOOLEAN", "BOOLEAN"), ("BYTES", "BINARY"), ("VARBINARY(9)", "BINARY"), ("INTEGER", "INT"),
        ("DECIMAL(10, 2)", "DECIMAL(10, 2)"), ("NUMERIC(5)", "DECIMAL(5)"), ("DEC", "DECIMAL(10, 0)"),
        ("DOUBLE PRECISION", "DOUBLE"), ("TIMESTAMP(3)", "TIMESTAMP_NTZ"), ("TIMESTAMP_LTZ(3)", "TIMESTAMP"),
        ("TIMESTAMP(3) WITH LOCAL TIME ZONE", "TIMESTAMP"), ("TIMESTAMP WITHOUT TIME ZONE", "TIMESTAMP_NTZ"),
        ("ARRAY<INT NOT NULL>", "ARRAY<INT>"), ("INT ARRAY", "ARRAY<INT>"),
        ("MAP<STRING, ARRAY<DATE>>", "MAP<STRING, ARRAY<DATE>>"),
        ("ROW<a INT 'text', `b``c` ROW(d FLOAT)> NOT NULL", "STRUCT<`a`: INT, `b``c`: STRUCT<`d`: FLOAT>>"),
    ],
)  # fmt: skip
def test_types(flink: str, spark: str) -> None:
    at = Cursor(next(statements(flink)))
    assert spark_type(at) == spark
    assert at.next.kind == "end"


@pytest.mark.parametrize("flink", ["MULTISET<INT>", "TIME(3)", "TIMESTAMP(3) WITH TIME ZONE", "RAW('a')", "TEXT"])
def test_types_that_are_refused(flink: str) -> None:
    with pytest.raises(Refused, match="there is no such type"):
        spark_type(Cursor(next(statements(flink))))


# -- the same script in other words ---------------------------------------------------------------------------------

_TABLES = {
    "orders": (
        ["id BIGINT", "at TIMESTAMP(3)", "price DECIMAL(10, 2)", "total AS price * 2",
         "WATERMARK FOR at AS at - INTERVAL '5' SECOND"],
        {"connector": "kafka", "topic": "o", "properties.bootstrap.servers": "k:9092", "format": "json",
         "scan.startup.mode": "latest-offset"},
    ),
    "lake": (
        ["id BIGINT", "total DECIMAL(20, 2)", "PRIMARY KEY (id) NOT ENFORCED"],
        {"connector": "delta", "table-path": "/lake; -- /*", "mergeSchema": "true"},
    ),
}  # fmt: skip
_KEYWORDS = [
    "CREATE",
    "TABLE",
    "WITH",
    "WATERMARK",
    "FOR",
    "AS",
    "INTERVAL",
    "SECOND",
    "PRIMARY",
    "KEY",
    "NOT",
    "ENFORCED",
    "BIGINT",
    "TIMESTAMP",
    "DECIMAL",
    "SET",
]


def _written(chance: random.Random) -> str:
    """The script with options in any order, keywords in any case, and space, comments and quotes anywhere."""

    def space() -> str:
        return chance.choice([" ", "\n", "\t", " -- it's; (\n", "/* ' ` ; */", " /* \n */ "])

    def word(found: re.Match[str]) -> str:
        text = found[0]
        if text in _KEYWORDS:
            return chance.choice([text, text.lower(), text.capitalize()])
        if text in ("id", "at", "price", "total", "orders", "lake"):
            return chance.choice([text, f"`{text}`"])
        return text

    def spelled(text: str) -> str:
        parts = re.findall(r"'[^']*'|[\w.]+|\S", text)
        return space().join(part if part[0] == "'" else re.sub(r"^\w+$", word, part) for part in parts)

    made = []
    for name, (columns, options) in _TABLES.items():
        pairs = [f"'{key}' = '{value}'" for key, value in options.items()]
        chance.shuffle(pairs)
        made.append(spelled(f"CREATE TABLE {name} ({', '.join(columns)}) WITH ({', '.join(pairs)})"))
    settings = ["SET 'execution.checkpointing.interval' = '5 s'", "SET 'spark.x' = 'y'"]
    chance.shuffle(settings)
    made += [spelled(each) for each in settings]
    insert = (
        space() + "INSERT" + space() + "INTO" + space() + "lake" + space() + "SELECT id, total FROM orders" + space()
    )
    return ";".join([*made, insert]) + chance.choice(["", ";", ";;\n", "; -- end"])


def _meaning(made: Pipeline) -> object:
    """The pipeline, its SQL without space, comments and quotes of names."""
    words = [re.sub(r"--[^\n]*|/\*.*?\*/|[\s`]", "", each.sql or "", flags=re.DOTALL) for each in made.transforms]
    others = [each.model_copy(update={"sql": None}) for each in made.transforms]
    return made.sources, words, others, made.sinks, made.pipeline


def _plainly() -> str:
    made = ["SET 'execution.checkpointing.interval' = '5 s'", "SET 'spark.x' = 'y'"]
    for name, (columns, options) in _TABLES.items():
        pairs = [f"'{key}' = '{value}'" for key, value in options.items()]
        made.append(f"CREATE TABLE {name} ({', '.join(columns)}) WITH ({', '.join(pairs)})")
    return ";".join([*made, "INSERT INTO lake SELECT id, total FROM orders"])


@settings(max_examples=40)
@given(st.randoms(use_true_random=False))
def test_order_case_quotes_and_comments_make_no_difference(chance: random.Random) -> None:
    """Except for the places of mistakes."""
    text = _written(chance)
    assert _meaning(read(text)) == _meaning(read(_plainly()))
    for right, wrong in (("'topic'", "'topik'"), ("total FROM", "totl FROM")):
        broken = text.replace(right, wrong)
        before = broken[: broken.index(wrong)]
        place = f"s.sql:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}: "
        assert any(each.startswith(place) for each in mistakes(broken))


# -- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("", "1:1: The script has no INSERT INTO."),
        (GOOD + "INSERT INTO p VALUES (1)", "4:15: INSERT with VALUES: a query reads streams. Read the rows from"),
        (GOOD + "INSERT OVERWRITE p SELECT id FROM o", "4:8: INSERT OVERWRITE: a stream has no end."),
        (GOOD + "SELECT * FROM o", "4:1: SELECT is no statement of a script. Write INSERT INTO a table with"),
        (GOOD + "USE CATALOG x", "4:1: USE is no statement of a script. There are no catalogs"),
        (GOOD + "\n  DROP TABLE o", "5:3: DROP is no statement of a script. Leave it out"),
        (GOOD + "DROP TABLE IF EXISTS o", "4:1: DROP is no statement of a script."),
        (GOOD + "CREATE CATALOG c", "4:8: CREATE CATALOG is no statement of a script."),
        (GOOD + "SET x", "4:6: SET has another form. Write SET 'name' = 'value'."),
        (GOOD + "CREATE TABLE O (a INT)", "4:14: O is there already."),
        (GOOD + INSERT, "4:13: Two INSERTs write to p. Write one, with UNION ALL."),
        (GOOD + "CREATE TABLE 'x", "4:14: The quote that begins here is not closed."),
        (GOOD + "/* x", "4:1: The comment that begins here is not closed."),
        (GOOD + "CREATE TABLE a.b (c INT)", "4:15: A table's name has one part."),
        (GOOD + "CREATE TABLE t (c INT", "4:22: ) is missing here. Found the end of the statement."),
        (GOOD + "CREATE TABLE t (c INT, d) WITH ()", "4:25: A type is missing here. Found )."),
        (GOOD + "CREATE TABLE t (c TEXT, d MULTISET<INT>) WITH ('a' = 'b')", "4:19: TEXT: there is no such type."),
        (GOOD + "CREATE TABLE t (c TEXT, d MULTISET<INT>) WITH ('a' = 'b')", "4:27: MULTISET: there is no such type."),
        (GOOD + "CREATE TABLE t (c INT, C INT)", "4:24: C is the name of another column."),
        (GOOD + "CREATE TABLE t (c INT UNIQUE)", "4:23: UNIQUE is not expected here. A comma may be missing"),
        (GOOD + "CREATE TABLE t (c INT) LIKE o", "4:24: CREATE TABLE … LIKE is not possible."),
        (GOOD + "CREATE TABLE t (c INT, PRIMARY KEY (c))", "4:39: NOT is missing here. Found )."),
        (GOOD + "CREATE TABLE t (c INT)", "4:14: The table t has no 'connector'. There are kafka, mysql-cdc"),
        (GOOD + "CREATE TABLE t (c INT) WITH ('connector' = 'kafak')",
         "4:30: kafak: there is no such connector. Did you mean kafka?"),
        (GOOD.replace("'datagen'", "'filesystem', 'path' = '/n', 'format' = 'csv', "
                      "'lookup.full-cache.periodic-reload.interval' = '1 min'"),
         "1:92: lookup.full-cache.periodic-reload.interval: o is not looked up. Leave it out."),
        (GOOD + NAMES + LOOKED_UP + "WHERE o.id IN (SELECT id FROM names)",
         "5:182: names is both a stream and the table of a lookup join. Declare it twice."),
        (GOOD + NAMES.replace("id INT", "id INT, f STRING METADATA FROM 'file.path'") + LOOKED_UP,
         "5:93: names has the column f, which is not in the files."),
        (GOOD + "CREATE TABLE t (c INT, WATERMARK FOR c AS c + 1) WITH ('connector' = 'datagen')",
         "4:43: This watermark is not possible. Write WATERMARK FOR c AS c - INTERVAL '5' SECOND."),
        (GOOD + "CREATE TABLE t (c INT, WATERMARK FOR d AS d) WITH ('connector' = 'datagen')",
         "4:38: There is no column d. There are: c."),
        (GOOD + "CREATE FUNCTION f AS 'com.x.F'", "4:22: The function f is a class of Java. Write it in Python"),
        (GOOD + "CREATE FUNCTION f AS 'com.x.F' LANGUAGE SCALA", "4:41: The function f is a class of Java."),
        (SOURCE + "INSERT INTO q SELECT id FROM o", "2:13: There is no table q. There are: o."),
        (SOURCE + "INSERT INTO o SELECT id FROM o", "2:13: o: tables of datagen can only be read here."),
        (SOURCE + SINK + "INSERT INTO p SELECT\n idd FROM o", "4:2: there is no column 'idd'. There are: id."),
        (SOURCE + SINK + "INSERT INTO p SELECT id FROM oo", "3:30: there is no table 'oo'. Did you mean o?"),
        (SOURCE + SINK + "INSERT INTO p SELECT id FROM p", "3:30: p: tables of print can only be written here."),
        (SOURCE + SINK + "INSERT INTO p\n  SELECT id, id FROM o", "4:3: The query has 2 columns, and p has 1."),
        (SOURCE + SINK + "INSERT INTO p (x) SELECT id FROM o", "3:16: p has no column x. There are: id."),
        (SOURCE + SINK + "INSERT INTO p SELECT id FROM o WHERE", "3:32: malformed"),
        (SOURCE + SINK + "CREATE VIEW v (a, b) AS SELECT id FROM o;" + INSERT, "3:25: The query has 1 columns, and v"),
        (GOOD.replace("'datagen'", "'datagen', 'fields.idd.min' = '1'"),
         "1:56: fields.idd.min: there is no column idd. Did you mean id?"),
        (GOOD.replace("'datagen'", "'datagen', 'fields.id.mim' = '1'"),
         "1:56: fields.id.mim: datagen has no such option. Did you mean min?"),
        (GOOD.replace("'datagen'", "'datagen', 'fields.id.min' = 'x'"), "1:56: fields.id.min: is not a whole number."),
        (GOOD.replace("'datagen'", "'datagen', 'rows-per-second' = '0'"), "1:56: rows-per-second: is not an integer"),
        (GOOD.replace("'datagen'", "'datagen', 'rows-per-secnd' = '1'"),
         "1:56: rows-per-secnd: datagen has no such option. Did you mean rows-per-second?"),
        (GOOD.replace("id INT) WITH ('connector' = 'datagen'", "id ARRAY<INT>) WITH ('connector' = 'datagen'"),
         "1:17: id: datagen has no values of the type ARRAY<INT>."),
        (GOOD + "SET 'execution.checkpointing.interval' = 'x'",
         "4:5: execution.checkpointing.interval: is not a duration."),
        (GOOD + "SET 'table.exec.mini-batch.enabled' = 'true'",
         "4:5: table.exec.mini-batch.enabled: is a setting of Flink that has no effect here. Write trigger("),
        (GOOD + "SET spork.x = 1", "4:5: spork.x: there is no such setting."),
        (GOOD.replace("'connector' = 'datagen'", MYSQL).replace("'hostname' = 'db', ", ""),
         "1:14: The option hostname of mysql-cdc is missing."),
        (GOOD.replace("'connector' = 'datagen'", f"{MYSQL}, 'scan.incremental.snapshot.chunk.size' = '0'"),
         "2:52: scan.incremental.snapshot.chunk.size: is not an integer >= 1"),
        (GOOD.replace("'connector' = 'datagen'", f"{MYSQL}, 'hostnam' = '0'"), "Did you mean hostname?"),
        (GOOD.replace("'connector' = 'datagen'", f"{MYSQL}, 'passwort' = '{SECRET}'"), "Did you mean password?"),
        (GOOD.replace("'connector' = 'datagen'", f"{MYSQL}, 'password' = 'x'"), "2:52: password is written twice."),
        (GOOD.replace("'connector' = 'datagen'", KAFKA).replace("earliest-offset", "group-offsets"),
         "2:1: scan.startup.mode: 'group-offsets' is not possible here. The query's checkpoint has the positions"),
        (GOOD.replace("'connector' = 'datagen'", KAFKA).replace("'scan.startup.mode' = 'earliest-offset', ", ""),
         "1:14: The option scan.startup.mode of kafka is missing. Write earliest-offset"),
        (GOOD.replace("'connector' = 'datagen'", KAFKA).replace("'json'", "'debezium-json'"),
         "2:42: format: 'debezium-json' is not possible here. Read the database itself"),
        (GOOD.replace("'connector' = 'datagen'", KAFKA).replace("'topic' = 'orders', ", ""),
         "1:14: The option topic of kafka is missing."),
        (GOOD.replace("id INT) WITH ('connector' = 'datagen'", f"id INT METADATA FROM 'key') WITH ({KAFKA}"),
         "1:17: key: kafka has no such metadata."),
        (GOOD.replace("'print'", "'print', 'standard-error' = 'maybe'"), "2:54: standard-error: input should be a"),
        (GOOD.replace("'print'", "'upsert-kafka'"), "2:14: p: a table of upsert-kafka needs a PRIMARY KEY"),
        (GOOD.replace("'print'", "'upsert-kafka'"), "2:14: The option topic of upsert-kafka is missing."),
        (GOOD.replace("'print'", "'kafka', 'sink.delivery-guarantee' = 'none'"),
         "2:54: sink.delivery-guarantee: 'none' is not possible here. There are exactly-once, at-least-once."),
        (GOOD.replace("'print'", "'hbase'"), "2:31: hbase: there is no such connector."),
        (GOOD.replace("p (id INT) WITH ('connector' = 'print'", f"p (id INT) PARTITIONED BY (id) WITH ({KAFKA}"),
         "2:41: p: PARTITIONED BY is not possible with kafka."),
        (GOOD.replace("'print'", "'delta'"), "2:14: The option table-path of delta is missing."),
        (GOOD.replace("'print'", "'delta', 'table-path' = '~/x'"), "2:54: table-path: a path cannot begin with ~."),
    ],
)  # fmt: skip
def test_mistakes_have_their_places(script: str, told: str) -> None:
    found = mistakes(script)
    assert any(each.startswith(f"s.sql:{told}") or (told[0] == "D" and told in each) for each in found), found


def test_all_mistakes_are_told_at_once() -> None:
    """A statement with a mistake causes none in the statements that need it."""
    found = mistakes("""\
CREATE TABLE a (x FOO, y INT, z MULTISET<INT>) WITH ('connector' = 'datagen');
CREATE TABLE b (x INT) WITH ('connector' = 'datagen', 'nothing' = '1');
CREATE VIEW v AS SELECT x, y FROM a;
INSERT INTO p SELECT x, zz FROM b;
INSERT INTO q SELECT x FROM v;
CREATE TABLE p (x INT, y INT) WITH ('connector' = 'prind');
CREATE TABLE q (x INT) WITH ('connector' = 'print');
SELECT 1;
""")
    assert [each.split(": ")[0] for each in found] == [
        "s.sql:1:19", "s.sql:1:33", "s.sql:2:55", "s.sql:4:25", "s.sql:6:37", "s.sql:8:1",
    ]  # fmt: skip


def test_a_script_needs_a_directory_for_its_checkpoints() -> None:
    assert mistakes(GOOD, checkpoint=None) == [
        "s.sql:3:13: The script has no directory for its checkpoints. Write SET 'execution.checkpointing.dir' = '…', "
        "or name it with --checkpoint or the argument checkpoint."
    ]


def test_variables_and_secrets() -> None:
    assert mistakes(GOOD.replace("'datagen'", "'datagen', 'rows-per-second' = '${RATE}'")) == [
        "s.sql:1:76: The environment has no variable RATE. Set it, or write ${RATE:-default}."
    ]
    plain = GOOD.replace("'connector' = 'datagen'", f"{MYSQL.replace('${DB_PASSWORD}', SECRET)}, 'port' = 'x'")
    (told,) = mistakes(plain)
    assert told.startswith("s.sql:2:52: port: ")
    with pytest.raises(PipelineError) as found:
        read(f"{GOOD} CREATE TABLE t (a INT) WITH ('connector' = 'datagen' '{SECRET}')")
    assert SECRET not in str(found.value)


def test_check_finds_what_the_script_cannot_tell_itself(tmp_path: Path) -> None:
    """At the places in the script: functions, and the modules of functions."""
    file = tmp_path / "s.sql"

    def found() -> dict[str, str]:
        return {each.subject: each.problem for each in preflight(str(file), checkpoint=str(tmp_path / "c")).findings}

    file.write_text(
        "CREATE FUNCTION f AS 'nowhere:f' LANGUAGE PYTHON;\n"
        + GOOD.replace("SELECT id", "SELECT CAST(cout(id) AS INT)")
    )
    assert found()[f"{file}:1:22"] == "There is no module nowhere."
    file.write_text(GOOD.replace("SELECT id", "SELECT CAST(cout(id) AS INT)"))
    assert found()[f"{file}:3:27"] == "there is no function cout."


def test_every_option_of_flink_has_an_option_here() -> None:
    """Names of the tables that a connector does not know would be refused in a user's script."""
    from backlog_spark.pipelines.sections import SINKS, Lookup, keys_of
    from backlog_spark.spi.registry import documented_options

    for connector in CONNECTORS.values():
        if connector.reads:
            names = [*(option.name for option in documented_options(connector.type)), *keys_of(Lookup)]
        else:
            names = keys_of(SINKS[connector.type])
        for option in connector.known().values():
            assert not option.ours or option.ours in names


def test_a_directory_is_no_script(tmp_path: Path) -> None:
    with pytest.raises(BacklogError, match="cannot be read"):
        load(str(tmp_path / "none.sql"))
