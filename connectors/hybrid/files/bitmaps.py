"""Compressed bitmaps of the rows of a file that are kept (pure)."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

__all__ = ["kept_rows", "packed"]


def packed(kept: npt.NDArray[np.bool_]) -> bytes:
    """Compress a mask over all rows of a file: a few bytes if few rows are deleted."""
    return len(kept).to_bytes(8, "big") + zlib.compress(np.packbits(kept).tobytes())


def kept_rows(data: bytes) -> npt.NDArray[np.bool_]:
    """The inverse of `packed`."""
    bits = np.frombuffer(zlib.decompress(data[8:]), np.uint8)
    return np.unpackbits(bits, count=int.from_bytes(data[:8], "big")).astype(np.bool_)
