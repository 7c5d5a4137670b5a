"""Writes the reference pages from the code's own tables: ``python -m docs.generate``."""

from __future__ import annotations

from pathlib import Path

from backlog_spark.settings import settings_table
from connectors.mysql_cdc.options import option_table
from connectors.mysql_cdc.types import type_table

HERE = Path(__file__).parent


def pages() -> dict[str, str]:
    """File name -> text."""
    return {
        "settings.md": "# Settings\n\nGiven in spark-defaults or with `--conf`.\n\n" + settings_table(),
        "mysql_cdc.md": (
            "# mysql_cdc\n\n"
            "Needs MySQL 8.0 with `log_bin`, `binlog_format=ROW`, `binlog_row_image=FULL`, `gtid_mode=ON` and "
            "`binlog_order_commits=ON`, and a user with SELECT on the table, REPLICATION SLAVE and REPLICATION CLIENT. "
            "The table needs one integer primary key column and InnoDB.\n\n"
            "A schema change of the table stops the query with an error; so does anything in the binary log that "
            "would lose changes, such as statement-format changes. `_commit_seq` refers to one server's binary log.\n\n"
            "## Options\n\n" + option_table() + "\n## Types\n\n"
            "Zero, partial and impossible dates become NULL. TIME is text as MySQL prints it.\n\n" + type_table()
        ),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text.rstrip("\n") + "\n")
