"""What the end of an ORC file tells of its calendar, which pyarrow does not (pure).

Source: orc_proto.proto, and ReaderImpl.writerUsedProlepticGregorian.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pyarrow as pa

from backlog_spark.common.varints import varint

__all__ = ["is_proleptic"]

_CALENDAR = 11  # of Footer
_PROLEPTIC_GREGORIAN = 2


def is_proleptic(footer: bytes, compression: str) -> bool | None:
    """Whether dates are in the calendar that goes on before 1582; None if the footer cannot be unpacked.

    A file that does not say it is taken for one of the hybrid calendar, as by ORC's Java reader.

    Parameters
    ----------
    footer : bytes
        As in the file.
    compression : str
        As `pyarrow.orc.ORCFile` names it.
    """
    plain = footer if compression == "UNCOMPRESSED" else _unpacked(footer, compression)
    if plain is None:
        return None
    return (_CALENDAR, _PROLEPTIC_GREGORIAN) in _numbers(plain)


def _unpacked(data: bytes, compression: str) -> bytes | None:
    """Chunks, each behind three bytes with its length and whether it is as it was."""
    made, at = [], 0
    while at < len(data):
        header = int.from_bytes(data[at : at + 3], "little")
        at += 3
        chunk = data[at : at + (header >> 1)]
        at += len(chunk)
        plain = chunk if header & 1 else _inflated(chunk, compression)
        if plain is None:
            return None
        made.append(plain)
    return b"".join(made)


def _inflated(chunk: bytes, compression: str) -> bytes | None:
    if compression == "ZLIB":
        return zlib.decompress(chunk, -zlib.MAX_WBITS)
    if compression == "ZSTD":
        found: bytes = pa.CompressedInputStream(pa.BufferReader(chunk), "zstd").read()
        return found
    if compression == "SNAPPY":
        size, _ = varint(chunk, 0)
        plain: bytes = pa.decompress(chunk, size, "snappy", asbytes=True)
        return plain
    return None  # LZ4 and LZO do not say how much they hold


def _numbers(message: bytes) -> Iterator[tuple[int, int]]:
    """The fields of a message that are integers."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        if key & 7 == 0:
            value, at = varint(message, at)
            yield key >> 3, value
        elif key & 7 == 2:
            size, at = varint(message, at)
            at += size
        else:
            at += 8 if key & 7 == 1 else 4
