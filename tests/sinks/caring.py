"""A writer with care of its table, in a process of its own: ``python -m tests.sinks.caring PATH FIRST``."""

from __future__ import annotations

import sys
from itertools import count

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake

from backlog_spark.sinks.delta.maintenance.care import Care, TableCare

APP = "query"
ROWS = 3


def rows(batch: int) -> pa.Table:
    return pa.table({"id": pa.array([batch * ROWS + n for n in range(ROWS)], pa.int64())})


def append(table: DeltaTable, data: pa.Table, batch: int) -> None:
    """As the sinks commit: at the next version or not at all."""
    write_deltalake(
        table,
        data,
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction(APP, batch)], max_commit_retries=0),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
    )


def eager() -> TableCare:
    """For which time stands still, so that no care is too much."""
    return TableCare(clock=lambda: 0.0)


def care_of(table: DeltaTable) -> list[Care]:
    """Everything that is due now."""
    care, found = eager(), []
    for _ in range(20):
        if (done := care.after_batch(table)) is not None:
            found.append(done)
    return found


if __name__ == "__main__":
    the_table, care = DeltaTable(sys.argv[1]), eager()
    print("started", flush=True)
    for number in count(int(sys.argv[2])):
        append(the_table, rows(number), number)
        care.after_batch(the_table)
