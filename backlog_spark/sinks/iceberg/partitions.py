"""Partitions of an Iceberg table that a sink creates: columns, and transforms of columns (hidden partitioning)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backlog_spark.common.failure_causes import first_line
from backlog_spark.errors import BacklogError, SettingError

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

__all__ = ["Partition", "check_transform", "parsed", "spec_of"]

# Source: PARTITION_FIELD_ID_START of pyiceberg.
_FIRST_ID: Final = 1000
_CALL: Final = re.compile(r"(\w+)\s*\((.*)\)", re.DOTALL)
# By name: what Iceberg's other engines append to the column's name.
_OF_TIMES: Final = {"years": "year", "months": "month", "days": "day", "hours": "hour"}
_NUMBERED: Final = {"bucket": "bucket", "truncate": "trunc"}
_KNOWN: Final = "a column, years(x), months(x), days(x), hours(x), bucket(16, x) and truncate(4, x)"


class Partition(NamedTuple):
    """A part of the setting ``partition_by``.

    Parameters
    ----------
    text : str
        As it was given.
    column : str
    transform : str
        Its name; "" for the column itself.
    number : int
        Of buckets, or the width; 0 if the transform has none.
    """

    text: str
    column: str
    transform: str = ""
    number: int = 0

    @property
    def name(self) -> str:
        """The partition's name in the table."""
        ending = {**_OF_TIMES, **_NUMBERED}.get(self.transform, "")
        return f"{self.column}_{ending}" if ending else self.column


def parsed(partition_by: Sequence[str]) -> tuple[Partition, ...]:
    """The setting ``partition_by``.

    Raises
    ------
    SettingError
    """
    found = []
    for text in partition_by:
        call = _CALL.fullmatch(text.strip())
        if call is None:
            found.append(Partition(text, text))
            continue
        name, inner = call[1], call[2].strip()
        number, comma, column = inner.partition(",")
        if name in _OF_TIMES and inner:
            found.append(Partition(text, inner.strip("`"), name))
        elif name in _NUMBERED and comma and number.strip().isdecimal() and int(number):
            found.append(Partition(text, column.strip().strip("`"), name, int(number)))
        else:
            raise SettingError("partition_by", text, "is no partition of Iceberg.", f"There are {_KNOWN}.")
    return tuple(found)


def spec_of(schema: Schema, partitions: Sequence[Partition]) -> PartitionSpec:
    """The partitions of a new table.

    Raises
    ------
    SettingError
        A transform does not fit its column, or pyiceberg cannot compute it.
    """
    from pyiceberg.partitioning import PartitionField, PartitionSpec

    fields = []
    for place, each in enumerate(partitions):
        column, transform = schema.find_field(each.column), _transform(each)
        if each.transform and each.name in schema.column_names:
            raise SettingError(
                "partition_by", each.text, f"its partitions are named {each.name}, and so is a column.",
                "Rename the column in the stream, or partition by another one.",
            )  # fmt: skip
        if not transform.can_transform(column.field_type):
            raise SettingError(
                "partition_by", each.text, f"the column {each.column} is {column.field_type}.",
                "Choose another column or transform (docs/iceberg.md).",
            )  # fmt: skip
        try:
            check_transform(transform, column.field_type)
        except BacklogError as error:
            raise SettingError("partition_by", each.text, error.problem, error.hint) from None
        fields.append(PartitionField(column.field_id, _FIRST_ID + place, transform, each.name))
    return PartitionSpec(*fields)


def _transform(partition: Partition) -> Any:
    from pyiceberg import transforms

    made: dict[str, Any] = {
        "": transforms.IdentityTransform,
        "years": transforms.YearTransform,
        "months": transforms.MonthTransform,
        "days": transforms.DayTransform,
        "hours": transforms.HourTransform,
        "bucket": transforms.BucketTransform,
        "truncate": transforms.TruncateTransform,
    }
    return made[partition.transform](*([partition.number] if partition.number else []))


def check_transform(transform: Any, kind: IcebergType) -> None:
    """Refuse a transform that pyiceberg cannot compute: then it cannot write the table.

    Raises
    ------
    BacklogError
    """
    import pyarrow as pa
    from pyiceberg.exceptions import NotInstalledError
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    try:
        empty = schema_to_pyarrow(Schema(NestedField(1, "x", kind))).field(0).type
        transform.pyarrow_transform(kind)(pa.nulls(1, empty))
    except NotInstalledError:
        raise BacklogError(
            f"pyiceberg needs the package pyiceberg-core to compute the partition {transform}.",
            "Install it with pip install 'backlog-spark[iceberg]', also on the executors.",
        ) from None
    except Exception as error:  # of a transform that pyiceberg lacks, or lacks for the type
        raise BacklogError(
            f"pyiceberg cannot compute the partition {transform} of a column of type {kind} ({first_line(error)}).",
            "Choose other partitions.",
        ) from None
