"""State that is handed over, packed for the stream vehicle."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType

from backlog_spark.state.keys import groups_of
from backlog_spark.state.seeds import SEED_EMIT, SEED_SILENT, PackState
from backlog_spark.state.tables import EMIT, StateSchema, from_bytes

STATE = StateSchema((LongType(),), (LongType(),))
GROUPS, ROWS = 8, 1_000


@pytest.mark.parametrize("emit", [False, True, None])
def test_rows_come_by_key_group_and_by_whether_they_are_put_out(emit: bool | None) -> None:
    chance = np.random.default_rng(5)
    columns = [pa.array(chance.integers(-(2**63), 2**63 - 1, ROWS)), pa.array(range(ROWS)), pa.array(range(ROWS))]
    said = chance.random(ROWS) < 0.3
    given = pa.RecordBatch.from_arrays(columns, schema=STATE.arrow())
    batch = given if emit is not None else given.append_column(EMIT, pa.array(said))
    found = {}
    for packed in PackState(STATE, GROUPS, emit)(iter([batch.slice(0, 600), batch.slice(600)])):
        for group, origin, slots, data in zip(*packed.columns, strict=True):
            rows = from_bytes(data.as_py(), STATE.arrow())
            assert slots.as_py() == 1
            assert (groups_of(rows.column(0).to_numpy(), GROUPS) == group.as_py()).all()
            for key in rows.column(1).to_pylist():
                assert key not in found
                assert rows.slice(rows.column(1).to_pylist().index(key), 1).to_pylist()[0]["s0"] == key
                found[key] = origin.as_py() == SEED_EMIT
                assert origin.as_py() in (SEED_EMIT, SEED_SILENT)
    assert found == dict(enumerate(said.tolist() if emit is None else [emit] * ROWS))
