"""A pipeline's file: what is right, and each mistake with its line and column."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from backlog_spark.common.table_patterns import table_pattern
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.pipelines.document import PipelineError
from backlog_spark.pipelines.parsing import load, parse

GOOD = """\
source:
  type: mysql_cdc
  name: orders
  host: db
  port: 3306
  user: reader
  password: ${DB_PASSWORD}
  table: shop.orders
  tinyInt1isBit: yes
sink:
  type: delta_upsert
  path: ${LAKE:-/lake}/orders
  keys: [id]
pipeline:
  name: orders
  checkpoint: /lake/_checkpoints/orders
  interval: 10 seconds
  intervalDuringBacklog: 10 minutes
  settings:
    spark.backlog.progress: off
"""
SECRET = "hunter2-and-more"


def mistakes(text: str, environment: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(PipelineError) as found:
        parse(text, "p.yaml", {"DB_PASSWORD": SECRET} if environment is None else environment)
    assert SECRET not in str(found.value)
    return str(found.value).splitlines()


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


RIGHT = changed("tinyInt1isBit: yes", "tinyInt1isBit: true")


def test_all_that_a_pipeline_says() -> None:
    made = parse(RIGHT, "p.yaml", {"DB_PASSWORD": SECRET})
    (source,) = made.sources
    assert source.options == {
        "host": "db", "port": "3306", "user": "reader", "password": SECRET, "table": "shop.orders",
        "tinyInt1isBit": "true",
    }  # fmt: skip
    (sink,) = made.sinks
    assert sink.arguments() == {"path": "/lake/orders", "keys": ["id"]}
    assert made.pipeline.settings == {"spark.backlog.progress": "off"}
    assert (made.input_of(sink), made.checkpoint_of(sink), made.query_name(sink)) == (
        "orders", "/lake/_checkpoints/orders", "orders"
    )  # fmt: skip
    assert SECRET not in repr(made)


def test_each_mistake_has_its_place_and_the_nearest_name() -> None:
    text = changed("  port: 3306", "  prot: 3306").replace("chunkSize", "").replace("keys: [id]", "keyz: [id]")
    text = text.replace("interval: 10 seconds", "intervall: 10 seconds").replace(
        "spark.backlog.progress", "spark.backlog.progres"
    )
    found = mistakes(
        text.replace("sink:", "chunkSizze: 1\nsink:", 1).replace("  tinyInt1isBit: yes", "  chunkSizze: 5")
    )
    assert found == [
        "p.yaml:5:3: prot: mysql_cdc has no such option. Did you mean port?",
        "p.yaml:9:3: chunkSizze: mysql_cdc has no such option. Did you mean chunkSize?",
        "p.yaml:10:1: chunkSizze: there is no such key. There are: lookup, pipeline, route, sink, source, transform.",
        "p.yaml:11:1: sink needs keys. Columns that identify a row.",
        "p.yaml:14:3: keyz: sink has no such key. Did you mean keys? There are: changeType, checkpoint, clusterBy, "
        "commitTime, compact, computed, deletedAtColumn, deletedColumn, deletes, from, history, isCurrent, keys, "
        "mergeSchema, metadataColumns, name, onExistingRows, partitionBy, path, properties, sequence, sideOutputs, "
        "smallBatchBytes, smallBatchRows, storageOptions, table, trackHistoryColumns, type, validFrom, validTo.",
        "p.yaml:18:3: intervall: pipeline has no such key. Did you mean interval? There are: availableNow, checkpoint, "
        "functions, interval, intervalDuringBacklog, name, settings.",
    ]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("true", "yes", "p.yaml:9:3: tinyInt1isBit: is none of true, false."),
        ("port: 3306", "port: 33o6", "p.yaml:5:3: port: is not an integer 1..65535."),
        ("mysql_cdc", "mysql", "p.yaml:2:3: mysql: there is no such source. Did you mean mysql_cdc?"),
        ("delta_upsert", "delta_upset", "p.yaml:11:3: delta_upset: there is no such sink. Did you mean delta_upsert?"),
        ("  host: db\n", "", "p.yaml:1:1: host: mysql_cdc needs this option."),
        ("10 minutes", "1 second", "p.yaml:18:3: intervalDuringBacklog: is less than interval. Set 0, or"),
        ("10 seconds", "10 secnds", "p.yaml:17:3: interval: "),
        ("spark.backlog.progress", "spark.backlog.progres", "p.yaml:20:5: spark.backlog.progres: there is no such "
         "setting. Did you mean spark.backlog.progress?"),
        ("spark.backlog.progress", "interval", "p.yaml:20:5: interval: there is no such setting. Did you mean"),
        ("  checkpoint: /lake/_checkpoints/orders\n", "", "p.yaml:14:1: pipeline needs checkpoint."),
        ("table: shop.orders", "table: shop.orders\n  intervall: 1 s", "p.yaml:9:3: intervall: mysql_cdc has no such"),
        ("table: shop.orders", "table: shop.orders\n  interval: 1 s", "p.yaml:9:3: interval: one interval holds for"),
        ("table: shop.orders", "tables: shop.*", "p.yaml:8:3: tables needs a sink of type delta_tables, iceberg_"),
        ("sink:", "source:", "p.yaml:10:1: source is written twice. Write it once."),
        ("checkpoint: ", "checkpoint: ~", "p.yaml:16:3: checkpoint: a path cannot begin with ~. Write ${HOME}"),
        ("path: ", "path: ~", "p.yaml:12:3: path: a path cannot begin with ~. Write ${HOME} instead."),
        ("keys: [id]", "keys: id", "p.yaml:13:3: keys: input should be a valid list."),
        ("keys: [id]", "keys: []", "p.yaml:13:3: keys: list should have at least 1 item after validation, not 0."),
        ("keys: [id]", "keys: [id]\n  from: ordres", "p.yaml:14:3: There is no stream ordres. Did you mean orders?"),
        ("keys: [id]", "keys: [id\n  x", "p.yaml:13:9: The [ that begins here is not closed, "),
        ("name: orders\n  host", "name: my-orders\n  host", "p.yaml:3:3: my-orders is no name for SQL."),
        ("sink:", "route:\n- source-table: a.b\n  sink-table: c\nsink:", "p.yaml:11:3: route belongs to a sink of"),
    ],
)  # fmt: skip
def test_a_mistake(old: str, new: str, told: str) -> None:
    found = mistakes(RIGHT.replace(old, new, 1))
    assert any(line.startswith(told) for line in found), found


def test_a_missing_variable_is_named_and_a_value_never_shown() -> None:
    (told,) = mistakes(RIGHT, {"DB_PASSWROD": SECRET})
    assert told == (
        "p.yaml:7:3: The environment has no variable DB_PASSWORD. Did you mean ${DB_PASSWROD}? Set it, or write "
        "${DB_PASSWORD:-default}."
    )
    found = mistakes(RIGHT.replace("port: 3306", "port: ${DB_PASSWORD}"))
    assert found[0].startswith("p.yaml:5:3: port: is not an integer 1..65535.")
    found = mistakes(RIGHT.replace("type: delta_upsert", "type: ${DB_PASSWORD}"))
    assert found[0].startswith("p.yaml:11:3: ${DB_PASSWORD}: there is no such sink.")


def test_variables() -> None:
    text = RIGHT.replace("/lake/_checkpoints/orders", "$${HOME}/${EMPTY:-x}/${env:A}${B}")
    made = parse(text, "p.yaml", {"DB_PASSWORD": SECRET, "EMPTY": "", "A": "1", "B": "2"})
    assert made.pipeline.checkpoint == "${HOME}/x/12"
    assert mistakes(RIGHT.replace("/lake/_checkpoints/orders", "${1}"))[0].startswith(
        "p.yaml:16:3: ${ begins no variable."
    )


@pytest.mark.parametrize("content", [f"{SECRET}\n", f"{SECRET}\r\n", SECRET])
def test_a_secret_of_a_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "secret"
    file.write_text(content)
    made = parse(RIGHT.replace("${DB_PASSWORD}", f"${{file:{file}}}"), "p.yaml", {})
    assert made.sources[0].options["password"] == SECRET
    assert SECRET not in repr(made)
    found = mistakes(RIGHT.replace("port: 3306", f"port: ${{file:{file}}}"), {"DB_PASSWORD": "x"})
    assert found[0].startswith("p.yaml:5:3: port: is not an integer")
    assert SECRET not in "".join(found)
    (found_one,) = mistakes(RIGHT.replace("type: delta_upsert", f"type: ${{file:{file}}}"), {"DB_PASSWORD": "x"})
    assert f"${{file:{file}}}: there is no such sink." in found_one


def test_a_secret_of_a_file_of_properties(tmp_path: Path) -> None:
    file = tmp_path / "shop.properties"
    file.write_text(f"# password=no\nuser = reader\npassword={SECRET}=\n")
    made = parse(RIGHT.replace("${DB_PASSWORD}", f"${{file:{file}:password}}"), "p.yaml", {})
    assert made.sources[0].options["password"] == f"{SECRET}="
    (told,) = mistakes(RIGHT.replace("${DB_PASSWORD}", f"${{file:{file}:pasword}}"), {})
    assert told == f"p.yaml:7:3: The file {file} has no line pasword=…. Its keys are user, password."


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (told,) = mistakes(RIGHT.replace("${DB_PASSWORD}", f"${{file:{tmp_path}/none}}"), {})
    assert told == (
        f"p.yaml:7:3: The file {tmp_path}/none cannot be read: No such file or directory. The driver needs it."
    )
    (tmp_path / "empty").write_text("\n")
    (told,) = mistakes(RIGHT.replace("${DB_PASSWORD}", f"${{file:{tmp_path}/empty}}"), {})
    assert "empty is empty." in told


def test_anchors_and_merged_keys() -> None:
    text = RIGHT.replace("source:\n", "source:\n  <<: {port: 1, chunkSize: 5}\n")
    options = parse(text, "p.yaml", {"DB_PASSWORD": SECRET}).sources[0].options
    assert (options["port"], options["chunkSize"]) == ("3306", "5")
    twice = "source:\n- &a\n  <<: &b {type: rate, rowsPerSecond: 1}\n  name: a\n  rowsPerSecond: 2\n"
    twice += "- {<<: *b, name: b}\n- {<<: *a, name: c}\n- {<<: {<<: &d {type: rate, x: 1}, x: 2}, name: d}\n- *d\n"
    made = parse(twice + "sink: {type: delta_append, path: /t, from: a}\npipeline: {name: n, checkpoint: /c}\n")
    assert [s.options.get("rowsPerSecond") for s in made.sources] == ["2", "1", "2", None, None]
    found = mistakes(RIGHT.replace("  settings:\n", "  settings: &s\n    spark.x: *s\n"))
    assert found[0] == "p.yaml:20:5: This alias contains itself."


def test_scalars_are_as_they_are_written() -> None:
    text = RIGHT.replace("name: orders", "name: 007").replace("  name: 007", "  name: orders", 1)
    text = text.replace("${LAKE:-/lake}/orders", "1_0").replace("/lake/_checkpoints/orders", "1.50")
    text = text.replace("[id]", "[1:30, 0x1F, yes, 2026-01-01]\n  smallBatchRows: 010\n  compact: off")
    made = parse(text.replace("spark.backlog.progress: off", "spark.x: 1e3"), "p.yaml", {"DB_PASSWORD": SECRET})
    assert (made.pipeline.name, made.pipeline.checkpoint, made.pipeline.settings) == ("007", "1.50", {"spark.x": "1e3"})
    assert made.sinks[0].arguments() == {
        "path": "1_0", "keys": ["1:30", "0x1F", "yes", "2026-01-01"], "small_batch_rows": 10, "compact": False,
    }  # fmt: skip


def test_escapes_of_json() -> None:
    made = parse(
        RIGHT.replace("name: orders\n  check", 'name: "a\\ud83d\\udd11\\u00e9"\n  check'), "p", {"DB_PASSWORD": "x"}
    )
    assert made.pipeline.name == "a\U0001f511é"
    (told,) = mistakes(RIGHT.replace("name: orders\n  check", 'name: "a\\ud83d"\n  check'))
    assert told.startswith("p.yaml:15:3: Half of a surrogate pair")


WHOLE = """\
source:
  type: mysql_cdc
  host: db
  user: reader
  tables: [shop.*, crm.customer_*]
  tables.exclude: shop\\.tmp_.*
