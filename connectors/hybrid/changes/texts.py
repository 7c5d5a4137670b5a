"""What Canal and Maxwell share: JSON whose updates have only the old values of changed columns (pure).

The fast path cannot tell a column that is absent from ``old``, which has not changed, from one that was NULL. Updates
with a null after ``old`` are rewritten so that ``old`` has all columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..decode.base import text_of
from ..decode.json_scan import Array, Malformed, Number, Object, Structure, scan
from ..decode.texts import merged

__all__ = ["before_images", "with_whole_old"]

_NULL_IN_OLD = r'(?s)"old"\s*:\s*[\[{].*:\s*null'


def with_whole_old(values: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Records whose updates with a null in ``old`` have all columns there, and which these are."""
    doubted = pc.match_substring_regex(values, _NULL_IN_OLD).to_numpy(zero_copy_only=False)
    at = np.flatnonzero(doubted)
    if not len(at):
        return values, np.array(doubted)
    whole = np.array(doubted)
    texts = []
    for index in at.tolist():
        record = values[index].as_py()
        text = _rewritten(record)
        whole[index] = text is not None
        texts.append(record if text is None else text.encode())
    return merged(values, at, pa.array(texts, values.type)), whole


def _rewritten(record: bytes) -> str | None:
    try:
        root = scan(text_of(record))
    except Malformed:
        return None
    if root is None:
        return None
    items: dict[str, Any] = dict(root.items)
    new, old = items.get("data"), items.get("old")
    if isinstance(new, Object) and isinstance(old, Object):
        text = _joined(new, old)
    elif isinstance(new, Array) and isinstance(old, Array) and len(new.items) == len(old.items):
        pairs = list(zip(new.items, old.items, strict=True))
        if not all(isinstance(part, Object) for pair in pairs for part in pair):
            return None
        text = "[" + ",".join(_joined(*pair) for pair in pairs) + "]"
    else:
        return None
    rest = [f"{json.dumps(name)}:{_text(value)}" for name, value in items.items() if name != "old"]
    return "{" + ",".join([*rest, f'"old":{text}']) + "}"


def _joined(new: Object, old: Object) -> str:
    values = {**dict(new.items), **dict(old.items)}
    return "{" + ",".join(f"{json.dumps(name)}:{_text(value)}" for name, value in values.items()) + "}"


def _text(value: Any) -> str:
    if isinstance(value, Structure):
        return value.text
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) if isinstance(value, Number) else json.dumps(value)


def before_images(old: list[pa.Array], new: list[pa.Array], whole: np.ndarray) -> list[pa.Array]:
    """The columns before the changes. ``whole``: changes whose old columns are all there."""
    everything: Callable[[pa.Array, pa.Array], pa.Array] = pc.coalesce
    if not whole.any():
        return [everything(before, after) for before, after in zip(old, new, strict=True)]
    mask = pa.array(whole)
    return [pc.if_else(mask, before, everything(before, after)) for before, after in zip(old, new, strict=True)]
