"""Masks values by a salted hash: ``columns.mask`` (pure).

A mask is SHA-256 of the salt and the value's text. For text columns it equals Debezium's
``column.mask.hash.v2.SHA-256``. It is made from the stream's value, so the snapshot and the log have the same masks.
"""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["masked"]


def masked(array: pa.Array | pa.ChunkedArray, salt: str) -> pa.Array:
    """The values' masks, in hexadecimal digits. NULL stays NULL."""
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if pa.types.is_floating(array.type):
        array = pc.add(array, pa.scalar(0.0, array.type))  # a SELECT loses the sign of zero
    if not pa.types.is_binary(array.type):
        array = pc.cast(array, pa.string()).cast(pa.binary())
    found = array.dictionary_encode()
    salted = hashlib.sha256(salt.encode())
    masks = []
    for value in found.dictionary.to_pylist():
        each = salted.copy()
        each.update(value)
        masks.append(each.hexdigest())
    return pa.array(masks, pa.string()).take(found.indices)
