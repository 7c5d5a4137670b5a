"""The pages that benchmarks write into docs/proof: where and how a run was made, and its tables."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

__all__ = ["facts", "spread_table", "write_page"]

_FOLDER = Path(__file__).parents[1] / "docs" / "proof"


def spread_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown, line by line."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines)]


def facts(command: str, **versions: str) -> list[str]:
    """A table with machine, versions, date and command.

    Parameters
    ----------
    command : str
        It repeats the run.
    **versions : str
        Of servers and peers, by name. Those of Spark and Delta are always shown.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    shown = {"Spark": version("pyspark"), "Delta": version("delta-spark"), **versions}
    return [
        "| | |",
        "|---|---|",
        f"| machine | {len(os.sched_getaffinity(0))} cores, {round(memory / 2**30)} GB of memory |",
        f"| versions | {', '.join(f'{name} {number}' for name, number in shown.items())} |",
        f"| run | {dt.datetime.now(dt.UTC).date()}, `{command}` |",
    ]


def write_page(name: str, title: str, target: str, lines: Iterable[str]) -> None:
    """Write ``docs/proof/{name}.md``.

    Parameters
    ----------
    name, title : str
    target : str
        The command of make that writes it.
    lines : iterable of str
        All below the title.
    """
    head = [f"# {title}", "", f"<!-- Written by `{target}`. Do not edit. -->", ""]
    (_FOLDER / f"{name}.md").write_text("\n".join([*head, *lines]) + "\n")
