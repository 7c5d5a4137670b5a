"""Protobuf records: random ones that the real library has written, registries, and malformed ones."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.decode import Decoder, MalformedRecord, decoder, parse
from backlog_spark.connectors.hybrid.decode.protobuf_decoder import ProtobufDecoder
from backlog_spark.connectors.hybrid.decode.protobuf_files import find_message
from backlog_spark.connectors.hybrid.decode.protobuf_values import arrow_types
from backlog_spark.errors import BacklogError, SettingError

from .protobuf_cases import Messages, messages
from .registry_server import RegistryServer

F = FieldDescriptorProto


def comparable(value: Any, kind: pa.DataType) -> Any:
    """Floats as texts, and the entries of maps in an order of their own."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return sorted(((k, comparable(v, kind.item_type)) for k, v in value), key=repr)
    if pa.types.is_list(kind):
        return [comparable(v, kind.value_type) for v in value]
    return repr(value) if pa.types.is_floating(kind) else value


@given(messages())
@settings(max_examples=150)
def test_as_written(case: Messages) -> None:
    found = find_message(case.files, "M")
    assert arrow_types(found) == case.types
    some = pickle.loads(pickle.dumps(ProtobufDecoder(case.declared, "FAILFAST", "", case.files, "x.M", case.zeros)))
    columns = some.decode(pa.array([*case.records, None], pa.binary())).columns
    for field, column in zip(case.declared, columns, strict=True):
        column.validate(full=True)
        assert column.type == field.type
        assert [comparable(v, field.type) for v in column.to_pylist()] == [*(r[field.name] for r in case.rows), None]


