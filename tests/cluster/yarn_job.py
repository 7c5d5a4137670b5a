"""A job for YARN, as docs/submit.md has it. Arguments: MySQL's port, and a directory. It ends when `stop` is there."""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import backlog_spark as bs

port, root = sys.argv[1], Path(sys.argv[2])
spark = SparkSession.builder.getOrCreate()
orders = bs.source("mysql_cdc", name="orders", host="127.0.0.1", port=port, user="root", table="yarn.orders")
query = (
    orders.write("orders")
    .trigger(processing_time="1 second")
    .option("checkpointLocation", f"file://{root}/checkpoint")
    .to(bs.DeltaUpsert(f"file://{root}/orders", keys=["id"]))
    .start(spark)
)
while not (root / "stop").exists():
    if not query.isActive:
        raise query.exception() or RuntimeError("the query has ended")
    time.sleep(0.2)
query.processAllAvailable()
query.stop()
