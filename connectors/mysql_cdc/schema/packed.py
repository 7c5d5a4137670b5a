"""Reads MySQL's packed decimals and lengths, which row images and JSON values hold (pure)."""

from __future__ import annotations

from ..binlog.row_code import Code

__all__ = ["decimal_text", "packed_decimal", "packed_size", "read_length"]


def packed_decimal(precision: int, scale: int) -> Code:
    """Reads an unscaled integer (strings/decimal.cc): groups of nine digits in four bytes, fewer digits in fewer."""
    size = packed_size(precision, scale)
    full, sign = (1 << 8 * size) - 1, 1 << (8 * size - 1)
    value, shift = "", 8 * size
    for n, digits in _groups(precision, scale):
        shift -= 8 * n
        group = f"({{v}}p >> {shift} & {(1 << 8 * n) - 1})"
        value = f"({value}) * {10**digits} + {group}" if value else group
    lines = (
        f"{{v}}p = from_bytes(data[at:at + {size}], 'big') ^ {sign}",
        f"if {{v}}p & {sign}:",
        f"  {{v}}p ^= {full}",
        f"  {{v}} = -({value})",
        "else:",
        f"  {{v}} = {value}",
        f"at += {size}",
    )
    return Code(lines)


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
    """The text that the server prints: with all digits after the point, and at least one before it."""
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    sign = "-" if unscaled < 0 else ""
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def read_length(data: bytes, offset: int) -> tuple[int, int]:
    """A length-encoded integer and the offset after it."""
    first = data[offset]
    if first < 251:
        return first, offset + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[offset + 1 : offset + 1 + size], "little"), offset + 1 + size
