"""``init --sink``: the section of each type is one that the parser takes and the sink's class too."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.building import check_functions, sink_of
from backlog_spark.pipelines.first_file import first_file, stream_file
from backlog_spark.pipelines.first_sinks import COPIES, PASSWORD, WHOLE
from backlog_spark.pipelines.model import Pipeline
from backlog_spark.pipelines.parsing import parse
from backlog_spark.pipelines.sections import SINKS
from backlog_spark.spi.examination import Examination, FoundTable
from backlog_spark.tools.command import command

CONNECTION = {"host": "db", "port": "3306", "user": "reader"}
ENVIRONMENT = {PASSWORD: "s3cret-of-the-target"}
KEYED = FoundTable("shop.orders", ("id", "yes"), columns=(("id", "int"), ("yes", "int")))
STREAM = {"phases": "files", "path": "/data/*.parquet", "fileFormat": "parquet"}
UPSERTS = ("delta_upsert", "iceberg_upsert", "jdbc_upsert")


def written(kind: str, *tables: FoundTable, root: str = "/lake") -> str:
    return first_file(Examination((), tables), CONNECTION, "", ["shop.*"], name="p", root=root, sink=kind)


def built(text: str) -> tuple[Pipeline, object]:
    """The pipeline, and the sink that its section makes."""
    found = parse(text, "p.yaml", ENVIRONMENT)
    assert list(check_functions(found)) == []
    (output,) = found.outputs()
    return found, sink_of(found, output)


@pytest.mark.parametrize("root", ["/lake", "s3://bucket/my lake"])
@pytest.mark.parametrize("kind", SINKS)
def test_each_type_for_a_table(kind: str, root: str) -> None:
    text = written(kind, KEYED, root=root)
    found, sink = built(text)
    (section,) = found.sinks
    assert type(section) is SINKS[kind]
    assert ENVIRONMENT[PASSWORD] not in f"{text} {sink!r} {section!r}"
    if kind in UPSERTS:
        assert section.arguments()["keys"] == ["id", "yes"]
    source = found.sources[0]
    if kind in COPIES:
        assert source.section.tables == ["shop.*"]
    else:
        assert source.options["table"] == "shop.orders"


@pytest.mark.parametrize("kind", [kind for kind in SINKS if kind not in COPIES])
@pytest.mark.parametrize("name", ["orders", "my orders: <x>"])
def test_each_type_for_files(kind: str, name: str) -> None:
    found, sink = built(stream_file(Examination(()), STREAM, name=name, root="/lake", sink=kind))
    if kind in (*UPSERTS, "kafka"):
        given = found.sinks[0].arguments()
        assert (given["change_type"], given["sequence"], given["metadata_columns"]) == (None, None, [])
    assert sink is not None


@pytest.mark.parametrize("kind", WHOLE)
def test_types_for_several_tables(kind: str) -> None:
    text = written(kind, KEYED, FoundTable("shop.items", ("id",)))
    for each in (
        text,
        text.replace("# route", "route").replace("#   - source", "  - source").replace("#     s", "    s"),
    ):
        found, _ = built(each)
        assert found.sources[0].section.tables == ["shop.*"]
    assert len(found.routes) == 1


@pytest.mark.parametrize("name", ["my.orders", "a`b", "a,b", "yes", "é"])
def test_names_that_need_quotes(name: str) -> None:
    table = FoundTable(f"`shop`.`{name.replace('`', '``')}`", ("id",))
    for kind in SINKS:
        built(written(kind, table))


def test_what_does_not_fit_is_refused() -> None:
    for kind in SINKS:
        if kind not in WHOLE:
            with pytest.raises(BacklogError, match=rf"{kind} takes one table. Name one, or choose .* or kafka"):
                written(kind, KEYED, KEYED)
    log = FoundTable("shop.log", ())
    for kind in (*UPSERTS, *COPIES):
        with pytest.raises(BacklogError, match="needs a key, and log has no primary key"):
            written(kind, log)
    for kind in ("delta_append", "iceberg_append", "kafka", "files"):
        built(written(kind, log))
    for kind in COPIES:
        with pytest.raises(BacklogError, match="copies the tables of a database"):
            stream_file(Examination(()), STREAM, name="p", root="/lake", sink=kind)


def test_the_command_takes_a_type(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    given = ["init", "--files", f"{tmp_path}/*.parquet", "--root", str(tmp_path), "--sink"]
    done = CliRunner().invoke(command, [*given, "iceberg_append"])
    assert done.exit_code == 0, done.output
    assert "type: iceberg_append" in done.stdout
    refused = CliRunner().invoke(command, [*given, "iceberg_upsrt"])
    assert "--sink = 'iceberg_upsrt'" in str(refused.exception)
    assert "Did you mean iceberg_upsert?" in str(refused.exception)
