"""A query without Spark whose sink commits by delta-rs, for tests that kill it. Rows are computed from batch ids."""

from __future__ import annotations

import random
import sys
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from backlog_spark.sinks.delta.deltars.commits import DirectTable
from backlog_spark.sinks.row_versions import KIND, versions_of
from tests.sinks.keeping_rows import BEGIN, Change

APP = "app"
KEYS = 300
COLUMNS = ("id", "a", "b")


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


def log(batch_id: int) -> list[Change]:
    """Changes of a batch, up to four of a key."""
    drawn, made = random.Random(batch_id), list[Change]()
    for number, key in enumerate(drawn.choices(range(KEYS // 10), k=25)):
        sequence = batch_id * 100 + number
        kind = drawn.choice(["insert", "update_postimage", "delete"])
        made.append(Change(key, drawn.choice("xyz"), 0.0, kind, BEGIN + timedelta(seconds=sequence), sequence))
    return made


def empty() -> pa.Table:
    """The table of versions."""
    time = pa.timestamp("us", "UTC")
    names = [*COLUMNS, "valid_from", "valid_to", "is_current"]
    kinds = [pa.int64(), pa.string(), pa.float64(), time, time, pa.bool_()]
    return pa.schema(list(zip(names, kinds, strict=True))).empty_table()


def write_versions(table: DirectTable, batch_id: int) -> None:
    rows = [(*c[:3], c.time, None, True, c.kind, c.sequence) for c in log(batch_id)]
    schema = empty().schema
    for name, kind in (("kind", pa.string()), ("sequence", pa.int64())):
        schema = schema.append(pa.field(name, kind))
    batch = pa.table([pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)], schema)
    names = ("valid_from", "valid_to", "is_current")
    made = versions_of(batch, ["id"], "kind", "sequence", names, ["a", "b"], "sink")
    table.merge_versions(made.select(schema.names[:6]), made[KIND], ["id"], names, ["a", "b"], APP, batch_id)


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
            if kind == "versions":
                write_versions(table, batch_id)
            elif kind == "append":
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
