"""Writes a replacement for libaio.so.1 on machines that do not have this library.

MySQL's server needs libaio. Many machines do not have it, and a user may have neither root rights nor a compiler. MySQL
uses only five of its functions, and each does one system call. So this module writes a shared object with these five:
an ELF file of about one kilobyte with

* the symbols with the version names that MySQL was linked with (``LIBAIO_0.1`` and ``LIBAIO_0.4``): the loader refuses
  a library without them;
* 11 bytes of x86-64 code for each function: ``mov r10, rcx`` (moves the fourth argument from C's register to the
  kernel's), ``mov eax, <number>``, ``syscall``, ``ret``. The kernel returns ``-errno``, as libaio does.

Sources: System V ABI, chapters 4 and 5; LSB, "Symbol Versioning".
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

from servers.cache import cache_dir, locked, scratch

__all__ = ["SONAME", "build", "library_path"]

SONAME = "libaio.so.1"

# name -> (version name, number of the system call on x86-64). Version names as in libaio's own map file.
_FUNCTIONS = {
    "io_setup": ("LIBAIO_0.4", 206),
    "io_destroy": ("LIBAIO_0.4", 207),
    "io_getevents": ("LIBAIO_0.4", 208),
    "io_submit": ("LIBAIO_0.1", 209),
    "io_cancel": ("LIBAIO_0.4", 210),
}

_PAGE = 0x1000
_ELF_HEADER, _PROGRAM_HEADER, _SYMBOL = 64, 56, 24  # sizes in bytes
_PT_LOAD, _PT_DYNAMIC = 1, 2
_READ_EXECUTE, _READ_WRITE = 5, 6
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 4, 5, 6, 10, 11, 14
_DT_VERSYM, _DT_VERDEF, _DT_VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD


def library_path() -> Path | None:
    """The directory to add at the front of ``LD_LIBRARY_PATH`` for MySQL's server. None if the system has libaio.

    The first call writes the library into the cache.
    """
    if _system_has_it():
        return None
    content = build()
    directory = cache_dir() / "libaio"
    target = directory / SONAME
    with locked("libaio"):
        if not target.is_file() or target.read_bytes() != content:
            directory.mkdir(exist_ok=True)
            with scratch() as work:
                (work / SONAME).write_bytes(content)
                os.replace(work / SONAME, target)
    return directory


def _system_has_it() -> bool:
    # The loader knows ld.so.conf and LD_LIBRARY_PATH; find_library would need ldconfig. It is asked in another process,
    # because this one may have loaded a libaio from elsewhere, and would find that one.
    probe = [sys.executable, "-I", "-S", "-c", f"import ctypes; ctypes.CDLL({SONAME!r})"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def build() -> bytes:
    """The shared object's bytes."""
    strings = _StringTable()
    soname = strings.add(SONAME)
    versions = sorted({version for version, _ in _FUNCTIONS.values()})
    # Version 1 is the object's own name. The real versions follow.
    version_names = [SONAME, *versions]
    version_offsets = [soname, *(strings.add(version) for version in versions)]
    name_offsets = [strings.add(name) for name in _FUNCTIONS]
    code = [_system_call(number) for _, number in _FUNCTIONS.values()]

    count = len(_FUNCTIONS) + 1  # symbol 0 is the empty one
    symbols_at = _ELF_HEADER + 3 * _PROGRAM_HEADER
    hash_at = symbols_at + _SYMBOL * count
    # There is one bucket: its chain has all symbols, and no hash value is needed.
    hash_table = struct.pack(f"<III{count}I", 1, count, 1, 0, *range(2, count), 0)
    versym_at = hash_at + len(hash_table)
    versym = struct.pack(f"<{count}H", 0, *(2 + versions.index(version) for version, _ in _FUNCTIONS.values()))
    verdef_at = _aligned(versym_at + len(versym), 8)
    verdef = _version_definitions(version_names, version_offsets)
    strings_at = verdef_at + len(verdef)
    text_at = _aligned(strings_at + len(strings.content), 16)
    text = b"".join(code)
    dynamic_at = _aligned(text_at + len(text), 8)

    symbols, at = bytes(_SYMBOL), text_at
    for name, function in zip(name_offsets, code, strict=True):
        # 0x12: global function. Section index 1 means "defined here"; the loader does not read sections.
        symbols += struct.pack("<IBBHQQ", name, 0x12, 0, 1, at, len(function))
        at += len(function)
    dynamic = b"".join(
        struct.pack("<QQ", tag, value)
        for tag, value in (
            (_DT_SONAME, soname),
            (_DT_HASH, hash_at),
            (_DT_STRTAB, strings_at),
            (_DT_SYMTAB, symbols_at),
            (_DT_STRSZ, len(strings.content)),
            (_DT_SYMENT, _SYMBOL),
            (_DT_VERSYM, versym_at),
            (_DT_VERDEF, verdef_at),
            (_DT_VERDEFNUM, len(version_names)),
            (0, 0),
        )
    )
    # The loader writes into the dynamic section. So the section is mapped one page after the code.
    dynamic_segment = (dynamic_at, _PAGE + dynamic_at, len(dynamic))
    headers = (
        _elf_header()
        + _program_header(_PT_LOAD, _READ_EXECUTE, (0, 0, dynamic_at), _PAGE)
        + _program_header(_PT_LOAD, _READ_WRITE, dynamic_segment, _PAGE)
        + _program_header(_PT_DYNAMIC, _READ_WRITE, dynamic_segment, 8)
    )
    image = bytearray(dynamic_at + len(dynamic))
    for offset, part in (
        (0, headers),
        (symbols_at, symbols),
        (hash_at, hash_table),
        (versym_at, versym),
        (verdef_at, verdef),
        (strings_at, bytes(strings.content)),
        (text_at, text),
        (dynamic_at, dynamic),
    ):
        image[offset : offset + len(part)] = part
    return bytes(image)


