"""Which rows of a file are kept, as a small text of bytes (pure)."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

__all__ = ["kept_rows", "packed"]


def packed(kept: npt.NDArray[np.bool_]) -> bytes:
    """A mask over all rows of a file, compressed: a few bytes where few rows are deleted."""
    return len(kept).to_bytes(8, "big") + zlib.compress(np.packbits(kept).tobytes())


def kept_rows(data: bytes) -> npt.NDArray[np.bool_]:
    """The mask that `packed` made."""
    bits = np.frombuffer(zlib.decompress(data[8:]), np.uint8)
    return np.unpackbits(bits, count=int.from_bytes(data[:8], "big")).astype(np.bool_)
