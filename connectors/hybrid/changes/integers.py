"""Whole numbers of bytes, for whole columns (pure)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..decode.blocks import offsets_of

__all__ = ["integers"]

_LARGEST = pa.scalar(10**38, pa.decimal256(76, 0))


def integers(found: pa.Array, *, little: bool) -> tuple[pa.Array, np.ndarray | None]:
    """Bytes as ``decimal128(38, 0)``: unsigned if the least significant byte is first, else signed.

    Also returns which do not fit, if any.
    """
    offsets = offsets_of(found).astype(np.int64)
    starts, ends = offsets[:-1], offsets[1:]
    sizes = ends - starts
    data = found.buffers()[2]
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    bad = sizes > (15 if little else 16)
    least = np.zeros((len(found), 16), np.uint8)
    if not little:
        there = np.flatnonzero(~bad & (sizes > 0))
        least[there[content[starts[there]] >= 0x80]] = 0xFF
    for k in range(min(16, int(sizes.max(initial=0)))):
        some = np.flatnonzero(~bad & (sizes > k))
        least[some, k] = content[(starts[some] + k) if little else (ends[some] - 1 - k)]
    whole = pa.Array.from_buffers(pa.decimal128(38, 0), len(found), [None, pa.py_buffer(least)])
    bad |= ~pc.less(pc.abs(whole.cast(pa.decimal256(76, 0))), _LARGEST).to_numpy(zero_copy_only=False)
    nulls = found.is_null().to_numpy(zero_copy_only=False)
    bad &= ~nulls
    return pc.if_else(pa.array(~(nulls | bad)), whole, None), bad if bad.any() else None
