"""Schemas from a registry, over real HTTP and TLS."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import pickle
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from fastavro.utils import generate_many
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.decode import Decoder, MalformedRecord, decoder, parse, schemaOf
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spi.schema_registry import Registry, RegistryOptions
from backlog_spark.spi.user_options import UserOptions

from .avro_cases import written
from .plain import plain
from .registry_server import RegistryServer


def schema(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


OLD = schema(("a", "int"), ("gone", "string"))
NEW = schema(("added", ["null", "double"]), ("a", "long"))
DECLARED = pa.schema([("a", pa.int64()), ("added", pa.float64()), ("_corrupt_record", pa.string())])


def framed(id: int, of: dict[str, Any], value: dict[str, Any]) -> bytes:
    return b"\0" + id.to_bytes(4, "big") + written(of, [value])[0]


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as running:
        running.add(1, OLD)
        running.add(70_000, NEW)
        yield running


def registry(url: str, **more: Any) -> Registry:
    """With short pauses."""
    found = RegistryOptions.parse(UserOptions({"schema.registry.url": url, **more}))
    return Registry(replace(found, pauses=(0.01, 0.01)))


def test_records_of_two_schemas(server: RegistryServer) -> None:
    some = decoder(parse({"valueFormat": "avro", "schema.registry.url": server.url}), DECLARED)
    some = pickle.loads(pickle.dumps(some))
    assert server.requests == []
    records = [
        framed(1, OLD, {"a": 5, "gone": "x"}),
        framed(70_000, NEW, {"a": 6, "added": 1.5}),
        None,
        b"{}",
        b"",
        b"\0\0\0\0",
        framed(1, OLD, {"a": 7, "gone": "y"}) + b"z",
        framed(70_000, NEW, {"a": 2**40, "added": None}),
        framed(1, OLD, {"a": -1, "gone": ""}),
    ]
    expected = [
        (5, None, None),
        (6, "1.5", None),
        (None, None, None),
        *((None, None, base64.b64encode(record or b"").decode()) for record in records[3:7]),
        (2**40, None, None),
        (-1, None, None),
    ]
    for _ in range(2):
        columns = some.decode(pa.array(records, pa.binary())).columns
        assert list(zip(*(plain(column) for column in columns), strict=True)) == expected
        # The same by the exact path alone.
        one = [some.decode(pa.array([record], pa.binary())).columns for record in records]
        assert [tuple(plain(column)[0] for column in columns) for columns in one] == expected
    assert sorted(server.requests) == ["/schemas/ids/1", "/schemas/ids/70000"]


def test_a_schema_that_does_not_fit(server: RegistryServer) -> None:
    declared = pa.schema([("a", pa.int32())])
    some = decoder(parse({"valueFormat": "avro", "schema.registry.url": server.url}), declared)
    assert some.decode(pa.array([framed(1, OLD, {"a": 5, "gone": "x"})])).columns[0].to_pylist() == [5]
    with pytest.raises(BacklogError, match="schema 70000 of the registry: the column a is long"):
        some.decode(pa.array([framed(70_000, NEW, {"a": 5, "added": None})]))


def test_temporary_failures(server: RegistryServer) -> None:
    server.failures = [500, 503]
    some = registry(server.url + "/")
    assert some.schema(1) == OLD
    assert len(server.requests) == 3
    assert some.schema(1) == OLD
    assert len(server.requests) == 3


def test_permanent_failures(server: RegistryServer) -> None:
    server.failures = [500] * 9
    with pytest.raises(BacklogError, match=r"did not answer for schema 1 in 3 tries: .* answers 500"):
        registry(server.url).schema(1)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "why"),
    [(404, "answers 404 for schema 1"), (403, "refuses the login"), (302, "answers 302"), (400, "answers 400")],
)
def test_answers_that_stay(server: RegistryServer, status: int, why: str) -> None:
    server.failures = [status]
    with pytest.raises(BacklogError, match=why):
        registry(server.url).schema(1)
    assert len(server.requests) == 1


def avro(server: RegistryServer, mode: str = "PERMISSIVE") -> Decoder:
    some = decoder(parse({"valueFormat": "avro", "schema.registry.url": server.url, "mode": mode}), DECLARED)
    some._registry._news = [0.01] * 2  # type: ignore[attr-defined]
    return some


@pytest.mark.parametrize("count", [1, 500])
def test_a_record_of_an_unknown_schema_is_malformed(server: RegistryServer, count: int) -> None:
    """It does not stop a stream that accepts malformed records."""
    server.schemas[8] = {"schema": "message A {}", "schemaType": "PROTOBUF"}
    good = [framed(1, OLD, {"a": n, "gone": "x"}) for n in range(count)]
    bad = [framed(9, OLD, {"a": 5, "gone": "x"}), framed(8, OLD, {"a": 5, "gone": "x"}), b"\0\xff\xff\xff\xff"]
    values = pa.array([bad[0], *good, bad[1], *good, bad[2]])
    some = avro(server)
    for _ in range(2):
        a, _added, corrupt = some.decode(values).columns
        assert a.to_pylist() == [None, *range(count), None, *range(count), None]
        shown = [base64.b64encode(record).decode() for record in bad]
        assert [text for text in corrupt.to_pylist() if text] == shown
    # A new schema may be known a moment later; that is waited for once.
    assert sorted(server.requests).count("/schemas/ids/9") == 3
    assert len(server.requests) == 3 + 1 + 1 + 1
    assert avro(server, "DROPMALFORMED").decode(values).columns[0].to_pylist() == [*range(count)] * 2
    with pytest.raises(
        MalformedRecord, match=r"record 0 of its block is malformed: the schema registry .* no schema 9"
    ):
        avro(server, "FAILFAST").decode(values)


def test_a_schema_that_reaches_a_registry_late(server: RegistryServer) -> None:
    some = avro(server)
    answer = server._answer

    def late(path: str, login: str | None) -> tuple[int, Any]:
        found = answer(path, login)
        server.add(9, OLD)
        return found

    server._answer = late  # type: ignore[method-assign]
    assert some.decode(pa.array([framed(9, OLD, {"a": 5, "gone": "x"})])).columns[0].to_pylist() == [5]


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED", "FAILFAST"])
def test_a_registry_that_is_down_makes_no_record_malformed(server: RegistryServer, mode: str) -> None:
    some = avro(server, mode)
    some._registry.options = replace(some._registry.options, pauses=(0.01, 0.01))  # type: ignore[attr-defined]
    values = pa.array([framed(1, OLD, {"a": 5, "gone": "x"})])
    for status in (500, 404, 404):  # a 404 that is not the registry's own, such as a proxy's
        server.failures = [status] * 3
        with pytest.raises(BacklogError) as caught:
            some.decode(values)
        assert not isinstance(caught.value, MalformedRecord)
    server.failures = [500, 503]
    assert some.decode(values).columns[0].to_pylist() == [5]


def test_the_next_registry_is_asked(server: RegistryServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening
        dead = f"http://localhost:{taken.getsockname()[1]}"
        assert registry(f"{dead}, {server.url}").schema(1) == OLD
        with pytest.raises(BacklogError, match=r"did not answer for schema 1 in 3 tries: .*refused"):
            registry(dead).schema(1)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"<html>", "has an undocumented form"),
        ({"id": 1}, "has an undocumented form"),
        ([], "has an undocumented form"),
        ({"schema": "{"}, "has an undocumented form"),
        ({"schema": "{}", "schemaType": "PROTOBUF"}, "is of type PROTOBUF"),
        ({"schema": "{}", "references": [{"name": "x"}]}, "has an undocumented form"),
        (
            {"schema": "{}", "references": [{"subject": "x", "version": 1}]},
            "answers 404 for schema 2: Subject not found",
        ),
    ],
)
def test_malformed_answers(server: RegistryServer, answer: Any, why: str) -> None:
    server.schemas[2] = answer
    with pytest.raises(BacklogError, match=why):
        registry(server.url).schema(2)


WRAPPED: list[Callable[[Any], Any]] = [lambda t: t, lambda t: ["null", t], lambda t: {"type": "array", "items": t}]


@given(st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_schemas_that_refer_to_others(server: RegistryServer, data: st.DataObject) -> None:
    """Each names earlier ones, by full names, or short ones within a namespace. fastavro resolves them too."""
    some_of = data.draw(st.sampled_from([[""], ["n", "n.m"]]))  # no type of a namespace can name one of none
    spaces = data.draw(st.lists(st.sampled_from(some_of), min_size=2, max_size=5))
    named: dict[str, Any] = {}
    for index, space in enumerate(spaces):
        inner = {"type": "record", "name": f"I{index}", "fields": [{"name": "i", "type": "int"}]}
        fields, subjects = [{"name": "own", "type": inner}], set()
        for other in data.draw(st.lists(st.integers(0, index - 1), max_size=3)) if index else []:
            names = [f"{letter}{other}" for letter in "TI"]  # the schema, and a type within it
            if spaces[other] != space or data.draw(st.booleans()):
                names = [f"{spaces[other]}.{name}".lstrip(".") for name in names]
            kind = data.draw(st.sampled_from(WRAPPED))(data.draw(st.sampled_from(names)))
            fields.append({"name": f"f{len(fields)}", "type": kind})
            subjects.add(f"T{other}")
        main = {"type": "record", "name": f"T{index}", "namespace": space, "fields": fields}
        server.subjects[f"T{index}"] = 100 + index
        server.add(100 + index, main, references=[{"name": s, "subject": s, "version": 1} for s in sorted(subjects)])
        parsed = fastavro.parse_schema(main, named)
    some = registry(server.url)
    schema = schemaOf(some.schema(100 + index))
    made = decoder(parse({"valueFormat": "avro", "schema.registry.url": server.url}), schema)
    values = list(generate_many(parsed, 3))
    records = []
    for value in values:
        out = io.BytesIO(b"\0" + (100 + index).to_bytes(4, "big"))
        out.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(out, parsed, value)
        records.append(out.getvalue())
    found = pa.table(made.decode(pa.array(records)).columns, schema=schema)
    assert found.to_pylist() == values


def test_a_type_that_contains_itself_in_another_schema(server: RegistryServer) -> None:
    server.subjects["R"] = 200
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "next", "type": ["null", "Tree"]}]}
    server.add(200, tree)
    server.add(201, schema(("t", "Tree")), references=[{"name": "Tree", "subject": "R", "version": 1}])
    with pytest.raises(BacklogError, match="the Avro type Tree contains itself"):
        schemaOf(registry(server.url).schema(201))


def test_login() -> None:
    secret = "me:p:ä"
    expected = "Basic " + base64.b64encode(secret.encode()).decode()
    with RegistryServer(login=expected) as server:
        server.add(1, OLD)
        some = registry(server.url, **{"schema.registry.basic.auth.user.info": secret})
        assert some.schema(1) == OLD
        for other in (registry(server.url), registry(server.url, **{"schema.registry.basic.auth.user.info": "me:no"})):
            with pytest.raises(BacklogError, match=r"refuses the login \(401\)") as caught:
                other.schema(1)
            assert "me:" not in str(caught.value)
    assert secret not in repr(some.options)


class Authority:
    """Signs certificates for localhost."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(self._certificate(name, self._key, ca=True))

    def _certificate(self, name: str, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> bytes:
        now = dt.datetime.now(dt.UTC)
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        public = self._key.public_key()
        usage = x509.KeyUsage(True, False, False, False, False, ca, ca, False, False)
        made = (
            x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        )  # fmt: skip
        return made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def sign(self, name: str, password: str = "") -> tuple[Path, Path]:
        """Files with a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        paths = self.folder / f"{name}-cert.pem", self.folder / f"{name}-key.pem"
        paths[0].write_bytes(self._certificate(name, key, ca=False))
        cipher = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, cipher))
        return paths


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ca")


def server_context(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("server"))
    return context


def test_tls(authority: Authority) -> None:
    with RegistryServer(tls=server_context(authority)) as server:
        server.add(1, OLD)
        assert registry(server.url, **{"schema.registry.ssl.ca.location": str(authority.path)}).schema(1) == OLD
        with pytest.raises(BacklogError, match="is not trusted") as caught:
            registry(server.url).schema(1)
        assert "schema.registry.ssl.ca.location" in str(caught.value)
        other = Authority(authority.folder, "other")
        with pytest.raises(BacklogError, match="is not trusted"):
            registry(server.url, **{"schema.registry.ssl.ca.location": str(other.path)}).schema(1)


def test_tls_with_a_certificate_of_the_client(authority: Authority) -> None:
    context = server_context(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.path)
    certificate, key = authority.sign("client", "p w")
    ca = {"schema.registry.ssl.ca.location": str(authority.path)}
    own = {
        "schema.registry.ssl.certificate.location": str(certificate),
        "schema.registry.ssl.key.location": str(key),
        "schema.registry.ssl.key.password": "p w",
    }
    with RegistryServer(tls=context) as server:
        server.add(1, OLD)
        some = pickle.loads(pickle.dumps(registry(server.url, **ca, **own)))
        assert some.schema(1) == OLD
        with pytest.raises(BacklogError, match="did not answer for schema 1"):
            registry(server.url, **ca).schema(1)
        for password in ("", "secret"):
            wrong = {**own, "schema.registry.ssl.key.password": password}
            with pytest.raises(SettingError, match=r"schema\.registry\.ssl\.certificate\.location") as caught:
                registry(server.url, **ca, **wrong).schema(1)
            assert "secret" not in str(caught.value)
        missing = {"schema.registry.ssl.ca.location": "/none.pem"}
        with pytest.raises(SettingError, match=r"schema\.registry\.ssl\.ca\.location = '/none\.pem': cannot be used"):
            registry(server.url, **missing).schema(1)


def test_pickled_options_hold_what_is_needed() -> None:
    options = RegistryOptions(("http://a",), "u:p", key_password="x")
    assert pickle.loads(pickle.dumps(Registry(options))).options == options
    assert json.dumps(repr(options)).find("u:p") < 0
