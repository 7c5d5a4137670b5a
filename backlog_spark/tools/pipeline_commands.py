"""The commands of ``backlog-spark`` for a pipeline's file."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from backlog_spark.common.durations import in_words
from backlog_spark.common.printable import printable
from backlog_spark.errors import BacklogError
from backlog_spark.tools.output import say, show, table, tell, tell_json

if TYPE_CHECKING:
    from rich.table import Table

    from backlog_spark.pipelines.model import Pipeline
    from backlog_spark.spi.examination import Examination, Finding, FoundTable
    from backlog_spark.verification.result import Verification

__all__ = ["add_pipeline_commands"]

_STOPPED = 130


def add_pipeline_commands(group: click.Group) -> None:
    """Add the commands to the group."""
    for command in (run, sql, check, init, reset, verify):
        group.add_command(command)


_file = click.argument("file", default="pipeline.yaml")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_checkpoint = click.option("--checkpoint", help="Of a script: directory for the checkpoints of its queries.")


def _verification(sink: str, result: Verification) -> dict[str, Any]:
    """Counts and the first keys, as JSON: keys that JSON does not have become text."""
    left_out = ("differences", "columns", "left_out")
    counts = {k: v for k, v in dataclasses.asdict(result).items() if k not in left_out}
    keys = [{"kind": d.kind, "key": {k: str(v) for k, v in d.key.items()}, "columns": d.columns}
            for d in result.differences]  # fmt: skip
    return {"sink": sink, "equal": result.is_equal, **counts, "differences": keys}


@click.command()
@_file
@_json
def run(file: str, as_json: bool) -> None:
    """Run the pipeline in FILE until it ends.

    FILE is pipeline.yaml by default. It may be a Flink SQL script, if its name ends with .sql.

    It uses the session of spark-submit, or starts one with the pipeline's settings. Ctrl-C or SIGTERM stops it after
    the running batch, a second one at once. The next run continues from the checkpoint.
    """
    from backlog_spark.pipelines.parsing import load

    _run(load(file), as_json)


def _run(pipeline: Pipeline, as_json: bool) -> None:
    from backlog_spark.pipelines.running import StoppedAtOnce, ended, session_for, sigterm_as_ctrl_c, start, wait

    with sigterm_as_ctrl_c():
        spark = session_for(pipeline)
        queries = start(pipeline, spark)
    silent = [query for query in queries if not query.showsProgress]
    for query in silent:
        say(f"Query {query.name} runs; its checkpoint is {query.checkpointLocation}.")
    try:
        finished = wait(queries)
    except StoppedAtOnce:
        sys.exit(_STOPPED)
    if as_json:
        tell_json(ended(queries))
    elif finished:
        for query in silent:
            say(query.summary)


@click.command()
@click.argument("file")
@_checkpoint
@click.option("--explain", is_flag=True, help="Only show the operators of each INSERT. The sources must exist.")
@_json
def sql(file: str, checkpoint: str | None, explain: bool, as_json: bool) -> None:
    """Run the Flink SQL script in FILE: each INSERT is a query.

    It works like run. backlog-spark check FILE says what would fail.
    """
    from backlog_spark.pipelines.parsing import load
    from backlog_spark.pipelines.running import session_for
    from backlog_spark.pipelines.scripts import explained_script

    if not file.lower().endswith(".sql"):
        raise click.UsageError("FILE is a script, so its name ends with .sql. For a pipeline write backlog-spark run.")
    pipeline = load(file, checkpoint=checkpoint)
    if not explain:
        _run(pipeline, as_json)
        return
    found = explained_script(pipeline, session_for(pipeline))
    if as_json:
        tell_json(found)
    else:
        tell("\n".join(f"{name}:\n{text}" for name, text in found.items()))


@click.command()
@_file
@_checkpoint
@_json
def check(file: str, checkpoint: str | None, as_json: bool) -> None:
    """Say what would fail if the pipeline in FILE ran.

    Exit status 1 if anything would. FILE is pipeline.yaml by default. It may be a Flink SQL script, if its name ends
    with .sql.

    It checks the file, packages and Java, connects to the servers, and looks at their settings, the user's rights, the
    tables, the retention of the binary log, and local targets, where it writes and removes a file. It starts no
    Spark and reads no rows.
    """
    from backlog_spark.pipelines.preflight import preflight

    report = preflight(file, checkpoint=checkpoint)
    if as_json:
        tell_json(
            {
                "ok": not report.fails,
                "findings": [dataclasses.asdict(finding) for finding in report.findings],
                "tables": [dataclasses.asdict(table) for table in report.tables],
            }
        )
    else:
        show(*map(_finding, report.findings), *([_tables(report.tables)] if report.tables else []))
    if report.fails:
        sys.exit(1)


_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}


def _finding(finding: Finding) -> Text:
    line = Text(f"{finding.severity.value:<8}", style=_COLOURS[finding.severity.value])
    told = f"{finding.subject}: {finding.problem} {finding.hint}".rstrip()
    return line.append(printable(told, keep="\n"), style="default")


def _tables(tables: Sequence[FoundTable]) -> Table:
    rows = [
        (
            found.name,
            ", ".join(found.key) or "none",
            "" if found.rows is None else f"{found.rows:,}",
            "" if found.size is None else f"{found.size >> 20:,}",
        )
        for found in tables
    ]
    return table(("table", "key", "rows, about", "MiB, about"), rows)


@click.command()
@click.option("--host", help="The MySQL or MariaDB server.")
@click.option("--port", default=3306, show_default=True, help="Its port.")
@click.option("--user", help="Needs SELECT, REPLICATION SLAVE and REPLICATION CLIENT.")
@click.option("--password-env", default="", help="Variable of the environment with the password.")
@click.option("--tables", "tables", multiple=True, help="Such as shop.*; may be repeated.")
@click.option("--files", help="Instead of a database: files or a pattern, such as '/data/orders/*.parquet'.")
@click.option("--brokers", help="Instead of a database, or after the files: Kafka's brokers, such as kafka:9092.")
@click.option("--topic", help="With --brokers: the topic. Its records are JSON.")
@click.option("--schema", help="The columns: 'id BIGINT, at TIMESTAMP'. Parquet and ORC have their own.")
@click.option("--sink", default="", help="Type of the target, such as iceberg_upsert or jdbc_upsert.")
@click.option("--root", default="lake", show_default=True, help="Directory or URL of targets and checkpoint.")
@click.option("--name", default="pipeline", show_default=True, help="Name of the pipeline.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="File to write, instead of stdout.")
@click.option("--force", is_flag=True, help="Replace the file.")
@_json
def init(
    host: str | None,
    port: int,
    user: str | None,
    password_env: str,
    tables: tuple[str, ...],
    files: str | None,
    brokers: str | None,
    topic: str | None,
    schema: str | None,
    sink: str,
    root: str,
    name: str,
    output: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write a pipeline's file, with comments, from tables of a database, or for files and Kafka.

    For a database give --host, --user and --tables. For files, or Kafka, or files and then Kafka, give --files, or
    --brokers and --topic, or all three. Exit status 1 if something is there that would fail; the file says what.

    By default the target is Delta. --sink writes the section of any other type, with values for you to change.
    """
    from backlog_spark.pipelines.first_file import first_file, stream_file
    from backlog_spark.pipelines.first_sinks import check_sink

    if sink:
        check_sink(sink)
    if output and Path(output).exists() and not force:
        raise BacklogError(f"{output} exists.", "Name another file, or add --force.")
    root = root.rstrip("/")
    if files or brokers or topic:
        if host or user or tables:
            raise click.UsageError("Give either a database, or files and Kafka: one source for one file.")
        options = _of_stream(files, brokers, topic, schema)
        found = _examined("hybrid", options, {"metadataLocation": f"{root}/_checkpoints/{name}/backlog"})
        text = stream_file(found, options, name=name, root=root, sink=sink or "delta_append")
    else:
        if not (host and user and tables):
            missing = [flag for flag, value in (("--host", host), ("--user", user), ("--tables", tables)) if not value]
            raise click.UsageError(
                f"A database needs {' and '.join(missing)}. For files and Kafka give --files, or --brokers and --topic."
            )
        connection = {"host": host, "port": str(port), "user": user}
        found = _of_database(connection, password_env, tables)
        text = first_file(found, connection, password_env, tables, name=name, root=root, sink=sink)
    fails = [finding for finding in (*found.findings, *found.first) if finding.severity == "error"]
    if output:
        Path(output).write_text(text, encoding="utf-8")
        say(f"{output} is written. Next: backlog-spark check {output}")
    if as_json:
        tell_json({"file": output, "text": text, "tables": [dataclasses.asdict(table) for table in found.tables]})
    elif not output:
        click.echo(text, nl=False)  # its names are harmless already
    keyless = [table.name for table in found.tables if not table.key]
    if keyless and len(found.tables) > 1:
        say(f"Left out, as they have no primary key: {', '.join(keyless)}.")
    for finding in fails:
        say(f"error: {_in_flags(BacklogError(finding.problem, finding.hint))}")
    if fails:
        sys.exit(1)


