"""Bytes that travel as text come back as they were."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.state.texts import as_text, from_text, packed_hashes, unpacked_hashes


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    text = as_text(data)
    assert text.isascii()
    assert from_text(text).tobytes() == data


@pytest.mark.parametrize("size", [0, 1, 55, 56, 57, 111, 112, 1 << 20])
def test_size(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    text = as_text(data)
    assert from_text(text).tobytes() == data
    # Up to a block of 56 bytes is filled up, and the last character says how far.
    assert len(text) == -(-size // 56) * 64 + 1
    # As Spark's state server has it: a byte a character.
    assert len(pickle.dumps(text, 2)) < len(text) + 20


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_hashes(hashes: list[int]) -> None:
    assert unpacked_hashes(packed_hashes(np.array(hashes, dtype=np.int64))).tolist() == hashes