route:
  - source-table: shop.*
    sink-table: ods/ods_<>
sink:
  type: delta_tables
  path: /lake
pipeline:
  name: databases
  checkpoint: /lake/_checkpoints/databases
"""


def test_whole_databases() -> None:
    made = parse(WHOLE)
    assert made.sources[0].options == {
        "host": "db", "user": "reader", "tables.exclude": "shop\\.tmp_.*", "tablePattern": r"shop\..*|crm\.customer_.*",
        "format": "debezium", "scanNewlyAddedTables": "true",
        "metadataColumns": "_change_type,_commit_timestamp,_commit_seq,_database,_table,_columns",
    }  # fmt: skip
    assert [(r.source_table, r.sink_table) for r in made.routes] == [("shop.*", "ods/ods_<>")]
    assert mistakes(WHOLE.replace("  tables: [shop.*, crm.customer_*]", "  table: shop.orders"))[0].startswith(
        "p.yaml:10:1: A sink of type delta_tables needs a source with tables."
    )
    assert mistakes(WHOLE.replace("crm.customer_*", "crm"))[0].startswith(
        "p.yaml:5:3: tables: 'crm' is not database.table."
    )
    assert mistakes(WHOLE.replace("tables.exclude", "tablePattern"))[0].startswith(
        "p.yaml:6:3: tablePattern: tables sets it."
    )
    assert mistakes(WHOLE.replace("ods/ods_<>", "../x"))[0].startswith("p.yaml:9:5: sink-table is a directory below")


def test_several_sources_transforms_and_sinks() -> None:
    text = """\