class _StringTable:
    """An ELF string table. Strings end with a zero byte. An offset stands for a string; offset 0 is the empty one."""

    def __init__(self) -> None:
        self.content = bytearray(1)

    def add(self, text: str) -> int:
        offset = len(self.content)
        self.content += text.encode() + b"\0"
        return offset


def _aligned(offset: int, to: int) -> int:
    return -(-offset // to) * to


def _system_call(number: int) -> bytes:
    return b"\x49\x89\xca" + b"\xb8" + struct.pack("<I", number) + b"\x0f\x05" + b"\xc3"


def _version_definitions(names: list[str], offsets: list[int]) -> bytes:
    """``Verdef`` (20 bytes) and one ``Verdaux`` (8 bytes) for each version. The first is the base (flag 1)."""
    definitions = b""
    for index, (name, offset) in enumerate(zip(names, offsets, strict=True)):
        following = 0 if index == len(names) - 1 else 28
        flags = 1 if index == 0 else 0
        definitions += struct.pack("<HHHHIII", 1, flags, index + 1, 1, _elf_hash(name), 20, following)
        definitions += struct.pack("<II", offset, 0)
    return definitions


def _elf_hash(name: str) -> int:
    """The System V ABI's hash of a symbol or version name."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        if high:
            value ^= high >> 24
        value &= ~high
    return value & 0xFFFFFFFF


def _elf_header() -> bytes:
    """64-bit, little-endian, shared object (3), x86-64 (62), three program headers, no sections."""
    identification = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    rest = (3, 62, 1, 0, _ELF_HEADER, 0, 0, _ELF_HEADER, _PROGRAM_HEADER, 3, 64, 0, 0)
    return identification + struct.pack("<HHIQQQIHHHHHH", *rest)


def _program_header(kind: int, flags: int, segment: tuple[int, int, int], alignment: int) -> bytes:
    offset, address, size = segment
    return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, alignment)
