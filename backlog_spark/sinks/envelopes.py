"""Turns envelopes of ``mysql_cdc`` with ``format=debezium`` back into a table's columns.

The metadata column ``_columns`` says of each row which columns its table had then, with Spark's types, and how the
envelope has their values. So rows from before and after an ALTER TABLE are read right, also when they are read again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
from pyspark.sql import types as st

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import METADATA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["COLUMNS", "VALUE", "TableColumns", "decoded", "united"]

COLUMNS: Final = "_columns"
VALUE: Final = "value"
# A LONGBLOB has up to 4 GiB, and Jackson's own limit is 20 million characters.
_JSON: Final = {"mode": "FAILFAST", "maxStringLen": str(2**31 - 1)}
_ROW: Final = "__backlog_spark_row"
_BYTE: Final = 8
_LARGEST_BIT: Final = 8  # bytes of a BIT(64)


@dataclass(frozen=True)
class TableColumns:
    """A table's key and columns at one time.

    Parameters
    ----------
    key : tuple of str
        Empty if there is none.
    columns : tuple of (str, str, str)
        Name, Spark's type, and how an envelope has the values.
    """

    key: tuple[str, ...]
    columns: tuple[tuple[str, str, str], ...]

    @classmethod
    def parse(cls, text: str) -> TableColumns:
        """Parse a value of ``_columns``."""
        found = json.loads(text)
        return cls(tuple(found["key"]), tuple((name, kind, how) for name, kind, how in found["columns"]))


def decoded(rows: DataFrame, table: str, columns: TableColumns) -> DataFrame:
    """The columns of one table's envelopes, then `METADATA`. Deletes have the row's before-image.

    Parameters
    ----------
    rows : DataFrame
        Envelopes of rows with these columns.
    table : str
        For messages.

    Raises
    ------
    BacklogError
        A column has the name of a metadata column.
    """
    taken = [name for name, _, _ in columns.columns if name.lower() in METADATA]
    if taken:
        raise BacklogError(
            f"{table} has a column {taken[0]}, which is the name of a metadata column.",
            "Leave it out with columns.exclude, or the table with tables.exclude.",
        )
    image = st.StructType([st.StructField(name, _written(how)) for name, _, how in columns.columns])
    envelope = st.StructType([st.StructField("before", image), st.StructField("after", image)])
    value = F.from_json(F.col(VALUE), envelope, _JSON)
    rows = rows.withColumn(_ROW, F.coalesce(value["after"], value["before"]))
    made = [_value(F.col(_ROW).getField(name), kind, how).alias(name) for name, kind, how in columns.columns]
    return rows.select(*made, *map(quoted, METADATA))


def united(parts: list[DataFrame], newest: TableColumns) -> DataFrame:
    """Rows of several versions of a table. Columns that the newest version still has get its types."""
    kinds = {name: kind for name, kind, _ in newest.columns}
    rows = parts[-1]
    for part in parts[:-1]:
        columns = [(name, F.col(quoted(name))) for name in part.columns]
        cast = [column.cast(kinds[name]).alias(name) if name in kinds else column for name, column in columns]
        rows = rows.unionByName(part.select(*cast), allowMissingColumns=True)
    return rows


def _written(how: str) -> st.DataType:
    """The type as which JSON is parsed. Texts keep all digits of a number."""
    if how != "geometry":
        return st.StringType()
    return st.StructType([st.StructField("wkb", st.StringType()), st.StructField("srid", st.StringType())])


def _value(column: Column, kind: str, how: str) -> Column:
    how, _, digits = how.partition(":")
    if how in ("number", "text"):
        return column if kind == "string" else column.cast(kind)
    if how == "days":
        return F.date_from_unix_date(column.cast("int"))
    if how in ("millis", "micros"):
        unit = "0.001" if how == "millis" else "0.000001"
        return _since_1970(column.cast("bigint"), unit)
    if how == "time":
        return _time(column.cast("bigint"), int(digits))
    if how == "bit":
        return F.when(column == "true", 1).when(column == "false", 0).cast(kind)
    if how == "base64":
        return F.unbase64(column)
    if how == "bits":
        return _number(F.unbase64(column)).cast(kind)
    if how == "geometry":
        wkb, srid = F.unbase64(column["wkb"]), F.coalesce(column["srid"].cast("bigint"), F.lit(0))
        return F.when(column["wkb"].isNotNull(), F.concat(_bytes(srid), wkb))
    raise BacklogError(
        f"{COLUMNS} has values as {how!r}.", "Driver and workers must have one version of backlog_spark."
    )


def _since_1970(count: Column, unit: str) -> Column:
    start = F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'")
    made: Any = start + count * F.expr(f"INTERVAL '{unit}' SECOND")
    return made  # type: ignore[no-any-return]


def _time(micros: Column, digits: int) -> Column:
    """As MySQL prints a TIME."""
    # Doubles are exact here: a TIME has at most 839 hours, 3 * 10^12 microseconds.
    size = F.abs(micros)
    seconds = F.floor(size / 1_000_000)
    parts = [F.floor(seconds / 3600), F.pmod(F.floor(seconds / 60), F.lit(60)), F.pmod(seconds, F.lit(60))]
    text = F.format_string("%02d:%02d:%02d", *(part.cast("int") for part in parts))
    if digits:
        fraction = F.format_string("%06d", F.pmod(size, F.lit(1_000_000)).cast("int"))
        text = F.concat(text, F.lit("."), F.substring(fraction, 1, digits))
    return F.when(micros.isNotNull(), F.concat(F.when(micros < 0, "-").otherwise(""), text))


def _number(little: Column) -> Column:
    """A number from its bytes, the least significant one first."""
    digits = [F.hex(F.substring(little, place, 1)) for place in range(_LARGEST_BIT, 0, -1)]
    return F.conv(F.concat(*digits), 16, 10)


def _bytes(number: Column) -> Column:
    """Four bytes of a number, the least significant one first."""
    parts = [F.lpad(F.hex(F.shiftright(number, _BYTE * place).bitwiseAND(F.lit(255))), 2, "0") for place in range(4)]
    return F.unhex(F.concat(*parts))