source:
  - {type: hybrid, name: clicks, schema: "id BIGINT", path: /lake/clicks, phases: files}
  - {type: kafka, name: views, kafka.bootstrap.servers: "k:9092", subscribe: views}
transform:
  - name: sums
    sql: SELECT id, count(*) AS n FROM clicks GROUP BY id
  - name: other
    function: jobs:other
    arguments: {limit: 5}
sink:
  - {type: delta_append, name: all, from: clicks, path: /lake/all, checkpoint: /lake/c/all, partitionBy: [id]}
  - {type: delta_upsert, name: sums, from: sums, path: /lake/sums, keys: [id], checkpoint: /lake/c/sums}
pipeline:
  name: many
"""
    made = parse(text)
    assert [made.query_name(sink) for sink in made.sinks] == ["many-all", "many-sums"]
    assert made.sinks[0].arguments() == {"path": "/lake/all", "partition_by": ["id"]}
    for checkpoint in ("checkpoint: /lake/c/all, ", ", checkpoint: /lake/c/sums"):
        assert mistakes(text.replace(checkpoint, ""))[0].startswith("p.yaml:13:1: pipeline needs checkpoint.")
    assert mistakes(text.replace("/lake/c/all", "/lake/c/sums"))[0].startswith(
        "p.yaml:12:5: Sinks of one checkpoint get one stream: clicks or sums. Give this one a checkpoint of its own"
    )
    assert mistakes(text.replace("from: clicks, ", "from: clickz, "))[0].endswith(
        "There are: clicks, other, sums, views."
    )
    assert mistakes(text.replace("phases: files", "phases: file"))[0].startswith("p.yaml:2:75: phases: 'file' is not a")
    assert mistakes(text.replace("    sql: ", "    sqll: "))[0].startswith(
        "p.yaml:6:5: sqll: transform has no such key."
    )
    assert mistakes(text.replace("name: sums\n", "name: clicks\n"))[0].startswith(
        "p.yaml:5:5: clicks is the name of another"
    )


def test_a_source_of_files_without_a_schema() -> None:
    text = """\
