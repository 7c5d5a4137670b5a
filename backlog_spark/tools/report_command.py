"""The commands ``backlog-spark report`` and ``backlog-spark ui``."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import click

from backlog_spark.common.printable import printable
from backlog_spark.tools.output import tell, tell_json

__all__ = ["report", "ui"]


@click.command()
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
        tell_json(dataclasses.asdict(read_history(stored.events)))
        return
    made = printable(page(stored), keep="\n\t")
    if output == "-":
        click.echo(made)
    else:
        Path(output).write_text(made, encoding="utf-8")
        tell(f"Wrote {output}")


@click.command()
@click.argument("checkpoints", nargs=-1, required=True)
@click.option("--port", default=0, show_default="a free one", type=click.IntRange(0, 65_535))
@click.option(
    "--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON when the server answers."
)
def ui(checkpoints: tuple[str, ...], port: int, as_json: bool) -> None:
    """Serve the report pages of CHECKPOINTS on 127.0.0.1, and keep them up to date. Ctrl-C ends it."""
    from backlog_spark.tools.ui import LiveServer

    server = LiveServer(checkpoints, port)
    # The socket listens already, so a script may connect as soon as it has read this.
    if as_json:
        found = {"url": server.url, "port": server.server_port, "pid": os.getpid(), "pages": server.pages}
        tell_json(found, indent=None)
    else:
        tell(f"Open {server.url} (Ctrl-C ends this command)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.stopping.set()
        server.server_close()
        sys.exit(130)
