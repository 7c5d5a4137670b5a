"""The newest change of each key of a small batch, in Arrow (pure)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import DELETE, INSERT, POSTIMAGE, PREIMAGE

__all__ = ["DELETES", "UPSERTS", "newest_changes"]

UPSERTS = (INSERT, POSTIMAGE)
# A before-image removes its key unless the after-image puts it back: the same as dropping it when the key
# stays, and right when the update changed the key or a filter upstream kept only the before-image.
DELETES = (DELETE, PREIMAGE)


def newest_changes(
    rows: pa.Table, keys: Sequence[str], change_type: str | None, sequence: str | None, sink: str
) -> tuple[pa.Table, pa.ChunkedArray]:
    """The rows that are their key's newest change, and whether each is a delete.

    Parameters
    ----------
    rows : pyarrow.Table
        A batch; column names differ.
    keys : sequence of str
        NULL is a value like any other.
    change_type : str or None
        None: each row is an upsert.
    sequence : str or None
        NULL is oldest; with ties an upsert wins. None: at most one upsert of a key.
    sink : str
        For messages.

    Raises
    ------
    BacklogError
        For an unknown change type, and for two upserts of a key without a sequence.
    """
    deletes = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    if change_type is not None:
        kinds = rows[change_type]
        deletes = pc.is_in(kinds, value_set=pa.array(DELETES, kinds.type))
        known = pc.or_(deletes, pc.is_in(kinds, value_set=pa.array(UPSERTS, kinds.type)))
        if not pc.all(known, min_count=0).as_py():
            wrong = kinds.filter(pc.invert(known))[0].as_py()
            raise BacklogError(
                f"{sink}: unknown {change_type} = {'NULL' if wrong is None else wrong}; "
                f"known: {', '.join(UPSERTS + DELETES)}."
            )
    columns = {f"k{number}": rows[key] for number, key in enumerate(keys)}
    names = list(columns)
    columns["delete"] = deletes
    order = [(name, "ascending", "at_end") for name in names]
    if sequence is not None:
        columns["sequence"] = rows[sequence]
        order.append(("sequence", "descending", "at_end"))
    order.append(("delete", "ascending", "at_end"))
    places = pc.sort_indices(pa.table(columns), order)
    ranked = pa.table({name: columns[name] for name in (*names, "delete")}).take(places)
    ranked = ranked.append_column("place", pa.array(range(len(places)), pa.int64()))
    ranked = ranked.append_column("upsert", pc.cast(pc.invert(ranked["delete"]), pa.int64()))
    first = ranked.group_by(names, use_threads=False).aggregate([("place", "min"), ("upsert", "sum")])
    if sequence is None and (pc.max(first["upsert_sum"]).as_py() or 0) > 1:
        raise BacklogError(f"{sink}: two rows of one key in a batch; name a sequence column.")
    chosen = places.take(first["place_min"].combine_chunks())
    return rows.take(chosen), deletes.take(chosen)
