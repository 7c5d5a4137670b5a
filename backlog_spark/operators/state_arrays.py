"""Converts a function's values to columns of state.

Structs from the state are dicts; new ones may be tuples. Arrow accepts a column of one kind only.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["state_array"]


def state_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Values as a column. Structs may be a mix of dicts and tuples.

    Raises
    ------
    pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError
        If a value has another type.
    """
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([_with_dicts(value, kind) for value in values], kind)


def _with_dicts(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind) and isinstance(value, tuple | dict):
        if isinstance(value, tuple):
            if len(value) != kind.num_fields:
                return value
            value = dict(zip((field.name for field in kind), value, strict=True))
        return {field.name: _with_dicts(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind) and isinstance(value, list | tuple):
        return [_with_dicts(each, kind.value_type) for each in value]
    if pa.types.is_map(kind) and isinstance(value, list):
        return [(key, _with_dicts(each, kind.item_type)) for key, each in value]
    return value