source:
  type: hybrid
  name: clicks
  phases: files
  path: /lake/clicks
  fileFormat: json
  inferColumnTypes: true
  schemaEvolutionMode: rescue
  schemaHints: "id BIGINT, at TIMESTAMP"
sink: {type: delta_append, path: /lake/all, mergeSchema: true}
pipeline: {name: clicks, checkpoint: /lake/c}
"""
    (source,) = parse(text).sources
    assert source.options["inferColumnTypes"] == "true"
    assert mistakes(text.replace("rescue", "add"))[0].startswith("p.yaml:8:3: schemaEvolutionMode: is none of addNew")
    told = mistakes(text.replace("BIGINT", "NUMBER"))[0]
    assert told.startswith("p.yaml:9:3: schemaHints: cannot be parsed: NUMBER is not a type of Spark")


def test_sinks_of_one_checkpoint_are_targets_of_one_query() -> None:
    made = parse("""\
source: {type: hybrid, name: clicks, schema: "id BIGINT", path: /lake/clicks, phases: files}
sink:
  - {type: delta_append, name: all, path: /lake/all}
  - {type: delta_upsert, name: newest, path: /lake/newest, keys: [id]}
  - {type: delta_append, name: apart, path: /lake/apart, checkpoint: /lake/c/apart}
