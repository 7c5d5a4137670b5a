"""A query without Spark whose sink commits by delta-rs, for tests that kill it. Rows are computed from batch ids."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pyarrow as pa

from backlog_spark.sinks.delta.deltars.commits import DirectTable

APP = "app"
KEYS = 300


def changes(batch_id: int) -> list[tuple[int, str, bool]]:
    """Key, value and whether it is a delete; one change a key."""
    drawn = random.Random(batch_id)
    return [(key, f"{batch_id}", drawn.random() < 0.3) for key in drawn.sample(range(KEYS), 20)]


def after(batches: int) -> dict[int, str]:
    """The table after this many batches, from a model."""
    rows: dict[int, str] = {}
    for batch_id in range(batches):
        for key, value, is_delete in changes(batch_id):
            if is_delete:
                rows.pop(key, None)
            else:
                rows[key] = value
    return rows


def main() -> None:
    """Write batches for ever, after the newest one recorded as committed."""
    kind, path, noted = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    table = DirectTable(f"file:{path}", {})
    batch_id = int(noted.read_text()) + 1 if noted.exists() else 0
    while True:
        done = table.state(APP).batch
        if done is None or done < batch_id:
            keys, values, deletes = zip(*changes(batch_id), strict=True)
            rows = pa.table({"id": pa.array(keys, pa.int64()), "v": pa.array(values)})
            if kind == "append":
                table.append(rows, APP, batch_id)
            else:
                table.merge(rows, pa.chunked_array([pa.array(deletes)]), ["id"], APP, batch_id)
            table.look_after()
        # Replaced whole, as Spark's commit log is.
        noted.with_suffix(".new").write_text(str(batch_id))
        noted.with_suffix(".new").rename(noted)
        batch_id += 1


if __name__ == "__main__":
    main()
