"""The file that ``init`` writes: nothing that a server names can be more than a name in it."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]
from click.testing import CliRunner

from backlog_spark.common.table_names import TableName
from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.first_file import first_file, stream_file
from backlog_spark.pipelines.parsing import parse
from backlog_spark.spi.examination import Examination, Finding, FoundTable, Severity
from backlog_spark.tools.command import command, main

CONNECTION = {"host": "db", "port": "3306", "user": "reader"}
BREAKS = ["\n", "\r", "\x85", "\u2028", "\u2029", "\x0b", "\x1b[2J", "\u202e"]
WORDS = [
    "yes",
    "007",
    "1:30",
    "null",
    "a,b",
    "a: b",
    "a #b",
    "[a",
    "{a",
    "'a",
    '"a',
    "*a",
    "&a",
    "!a",
    "-",
    "${A}",
    "a\\b",
    "é",
]


def written(*tables: FoundTable, problem: str = "") -> str:
    findings = (Finding(Severity.WARNING, "s", problem),)
    return first_file(Examination(findings, tables), CONNECTION, "", ["shop.*"], name="p", root="/lake")


@pytest.mark.parametrize("name", [f"x{b}transform: [{{name: e, sql: s}}]" for b in BREAKS] + WORDS)
def test_hostile_names(name: str) -> None:
    one = written(FoundTable(str(TableName("shop", name)), (name,), columns=((name, "int"),)), problem=name)
    several = written(
        FoundTable(str(TableName("shop", name)), (), columns=((name, "int"),)), FoundTable("shop.b", ("id",))
    )
    for text in (one, several):
        assert not re.search("[^\n -~\xa0-\u1fff]", text)
        assert set(yaml.safe_load(text)) == {"source", "sink", "pipeline"}
    made = parse(one)
    assert made.sinks[0].arguments()["keys"] == [name]
    options = made.sources[0].options
    assert TableName.parse(options["table"]) == ("shop", name)
    (excluded,) = parse(several).sources[0].options["tables.exclude"].split(",")
    assert re.fullmatch(excluded, f"shop.{name}")


def test_an_excluded_name_matches_nothing_else() -> None:
    text = written(FoundTable("shop.a+b", ()), FoundTable("shop.a.c", ()), FoundTable("shop.keyed", ("id",)))
    patterns = parse(text).sources[0].options["tables.exclude"].split(",")
    assert [bool(re.fullmatch(p, n)) for p, n in zip(patterns, ("shop.a+b", "shop.a.c"), strict=True)] == [True, True]
    assert not any(re.fullmatch(p, n) for p in patterns for n in ("shop.aab", "shop.aac", "shopxa.c"))


def test_the_comments_are_right_when_they_are_taken_in() -> None:
    text = written(FoundTable("shop.orders", ("the id",), columns=(("the id", "int"), ("a.b", "int"))))
    text = re.sub(r"(?m)^( *)# (columns.exclude|transform:|  - name|    sql)", r"\1\2", text)
    made = parse(text)
    assert made.transforms[0].sql == "SELECT `the id`, count(*) AS n FROM orders GROUP BY `the id`"
    assert made.sources[0].options["columns.exclude"] == r"shop\.orders\.a\.b"


def test_numbers_are_plain_and_texts_that_look_like_numbers_are_not() -> None:
    text = written(FoundTable("shop.007", ("id",)))
    assert "\n  port: 3306\n" in text
    assert yaml.safe_load(text)["source"]["table"] == "shop.007"
    assert parse(text).sources[0].options["port"] == "3306"


def test_one_table_without_a_key_is_appended() -> None:
    text = written(FoundTable("shop.log", (), columns=(("a", "int"),)))
    made = parse(text)
    assert (made.sources[0].options["table"], type(made.sinks[0]).__name__) == ("shop.log", "DeltaAppendSink")
    assert "tables.exclude" not in text
    assert "no primary key" in text


def test_several_tables_without_a_key_are_refused() -> None:
    with pytest.raises(BacklogError, match=r"has a primary key: shop\.a, shop\.b\. .*name one table"):
        written(FoundTable("shop.a", ()), FoundTable("shop.b", ()))


def test_no_table_is_refused_by_the_names_that_were_given() -> None:
    with pytest.raises(BacklogError, match=r"matches shop\.\*\. Check the names"):
        written()


STREAMS = {
    "files": {"phases": "files", "path": "/data/[x] *.parquet", "fileFormat": "parquet"},
    "both": {
        "phases": "files, kafka", "path": "/d", "fileFormat": "orc", "kafka.bootstrap.servers": "h:1", "subscribe": "t",
        "valueFormat": "json",
    },
    "kafka": {
        "phases": "kafka", "kafka.bootstrap.servers": "h:1", "subscribe": "t", "valueFormat": "json",
        "schema": "id BIGINT, `a b` STRING",
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("name", ["orders", "my orders", "007", "a: b"])
def test_a_file_for_files_and_kafka(kind: str, name: str) -> None:
    findings = (Finding(Severity.ERROR, "s", "nothing is\nthere"),)
    text = stream_file(Examination((), first=findings), STREAMS[kind], name=name, root="/lake")
    made = parse(text)
    assert dict(made.sources[0].options) == STREAMS[kind]
    assert made.pipeline.name == name
    assert made.sinks[0].arguments()["path"].startswith("/lake/")
    assert "# error: nothing is" in text
    with_transform = re.sub(r"(?m)^# (transform:|  - name|    sql)", r"\1", text)
    assert parse(with_transform).transforms[0].sql


@pytest.mark.parametrize(
    ("given", "said", "status"),
    [
        ([], "A database needs --host and --user and --tables. For files and Kafka give --files", 2),
        (["--host", "db"], "A database needs --user and --tables", 2),
        (["--host", "db", "--files", "/x"], "Give either a database, or files and Kafka", 2),
        (["--topic", "t"], "Kafka needs --brokers and --topic", 2),
        (["--files", "/x/*.json"], "Add --schema", 2),
        (["--files", "/surely/not/there"], "error: --files = '/surely/not/there': is not there", 1),
        (["--host", "db", "--user", "u", "--tables", "a.b", "--password-env", "NOT_SET"], "no variable NOT_SET", 1),
    ],
)
def test_what_init_cannot_do_is_said_in_its_own_words(
    given: list[str], said: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["backlog-spark", "init", *given])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == status
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


def test_init_for_files_writes_a_file_that_is_a_pipeline(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    done = CliRunner().invoke(command, ["init", "--files", f"{tmp_path}/*.parquet", "--name", "orders"])
    assert done.exit_code == 0, done.output
    assert parse(done.stdout).sources[0].options["path"] == f"{tmp_path}/*.parquet"
