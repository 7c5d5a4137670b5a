"""Inflates compressed parts of the binary log, up to a bound (pure).

MySQL compresses a transaction's events together. They are inflated piece by piece, so memory holds one of them at a
time. MariaDB compresses single events.

Sources: MySQL source documentation, "Transaction_payload_event"; MariaDB source, sql/log_event.cc
(``binlog_buf_uncompress``).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pyarrow as pa

from backlog_spark.errors import BacklogError, SettingError

from ..schema.packed import read_length

__all__ = ["MOST_INFLATED", "inflated", "payload_events"]

MOST_INFLATED = 4 << 30
"""Default of ``maxInflatedBytes``."""
# max_allowed_packet is at most this, so no server writes a larger event.
_MOST_EVENT = 1 << 30
_PIECE = 1 << 16
_EVENT_HEADER = 19
_END, _COMPRESSION, _INFLATED_SIZE = 0, 2, 3  # fields of a payload
_ZSTD, _NONE = 0, 255


def payload_events(body: bytes, most: int) -> Iterator[bytes]:
    """The events of a compressed transaction of MySQL, each with one byte before it, as in a packet.

    Parameters
    ----------
    body : bytes
        The payload event without header and checksum.
    most : int
        Most bytes that it may inflate to.

    Raises
    ------
    SettingError
        It inflates to more.
    BacklogError
        It is damaged, or compressed in a way that is not known.
    """
    compression, size, at = _ZSTD, 0, 0
    while True:
        field, at = read_length(body, at)
        if field == _END:
            break
        length, at = read_length(body, at)
        if field == _COMPRESSION:
            compression, _ = read_length(body, at)
        elif field == _INFLATED_SIZE:
            size, _ = read_length(body, at)
        at += length
    if size > most:
        raise _too_large(size, most)
    if compression not in (_ZSTD, _NONE):
        raise BacklogError(
            f"The binary log has a transaction that is compressed by method {compression}.",
            "Set binlog_transaction_compression=OFF on the server.",
        )
    source = pa.BufferReader(pa.py_buffer(body).slice(at))
    stream = pa.CompressedInputStream(source, "zstd") if compression == _ZSTD else source
    held, at, total = b"", 0, 0
    while True:
        here = len(held) - at
        wanted = int.from_bytes(held[at + 9 : at + 13], "little") if here >= _EVENT_HEADER else _EVENT_HEADER
        if wanted < _EVENT_HEADER or wanted > _MOST_EVENT:
            raise _damaged()
        if here >= wanted and here >= _EVENT_HEADER:
            yield b"\0" + held[at : at + wanted]
            at += wanted
            continue
        # Twice as much each time: a damaged size must not take memory that no bytes fill.
        more = _read(stream, max(_PIECE, min(wanted - here, here)))
        if not more:
            if here:
                raise _damaged()
            return
        total += len(more)
        if total > most:
            raise _too_large(total, most)
        held, at = held[at:] + more, 0


def _read(stream: pa.NativeFile, size: int) -> bytes:
    try:
        return bytes(stream.read_buffer(size).to_pybytes())  # `read` leaks its memory when it fails
    except (OSError, pa.ArrowException):  # an OSError would pass for a lost connection
        raise _damaged() from None


def inflated(data: bytes, most: int) -> bytes:
    """What MariaDB compressed: a byte with the size of the length, the length, then zlib's data.

    Raises
    ------
    SettingError
        It inflates to more than ``most`` bytes.
    BacklogError
        It is damaged.
    """
    begin = 1 + (data[0] & 7)
    size = int.from_bytes(data[1:begin], "big")
    if size > min(most, _MOST_EVENT):
        raise _too_large(size, min(most, _MOST_EVENT))
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(data[begin:], size + 1)
    except zlib.error:
        raise _damaged() from None
    if len(found) != size or not inflate.eof:
        raise _damaged()
    return found


def _too_large(size: int, most: int) -> SettingError:
    return SettingError(
        "maxInflatedBytes", most, f"the binary log has a compressed transaction or event that inflates to {size:,} "
        "bytes or more.", "Raise it to read such transactions.",
    )  # fmt: skip


def _damaged() -> BacklogError:
    return BacklogError(
        "The binary log has a compressed transaction or event that cannot be inflated.",
        "Check the server's disk: mysqlbinlog --verify-binlog-checksum shows whether the file is damaged.",
    )
