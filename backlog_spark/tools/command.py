"""The ``backlog-spark`` command."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Final

import click
import fsspec  # noqa: F401  (the command needs all of its packages from the beginning)
import rich  # noqa: F401

from backlog_spark.common.failure_causes import first_line, next_step
from backlog_spark.common.printable import printable
from backlog_spark.common.requirements import required
from backlog_spark.errors import BacklogError
from backlog_spark.tools.output import say, show, tell, tell_json
from backlog_spark.tools.pipeline_commands import add_pipeline_commands

__all__ = ["main", "told"]

# Clients of servers and stores, and Spark. Each has errors of its own for a wrong address, missing rights and so on.
_CLIENTS: Final = frozenset(
    (
        "adlfs", "aiobotocore", "aiohttp", "azure", "botocore", "confluent_kafka", "deltalake", "fsspec", "gcsfs",
        "google", "pymysql", "pyspark", "s3fs",
    )
)  # fmt: skip


def told(error: Exception) -> str | None:
    """What to tell the user; None for an error that nobody expects, whose traceback is needed."""
    if isinstance(error, BacklogError):
        return str(error)
    if type(error).__module__.partition(".")[0] in _CLIENTS or type(error).__name__.startswith("Py4J"):
        return f"{type(error).__name__}: {first_line(error)} {next_step(str(error))}".strip()
    if isinstance(error, OSError):
        names = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        return f"{names}: {error.strerror or error}.".removeprefix(": ")
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return f"A file that was read is damaged: {error}."
    return None


_EXAMPLES: Final = {
    "check": ("backlog-spark check", "backlog-spark check orders.yaml --json"),
    "init": (
        "backlog-spark init --host db --user reader --password-env DB_PASSWORD --tables 'shop.*' -o pipeline.yaml",
        "backlog-spark init --files '/data/*.parquet' --brokers kafka:9092 --topic orders -o pipeline.yaml",
    ),
    "inspect": ("backlog-spark inspect /lake/_checkpoints/orders", "backlog-spark inspect --json s3://lake/c/orders"),
    "report": ("backlog-spark report /lake/_checkpoints/orders -o orders.html",),
    "reset": ("backlog-spark reset", "backlog-spark reset orders.yaml --target --yes"),
    "run": ("backlog-spark run", "DB_PASSWORD=secret backlog-spark run orders.yaml"),
    "sql": (
        "backlog-spark sql clicks.sql --checkpoint /lake/_checkpoints/clicks",
        "backlog-spark sql clicks.sql --explain",
    ),
    "ui": ("backlog-spark ui /lake/_checkpoints/orders /lake/_checkpoints/totals --port 8900",),
    "verify": ("backlog-spark verify", "backlog-spark verify orders.yaml --repair"),
}


class _Group(click.Group):
    """Shows whole summaries, and examples of each command. click cuts a summary that is longer than a line."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        examples = _EXAMPLES.get(name or cmd.name or "", ())
        # \b: click breaks no line of the paragraph.
        cmd.epilog = "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])
        super().add_command(cmd, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.commands[name].get_short_help_str(10_000)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(found)


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Begin with: backlog-spark init --help. Then: backlog-spark check, backlog-spark run.",
)
@click.version_option(package_name="backlog-spark")
def command() -> None:
    """Run pipelines, and look at queries of backlog_spark."""


@command.command()
@click.argument("checkpoint")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the whole offsets.")
def inspect(checkpoint: str, as_json: bool) -> None:
    """Show where the query of CHECKPOINT is: mode, batches, sources, switches, sizes.

    CHECKPOINT is the query's checkpointLocation, on a disk or in a store that fsspec knows.
    """
    from backlog_spark.tools.inspection import inspected, shown
    from backlog_spark.tools.stored_checkpoint import StoredCheckpoint

    found = inspected(StoredCheckpoint(checkpoint))
    if as_json:
        tell_json(found)
    else:
        show(*shown(found))


@command.command()
@click.argument("checkpoint")
@click.option("-o", "--output", default="report.html", show_default=True, help="The file to write; - for stdout.")
@click.option("--json", "as_json", is_flag=True, help="Print the values as one JSON object instead.")
def report(checkpoint: str, output: str, as_json: bool) -> None:
    """Write a page about the query of CHECKPOINT: modes, rates, rows behind, durations, freshness, state, restarts.

    The page is one HTML file. It refers to no other file and contains no script. It is made from the event log, so it
    can be made while the query runs, after it has ended, and on another machine.
    """
    from backlog_spark.tools.history import read_history
    from backlog_spark.tools.report import page
    from backlog_spark.tools.stored_checkpoint import StoredCheckpoint

    stored = StoredCheckpoint(checkpoint)
    if as_json:
        tell_json(dataclasses.asdict(read_history(stored.events, runs=stored.driver_runs)))
        return
    made = printable(page(stored), keep="\n\t")
    if output == "-":
        click.echo(made)
    else:
        Path(output).write_text(made, encoding="utf-8")
        tell(f"Wrote {output}")


@command.command()
@click.argument("checkpoints", nargs=-1, required=True)
@click.option("--port", default=0, show_default="a free one", type=click.IntRange(0, 65_535))
@click.option(
    "--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON when the server answers."
)
def ui(checkpoints: tuple[str, ...], port: int, as_json: bool) -> None:
    """Serve the report pages of CHECKPOINTS on 127.0.0.1, and keep them up to date. Ctrl-C ends it.

    A checkpoint need not exist yet: its page waits for the query's start.
    """
    from backlog_spark.tools.ui import LiveServer

    server = LiveServer(checkpoints, port)
    # The socket listens already, so a script may connect as soon as it has read this.
    if as_json:
        found = {"url": server.url, "port": server.server_port, "pid": os.getpid(), "pages": server.pages}
        tell_json(found, indent=None)
    else:
        tell(f"Open {server.url} (Ctrl-C ends this command)")
    for each in server.watched:
        if not each.read().is_there:
            say(f"There is no checkpoint at {each.location} yet: its page waits for the query's start.")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.stopping.set()
        server.server_close()
        sys.exit(130)


add_pipeline_commands(command)


def main() -> None:
    """Run the command. An error that a user can cause is one line, and the exit status 1."""
    try:
        with required("This command"):
            command(standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            say(error.ctx.get_usage())
        say(f"error: {error.format_message()}")
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except Exception as error:
        text = told(error)
        if text is None:
            raise
        say(f"error: {text}")
        sys.exit(1)
