"""By hand: Spark's JDBC reader into a new Delta table, then, again and again, MERGE of the rows that are newer.

The upper end is read first: a row with an older time is then seen by each connection. Deleted rows are not seen.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.by_hand import merge
from benchmarks.peers.lake.job import Job
from benchmarks.snapshot import STREAMING, jdbc_frame
from servers.jars import jdbc_jar
from servers.session import local_session

_NEWEST = "(SELECT CAST(MAX(updated_at) AS CHAR) AS newest FROM shop.orders) AS t"
_CHANGED = "(SELECT * FROM shop.orders WHERE updated_at > '{}' AND updated_at <= '{}') AS t"
_PAUSE_S = 1.0  # as the interval of ours


def main() -> None:
    job = Job.read()
    over = job.until_end()
    conf = {
        "spark.jars": str(jdbc_jar()),
        # Spark's JDBC reader takes an ENUM for a CHAR of its longest label, and would pad the shorter ones.
        "spark.sql.readSideCharPadding": "false",
    }
    spark = local_session("lake benchmark", conf=conf)
    job.ready()

    def newest() -> str:
        row = jdbc_frame(spark, job, job.rows, STREAMING, table=_NEWEST, partitions=0).first()
        assert row is not None
        return str(row["newest"])

    seen = newest()
    jdbc_frame(spark, job, job.rows, STREAMING).write.format("delta").save(job.target)
    job.copied()
    while not over.wait(_PAUSE_S):
        now = newest()
        if now > seen:
            changed = _CHANGED.format(seen, now)
            merge(jdbc_frame(spark, job, job.rows, STREAMING, table=changed, partitions=0), Path(job.target), "id")
            seen = now
    spark.stop()


if __name__ == "__main__":
    main()
