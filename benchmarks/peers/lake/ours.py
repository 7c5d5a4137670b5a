"""Ours: ``mysql_cdc`` into ``DeltaUpsert``, with the whole table as one commit."""

from __future__ import annotations

import time

import backlog_spark as bs
from benchmarks.peers.lake.job import Job
from servers.session import local_session


def main() -> None:
    job = Job.read()
    over = job.until_end()
    spark = local_session("lake benchmark", conf={"spark.backlog.progress": "off"})
    job.ready()
    orders = bs.source(
        "mysql_cdc", name="orders", host=job.host, port=job.port, user=job.user, table="shop.orders",
        **{"ssl.mode": "disabled"},  # like the peers
    )  # fmt: skip
    writer = orders.write("lake").trigger(processing_time="1 second", interval_during_backlog="0")
    writer = writer.option("checkpointLocation", f"{job.folder}/checkpoint")
    query = writer.to(bs.DeltaUpsert(job.target, keys=["id"])).start(spark)
    while query.isProcessingBacklog or query.mode != "stream":
        if not query.isActive:
            raise query.exception() or RuntimeError("the query ended early")
        time.sleep(0.05)
    job.copied()
    while not over.wait(0.5):
        if not query.isActive:
            raise query.exception() or RuntimeError("the query ended early")
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
