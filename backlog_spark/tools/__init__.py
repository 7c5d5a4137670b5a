"""The ``backlog-spark`` command: tools that read a query's checkpoint without Spark, also from another machine."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command. It exits with 2 if its packages are missing."""
    try:
        from backlog_spark.tools.command import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich", "fsspec"):
            raise
        print(f"error: the package {error.name} is missing. Install 'backlog-spark[cli]'.", file=sys.stderr)
        sys.exit(2)
    run()
