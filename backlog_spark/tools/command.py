"""The ``backlog-spark`` command."""

from __future__ import annotations

import json
import sys
from typing import Final

import click
import fsspec  # noqa: F401  (the command needs all of its packages from the beginning)
import rich  # noqa: F401

from backlog_spark.common.failure_causes import first_line, next_step
from backlog_spark.common.requirements import required
from backlog_spark.errors import BacklogError
from backlog_spark.tools.output import say, show, tell_json
from backlog_spark.tools.pipeline_commands import add_pipeline_commands
from backlog_spark.tools.report_command import report, ui

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


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
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


command.add_command(report)
command.add_command(ui)
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
