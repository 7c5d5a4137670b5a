"""Finds the rows whose keys are in another table, in Arrow; NULL is a key like any other (pure)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["positions_of"]


def positions_of(keys: pa.Table, wanted: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """For each key the position of an equal one in ``wanted``, or -1.

    Parameters
    ----------
    keys, wanted : pyarrow.Table
        The same columns with the same types, none of floating point. No two rows of `wanted` are equal.
    """
    codes = np.zeros(keys.num_rows + wanted.num_rows, np.int64)
    for name in keys.column_names:
        both = pa.chunked_array([*keys[name].chunks, *wanted[name].chunks], keys[name].type)
        encoded = both.combine_chunks().dictionary_encode(null_encoding="encode")
        numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        # Numbered again for each column, else the product of their counts would overflow.
        codes = np.unique(codes * (len(encoded.dictionary) + 1) + numbers, return_inverse=True)[1]
    of_keys, of_wanted = codes[: keys.num_rows], codes[keys.num_rows :]
    positions = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
    positions[of_wanted] = np.arange(len(of_wanted))
    return np.asarray(positions[of_keys])
