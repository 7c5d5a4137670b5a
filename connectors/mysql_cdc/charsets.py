"""Character sets: how the binary log's bytes of a text column become text (pure)."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["CHARSETS", "text_decoder"]

# MySQL's latin1 is cp1252 with the five places that cp1252 leaves empty filled by the C1 controls.
CHARSETS: dict[str, str] = {
    "utf8mb4": "utf-8",
    "utf8mb3": "utf-8",
    "utf8": "utf-8",
    "ascii": "ascii",
    "latin1": "latin1-mysql",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "ucs2": "utf-16-be",
    "gbk": "gbk",
    "gb2312": "gb2312",
    "gb18030": "gb18030",
    "big5": "big5",
    "euckr": "euc_kr",
    "latin2": "iso8859_2",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "koi8r": "koi8_r",
}

_C1 = {0x81, 0x8D, 0x8F, 0x90, 0x9D}
_LATIN1 = [chr(i) if i in _C1 else bytes([i]).decode("cp1252") for i in range(256)]


def text_decoder(charset: str) -> Callable[[bytes], str]:
    """Decoder of a character set's bytes as the binary log holds them."""
    codec = CHARSETS[charset]
    if codec == "latin1-mysql":
        return lambda data: "".join(map(_LATIN1.__getitem__, data)) if not data.isascii() else data.decode()
    return lambda data: str(data, codec)
