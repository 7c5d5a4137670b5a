"""Compares two sets of rows by key, with 128-bit digests in one shuffle; public API of Spark alone.

NULL differs from every value, and text is compared by its bytes. -0.0 equals 0.0, as everywhere in Spark: a server's
SELECT may lose the sign that its log has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from backlog_spark.common.sql_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

__all__ = ["DIFFERENT", "DOUBLED", "EXTRA", "MISSING", "PART", "SAME", "compared", "differing_columns", "is_same"]

SAME: Final = "same"
MISSING: Final = "missing"
EXTRA: Final = "extra"
DIFFERENT: Final = "different"
DOUBLED: Final = "doubled"
PART: Final = "__backlog_spark_part"
"""Column of the source's rows: the part that a row was read in."""

_DIGESTS: Final = ("a", "b")


def _digests(fields: Sequence[StructField]) -> list[Column]:
    """Two hashes of a row's values. A hash skips NULL, so each value comes with a flag."""
    values: list[Column] = []
    for field in fields:
        column = F.col(quoted(field.name))
        values += [column.isNull(), column]
    return [F.xxhash64(F.lit(seed), *values).alias(name) for seed, name in enumerate(_DIGESTS)]


def compared(source: DataFrame, target: DataFrame, keys: Sequence[str], values: Sequence[StructField]) -> DataFrame:
    """How the rows of each key compare.

    Parameters
    ----------
    source : DataFrame
        Has the keys, the values and `PART`.
    target : DataFrame
        Has the keys and the values, with the same types.
    keys : sequence of str
        NULL is a value like any other. Not of floating point.
    values : sequence of StructField
        The other columns to compare.

    Returns
    -------
    DataFrame
        ``kind, key struct, part int, source bigint, target bigint``: one row for each key that differs, with how often
        either side has it; and rows of kind `SAME` without a key, which count all the others. `DOUBLED`: a side has
        the key more than once. ``part`` is NULL where the source does not have the key.
    """
    # In a struct: a table may have columns with any name.
    key = F.struct(*(F.col(quoted(name)).alias(name) for name in keys)).alias("key")
    sides = [
        rows.select(key, *_digests(values), part.alias("part"), F.lit(side).alias("side"))
        for rows, part, side in ((source, F.col(PART), 1), (target, F.lit(None).cast("int"), 0))
    ]
    a, b = (F.bit_xor(name) for name in _DIGESTS)
    by_key = sides[0].unionAll(sides[1]).groupBy("key").agg(
        F.sum("side").alias("source"),
        F.sum(F.lit(1) - F.col("side")).alias("target"),
        ((a == 0) & (b == 0)).alias("equal"),
        F.max("part").alias("part"),
    )  # fmt: skip
    kind = (
        F.when((F.col("source") > 1) | (F.col("target") > 1), DOUBLED)
        .when(F.col("source") == 0, EXTRA)
        .when(F.col("target") == 0, MISSING)
        .when(F.col("equal"), SAME)
        .otherwise(DIFFERENT)
    )
    # Rows that are the same become one row before they are shuffled again.
    differs = kind != SAME
    compared = by_key.select(
        kind.alias("kind"),
        F.when(differs, F.col("key")).alias("key"),
        F.when(differs, F.col("part")).alias("part"),
        "source",
        "target",
    )
    return compared.groupBy("kind", "key", "part").agg(F.sum("source").alias("source"), F.sum("target").alias("target"))


def is_same(keys: DataFrame, rows: DataFrame, names: Sequence[str]) -> Column:
    """Condition that joins `compared`'s struct ``key`` with rows, NULL with NULL."""
    found = F.lit(True)
    for name in names:
        found = found & keys["key"].getField(name).eqNullSafe(rows[quoted(name)])
    return found


def differing_columns(values: Sequence[StructField], source: str, target: str) -> Column:
    """Names of the values that differ between two struct columns."""
    found = []
    for field in values:
        one, other = (F.col(side).getField(field.name) for side in (source, target))
        found.append(F.when(~one.eqNullSafe(other), F.lit(field.name)))
    return F.array_compact(F.array(*found)) if found else F.array().cast("array<string>")
