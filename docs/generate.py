"""Writes the reference pages from the code's own tables: ``python -m docs.generate``."""

from __future__ import annotations

from pathlib import Path

from backlog_spark.common.settings import settings_table
from backlog_spark.spark.internals import SEEN, SWITCH
from backlog_spark.spark.internals import table as internals_table

from . import errors, hybrid, mysql_cdc

HERE = Path(__file__).parent

_INTERNALS = f"""# Spark's internals

Some of what backlog_spark does is not in Spark's public API. The table lists each part: the module of \
`backlog_spark/spark/` that does it, the classes and members of Spark {SEEN} that the module reaches for, and what \
happens where another version does not have them.

When a session is registered, a *probe* asks Java's reflection for these members. It starts no job. A part that is \
missing is logged once, and its fallback is used: slower, with the same results. A part without a fallback is \
required: a query that needs it is refused before it reads a row. The error names the version of Spark.

`{SWITCH}=off` in the driver's environment forces all fallbacks. `make test-plain` runs the integration and kill \
tests with it; `make test` tests the fallbacks, and CI runs a sample of `make test-plain`.

* One case is refused without "a run that ends between two batches": streaming DataFrames beside a source, sorted in \
backlog. Rows of the DataFrames that come after the backlog must not be sorted with it.
* Without it, a query that somebody stops by Spark's own handle may start again. Use the query's own `stop()`.
* Without it, an `availableNow` query over a source that cannot say what is available, such as `rate`, ends only when \
the source has no new rows.

"""


def pages() -> dict[str, str]:
    """File name -> text."""
    return {
        "settings.md": "# Settings\n\nSet these in spark-defaults or with `--conf`.\n\n" + settings_table(),
        "internals.md": _INTERNALS + internals_table(),
        "errors.md": errors.page(),
        "hybrid.md": hybrid.page(),
        "mysql_cdc.md": mysql_cdc.page(),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text.rstrip("\n") + "\n")
