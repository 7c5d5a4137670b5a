"""The sinks in a pipeline's file."""

from __future__ import annotations

from backlog_spark.pipelines.building import sink_of
from backlog_spark.pipelines.parsing import parse
from backlog_spark.sinks import IcebergAppend, IcebergUpsert
from backlog_spark.sinks.versions import Versions

SOURCE = "source: {type: rate}\npipeline: {name: p, checkpoint: /c}\n"
CATALOG = "{type: rest, uri: 'http://127.0.0.1:1', token: '${TOKEN}', warehouse: lake}"


def test_declared_sinks() -> None:
    upsert = f"{{type: iceberg_upsert, table: shop.t, catalog: {CATALOG}, keys: [id], expireSnapshots: 7 days"
    upsert += ", history: scd2, trackHistoryColumns: [a], partitionBy: [days(at)], computed: {n: id + 1}}"
    append = "{type: iceberg_append, table: shop.t, catalog: {warehouse: /lake}, partitionBy: [day], compact: true}"
    for text, kind, path in (
        (upsert, IcebergUpsert, "http://127.0.0.1:1/lake/shop.t"),
        (append, IcebergAppend, "sqlite:////lake/catalog.db/shop.t"),
    ):
        pipeline = parse(f"{SOURCE}sink: {text}\n", "p.yaml", {"TOKEN": "hidden-token"})
        (output,) = pipeline.outputs()
        sink = sink_of(pipeline, output)
        assert isinstance(sink, kind)
        assert sink.described()["place"] == path
        assert "hidden" not in f"{sink!r} {sink.described()}"
        assert isinstance(sink, IcebergUpsert | IcebergAppend)
        assert (sink.expire_ms, sink.compact, sink.partition_by) in (
            (604_800_000, False, ("days(at)",)),
            (None, True, ("day",)),
        )
        if isinstance(sink, IcebergUpsert):
            assert isinstance(sink.form, Versions)
            assert (sink.form.track, sink.computed) == (("a",), {"n": "id + 1"})
