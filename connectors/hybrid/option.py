"""An option as documented (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["FILE_SYSTEM", "Option", "option_table"]


@dataclass(frozen=True)
class Option:
    """One option.

    Parameters
    ----------
    name, type, default, doc, bounds : str
    spark : str
        The equivalent option of Spark.
    secret : bool
        Whether its value is secret. Sessions that know the source hide it too.
    """

    name: str
    type: str
    default: str
    doc: str
    bounds: str = ""
    spark: str = ""
    secret: bool = False


FILE_SYSTEM = Option(
    "fs.*",
    "string",
    "unset",
    "Arguments of the file system, such as `fs.key` and `fs.secret`. If files and `metadataLocation` are in different "
    "file systems, `fs.s3.key` applies to `s3://` only. Names without a scheme apply to the files, or to "
    "`metadataLocation` if the files are local. Never written to logs, offsets or errors.",
    secret=True,
)
"""For every phase that reads files, even if only those of a hand-over."""


def option_table(options: Iterable[Option]) -> str:
    """The table of options for the documentation, in Markdown."""
    lines = ["| option | type | default | bounds | meaning | in Spark |", "|---|---|---|---|---|---|"]
    for o in options:
        spark = f"`{o.spark}`" if o.spark else ""
        lines.append(f"| `{o.name}` | {o.type} | {o.default} | {o.bounds} | {o.doc} | {spark} |")
    return "\n".join(lines) + "\n"
