"""Catalogs of servers: both writers, a foreign commit, a rollback and expired snapshots."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DecimalType, StringType, StructType, TimestampType

from backlog_spark.errors import BacklogError
from backlog_spark.sinks import BatchInfo, IcebergAppend, IcebergUpsert, SinkContext
from backlog_spark.sinks.iceberg import commits
from backlog_spark.sinks.iceberg.catalogs import CatalogAccess
from tests.sinks.iceberg.places import TABLE, rows_of
from tests.sinks.iceberg.rest_server import RestCatalogServer
from tests.sinks.metastore import HiveMetastoreServer

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

SCHEMA = StructType().add("id", DecimalType(20, 0)).add("name", StringType()).add("at", TimestampType())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [RestCatalogServer, HiveMetastoreServer])
def test_a_catalog_of_a_server(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, kind: type[RestCatalogServer | HiveMetastoreServer]
) -> None:
    plain = commits.commit_batch

    def newest() -> Table:
        found = CatalogAccess(server.catalog, TABLE).load()
        assert found is not None
        return found

    def after_another(*arguments: Any) -> None:
        monkeypatch.setattr(commits, "commit_batch", plain)
        newest().append(pa.table({"id": pa.array([50], pa.decimal128(20, 0)), "name": ["foreign"]}))
        plain(*arguments)

    with kind() as server:
        expected: dict[int, str] = {}
        upserts: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": ()}
        for batch in range(4):
            rows = {2**64 - 1: f"{batch}", batch: "new"}
            sink = IcebergUpsert(
                TABLE, ["id"], {**server.catalog, "token": "hidden"}, small_batch_rows=100 * (batch % 2),
                partition_by=["name"], **upserts,
            )  # fmt: skip
            sink.open(SinkContext(spark, "app", SCHEMA, False, *((batch - 1, batch - 1) if batch else ())))
            if batch:
                monkeypatch.setattr(commits, "commit_batch", after_another)
            made = spark.createDataFrame([(Decimal(key), name, None) for key, name in rows.items()], SCHEMA)
            for _ in range(2):
                sink.write(made, BatchInfo(batch, False))
            expected |= rows
        foreign = [(50, "foreign", None)] * 3
        assert rows_of(newest()) == Counter([*((key, name, None) for key, name in expected.items()), *foreign])
        assert "hidden" not in str(sink.described())

        first = newest().snapshots()[0].snapshot_id
        newest().manage_snapshots().set_current_snapshot(first).commit()
        with pytest.raises(BacklogError, match="was rolled back"):
            sink.write(made, BatchInfo(4, False))

        log = IcebergAppend("shop.log", server.catalog, expire_snapshots="1 ms", compact=True)
        log.open(SinkContext(spark, "app", SCHEMA, False))
        for batch in range(18):
            log.write(made, BatchInfo(batch, False))
        found = CatalogAccess(server.catalog, "shop.log").load()
        assert found is not None
        assert found.scan().to_arrow().num_rows == 36
        assert len(found.snapshots()) < 17
