"""Records of random Avro schemas against Spark's own ``from_avro``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.decode import decoder, parse, schemaOf

from .avro_cases import Case, records, written
from .plain import plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMAS, VALUES = 60, 5


def cases() -> list[tuple[Case, list[bytes]]]:
    """Schemas with records, the same in every run; the last ones are cut off."""
    found: list[tuple[Case, list[bytes]]] = []

    @settings(max_examples=SCHEMAS, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(
        records.filter(lambda case: '"time-' not in json.dumps(case.schema)).flatmap(
            lambda case: st.tuples(st.just(case), st.lists(case.values, min_size=VALUES, max_size=VALUES))
        )
    )
    def collect(pair: tuple[Case, list[Any]]) -> None:
        case, values = pair
        binary = written(case.schema, values)
        cut = [record[:-1] for record in binary if record]
        found.append((case, [*binary, *cut, *[b""] * (VALUES - len(cut))]))

    collect()
    return found


def ordered(value: Any, kind: pa.DataType) -> Any:
    """The entries of maps by their keys: from_avro gives them in the order of a hash table."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return sorted(((key, ordered(item, kind.item_type)) for key, item in value), key=lambda entry: entry[0])
    if pa.types.is_list(kind):
        return [ordered(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return tuple(ordered(value[i], kind.field(i).type) for i in range(kind.num_fields))
    return value


@pytest.mark.slow
def test_as_from_avro(spark: SparkSession) -> None:
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.pandas.types import from_arrow_schema

    some = cases()
    assert len(some) >= SCHEMAS // 2
    data = [(i, *(bytearray(binary[i]) for _, binary in some)) for i in range(2 * VALUES)]
    frame = spark.createDataFrame(data, "i int, " + ", ".join(f"v{n} binary" for n in range(len(some))))
    made = [
        from_avro(F.col(f"v{n}"), json.dumps(case.schema), {"mode": "PERMISSIVE"}).alias(f"v{n}")
        for n, (case, _) in enumerate(some)
    ]
    result = frame.select("i", *made).orderBy("i")
    table = result.toArrow()
    malformed = 0
    for n, (case, binary) in enumerate(some):
        declared = schemaOf(case.schema)
        assert from_arrow_schema(declared).simpleString() == result.schema[f"v{n}"].dataType.simpleString(), case
        options = parse({"valueFormat": "avro", "avroSchema": json.dumps(case.schema)})
        columns = decoder(options, declared).decode(pa.array(binary, pa.binary())).columns
        ours = list(zip(*(plain(column) for column in columns), strict=True))
        nothing = (None,) * len(declared)
        for record, row, expected in zip(binary, ours, plain(table[f"v{n}"]), strict=True):
            malformed += expected in (None, nothing)
            kind = pa.struct(list(declared))
            assert ordered(row, kind) == ordered(nothing if expected is None else expected, kind), (case, record)
    assert 0 < malformed < 2 * VALUES * len(some)
