"""The type of the rows that a user's functions get: a named tuple with every column under its own name."""

from __future__ import annotations

import functools
from collections import namedtuple
from typing import Any

__all__ = ["row_type"]

_Bare = namedtuple("_Bare", ())


@functools.lru_cache(maxsize=256)
def row_type(names: tuple[str, ...]) -> Any:
    """A named tuple of these columns, including names that begin with an underscore, such as ``_change_type``.

    A column is named ``_n``, by its position n, if its name is no identifier or is one of a tuple's own, such as
    ``_fields``.
    """
    # Typed as Any: mypy knows no columns of a named tuple without literal names.
    make: Any = namedtuple
    made = make("Row", names, rename=True)
    given: tuple[str, ...] = made._fields
    own = {
        field: name
        for field, name in zip(given, names, strict=True)
        if field != name and name.isidentifier() and not hasattr(_Bare, name)
    }
    if not own:
        return made
    # Reuse the tuple's getters, which are in C. Collect all before setting the first, as `_1` may be a column's name.
    for name, getter in [(name, vars(made)[field]) for field, name in own.items()]:
        setattr(made, name, getter)
    fields = tuple(own.get(field, field) for field in given)

    def replaced(self: Any, /, **values: Any) -> Any:
        row = made._make(map(values.pop, fields, self))
        if values:
            raise ValueError(f"Got unexpected field names: {list(values)!r}")
        return row

    def shown(self: Any) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in zip(fields, self, strict=True))})"

    own_of_type = {"_fields": fields, "__match_args__": fields, "_replace": replaced, "__repr__": shown}
    for name, value in own_of_type.items():
        setattr(made, name, value)
    return made
