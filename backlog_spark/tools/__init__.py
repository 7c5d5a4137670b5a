"""The ``backlog-spark`` command: tools that read a query's checkpoint without Spark, also from another machine."""

from __future__ import annotations

import sys

from backlog_spark.common.requirements import required
from backlog_spark.errors import BacklogError

__all__ = ["main"]


def main() -> None:
    """Run the command. It exits with 2 if its packages are missing."""
    try:
        with required("The command backlog-spark"):
            from backlog_spark.tools.command import main as run
    except BacklogError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    run()
