"""The newest change of each key of a small batch, in Arrow (pure)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import DELETE, INSERT, POSTIMAGE, PREIMAGE

__all__ = ["DELETES", "UPSERTS", "deletes_of", "newest_changes"]

UPSERTS = (INSERT, POSTIMAGE)
# A before-image removes its key unless the after-image follows with the same key. If the key stays, this equals
# dropping the before-image. If the update changed the key, or a filter dropped the after-image, the key must go.
DELETES = (DELETE, PREIMAGE)


def newest_changes(
    rows: pa.Table, keys: Sequence[str], change_type: str | None, sequence: str | None, sink: str
) -> tuple[pa.Table, pa.ChunkedArray]:
    """The newest change of each key, and whether it is a delete.

    Parameters
    ----------
    rows : pyarrow.Table
        A batch; all column names are different.
    keys : sequence of str
        NULL is a value like any other.
    change_type : str or None
        None: each row is an upsert.
    sequence : str or None
        NULL is oldest; an upsert wins over a delete with an equal sequence. None: a key has at most one upsert.
    sink : str
        The sink's name for messages.

    Raises
    ------
    BacklogError
        For an unknown change type, and for two upserts of one key without a sequence.
    """
    deletes = deletes_of(rows, change_type, sink)
    columns = {f"k{number}": rows[key] for number, key in enumerate(keys)}
    names = list(columns)
    columns["delete"] = deletes
    order = [(name, "ascending", "at_end") for name in names]
    if sequence is not None:
        columns["sequence"] = rows[sequence]
        order.append(("sequence", "descending", "at_end"))
    order.append(("delete", "ascending", "at_end"))
    order_of_rows = pc.sort_indices(pa.table(columns), order)
    ranked = pa.table({name: columns[name] for name in (*names, "delete")}).take(order_of_rows)
    ranked = ranked.append_column("rank", pa.array(range(len(order_of_rows)), pa.int64()))
    ranked = ranked.append_column("upsert", pc.cast(pc.invert(ranked["delete"]), pa.int64()))
    first = ranked.group_by(names, use_threads=False).aggregate([("rank", "min"), ("upsert", "sum")])
    if sequence is None and (pc.max(first["upsert_sum"]).as_py() or 0) > 1:
        raise BacklogError(f"{sink}: two rows of one key in a batch.", "Name a sequence column, which orders them.")
    chosen = order_of_rows.take(first["rank_min"].combine_chunks())
    return rows.take(chosen), deletes.take(chosen)


def deletes_of(rows: pa.Table, change_type: str | None, sink: str) -> pa.ChunkedArray:
    """Whether each row is a delete. Parameters and errors as of `newest_changes`."""
    deletes = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    if change_type is not None:
        kinds = rows[change_type]
        deletes = pc.is_in(kinds, value_set=pa.array(DELETES, kinds.type))
        known = pc.or_(deletes, pc.is_in(kinds, value_set=pa.array(UPSERTS, kinds.type)))
        if not pc.all(known, min_count=0).as_py():
            wrong = kinds.filter(pc.invert(known))[0].as_py()
            raise BacklogError(
                f"{sink}: unknown {change_type} = {'NULL' if wrong is None else wrong}.",
                f"Known: {', '.join(UPSERTS + DELETES)}. With change_type=None each row is an upsert.",
            )
    return deletes
