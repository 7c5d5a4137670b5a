"""The table of a source's options, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from backlog_spark.spi.options import Option

__all__ = ["option_table"]


def option_table(options: Iterable[Option], **others: str) -> str:
    """The table. ``others``: attributes with the names in other systems, and what these are called."""
    heads = ["option", "type", "default", "bounds", "meaning", *(f"in {other}" for other in others.values())]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for o in options:
        names = [f"`{name}`" if name else "" for name in (getattr(o, other) for other in others)]
        cells = [f"`{o.name}`", o.type, o.shown, o.bounds or ", ".join(o.choices), o.doc, *names]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
