"""Writes the reference pages from the code's own tables: ``python -m docs.generate``."""

from __future__ import annotations

from pathlib import Path

from backlog_spark.settings import settings_table
from connectors.mysql_cdc.options import option_table
from connectors.mysql_cdc.types import type_table

HERE = Path(__file__).parent

_MARIADB_REFUSALS = (
    ("`log_bin_compress=ON`", "Compressed rows are not read. Compressed events of other tables do not matter."),
    (
        "`rpl_semi_sync_master_wait_point=AFTER_SYNC`, `binlog_optimize_thread_scheduling=OFF`",
        "A snapshot's place in the log may then be ahead of the rows that it sees. Neither is the default.",
    ),
    ("`binlog_row_image=FULL_NODUP`", "Its images leave columns out."),
    ("System-versioned tables", "The log also has the rows of their history, with the same keys."),
    (
        "`COMPRESSED` columns, `YEAR(2)`, and those that SHOW CREATE TABLE marks `/* old */` or `/* mariadb-5.3 */`",
        "Stored in other forms; `MODIFY` them, or `ALTER TABLE … FORCE`.",
    ),
)


def _mariadb() -> str:
    rows = "".join(f"| {what} | {why} |\n" for what, why in _MARIADB_REFUSALS)
    return (
        "## MariaDB\n\n"
        "Any number of replication domains is read, with or without `gtid_strict_mode`. A checkpoint is about one "
        "server's binary log: it keeps byte positions, and the GTIDs there to see that it is still the same log. "
        "Moving to a replica needs a new checkpoint. JSON is text, as in MariaDB itself. Galera has not been tried.\n\n"
        "| refused | why |\n|---|---|\n" + rows + "\n"
    )


def pages() -> dict[str, str]:
    """File name -> text."""
    return {
        "settings.md": "# Settings\n\nGiven in spark-defaults or with `--conf`.\n\n" + settings_table(),
        "mysql_cdc.md": (
            "# mysql_cdc\n\n"
            "Reads MySQL 8.0 and MariaDB 10.11 and 11.4 (tested on MySQL 8.0.15, MariaDB 10.11.5 and 11.4.5). Both "
            "need `log_bin`, `binlog_format=ROW` (MariaDB's default is MIXED), `binlog_row_image=FULL`, and a user "
            "with SELECT on the table, REPLICATION SLAVE and REPLICATION CLIENT (MariaDB calls the last one BINLOG "
            "MONITOR). MySQL also needs `gtid_mode=ON` and `binlog_order_commits=ON`. The table needs one integer "
            "primary key column and InnoDB.\n\n"
            "A schema change of the table stops the query with an error; so does anything in the binary log that "
            "would lose changes, such as statement-format changes. `_commit_seq` refers to one server's binary log.\n\n"
            + _mariadb()
            + "## Options\n\n"
            + option_table()
            + "\n## Types\n\n"
            "Zero, partial and impossible dates become NULL. TIME is text as MySQL prints it. UUID, INET6 and INET4 "
            "are MariaDB's; JSON is read from MariaDB only, where it is LONGTEXT.\n\n" + type_table()
        ),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text.rstrip("\n") + "\n")
