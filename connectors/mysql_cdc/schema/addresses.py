"""Converts MariaDB's UUID, INET4 and INET6 values from bytes in the binary log to the text of a SELECT (pure).

Source: MariaDB Knowledge Base, "INET6", "INET4" and "UUID Data Type"; the exact form was measured on 11.4 and 10.11.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["ADDRESS_BYTES", "address_text"]

ADDRESS_BYTES = {"uuid": 16, "inet6": 16, "inet4": 4}
"""Bytes of a value. The binary log omits trailing zeros."""


def address_text(data_type: str) -> Callable[[bytes], str]:
    """Converter for a type's bytes in the binary log."""
    width = ADDRESS_BYTES[data_type]
    convert = {"uuid": _uuid, "inet6": _inet6, "inet4": _inet4}[data_type]
    return lambda data: convert(data.ljust(width, b"\0"))


def _uuid(data: bytes) -> str:
    digits = data.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _inet4(data: bytes) -> str:
    return ".".join(map(str, data))


def _inet6(data: bytes) -> str:
    # Unlike Python's form, a single zero becomes "::" too, and an address that holds an IPv4 address shows it.
    words = [int.from_bytes(data[i : i + 2], "big") for i in range(0, 16, 2)]
    start, length = _longest_zeros(words)
    if start == 0 and (length == 6 or (length == 5 and words[5] == 0xFFFF)):
        return ("::" if length == 6 else "::ffff:") + _inet4(data[12:])
    texts = [f"{word:x}" for word in words]
    if not length:
        return ":".join(texts)
    return ":".join(texts[:start]) + "::" + ":".join(texts[start + length :])


def _longest_zeros(words: list[int]) -> tuple[int, int]:
    """Start and length of the first longest run of zeros."""
    best, length, start = 0, 0, 0
    for i, word in enumerate([*words, 1]):
        if word:
            if i - start > length:
                best, length = start, i - start
            start = i + 1
    return best, length