_FORMATS = ("parquet", "orc", "json", "csv")
# Options of the sources as errors name them -> what `init` calls them.
_FLAGS = {
    "the options user and password": "--user and --password-env",
    "tablePattern": "--tables",
    "passwordEnv": "--password-env",
    "path": "--files",
    "subscribe": "--topic",
    "kafka.bootstrap.servers": "--brokers",
    "schema": "--schema",
}


def _in_flags(error: BacklogError) -> BacklogError:
    """The error with the names of the command's own options."""
    names = "|".join(map(re.escape, _FLAGS))
    problem, hint = (
        re.sub(rf"(?<![\w./])(?:{names})(?= = |$|[ .,]|=)", lambda found: _FLAGS[found[0]], text)
        for text in (error.problem, error.hint)
    )
    return BacklogError(problem, hint)


def _examined(source: str, options: dict[str, str], more: dict[str, str]) -> Examination:
    from backlog_spark.spi.registry import examine

    try:
        found = examine(source, {**options, **more})
    except BacklogError as error:
        raise _in_flags(error) from None
    assert found is not None
    return found


def _of_database(connection: dict[str, str], password_env: str, tables: Sequence[str]) -> Examination:
    from backlog_spark.common.table_patterns import table_pattern

    if password_env and password_env not in os.environ:
        raise BacklogError(f"The environment has no variable {password_env}.", "Set it to the user's password.")
    secret = {"password": os.environ.get(password_env, ""), "tablePattern": table_pattern(tables)}
    found = _examined("mysql_cdc", connection, {**secret, "format": "debezium"})
    if len(found.tables) == 1 and not found.tables[0].key:
        # Its changes can be appended, but not as whole databases are copied.
        found = _examined("mysql_cdc", connection, {**secret, "format": "row"})
    return found


