"""MySQL's packed decimals, as row images and JSON values hold them (pure)."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Reader", "decimal_text", "packed_decimal", "packed_size"]

Reader = Callable[[bytes, int], tuple[object, int]]
"""From bytes and a place in them to a value and the place behind it."""


def packed_decimal(precision: int, scale: int) -> Reader:
    """Unscaled integers (strings/decimal.cc): groups of nine digits in four bytes, the rest in as few as hold it."""
    groups = _groups(precision, scale)
    size = packed_size(precision, scale)
    full, sign = (1 << 8 * size) - 1, 1 << (8 * size - 1)
    cuts, shift = [], 8 * size
    for n, digits in groups:
        shift -= 8 * n
        cuts.append((shift, (1 << 8 * n) - 1, 10**digits))

    def read(data: bytes, at: int) -> tuple[object, int]:
        packed = int.from_bytes(data[at : at + size], "big") ^ sign
        negative = packed & sign
        if negative:
            packed ^= full
        value = 0
        for shift, mask, power in cuts:
            value = value * power + (packed >> shift & mask)
        return (-value if negative else value), at + size

    return read


def _groups(precision: int, scale: int) -> list[tuple[int, int]]:
    """Bytes and digits of each group."""
    rest = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    whole = precision - scale
    groups = [(rest[whole % 9], whole % 9)] if whole % 9 else []
    groups += [(4, 9)] * (whole // 9 + scale // 9)
    if scale % 9:
        groups.append((rest[scale % 9], scale % 9))
    return groups


def packed_size(precision: int, scale: int) -> int:
    """Bytes of a packed decimal."""
    return sum(n for n, _ in _groups(precision, scale))


def decimal_text(unscaled: int, scale: int) -> str:
    """As the server prints it: with all digits behind the point, and one before it."""
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    sign = "-" if unscaled < 0 else ""
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"