def order(syntax: str = "proto3") -> FileDescriptorProto:
    """Two messages, and one within the second."""
    file = FileDescriptorProto(name="order.proto", package="shop", syntax=syntax)
    file.dependency.append("google/protobuf/timestamp.proto")
    one, two = file.message_type.add(name="Order"), file.message_type.add(name="Item")
    one.field.add(name="id", number=1, type=F.TYPE_INT64, label=F.LABEL_OPTIONAL)
    one.field.add(
        name="at", number=2, type=F.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp", label=F.LABEL_OPTIONAL
    )
    two.field.add(name="name", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    part = two.nested_type.add(name="Part")
    part.field.add(name="name", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    part.field.add(name="weight", number=2, type=F.TYPE_DOUBLE, label=F.LABEL_OPTIONAL)
    return file


def text(file: FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def written(full: str, files: list[bytes] | None = None, /, **values: Any) -> bytes:
    found = find_message(files or [order().SerializeToString()], full)
    return bytes(GetMessageClass(found)(**values).SerializeToString())


COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("_corrupt_record", pa.string())])
ORDER, ITEM = written("shop.Order", id=7), written("shop.Item", name="x")
PART = written("Part", name="y", weight=1.5)
HEAD = b"\0\0\0\0\5"


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        running.schemas[5] = {"schema": text(order()), "schemaType": "PROTOBUF"}
        yield running


def of_registry(server: RegistryServer, **options: str) -> Decoder:
    given = {"valueFormat": "protobuf", "schema.registry.url": server.url, **options}
    some = decoder(parse(given), COLUMNS)
    some._registry._news = []  # type: ignore[attr-defined]
    return some


def test_records_of_a_registry(server: RegistryServer) -> None:
    good = [HEAD + b"\0" + ORDER, HEAD + b"\2\0" + ORDER, HEAD + b"\2\2" + ITEM, HEAD + b"\4\2\0" + PART]
    bad = [
        HEAD, HEAD + b"\2", HEAD + b"\2\4" + ITEM, HEAD + b"\1", b"\0\0\0\0\6\0" + ORDER, ORDER, b"",
        HEAD + b"\0" + ORDER + b"\x12\x05a", HEAD + b"\xff" * 12,
    ]  # fmt: skip
    values = pa.array([*good, *bad, None])
    for _ in range(2):
        columns = of_registry(server).decode(values).columns
        shown = [base64.b64encode(record).decode() for record in bad]
        nothing = [None] * (len(bad) + 1)
        assert [c.to_pylist() for c in columns] == [
            [7, 7, None, None, *nothing], [None, None, "x", "y", *nothing], [None] * 4 + [*shown, None],
        ]  # fmt: skip
    dropped = of_registry(server, mode="DROPMALFORMED").decode(values)
    assert dropped.kept.to_pylist() == [0, 1, 2, 3, len(values) - 1]
    with pytest.raises(MalformedRecord, match="record 4 of its block is malformed: it ends within its message index"):
        of_registry(server, mode="FAILFAST").decode(values)
    assert {request.partition("?")[2] for request in server.requests} == {"format=serialized"}


def test_one_message_of_a_topic_that_mixes_them(server: RegistryServer) -> None:
    values = pa.array([HEAD + b"\0" + ORDER, HEAD + b"\2\2" + ITEM, b"?", HEAD + b"\2\2" + ITEM, None])
    for name in ("Item", "shop.Item"):
        found = of_registry(server, protobufMessage=name).decode(values)
        assert found.columns[1].to_pylist() == ["x", None, "x", None]
        assert found.kept.to_pylist() == [1, 2, 3, 4]
    # Without a choice a message with none of the columns is malformed.
    some = decoder(
        parse({"valueFormat": "protobuf", "schema.registry.url": server.url, "mode": "FAILFAST"}),
        pa.schema([("id", pa.int64())]),
    )
    with pytest.raises(
        MalformedRecord, match=r"record 1 of its block is malformed: its message is shop\.Item, which has"
    ):
        some.decode(values)


def test_schemas_that_refer_to_others(server: RegistryServer) -> None:
    """Each once, though two import it. Google's own files are no references."""
    base = FileDescriptorProto(name="default", package="shop", syntax="proto3")
    base.message_type.add(name="Id").field.add(name="id", number=1, type=F.TYPE_INT64, label=F.LABEL_OPTIONAL)
    middle = FileDescriptorProto(name="default", package="shop", syntax="proto3", dependency=["a/id.proto"])
    middle.message_type.add(name="Customer").field.add(
        name="id", number=1, type=F.TYPE_MESSAGE, type_name=".shop.Id", label=F.LABEL_OPTIONAL
    )
    main = order()
    main.dependency.extend(["a/id.proto", "customer.proto"])
    for number, kind in ((3, ".shop.Customer"), (4, ".shop.Id")):
        main.message_type[0].field.add(
            name=f"f{number}", number=number, type=F.TYPE_MESSAGE, type_name=kind, label=F.LABEL_OPTIONAL
        )
    references = [{"name": "customer.proto", "subject": "c", "version": 1}]
    identity = [{"name": "a/id.proto", "subject": "i", "version": 1}]
    for id, subject, file, refers in (
        (1, "i", base, []), (2, "c", middle, identity), (3, "m", main, references + identity),
    ):  # fmt: skip
        server.schemas[id] = {"schema": text(file), "schemaType": "PROTOBUF", "references": refers}
        server.subjects[subject] = id
    schema = pa.schema(
        [("f3", pa.struct([("id", pa.struct([("id", pa.int64())]))])), ("at", pa.timestamp("us", "UTC"))]
    )
    some = decoder(parse({"valueFormat": "protobuf", "schema.registry.url": server.url}), schema)
    files = some._registry.protobuf(3)  # type: ignore[attr-defined]
    record = written("shop.Order", files, f3={"id": {"id": 9}}, at={"seconds": 1, "nanos": 2_500})
    found = some.decode(pa.array([b"\0\0\0\0\3\0" + record])).columns
    assert found[0].to_pylist() == [{"id": {"id": 9}}]
    assert found[1].cast(pa.int64()).to_pylist() == [1_000_002]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"schema": 'syntax = "proto3";'}, "gives no descriptor of schema-5.proto.*protobufDescriptorFile"),
        ({"schema": text(FileDescriptorProto(name="x", dependency=["y.proto"]))}, "y.proto, which another one imports"),
        ({"schema": "bm8="}, "gives no descriptor of schema-5.proto"),
    ],
)
def test_registries_without_descriptors(server: RegistryServer, answer: dict[str, Any], problem: str) -> None:
    server.schemas[5] = {"schemaType": "PROTOBUF", **answer}
    with pytest.raises(BacklogError, match=problem) as caught:
        of_registry(server).decode(pa.array([HEAD + b"\0" + ORDER]))
    assert not isinstance(caught.value, MalformedRecord)


