"""The type of the rows that a user's functions are given: a named tuple with every column under its own name."""

from __future__ import annotations

import functools
from collections import namedtuple
from typing import Any

__all__ = ["row_type"]

_Bare = namedtuple("_Bare", ())


@functools.lru_cache(maxsize=256)
def row_type(names: tuple[str, ...]) -> Any:
    """A named tuple of these columns, also of those that begin with an underscore, as ``_change_type`` does.

    A column whose name is no identifier, or one of a tuple's own such as ``_fields``, is ``_n`` by its position n.
    """
    # Called as any function is: of a named tuple without literal names mypy knows no columns.
    make: Any = namedtuple
    made = make("Row", names, rename=True)
    places: tuple[str, ...] = made._fields
    own = {
        place: name
        for place, name in zip(places, names, strict=True)
        if place != name and name.isidentifier() and not hasattr(_Bare, name)
    }
    if not own:
        return made
    # The getters that it has already, which are in C; all of them before the first is set, as `_1` may be a column.
    for name, getter in [(name, vars(made)[place]) for place, name in own.items()]:
        setattr(made, name, getter)
    fields = tuple(own.get(place, place) for place in places)

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
