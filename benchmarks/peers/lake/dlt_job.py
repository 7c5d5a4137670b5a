"""dlt from PyPI: its source of SQL tables, by ConnectorX and Arrow, into a Delta table on its file system destination.

The first load is appended, and later ones are merged: rows whose ``updated_at`` is newer. Deleted rows are not seen.
Runs in an environment of its own.
"""

from __future__ import annotations

import dlt
from dlt.destinations import filesystem
from dlt.sources.sql_database import sql_table

from benchmarks.peers.lake.job import Job

_PAUSE_S = 1.0  # as the interval of ours


def main() -> None:
    job = Job.read()
    over = job.until_end()
    lake = filesystem(f"file://{job.folder}/lake")
    pipeline = dlt.pipeline("lake", pipelines_dir=f"{job.folder}/dlt", destination=lake, dataset_name="shop")
    address = f"{job.user}@{job.host}:{job.port}/shop"

    def load(disposition: object) -> None:
        orders = sql_table(
            f"mysql+pymysql://{address}",
            table="orders",
            schema="shop",
            backend="connectorx",
            backend_kwargs={"conn": f"mysql://{address}", "return_type": "arrow_stream"},
            chunk_size=100_000,
            reflection_level="full_with_precision",
            incremental=dlt.sources.incremental("updated_at"),
            primary_key="id",
        )
        pipeline.run(orders, table_format="delta", write_disposition=disposition)

    job.ready()
    load("append")
    job.copied()
    while not over.wait(_PAUSE_S):
        load({"disposition": "merge", "strategy": "upsert"})


if __name__ == "__main__":
    main()
