"""Generates code that reads the row images of a table, without a call for each column (pure).

A column's reader is a few lines of Python. For a table, and for each set of columns that are NULL in a row, the lines
of the other columns are joined into one function, as `dataclasses` makes methods. Adjacent numbers are unpacked
together. For a binary log of small columns this takes half the time of a call for each column.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Code", "Reader", "RowReader", "as_reader", "row_end", "row_reader"]

Reader = Callable[[bytes, int], tuple[object, int]]
"""From bytes and an offset to a value and the offset after it."""

RowReader = Callable[[bytes, int], tuple[list[object], int]]
"""From bytes and the offset of a row's first value to all values and the offset after the row."""


@dataclass(frozen=True)
class Code:
    """Code that reads a column's value.

    Parameters
    ----------
    lines : tuple of str
        Python lines. They read at offset ``at`` of ``data``, put the value into ``{v}`` and the offset after it into
        ``at``. Other names that they assign begin with ``{v}``.
    names : mapping of str to object
        Objects that the lines use, named ``{v}`` followed by a key.
    form : str
        Instead of lines: the format with which `struct` reads the value, in little-endian order.
    """

    lines: tuple[str, ...] = ()
    names: Mapping[str, object] = field(default_factory=dict)
    form: str = ""


def as_reader(code: Code | Reader) -> Reader:
    """A reader of this single column."""
    if not isinstance(code, Code):
        return code
    lines, names = _lines([(0, code)])
    return _function([*lines, "return v0_, at"], names)


def row_reader(codes: Sequence[Code | Reader], nulls: int) -> RowReader:
    """A reader of rows.

    Parameters
    ----------
    codes : sequence of Code or Reader
        One for each column.
    nulls : int
        Bitmap of the columns that are NULL; the first column has the lowest bit.
    """
    there = [(at, code) for at, code in enumerate(codes) if not nulls >> at & 1]
    lines, names = _lines(there)
    values = ", ".join("None" if nulls >> at & 1 else f"v{at}_" for at in range(len(codes)))
    return _function([*lines, f"return [{values}], at"], names)


def row_end(sizes: Sequence[int], nulls: int) -> Callable[[bytes, int], int]:
    """A function from bytes and the offset of a row's first value to the offset after the row. It decodes no value.

    Parameters
    ----------
    sizes : sequence of int
        Of each column, as `column_readers.value_bytes` has them.
    nulls : int
        As in `row_reader`.
    """
    lines: list[str] = []
    fixed = 0
    for size in (size for at, size in enumerate(sizes) if not nulls >> at & 1):
        if size >= 0:
            fixed += size
            continue
        if size == -1:
            lines.append(f"at += {fixed + 1} + data[at{f' + {fixed}' if fixed else ''}]")
        else:
            lines.append(f"at += {fixed - size} + from_bytes(data[at + {fixed} : at + {fixed - size}], 'little')")
        fixed = 0
    return _function([*lines, f"return at + {fixed}"], {"from_bytes": int.from_bytes})


def _lines(columns: Sequence[tuple[int, Code | Reader]]) -> tuple[list[str], dict[str, object]]:
    """The lines for numbered columns, and the names that the lines use."""
    lines: list[str] = []
    names: dict[str, object] = {"from_bytes": int.from_bytes}
    run: list[tuple[int, str]] = []

    def unpack() -> None:
        if run:
            first = run[0][0]
            unpacked = struct.Struct("<" + "".join(form for _, form in run))
            names[f"v{first}_unpack"] = unpacked.unpack_from
            targets = "".join(f"v{at}_, " for at, _ in run)
            lines.extend([f"{targets}= v{first}_unpack(data, at)", f"at += {unpacked.size}"])
            run.clear()

    for at, code in columns:
        if isinstance(code, Code) and code.form:
            run.append((at, code.form))
            continue
        unpack()
        if isinstance(code, Code):
            lines.extend(line.replace("{v}", f"v{at}_") for line in code.lines)
            names.update({f"v{at}_{name}": value for name, value in code.names.items()})
        else:
            lines.append(f"v{at}_, at = v{at}_read(data, at)")
            names[f"v{at}_read"] = code
    unpack()
    return lines, names


def _function(lines: Sequence[str], names: dict[str, object]) -> Callable[[bytes, int], Any]:
    """A function of ``data`` and ``at``. No bytes of the log get into its source text."""
    body = "".join(f"  {line}\n" for line in lines)
    # Default arguments make the names local.
    more = "".join(f", {name}={name}" for name in names)
    made: dict[str, Callable[[bytes, int], Any]] = {}
    exec(f"def read(data, at{more}):\n{body}", dict(names), made)
    return made["read"]
