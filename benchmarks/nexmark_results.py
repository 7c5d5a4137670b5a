"""Results of Nexmark as rows of text, which compare between Spark and Flink."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from backlog_spark.model.changes import CHANGE_TYPE, INSERT, METADATA, POSTIMAGE
from benchmarks.nexmark_jobs import Query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["differences", "final_of_batches", "final_of_flink", "texts"]

_SHOWN = 4
_WEIGHT = "_weight"


def texts(frame: DataFrame, *kept: str) -> DataFrame:
    """All columns as text, named by their place, with NULL as ``\\N`` and times as milliseconds."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import TimestampType

    found = []
    for number, field in enumerate(f for f in frame.schema if f.name not in kept):
        column = F.col(f"`{field.name}`")
        column = F.unix_millis(column) if isinstance(field.dataType, TimestampType) else column
        found.append(F.coalesce(column.cast("string"), F.lit("\\N")).alias(f"c{number}"))
    return frame.select(*found, *kept)


def final_of_batches(spark: SparkSession, folder: Path, query: Query, like: DataFrame) -> DataFrame:
    """What is left of a query's batches: rows that come once, that replace others, or a change stream."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    frame = spark.read.option("basePath", str(folder)).parquet(str(folder))
    changes = CHANGE_TYPE in frame.columns
    kept = ("batch", CHANGE_TYPE) if changes else ("batch",)
    found = texts(frame.drop(*(name for name in METADATA if name != CHANGE_TYPE)), *kept)
    if changes:
        sign = F.when(F.col(CHANGE_TYPE).isin(INSERT, POSTIMAGE), 1).otherwise(-1)
        return found.withColumn(_WEIGHT, sign).drop(*kept)
    if query.keys:
        newest = Window.partitionBy(*like.columns[: query.keys]).orderBy(F.desc("batch"))
        found = found.withColumn("n", F.row_number().over(newest)).where("n = 1").drop("n")
    return found.drop(*kept)


def final_of_flink(spark: SparkSession, folder: Path, like: DataFrame) -> DataFrame:
    """What is left of the changes that Flink wrote."""
    from pyspark.sql import functions as F

    fields = F.split(F.col("value"), "\t")
    columns = [fields[number + 1].alias(name) for number, name in enumerate(like.columns)]
    return spark.read.text(str(folder)).select(*columns, F.when(fields[0] == "+", 1).otherwise(-1).alias(_WEIGHT))


def differences(found: DataFrame, expected: DataFrame) -> list[str]:
    """A few rows that one result has more often than the other. No line if they are equal as multisets."""
    from pyspark.sql import functions as F

    if _WEIGHT not in found.columns:
        found = found.withColumn(_WEIGHT, F.lit(1))
    columns = expected.columns
    both = found.select(*columns, _WEIGHT).union(expected.select(*columns, F.lit(-1).alias(_WEIGHT)))
    apart = both.groupBy(*columns).agg(F.sum(_WEIGHT).alias("more")).where("more <> 0")
    total = apart.count()
    rows = apart.orderBy(*columns).take(_SHOWN) if total else []
    lines = [f"{row['more']:+} of ({', '.join(str(value)[:40] for value in row[:-1])})" for row in rows]
    return [f"{total:,} different rows", *lines] if total else []
