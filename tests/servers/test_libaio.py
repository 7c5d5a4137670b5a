"""The replacement of libaio: the loader accepts it, and its functions reach the kernel."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from servers import libaio

# What `gcc` makes of a program linked against the real libaio: functions looked up with their version.
_VERSIONED = """
import ctypes, sys
handle = ctypes.CDLL(sys.argv[1])
dlvsym = ctypes.CDLL(None).dlvsym
dlvsym.restype = ctypes.c_void_p
dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
assert dlvsym(handle._handle, sys.argv[2].encode(), sys.argv[3].encode())
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / libaio.SONAME
    path.write_bytes(libaio.build())
    return path


def test_io_setup_write_and_destroy_reach_the_kernel(library: Path, tmp_path: Path) -> None:
    aio = ctypes.CDLL(str(library))
    context = ctypes.c_ulong(0)
    assert aio.io_setup(4, ctypes.byref(context)) == 0
    assert context.value != 0

    # struct iocb of <linux/aio_abi.h>: data, key, rw_flags, opcode (1 = PWRITE), priority, fd, buffer, length, offset.
    text = ctypes.create_string_buffer(b"written by io_submit", 20)
    target = tmp_path / "target"
    fd = os.open(target, os.O_CREAT | os.O_WRONLY)
    try:
        request = ctypes.create_string_buffer(
            struct.pack("<QIIHhIQQqQII", 7, 0, 0, 1, 0, fd, ctypes.addressof(text), 20, 0, 0, 0, 0), 64
        )
        requests = (ctypes.c_void_p * 1)(ctypes.addressof(request))
        assert aio.io_submit(context, ctypes.c_long(1), requests) == 1
        event = ctypes.create_string_buffer(32)  # struct io_event: data, obj, res, res2
        # Five arguments: the fourth is the one that a function and a system call take in different registers.
        assert aio.io_getevents(context, ctypes.c_long(1), ctypes.c_long(1), event, None) == 1
        data, _, written, _ = struct.unpack("<QQqq", event.raw)
        assert (data, written) == (7, 20)
    finally:
        os.close(fd)
    assert target.read_bytes() == b"written by io_submit"

    assert aio.io_destroy(context) == 0
    assert aio.io_destroy(context) == -errno.EINVAL  # as libaio does: minus errno, and errno itself untouched


@pytest.mark.process
@pytest.mark.parametrize(
    ("function", "version"),
    [
        ("io_setup", "LIBAIO_0.4"),
        ("io_destroy", "LIBAIO_0.4"),
        ("io_getevents", "LIBAIO_0.4"),
        ("io_cancel", "LIBAIO_0.4"),
        ("io_submit", "LIBAIO_0.1"),
    ],
)
def test_functions_carry_the_versions_mysql_asks_for(library: Path, function: str, version: str) -> None:
    # In a process of its own: a lookup with a broken version table crashes.
    subprocess.run([sys.executable, "-c", _VERSIONED, str(library), function, version], check=True)


def test_the_stand_in_is_repaired_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKLOG_SPARK_CACHE", str(tmp_path))
    monkeypatch.setattr(libaio, "_system_has_it", lambda: False)
    directory = libaio.library_path()
    assert directory is not None
    (directory / libaio.SONAME).write_bytes(b"half a fi")
    assert libaio.library_path() == directory
    assert (directory / libaio.SONAME).read_bytes() == libaio.build()


@pytest.mark.process
def test_a_stand_in_loaded_here_is_not_taken_for_the_systems(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    before = libaio._system_has_it()
    ctypes.CDLL(str(library))
    assert libaio._system_has_it() == before
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    assert libaio._system_has_it()