def of_file(tmp_path: Path, schema: pa.Schema, *files: FileDescriptorProto, **options: str) -> Decoder:
    path = tmp_path / "set.bin"
    path.write_bytes(FileDescriptorSet(file=files or [order()]).SerializeToString())
    given = {"valueFormat": "protobuf", "protobufDescriptorFile": str(path), "protobufMessage": "Order", **options}
    return pickle.loads(pickle.dumps(decoder(parse(given), schema)))  # type: ignore[no-any-return]


def test_a_file_of_descriptors(tmp_path: Path) -> None:
    """Also for records with a registry's header."""
    some = of_file(tmp_path, COLUMNS)
    bad = [b"\0\1", b"\x08"]
    columns = some.decode(pa.array([ORDER, b"", HEAD + b"\0" + ORDER, HEAD + b"\2\0" + ORDER, *bad, None])).columns
    assert columns[0].to_pylist() == [7, None, 7, 7, None, None, None]
    assert columns[2].to_pylist() == [None] * 4 + [base64.b64encode(record).decode() for record in bad] + [None]
    part = of_file(tmp_path, COLUMNS, protobufMessage="shop.Item.Part")
    assert part.decode(pa.array([PART])).columns[1].to_pylist() == ["y"]


def test_keys_of_a_registry_beside_a_file_of_descriptors(tmp_path: Path) -> None:
    more = {"schema.registry.url": "http://a", "keyFormat": "avro", "keyFields": "name"}
    assert of_file(tmp_path, COLUMNS, **more).decode(pa.array([ORDER])).columns[0].to_pylist() == [7]