pipeline: {name: two, checkpoint: /lake/c/two}
""")
    assert [made.query_name(query) for query in made.queries()] == ["two-all", "two-apart"]
    assert [(output.name, output.query.name) for output in made.outputs()] == [
        ("all", "all"), ("newest", "all"), ("apart", "apart")
    ]  # fmt: skip


def test_sinks_of_side_outputs() -> None:
    late = "{type: delta_append, path: /lake/late}"
    text = RIGHT.replace("  keys: [id]\n", f"  keys: [id]\n  sideOutputs:\n    late: {late}\n")
    made = parse(text, "p.yaml", {"DB_PASSWORD": SECRET})
    assert [(output.name, output.side, output.section.arguments()) for output in made.outputs()] == [
        ("sink", "", {"path": "/lake/orders", "keys": ["id"]}),
        ("sink.late", "late", {"path": "/lake/late"}),
    ]

    def told(sink: str) -> str:
        return mistakes(text.replace(late, sink))[0]

    assert told("{type: delta_append, path: /a, checkpoint: /c}").startswith(
        "p.yaml:15:42: checkpoint: a side output's sink has no such key."
    )
    assert told("{type: delta_append, path: /a, pat: /b}").startswith(
        "p.yaml:15:42: pat: sink has no such key. Did you mean path?"
    )
    assert told("{type: delta_tables, path: /a}").startswith("p.yaml:15:12: delta_tables cannot be the sink of a side")
    assert told("/lake/late").startswith("p.yaml:15:5: A sink needs type.")
    assert mistakes(text.replace(f"\n    late: {late}", " late"))[0].startswith("p.yaml:14:3: sideOutputs: ")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "A pipeline is a mapping."),
        ("- a", "A pipeline is a mapping."),
        ("a: b: c", "There is a colon and a blank in a value. Put the value in quotes."),
        ("source: x\n---\n", "A second document begins here."),
        ("a: b\nc: 'x\7'", "p.yaml:2:6: The character U+0007 is not allowed."),
        ("[" * 5_000, "p.yaml:1:1: The file is nested too deeply."),
        ("source: {type: !!int '', name: !!timestamp x}", "A pipeline needs sink."),
    ],
)
def test_no_pipeline(text: str, told: str) -> None:
    assert told in mistakes(text)[0]


def test_no_file(tmp_path: Any) -> None:
    with pytest.raises(BacklogError, match="cannot be read: No such file"):
        load(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("written", "matches", "others"),
    [
        ("shop.*", ["shop.orders", "shop.a.b"], ["shops.x", "shop"]),
        (r"shop.\.*", ["shop.orders"], ["shops.x"]),
        ("shop.order_*", ["shop.order_1", "shop.order_"], ["shop.orders"]),
        ("shop.order_[0-9]+, crm.x", ["shop.order_12", "crm.x"], ["shop.order_a", "crm.xy"]),
        ("shop.[a-z]*", ["shop.ab"], ["shop.AB"]),
        ("*.orders", ["a.orders"], ["a.order"]),
        ("shop.t_[0-9]{1,2}", ["shop.t_12"], ["shop.t_123"]),
        ("(shop|crm).x", ["shop.x", "crm.x"], ["shopcrm.x"]),
        ("shop.orders|customers", ["shop.orders", "shop.customers"], ["customers", "shop.orders2", "orders"]),
        ("shop|crm.x", ["shop.x", "crm.x"], ["shop", "shop.orders"]),
        ("shop|crm.a|b_*, hr.x", ["shop.a", "crm.b_1", "hr.x"], ["shop", "b_1", "crm"]),
    ],
)
def test_patterns_of_tables(written: str, matches: list[str], others: list[str]) -> None:
    pattern = table_pattern([written])
    assert all(re.fullmatch(pattern, name) for name in matches)
    assert not any(re.fullmatch(pattern, name) for name in others)


@pytest.mark.parametrize("written", ["shop", "", "shop.(", ".x", "(shop.a|crm.b)", "shop.a)|(b"])
def test_no_pattern_of_tables(written: str) -> None:
    with pytest.raises(SettingError):
        table_pattern([written])


@pytest.mark.parametrize("option", ["tables.exclude", "columns.exclude", "columns.mask", "columns.include"])
@pytest.mark.parametrize("pattern", [r"shop\.a|customers", r"customers|shop\.a", r"crm\.a, shop\.(a|b)|c"])
def test_an_alternative_that_no_name_matches(option: str, pattern: str) -> None:
    salt = "columns.mask.secretSalt: x" if option == "columns.mask" else "chunkSize: 1"
    found = mistakes(RIGHT.replace("tinyInt1isBit: true", f"{option}: '{pattern}'\n  {salt}"))[0]
    assert found.startswith(f"p.yaml:9:3: {option}: 'c")
    assert "| separates whole names." in found
    whole = pattern.replace("c", "shop.c")
    parse(RIGHT.replace("tinyInt1isBit: true", f"{option}: '{whole}'\n  {salt}"), "p", {"DB_PASSWORD": SECRET})


def test_the_schema_for_editors_has_every_option_and_accepts_the_examples() -> None:
    from backlog_spark.pipelines.schema import pipeline_schema
    from backlog_spark.spi.registry import documented_options

    schema = pipeline_schema()
    mysql, hybrid, datagen, foreign = schema["$defs"]["source"]["oneOf"]
    names = {option.name for option in documented_options("mysql_cdc")}
    assert names - {"fs.*"} <= set(mysql["properties"])
    assert any(re.match(pattern, "fs.key") for pattern in mysql["patternProperties"])
    assert mysql["additionalProperties"] is False
    assert mysql["properties"]["type"]["enum"] == ["mysql_cdc"]
    assert "valueFormat" in hybrid["properties"]
    assert "numberOfRows" in datagen["properties"]
    assert foreign["additionalProperties"] is True
    assert mysql["properties"]["startup.mode"]["enum"][0] == "initial"
    assert mysql["properties"]["zeroDate"]["enum"] == ["null", "error", None]
    assert "array" in mysql["properties"]["metadataColumns"]["type"]
    assert set(schema["properties"]) == {"source", "lookup", "transform", "route", "sink", "pipeline"}
    (upsert,) = [
        s for s in schema["$defs"].values() if s.get("properties", {}).get("type", {}).get("const") == "delta_upsert"
    ]
    assert set(upsert["required"]) == {"type", "keys"}


def test_tables_that_are_looked_up() -> None:
    lookup = "lookup:\n  name: names\n  format: jdbc\n  url: ${DB_PASSWORD}\n  schema: id INT\n  refresh: 5 min\n"
    made = parse(RIGHT + lookup, "p.yaml", {"DB_PASSWORD": SECRET})
    (found,) = made.lookups
    assert (found.section.name, found.section.format, found.section.schema_) == ("names", "jdbc", "id INT")
    assert found.options == {"url": SECRET}
    assert SECRET not in repr(made)
    assert made.input_of(made.sinks[0]) == "orders"
    for old, new, told in (
        ("format: jdbc\n  ", "", "p.yaml:21:1: lookup needs format. A batch format of Spark"),
        ("names", "orders", "p.yaml:22:3: orders is the name of another stream (line 1)."),
        ("5 min", "0", "p.yaml:26:3: refresh: is no time. Write, for example, 10 minutes."),
        ("5 min", "x", "p.yaml:26:3: refresh: is not a duration."),
    ):
        assert any(each.startswith(told) for each in mistakes(RIGHT + lookup.replace(old, new, 1)))
    (told,) = mistakes(RIGHT.replace("sink:\n", "sink:\n  from: names\n") + lookup)
    assert told.startswith("p.yaml:11:3: There is no stream names. There are: orders.")


def test_sinks_for_tries_and_declared_columns() -> None:
    made = parse("""\
source: {type: datagen, name: made, numberOfRows: 5}
transform:
  - name: numbers
    sql: SELECT value, value % 2 FROM made
    columns: {n: INT, odd: }
    changes: refuse
sink: {type: print, identifier: it, standardError: yes}
pipeline: {name: x, checkpoint: /c, functions: {twice: "jobs:twice"}}
""")
    (transform,), (sink,) = made.transforms, made.sinks
    assert (transform.columns, transform.changes) == ({"n": "INT", "odd": None}, "refuse")
    assert sink.arguments() == {"identifier": "it", "standard_error": True}
    assert made.pipeline.functions == {"twice": "jobs:twice"}
