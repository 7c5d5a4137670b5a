"""The commands of ``backlog-spark`` for a pipeline's file."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from backlog_spark.common.printable import printable
from backlog_spark.errors import BacklogError
from backlog_spark.tools.output import say, show, table, tell, tell_json

if TYPE_CHECKING:
    from rich.table import Table

    from backlog_spark.spi.examination import Finding, FoundTable
    from backlog_spark.verification.result import Verification

__all__ = ["add_pipeline_commands"]

_STOPPED = 130


def add_pipeline_commands(group: click.Group) -> None:
    """Add the commands to the group."""
    for command in (run, check, init, reset, verify):
        group.add_command(command)


_file = click.argument("file", default="pipeline.yaml")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


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

    It uses the session of spark-submit, or starts one with the pipeline's settings. Ctrl-C or SIGTERM stops it after
    the running batch, a second one at once. The next run continues from the checkpoint.
    """
    from backlog_spark.pipelines.parsing import load
    from backlog_spark.pipelines.running import StoppedAtOnce, ended, session_for, sigterm_as_ctrl_c, start, wait

    pipeline = load(file)
    with sigterm_as_ctrl_c():
        spark = session_for(pipeline)
        queries = start(pipeline, spark)
    for query in queries:
        say(f"Query {query.name} runs; its checkpoint is {query.checkpointLocation}.")
    try:
        finished = wait(queries)
    except StoppedAtOnce:
        sys.exit(_STOPPED)
    if as_json:
        tell_json(ended(queries))
    elif finished:
        say("All sources have come to their end.")


@click.command()
@_file
@_json
def check(file: str, as_json: bool) -> None:
    """Say what would fail if the pipeline in FILE ran. Exit status 1 if anything would.

    It checks the file, packages and Java, connects to the servers, and looks at their settings, the user's rights, the
    tables, the retention of the binary log, and local targets, where it writes and removes a file. It starts no
    Spark and reads no rows.
    """
    from backlog_spark.pipelines.preflight import preflight

    report = preflight(file)
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
@click.option("--host", required=True, help="The MySQL or MariaDB server.")
@click.option("--port", default=3306, show_default=True, help="Its port.")
@click.option("--user", required=True, help="Needs SELECT, REPLICATION SLAVE and REPLICATION CLIENT.")
@click.option("--password-env", default="", help="Variable of the environment with the password.")
@click.option("--tables", "tables", required=True, multiple=True, help="Such as shop.*; may be repeated.")
@click.option("--root", default="lake", show_default=True, help="Directory or URL of targets and checkpoint.")
@click.option("--name", default="pipeline", show_default=True, help="Name of the pipeline.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="File to write, instead of stdout.")
@click.option("--force", is_flag=True, help="Replace the file.")
@_json
def init(
    host: str,
    port: int,
    user: str,
    password_env: str,
    tables: tuple[str, ...],
    root: str,
    name: str,
    output: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write a pipeline's file, with comments, from the tables of a database."""
    from backlog_spark.common.table_patterns import table_pattern
    from backlog_spark.pipelines.first_file import first_file
    from backlog_spark.spi.registry import examine

    if password_env and password_env not in os.environ:
        raise BacklogError(f"The environment has no variable {password_env}.", "Set it to the user's password.")
    if output and Path(output).exists() and not force:
        raise BacklogError(f"{output} exists.", "Name another file, or add --force.")
    connection = {"host": host, "port": str(port), "user": user}
    given = {**connection, "password": os.environ.get(password_env, ""), "tablePattern": table_pattern(tables)}
    found = examine("mysql_cdc", {**given, "format": "debezium"})
    assert found is not None
    text = first_file(found, connection, password_env, tables, name=name, root=root.rstrip("/"))
    if output:
        Path(output).write_text(text, encoding="utf-8")
        say(f"{output} is written. Next: backlog-spark check {output}")
    if as_json:
        tell_json({"file": output, "text": text, "tables": [dataclasses.asdict(table) for table in found.tables]})
    elif not output:
        click.echo(text, nl=False)  # its names are harmless already


@click.command()
@_file
@click.option("--target", is_flag=True, help="Also delete the Delta tables.")
@click.option("--yes", is_flag=True, help="Delete. Without it the command only says what it would delete.")
@click.option("--force", is_flag=True, help="Even if a driver seems to run on the checkpoint.")
@_json
def reset(file: str, target: bool, yes: bool, force: bool, as_json: bool) -> None:
    """Delete the checkpoint of the pipeline in FILE, so that the next run begins anew. A dry run without --yes."""
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


@click.command()
@_file
@click.option("--repair", is_flag=True, help="Give keys that differ the source's rows. The query must be stopped.")
@click.option("--max-rows-per-second", type=click.IntRange(1), help="Limits the load on the source.")
@_json
def verify(file: str, repair: bool, max_rows_per_second: int | None, as_json: bool) -> None:
    """Compare the Delta tables of the pipeline in FILE with their source. Exit status 1 if they differ."""
    from backlog_spark.pipelines.parsing import load
    from backlog_spark.pipelines.running import session_for, verified

    pipeline = load(file)
    results = verified(pipeline, session_for(pipeline), repair=repair, max_rows_per_second=max_rows_per_second)
    if as_json:
        tell_json([_verification(name, result) for name, result in results])
    else:
        for _, result in results:
            tell(str(result))
    if any(not result.is_equal and not result.repaired for _, result in results):
        sys.exit(1)