def test_what_proto2_has_more(tmp_path: Path) -> None:
    """Defaults, required fields, texts that are not UTF-8, and numbers of an enum that are none of its own."""
    file = order("proto2")
    enum = file.enum_type.add(name="E")
    enum.value.add(name="A", number=1)
    message = file.message_type[0]
    message.field.add(name="d", number=3, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL, default_value="5")
    message.field.add(name="e", number=4, type=F.TYPE_ENUM, type_name=".shop.E", label=F.LABEL_OPTIONAL)
    message.field.add(name="s", number=5, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    schema = pa.schema([("d", pa.int32()), ("e", pa.string()), ("s", pa.string())])
    some = of_file(tmp_path, schema, file)
    records = [b"", b"\x18\x00\x20\x01\x2a\x01\xff", b"\x20\x63"]
    columns = some.decode(pa.array(records)).columns
    assert [c.to_pylist() for c in columns] == [[5, 0, 5], [None, "A", None], [None, "\ufffd", None]]
    message.field.add(name="r", number=6, type=F.TYPE_INT32, label=F.LABEL_REQUIRED)
    some = of_file(tmp_path, schema, file, mode="FAILFAST")
    assert some.decode(pa.array([b"\x30\x01"])).columns[0].to_pylist() == [5]
    with pytest.raises(MalformedRecord, match="a required field is missing"):
        some.decode(pa.array(records))


def test_open_enums_negative_zeros_and_times_out_of_range(tmp_path: Path) -> None:
    file = order()
    file.enum_type.add(name="E").value.add(name="A", number=0)
    file.message_type[0].field.add(name="e", number=3, type=F.TYPE_ENUM, type_name=".shop.E", label=F.LABEL_OPTIONAL)
    file.message_type[0].field.add(name="w", number=4, type=F.TYPE_DOUBLE, label=F.LABEL_OPTIONAL)
    schema = pa.schema(
        [("e", pa.string()), ("at", pa.timestamp("us", "UTC")), ("w", pa.float64()), ("_corrupt_record", pa.string())]
    )
    some = of_file(tmp_path, schema, file)
    files = [file.SerializeToString()]
    far = written("shop.Order", files, at={"seconds": 2**62})
    e, at, w, corrupt = some.decode(pa.array([written("shop.Order", files, e=9, w=-0.0), far])).columns
    assert [repr(value) for value in w.to_pylist()] == ["-0.0", "None"], "it differs from 0, so it is in the record"
    assert e.to_pylist() == ["UNKNOWN_ENUM_VALUE_E_9", None]
    assert (at.null_count, corrupt.to_pylist()) == (2, [None, base64.b64encode(far).decode()])


@pytest.mark.parametrize(
    ("schema", "options", "problem"),
    [
        (
            pa.schema([("id", pa.int32())]),
            {},
            r"the column id is int64 in the Protobuf message, but declared int32.*int64",
        ),
        (pa.schema([("ID", pa.int64())]), {}, "the column ID is id in the Protobuf message"),
        (pa.schema([("at", pa.int64())]), {}, "the column at is google.protobuf.Timestamp .* Declare it timestamp.us"),
        (pa.schema([("id", pa.list_(pa.int64()))]), {}, "but declared list<item: int64>"),
        (pa.schema([("x", pa.int64())]), {}, r"shop.Order has none of the columns x. Declare some of id, at"),
        (COLUMNS, {"protobufMessage": "Ordre"}, "there is none. Set one of shop.Order, shop.Item, shop.Item.Part"),
        (COLUMNS, {"protobufMessage": ""}, "protobufMessage = '': is needed with a file"),
        (COLUMNS, {"protobufDescriptorFile": ""}, "schema.registry.url = None: Protobuf needs the descriptors"),
        (COLUMNS, {"protobufDescriptorFile": "/none"}, "protobufDescriptorFile = '/none': cannot be read"),
        (COLUMNS, {"protobufDescriptorFile": __file__}, "is no set of descriptors"),
        (COLUMNS, {"schema.registry.url": "http://a"}, "schema.registry.url = .*is not needed with protobufDesc"),
    ],
)
def test_what_is_refused(tmp_path: Path, schema: pa.Schema, options: dict[str, str], problem: str) -> None:
    with pytest.raises(BacklogError, match=problem):
        of_file(tmp_path, schema, **options)


def test_a_message_that_contains_itself(tmp_path: Path) -> None:
    """The declared columns say how deep it is read."""
    file = order()
    file.message_type[0].field.add(
        name="next", number=9, type=F.TYPE_MESSAGE, type_name=".shop.Order", label=F.LABEL_OPTIONAL
    )
    schema = pa.schema([("next", pa.struct([("id", pa.int64()), ("next", pa.struct([("id", pa.int64())]))]))])
    some = of_file(tmp_path, schema, file)
    record = written("shop.Order", [file.SerializeToString()], next={"next": {"id": 3, "next": {"id": 4}}})
    assert some.decode(pa.array([record])).columns[0].to_pylist() == [{"id": None, "next": {"id": 3}}]
    with pytest.raises(BacklogError, match=r"shop\.Order contains itself"):
        arrow_types(find_message([file.SerializeToString()], "shop.Order"))


@given(st.binary(max_size=40))
def test_any_bytes_are_a_row_or_malformed(record: bytes) -> None:
    some = ProtobufDecoder(COLUMNS, "PERMISSIVE", "_corrupt_record", [order().SerializeToString()], "shop.Order", False)
    assert len(some.decode(pa.array([record, ORDER])).columns[0]) == 2


def test_errors_name_the_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        of_file(tmp_path, COLUMNS, protobufMessage="x")
    assert caught.value.setting == "protobufMessage"
