"""Passwords and where they come from, and TLS, on real servers."""

from __future__ import annotations

import datetime as dt
import json
import ssl
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from backlog_spark.connectors.mysql_cdc.binlog.dump import open_dump
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.server.connection import connect, query
from backlog_spark.connectors.mysql_cdc.server.login import Login
from backlog_spark.connectors.mysql_cdc.source import check
from backlog_spark.errors import BacklogError, SettingError
from servers.mariadb import MARIADB_SERVERS
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import options, reader, take

SECRET = "p'w\\d ü"


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._key = rsa.generate_private_key(65537, 2048)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._certificate(subject, subject, self._key.public_key(), None)
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self._subject = subject

    def _certificate(
        self, subject: x509.Name, issuer: x509.Name, public: rsa.RSAPublicKey, address: str | None
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
        made = made.serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
        made = made.add_extension(x509.BasicConstraints(ca=address is None, path_length=None), critical=True)
        if address:
            made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(address)]), critical=False)
        return made.sign(self._key, hashes.SHA256())

    def sign(self, name: str, host: str) -> tuple[Path, Path]:
        """Files with a certificate for a host, and its key."""
        key = rsa.generate_private_key(65537, 2048)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._certificate(subject, self._subject, key.public_key(), host)
        paths = self.folder / f"{name}-cert.pem", self.folder / f"{name}-key.pem"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        paths[1].write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
        )
        return paths


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "known")


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[MySQLServer]:
    """A MariaDB with TLS, whose certificate names localhost; users with and without a client's certificate."""
    certificate, key = authority.sign("server", "localhost")
    tls = {"ssl-ca": authority.path, "ssl-cert": certificate, "ssl-key": key}
    with MARIADB_SERVERS[0](fast=True, options={k: str(v) for k, v in tls.items()}) as server:
        server.execute("CREATE DATABASE safe")
        server.execute("CREATE TABLE safe.t (id INT PRIMARY KEY, v VARCHAR(20))")
        server.execute("INSERT INTO safe.t VALUES (1, 'one')")
        for user, needs in (("plain", "NONE"), ("tls", "SSL"), ("card", "X509")):
            server.execute(f"CREATE USER {user} IDENTIFIED BY %s REQUIRE {needs}", (SECRET,))
            server.execute(f"GRANT SELECT ON safe.t TO {user}")
            server.execute(f"GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO {user}")
        yield server


def given(server: MySQLServer, user: str, **more: object) -> dict[str, str]:
    return options(server, "safe.t", **{"user": user, "password": SECRET, **more})


def cipher(server: MySQLServer, user: str, **more: object) -> str:
    with connect(MySqlOptions.parse(given(server, user, **more))) as connection:
        return str(query(connection, "SHOW STATUS LIKE 'Ssl_cipher'")[0][1])


def test_modes(secured: MySQLServer, authority: Authority, tmp_path: Path) -> None:
    assert cipher(secured, "plain", **{"ssl.mode": "disabled"}) == ""
    for mode in ("preferred", "required"):
        assert cipher(secured, "tls", **{"ssl.mode": mode}) != ""
    with pytest.raises(BacklogError, match="refused user 'tls'"):
        cipher(secured, "tls", **{"ssl.mode": "disabled"})
    known = {"ssl.ca": authority.path}
    assert cipher(secured, "tls", **{"ssl.mode": "verify_ca", **known}) != ""
    with pytest.raises(BacklogError, match=r"cannot be reached.*(IP address|hostname) mismatch"):
        cipher(secured, "tls", **{"ssl.mode": "verify_identity", **known})
    assert cipher(secured, "tls", host="localhost", **{"ssl.mode": "VERIFY_IDENTITY", **known}) != ""
    stranger = Authority(tmp_path, "stranger")
    with pytest.raises(BacklogError, match=r"cannot be reached.*certificate verify failed"):
        cipher(secured, "tls", **{"ssl.mode": "verify_ca", "ssl.ca": stranger.path})
    with pytest.raises(BacklogError, match=r"cannot be reached.*certificate verify failed"):
        cipher(secured, "tls", **{"ssl.mode": "verify_ca"})  # the system's authorities do not know it


