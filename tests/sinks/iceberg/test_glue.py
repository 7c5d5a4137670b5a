"""Glue as the catalog and S3 as the storage, both in moto: written by the driver and by Spark's tasks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from backlog_spark.sinks import BatchInfo, IcebergUpsert, SinkContext
from backlog_spark.sinks.iceberg.catalogs import CatalogAccess
from tests.sinks.iceberg.places import rows_of
from tests.sinks.s3 import lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType().add("id", LongType()).add("name", StringType())


@pytest.mark.slow
def test_upserts_by_both_writers(spark: SparkSession) -> None:
    with lake() as options:
        access = {"access-key-id": options["AWS_ACCESS_KEY_ID"], "secret-access-key": options["AWS_SECRET_ACCESS_KEY"]}
        access |= {"endpoint": options["AWS_ENDPOINT_URL"], "region": options["AWS_REGION"]}
        catalog = {"type": "glue", "warehouse": "s3://lake/tables"}
        catalog |= {f"{service}.{name}": text for service in ("glue", "s3") for name, text in access.items()}
        expected: dict[int, str] = {}
        plain: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": ()}
        for batch in range(4):
            sink = IcebergUpsert("shop.orders", ["id"], catalog, small_batch_rows=100 * (batch % 2), **plain)
            at = (batch - 1, batch - 1) if batch else (None, None)
            sink.open(SinkContext(spark, "app", SCHEMA, False, *at))
            rows = {batch: f"{batch}", 0: f"{batch}", 10 + batch: "new"}
            sink.write(spark.createDataFrame(list(rows.items()), SCHEMA), BatchInfo(batch, False))
            assert sink.written is not None
            assert sink.written.writer == ("direct" if batch % 2 else "files")
            expected |= rows
        table = CatalogAccess(catalog, "shop.orders").load()
        assert table is not None
        assert table.location().startswith("s3://lake/tables/")
        assert rows_of(table) == Counter(expected.items())
        assert sink.described()["place"] == "glue:/s3://lake/tables/shop.orders"
