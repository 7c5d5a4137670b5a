"""TLS and SCRAM, on a broker with a certificate of its own authority."""

from __future__ import annotations

import datetime
import ipaddress
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from backlog_spark.errors import BacklogError, SettingError
from servers.kafka import KafkaServer

from .broker import Broker, read, step

_KEY_PASSWORD = "k3y-password"
_SCRAM_PASSWORD = "scr4m-password"


class Authority:
    """Signs certificates into PEM files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.file = directory / "ca.pem"
        self.text = self._certificate(self._key, self._name, is_authority=True)
        self.file.write_text(self.text)

    def _certificate(self, key: ec.EllipticCurvePrivateKey, name: x509.Name, *, is_authority: bool) -> str:
        now = datetime.datetime.now(datetime.UTC)
        host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(host, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        if is_authority:
            use = dict.fromkeys(
                ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
            ) | dict.fromkeys(("encipher_only", "decipher_only"), False)
            usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **use)
            made = made.add_extension(usage, critical=True)
        return made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def store(self, name: str, password: str = "") -> Path:
        """A PEM file with a key, encrypted if there is a password, and its certificate, as Java has it."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        plain = serialization.NoEncryption()
        encryption = serialization.BestAvailableEncryption(password.encode()) if password else plain
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        path = self._directory / f"{name}.pem"
        path.write_text(private.decode() + self._certificate(key, subject, is_authority=False))
        return path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[Broker]:
    options = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.store("broker")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.file),
        "listener.name.ssl.ssl.client.auth": "required",
    }
    with KafkaServer(protocols=["SSL", "SASL_SSL"], options=options) as server:
        broker = Broker(server)
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion("scram", info, _SCRAM_PASSWORD.encode())
        broker.admin.alter_user_scram_credentials([change])["scram"].result(30)
        broker.send(broker.topic(name="t"), ["a"])
        yield broker


def _values(broker: Broker, protocol: str, **options: str) -> list[bytes]:
    given = {"kafka__bootstrap__servers": broker.server.address(protocol), "kafka__security__protocol": protocol}
    phase = broker.phase(subscribe="t", **given, **options)
    try:
        begin = phase.begin({})
        return [row["value"] for row in read(phase, begin, step(phase, begin).position)]
    finally:
        broker.close_phases()


def test_certificates_of_both_sides(secured: Broker, authority: Authority) -> None:
    store = authority.store("client", _KEY_PASSWORD)
    given = {
        "kafka__ssl__keystore__type": "PEM",
        "kafka__ssl__keystore__location": str(store),
        "kafka__ssl__key__password": _KEY_PASSWORD,
        "kafka__ssl__truststore__type": "PEM",
        "kafka__ssl__truststore__location": str(authority.file),
    }
    assert _values(secured, "SSL", **given) == [b"a"]


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_javas_stores_by_the_commands_of_the_errors(
    secured: Broker, authority: Authority, tmp_path: Path, kind: str
) -> None:
    def keytool(command: str, *more: str) -> None:
        given = ["keytool", f"-{command}", "-storepass", _KEY_PASSWORD, "-noprompt", *more]
        subprocess.run(given, check=True, capture_output=True, timeout=60)

    made, p12 = authority.store("java"), tmp_path / "made.p12"
    key = serialization.load_pem_private_key(made.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    encryption = serialization.BestAvailableEncryption(_KEY_PASSWORD.encode())
    certificate = x509.load_pem_x509_certificate(made.read_bytes())
    p12.write_bytes(pkcs12.serialize_key_and_certificates(b"me", key, certificate, None, encryption))
    trust, store = tmp_path / "the trust.jks", tmp_path / "store.jks"
    keytool("importcert", "-keystore", str(trust), "-storetype", kind, "-alias", "ca", "-file", str(authority.file))
    keytool(
        "importkeystore", "-srckeystore", str(p12), "-srcstorepass", _KEY_PASSWORD, "-destkeystore", str(store),
        "-deststoretype", kind,
    )  # fmt: skip
    given: dict[str, str] = {}
    for name, path in (("truststore", trust), ("keystore", store)):
        javas = {"location": str(path), "type": kind, "password": _KEY_PASSWORD}
        with pytest.raises(
            SettingError, match=f"kafka.ssl.{name}.type = '{kind}': is a store that only Java"
        ) as caught:
            _values(secured, "SSL", **{f"kafka__ssl__{name}__{each}": value for each, value in javas.items()})
        for command in re.findall("`(.+?)`", str(caught.value)):
            # The passwords of a new store are asked for twice, before that of the old one.
            asked = f"{_KEY_PASSWORD}\n" * 3
            subprocess.run(command, shell=True, check=True, input=asked, text=True, capture_output=True, timeout=60)
        said = dict(re.findall(r"(kafka\.ssl\.\w+\.(?:type|location))=(PEM|.+?\.pem)(?=[. ])", str(caught.value)))
        given |= {setting.replace(".", "__"): value for setting, value in said.items()}
    assert len(given) == 4
    assert _values(secured, "SSL", **given) == [b"a"]


@pytest.mark.parametrize("way", ["file", "text"])
def test_scram_over_tls(secured: Broker, authority: Authority, way: str) -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    ca = {
        "file": {"kafka__ssl__ca__location": str(authority.file)},
        "text": {"kafka__ssl__truststore__type": "PEM", "kafka__ssl__truststore__certificates": authority.text},
    }[way]
    given = {
        "kafka__sasl__mechanism": "SCRAM-SHA-512",
        "kafka__sasl__jaas__config": f'{module} required username="scram" password="{_SCRAM_PASSWORD}";',
    }
    assert _values(secured, "SASL_SSL", **given, **ca) == [b"a"]


def test_a_broker_of_an_unknown_authority_is_not_trusted(secured: Broker) -> None:
    given = {
        "kafka__sasl__mechanism": "SCRAM-SHA-512",
        "kafka__sasl__username": "scram",
        "kafka__sasl__password": _SCRAM_PASSWORD,
    }
    with pytest.raises(BacklogError, match=r"as 'scram' cannot be reached: .*certificate.*") as caught:
        _values(secured, "SASL_SSL", **given)
    assert _SCRAM_PASSWORD not in str(caught.value)