@pytest.mark.parametrize("mode", ["preferred", "required"])
def test_certificates_that_nobody_looks_at_are_not_read(
    secured: MySQLServer, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it takes longer than all else that a connection does")

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", never)
    assert cipher(secured, "tls", **{"ssl.mode": mode}) != ""
    position = BinlogPosition(*secured.binlog_end())
    connection = open_dump(MySqlOptions.parse(given(secured, "tls", **{"ssl.mode": mode})), position).open()
    try:
        assert isinstance(connection._sock, ssl.SSLSocket)
    finally:
        connection._force_close()


@pytest.mark.process
def test_tls_that_is_asked_for_is_not_done_without() -> None:
    with MARIADB_SERVERS[0](fast=True) as server, pytest.raises(BacklogError, match=r"cannot be reached.*(SSL|TLS)"):
        check(options(server, "safe.t", **{"ssl.mode": "required"}))


@pytest.mark.process
def test_mysqls_default_authentication_works_with_and_without_tls() -> None:
    with MySQLServer(fast=True) as server:
        server.execute("CREATE USER modern IDENTIFIED WITH caching_sha2_password BY 'its password'")
        for mode, encrypted in (("disabled", False), ("preferred", True), ("required", True)):
            server.execute("FLUSH PRIVILEGES")  # forgets that the user was let in before
            more = {"user": "modern", "password": "its password", "ssl.mode": mode}
            if not encrypted:
                with pytest.raises(SettingError, match="allowPublicKeyRetrieval"):
                    check(options(server, "a.b", **more))
                more["allowPublicKeyRetrieval"] = "true"
            with connect(MySqlOptions.parse(options(server, "a.b", **more))) as connection:
                assert bool(query(connection, "SHOW STATUS LIKE 'Ssl_cipher'")[0][1]) is encrypted


def test_a_table_is_read_with_a_clients_certificate(secured: MySQLServer, authority: Authority) -> None:
    certificate, key = authority.sign("client", "client")
    tls = {"ssl.mode": "verify_ca", "ssl.ca": authority.path, "ssl.cert": certificate, "ssl.key": key}
    with pytest.raises(BacklogError, match="refused user 'card'"):
        check(given(secured, "card", **{"ssl.mode": "required"}))
    stream = reader(given(secured, "card", **tls))
    offset, rows = take(stream, stream.initialOffset())
    assert [row[:2] for row in rows] == [(1, "one")]
    secured.execute("INSERT INTO safe.t VALUES (2, 'two')")
    # Planner and reader of the binary log have connections of their own.
    offset, rows = take(stream, offset)
    assert [row[:2] for row in rows] == [(2, "two")]
    assert SECRET not in json.dumps(offset)


def test_passwords_from_elsewhere(secured: MySQLServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n", encoding="utf-8")
    monkeypatch.setenv("OWN_PASSWORD", SECRET)
    for password in ({"passwordFile": str(file)}, {"passwordEnv": "OWN_PASSWORD"}):
        found = {**given(secured, "plain"), **password}
        del found["password"]
        stream = reader(found)
        assert len(take(stream, stream.initialOffset())[1]) >= 1
        parsed = MySqlOptions.parse(found)
        assert SECRET not in f"{parsed} {parsed!r} {vars(stream)!r}"
    file.write_text("wrong")
    with pytest.raises(BacklogError, match="refused user 'plain'"):
        check({**given(secured, "plain", password=""), "passwordFile": str(file)})


@pytest.fixture
def rotating(secured: MySQLServer, tmp_path: Path) -> Callable[[str], Path]:
    """Sets the password of a user, ends its connections, and gives a file with the password."""
    file = tmp_path / "rotating"
    secured.execute("CREATE OR REPLACE USER rotating")
    secured.execute("GRANT SELECT ON safe.t TO rotating")
    secured.execute("GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO rotating")

    def rotate(password: str) -> Path:
        secured.execute("SET PASSWORD FOR rotating = PASSWORD(%s)", (password,))
        file.write_text(f"{password}\n", encoding="utf-8")
        secured.execute("KILL CONNECTION USER rotating")
        return file

    return rotate


@pytest.mark.parametrize("origin", ["passwordFile", "passwordCommand", "passwordFunction"])
def test_a_password_that_changes(
    secured: MySQLServer, rotating: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    file = rotating(f"{SECRET} 1")
    (tmp_path / "own_passwords.py").write_text(
        "def password(host, port, user):\n"
        f"    assert (host, port, user) == ('127.0.0.1', {secured.port}, 'rotating')\n"
        f"    return open({str(file)!r}, encoding='utf-8').read().rstrip()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_passwords", raising=False)
    where = {
        "passwordFile": str(file),
        "passwordCommand": f"cat '{file}'",
        "passwordFunction": "own_passwords:password",
    }
    asked = {**options(secured, "safe.t", user="rotating", **{"connect.backoff": "0 s"}), origin: where[origin]}
    asked.pop("password", None)
    stream = reader(asked)
    offset, _ = take(stream, stream.initialOffset())
    for number in range(2, 5):
        rotating(f"{SECRET} {number}")
        secured.execute("REPLACE INTO safe.t VALUES (%s, %s)", (100 + number, origin))
        offset, rows = take(stream, offset)
        assert rows[-1][:2] == (100 + number, origin)
    parsed = MySqlOptions.parse(asked)
    assert SECRET not in f"{parsed} {parsed!r} {vars(stream)!r}"
    file.write_text("wrong")
    parsed.login.renew()
    with pytest.raises(BacklogError, match=r"refused user 'rotating'|asked for again"):
        check({**asked, "connect.max-retries": "0"})


def test_a_command_runs_once_a_minute(tmp_path: Path) -> None:
    log = tmp_path / "log"
    login = Login(password_command=f"sh -c 'echo x >> {log}; echo secret'")
    assert [login.password("h", 1, "u") for _ in range(3)] == ["secret"] * 3
    assert login.renew()
    assert not login.renew()
    assert login.password("h", 1, "u") == "secret"
    assert log.read_text() == "x\nx\n"


@pytest.mark.parametrize(
    ("login", "problem"),
    [
        (Login(password_command="/no/such/program"), "passwordCommand.*cannot be run: No such file"),
        (Login(password_command="sh -c 'echo s3cret; echo s3cret >&2; exit 3'"), "ended with the exit code 3"),
        (Login(password_command="echo 's3cret"), "a quote without its other one"),
        (Login(password_command="true"), "passwordCommand.*printed nothing"),
        (Login(password_command=r"printf '\377'"), "not UTF-8"),
        (Login(password_function="nowhere:f"), "passwordFunction.*cannot be imported"),
        (Login(password_function="json:nothing"), "cannot be imported"),
        (Login(password_function="json"), "cannot be imported"),
        (Login(password_function="json:loads"), "raised TypeError"),
        (Login(password_function="builtins:dict"), "gave no text"),
    ],
)
def test_a_password_that_is_not_there(login: Login, problem: str) -> None:
    with pytest.raises(SettingError, match=problem) as raised:
        login.password("h", 1, "u")
    assert "s3cret" not in str(raised.value)
    assert "s3cret" not in "".join(traceback.format_exception(raised.value))


def parse(**more: object) -> MySqlOptions:
    base = {"host": "h", "user": "u", "table": "a.b"}
    return MySqlOptions.parse({k.replace("__", "."): str(v) for k, v in {**base, **more}.items()})


@pytest.mark.parametrize(
    ("more", "setting", "problem"),
    [
        ({"password": SECRET, "passwordFile": "/f"}, "passwordFile", "given by password already"),
        ({"passwordFile": "/f", "passwordEnv": "X"}, "passwordEnv", "given by passwordFile already"),
        ({"passwordEnv": "X", "passwordCommand": "c"}, "passwordCommand", "given by passwordEnv already"),
        ({"password": SECRET, "passwordFunction": "m:f"}, "passwordFunction", "given by password already"),
        ({"ssl__mode": "on"}, "ssl.mode", "disabled, preferred, required, verify_ca, verify_identity"),
        ({"ssl__ca": "/ca"}, "ssl.ca", "Set ssl.mode=verify_ca"),
        ({"ssl__mode": "required", "ssl__cert": "/c"}, "ssl.cert", "needs ssl.key"),
        ({"ssl__mode": "required", "ssl__key": "/k"}, "ssl.key", "needs ssl.cert"),
        ({"ssl__cert": "/c", "ssl__key": "/k"}, "ssl.cert", "Set ssl.mode=required"),
    ],
)
def test_refused_options(more: dict[str, str], setting: str, problem: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse(**more)
    assert setting in str(caught.value)
    assert problem in str(caught.value)
    assert SECRET not in str(caught.value)


def test_what_cannot_be_read_is_named(tmp_path: Path, authority: Authority) -> None:
    missing, empty, text = tmp_path / "missing", tmp_path / "empty", tmp_path / "text.pem"
    empty.write_text("\n")
    text.write_text("no certificate")
    certificate, _ = authority.sign("one", "one")
    _, other = authority.sign("two", "two")
    for login, problem in (
        (Login(password_file=str(missing)), "passwordFile.*missing.*No such file"),
        (Login(password_file=str(empty)), "passwordFile.*is empty"),
        (Login(password_env="NO_SUCH_VARIABLE"), "passwordEnv.*NO_SUCH_VARIABLE.*no such variable"),
    ):
        with pytest.raises(SettingError, match=problem):
            login.password("h", 1, "u")
    for login, problem in (
        (Login(ssl_mode="verify_ca", ssl_ca=str(missing)), r"ssl\.ca.*missing.*No such file"),
        (Login(ssl_mode="verify_ca", ssl_ca=str(text)), r"ssl\.ca.*cannot be used"),
        (Login(ssl_mode="required", ssl_cert=str(certificate), ssl_key=str(other)), r"ssl\.cert.*cannot be used"),
    ):
        with pytest.raises(SettingError, match=problem):
            login.tls()
    assert isinstance(Login(ssl_mode="required").tls()["ssl"], ssl.SSLContext)
