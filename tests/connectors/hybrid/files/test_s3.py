"""Files in an S3 bucket: read over HTTP, listed by prefix, identified by their ETag."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from deltalake import DeltaTable, write_deltalake
from moto.server import ThreadedMotoServer
from pyspark.sql.types import StructType

import backlog_spark as bs
from backlog_spark.common.stores import store_of
from backlog_spark.connectors.hybrid.files.continuous import ContinuousFilePhase
from backlog_spark.connectors.hybrid.files.phase import FilePhase
from backlog_spark.connectors.hybrid.kafka.dedup import known
from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.connectors.hybrid.phases import Columns, Limit
from backlog_spark.connectors.hybrid.source import HybridDataSource, make_phases
from backlog_spark.errors import BacklogError
from backlog_spark.spark.jvm.session import session_conf

from .reading import bag, rows_between, rows_of, steps
from .test_phase import ALL, ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECLARED = pa.schema([*ALL, ("k", pa.int32())])
WANTED = [row | {"k": row["id"] // 200} for row in ROWS]
SECRET = "hunter22"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def bucket(endpoint: str, request: pytest.FixtureRequest) -> Iterator[s3fs.S3FileSystem]:
    """Rows in three partitions under ``data``."""
    system = s3fs.S3FileSystem(key="me", secret=SECRET, client_kwargs={"endpoint_url": endpoint})
    system.mkdir("bucket")
    for k in range(3):
        put(system, f"data/k={k}/p.parquet", ROWS[k * 200 : k * 200 + 200])
    system.touch("bucket/data/_SUCCESS")
    yield system
    system.rm("bucket", recursive=True)


def put(system: s3fs.S3FileSystem, path: str, rows: list[dict[str, Any]]) -> None:
    with system.open(f"bucket/{path}", "wb") as file:
        pq.write_table(pa.Table.from_pylist(rows, ALL), file, row_group_size=50)


def options(endpoint: str, path: str = "s3://bucket/data", **more: str) -> dict[str, str]:
    return {
        "path": path,
        "metadataLocation": "s3://bucket/metadata",
        "fs.key": "me",
        "fs.secret": SECRET,
        "fs.client_kwargs": json.dumps({"endpoint_url": endpoint}),
        **more,
    }


@pytest.mark.slow
@pytest.mark.parametrize("path", ["s3://bucket/data", "s3a://bucket/d?ta/k={0,1,2}", "s3://bucket/*/*/*.parquet"])
def test_partitions_of_a_bucket(bucket: s3fs.S3FileSystem, endpoint: str, path: str) -> None:
    source = FilePhase("old", options(endpoint, path, basePath="s3://bucket/data"))
    assert source.schema() == DECLARED
    assert bag(rows_of(source, Columns(DECLARED), [70])) == bag(WANTED)


@pytest.mark.grid
def test_through_spark(bucket: s3fs.S3FileSystem, endpoint: str, spark: SparkSession, tmp_path: Path) -> None:
    bs.register(spark)
    found: list[dict[str, Any]] = []

    def run() -> None:
        frame = spark.readStream.format("hybrid").options(phases="files", **options(endpoint)).load()
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: found.extend(row.asDict() for row in batch.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(300)

    run()
    assert sorted(row["id"] for row in found) == sorted(row["id"] for row in WANTED)
    assert {row["id"]: row["k"] for row in found} == {row["id"]: row["k"] for row in WANTED}
    put(bucket, "data/k=9/late.parquet", ROWS[:1])  # the listing is fixed for the run, and its restarts
    run()
    assert len(found) == len(WANTED)
    kept = "".join(file.read_text(errors="replace") for file in (tmp_path / "checkpoint").rglob("*") if file.is_file())
    assert "isProcessingBacklog" in kept
    assert SECRET not in kept


def test_an_inferred_schema_is_in_the_bucket(bucket: s3fs.S3FileSystem, endpoint: str) -> None:
    def rows() -> list[dict[str, Any]]:
        given = options(endpoint, fileFormat="json", inferColumnTypes="true", phases="files")
        source = HybridDataSource(given)
        declared = source.schema()
        assert isinstance(declared, StructType)
        parsed = HybridOptions.parse(given)
        phases = make_phases(parsed)
        return rows_of(phases[0], source.columns_of(declared, parsed, phases))

    bucket.rm("bucket/data", recursive=True)
    bucket.pipe("bucket/data/1.json", b'{"a": 1}')
    assert rows() == [{"a": 1, "_rescued_data": None}]
    bucket.pipe("bucket/data/2.json", b'{"a": "t", "b": 2}')
    with pytest.raises(BacklogError, match=r"s3://bucket/data/2\.json has the column b not in the schema"):
        rows()
    rescued = '{"a": "t", "_file_path": "s3://bucket/data/2.json"}'
    wanted = [{"a": 1, "b": None, "_rescued_data": None}, {"a": None, "b": 2, "_rescued_data": rescued}]
    assert bag(rows()) == bag(wanted)
    assert sorted(bucket.ls("bucket/metadata/_schemas")) == [
        f"bucket/metadata/_schemas/schema-{n:08d}.json" for n in range(2)
    ]


def test_a_file_that_was_replaced(bucket: s3fs.S3FileSystem, endpoint: str) -> None:
    source = FilePhase("old", options(endpoint))
    source.open(Columns(DECLARED))
    start = source.begin({})
    (last,) = steps(source, [None], start)
    put(bucket, "data/k=2/p.parquet", ROWS[400:599])
    with pytest.raises(BacklogError, match=r"s3://bucket/data/k=2/p\.parquet was changed since the files of phase old"):
        rows_between(source, start, last.position)
    bucket.rm("bucket/data/k=2/p.parquet")
    lenient = FilePhase("old", options(endpoint, failOnDataLoss="false"))
    lenient.open(Columns(DECLARED))
    assert bag(rows_between(lenient, start, last.position)) == bag(WANTED[:400])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"path": "s3://nowhere/data"}, "s3://nowhere/data': is not there"),
        (
            {
                "fs.client_kwargs": json.dumps({"endpoint_url": f"http://127.0.0.1:1/{SECRET}"}),
                "fs.config_kwargs": json.dumps({"retries": {"max_attempts": 1}}),
            },
            r"s3://bucket/data cannot be reached: .*127\.0\.0\.1:1/\*\*\*.* in the options fs\.",
        ),
    ],
)
def test_unreachable_storage(bucket: s3fs.S3FileSystem, endpoint: str, more: dict[str, str], words: str) -> None:
    source = FilePhase("old", {**options(endpoint), **more})
    source.open(Columns(DECLARED))
    with pytest.raises(BacklogError, match=words) as caught:
        source.begin({})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("scheme", ["", "memory://"])
@pytest.mark.parametrize("prefix", ["fs.", "fs.s3."])
def test_files_elsewhere_and_the_checkpoint_in_a_bucket(
    bucket: s3fs.S3FileSystem, endpoint: str, tmp_path: Path, scheme: str, prefix: str
) -> None:
    rows = ROWS[:10]
    store, path = store_of(f"{scheme}{tmp_path}/data/a.parquet", {})
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, ALL), sink)
    store.write(path, sink.getvalue())
    given = options(endpoint, f"{scheme}{tmp_path}/data", timestampColumn="at", dedupKey="id", startingOverlap="1 h")
    given = {name.replace("fs.", prefix): text for name, text in given.items()}
    source = FilePhase("old", given)
    if scheme and prefix == "fs.":  # for the files: no other system is shown them
        source.open(Columns(ALL))
        with pytest.raises(BacklogError, match=r"s3://bucket/metadata/.* fs\.s3\.… if there are files of another"):
            source.begin({})
        return
    assert bag(rows_of(source, Columns(ALL))) == bag(rows)
    path = source.ended(source.next(source.begin({}), Limit(), 0).position)["dedup"]
    assert path.startswith("s3://bucket/metadata/keys-")
    storage = {name[3:]: text for name, text in given.items() if name.startswith("fs.")}
    batch = pa.RecordBatch.from_pylist(rows, ALL)
    assert known(path, ("id",), storage).without(batch, pa.array([True] * 10)).num_rows == 0


def test_a_listing_page_by_page_and_after_a_name(bucket: s3fs.S3FileSystem, endpoint: str) -> None:
    store, path = store_of("s3://bucket/many", {"key": "me", "secret": SECRET, "client_kwargs": json.dumps(
        {"endpoint_url": endpoint})})  # fmt: skip
    names = [f"bucket/many/{n:04d}" for n in range(1_050)]
    bucket.pipe(dict.fromkeys([*names, "bucket/many/_x/1", "bucket/many/a/.b", "bucket/more/1"], b"x"))
    found = list(store.tree(path))
    assert sorted(file.path for file in found) == names, "more than one page"
    assert found[7] == store.stat(found[7].path)
    assert [file.path for file in store.tree(path, names[-3])] == names[-2:]
    assert [file.path for file in store.tree("bucket/more", names[0])] == ["bucket/more/1"]
    assert list(store.tree("bucket/none")) == []


@pytest.mark.parametrize("clean", ["archive", "delete"])
def test_new_files_of_a_bucket(bucket: s3fs.S3FileSystem, endpoint: str, clean: str) -> None:
    more = {"sourceArchiveDir": "s3://bucket/archive"} if clean == "archive" else {}
    given = options(endpoint, discovery="continuous", discoveryInterval="0 s", discoveryOrder="name", cleanSource=clean,
                    lateFiles="ignore", rewrittenFiles="ignore", **more)  # fmt: skip

    def process() -> ContinuousFilePhase:
        made = ContinuousFilePhase("live", given)
        made.open(Columns(DECLARED))
        return made

    live = process()
    start = live.begin({})
    end = live.next(start, Limit(), 0).position
    assert bag(rows_between(live, start, end)) == bag(WANTED)
    put(bucket, "data/k=3/p.parquet", ROWS[:5])
    put(bucket, "data/k=0/late.parquet", ROWS[5:9])
    live = process()
    live.committed(end)
    last = live.next(end, Limit(), 0).position
    assert bag(rows_between(process(), end, last)) == bag([row | {"k": 3} for row in ROWS[:5]])
    live.committed(last)
    assert [path for path in bucket.find("bucket/data") if not path.endswith("_SUCCESS")] == [
        "bucket/data/k=0/late.parquet"
    ]
    archived = [f"bucket/archive/bucket/data/k={k}/p.parquet" for k in range(4)]
    assert bucket.find("bucket/archive") == (archived if clean == "archive" else [])
    assert live.next(last, Limit(), 0).position is last


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_the_keys_that_spark_has(
    spark: SparkSession, endpoint: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # without keys it would ask this address
    system = s3fs.S3FileSystem(key="me", secret=SECRET, client_kwargs={"endpoint_url": endpoint})
    system.mkdir(kind)
    rows = pa.table({"n": list(range(300))})
    if kind == "delta":
        storage = {
            "access_key_id": "me",
            "secret_access_key": SECRET,
            "endpoint_url": endpoint,
            "region": "us-east-1",
            "allow_http": "true",
        }
        write_deltalake(f"s3://{kind}/data", rows, storage_options=storage)
    else:
        with system.open(f"{kind}/data/p.parquet", "wb") as file:
            pq.write_table(rows, file)
    conf = {
        "access.key": "me",
        f"bucket.{kind}.secret.key": SECRET,
        "endpoint": endpoint,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
    }
    with session_conf(spark, {f"fs.s3a.{name}": value for name, value in conf.items()}):
        given = {"phases": "delta"} if kind == "delta" else {"phases": "files"}
        source = bs.source("hybrid", name="numbers", path=f"s3a://{kind}/data", schema="n BIGINT", **given)
        writer = source.write("numbers").option("checkpointLocation", str(tmp_path / "c"))
        query = writer.to(bs.DeltaAppend(str(tmp_path / "t"))).start(spark)
        query.awaitTermination(120)
        assert query.exception() is None
    found = pa.table(DeltaTable(str(tmp_path / "t")).to_pyarrow_table())
    assert sorted(found["n"].to_pylist()) == list(range(300))
    kept = [path.read_bytes() for path in (tmp_path / "c").rglob("*") if path.is_file()]
    assert kept
    assert not any(SECRET.encode() in each for each in kept)