def _of_stream(files: str | None, brokers: str | None, topic: str | None, schema: str | None) -> dict[str, str]:
    """The options of ``hybrid``."""
    if bool(brokers) != bool(topic):
        raise click.UsageError("Kafka needs --brokers and --topic.")
    options = {"phases": ", ".join([*(["files"] if files else []), *(["kafka"] if topic else [])])}
    form = next((each for each in _FORMATS if (files or "").rstrip("*").endswith(each)), "parquet")
    if files:
        options |= {"path": files, "fileFormat": form}
    if brokers and topic:
        options |= {"kafka.bootstrap.servers": brokers, "subscribe": topic, "valueFormat": "json"}
    if schema:
        options["schema"] = schema
    elif not files or form in ("json", "csv"):
        raise click.UsageError("JSON and CSV do not say their columns. Add --schema 'id BIGINT, at TIMESTAMP'.")
    return options


@click.command()
@_file
@click.option("--target", is_flag=True, help="Also delete the Delta tables.")
@click.option("--yes", is_flag=True, help="Delete. Without it the command only says what it would delete.")
@click.option("--force", is_flag=True, help="Even if a driver seems to run on the checkpoint.")
@_json
def reset(file: str, target: bool, yes: bool, force: bool, as_json: bool) -> None:
    """Delete the checkpoint of the pipeline in FILE, so that the next run begins anew.

    Without --yes it only says what it would delete. FILE is pipeline.yaml by default.
    """
    from backlog_spark.pipelines.parsing import load
    from backlog_spark.pipelines.resetting import removals, remove

    found = removals(load(file), target=target, force=force)
    if yes:
        remove(found)
    if as_json:
        tell_json({"deleted": yes, "found": [dataclasses.asdict(each) for each in found]})
        return
    for each in found:
        told = "deleted" if yes else "would delete"
        tell(f"{told} {each.what} {each.location}: {each.files:,} files, {each.size:,} bytes")
    if not found:
        tell("There is nothing to delete.")
    elif not yes:
        say("Nothing was deleted. Add --yes to delete it.")


def _comparison(results: Sequence[Verification]) -> Table:
    kinds = ("missing", "extra", "different", "doubled")
    rows = [
        (
            ", ".join(result.tables),
            result.target,
            f"{result.source_rows:,}",
            f"{result.target_rows:,}",
            ", ".join(f"{getattr(result, kind):,} {kind}" for kind in kinds if getattr(result, kind)) or "equal",
            f"version {result.version}, {result.position}",
            in_words(result.seconds),
        )
        for result in results
    ]
    return table(("source", "target", "source rows", "target rows", "result", "compared at", "took"), rows)


@click.command()
@_file
@click.option("--repair", is_flag=True, help="Give keys that differ the source's rows. The query must be stopped.")
@click.option("--max-rows-per-second", type=click.IntRange(1), help="Limits the load on the source.")
@_json
def verify(file: str, repair: bool, max_rows_per_second: int | None, as_json: bool) -> None:
    """Compare the tables that the pipeline in FILE keeps with their source.

    Exit status 1 if they differ. FILE is pipeline.yaml by default.
    """
    from backlog_spark.pipelines.parsing import load
    from backlog_spark.pipelines.running import session_for
    from backlog_spark.pipelines.verifying import verified

    pipeline = load(file)
    results = verified(pipeline, session_for(pipeline), repair=repair, max_rows_per_second=max_rows_per_second)
    if as_json:
        tell_json([_verification(name, result) for name, result in results])
    else:
        show(_comparison([result for _, result in results]))
        for _, result in results:
            if result.details:
                tell("\n".join([f"{', '.join(result.tables)}:", *result.details]))
    if any(not result.is_equal and not result.repaired for _, result in results):
        sys.exit(1)
