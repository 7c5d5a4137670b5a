"""Fetches schemas of records from a schema registry, by the id at the start of each record. Registers new ones.

Confluent's client asks the registry, with our options and errors. Apicurio, Karapace and Redpanda have the same
interface. Its own tries are not used: it tries one URL for seconds before it asks the next one.
"""

from __future__ import annotations

import base64
import json
import logging
import ssl
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from backlog_spark.common.requirements import require
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spi.options import option, text, values
from backlog_spark.spi.user_options import UserOptions

from .avro_references import definitions, inlined

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

__all__ = ["NoSchema", "Registry", "RegistryOptions"]

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_URL, _USER = "schema.registry.url", "schema.registry.basic.auth.user.info"
_CA, _CERTIFICATE = "schema.registry.ssl.ca.location", "schema.registry.ssl.certificate.location"
_KEY, _PASSWORD = "schema.registry.ssl.key.location", "schema.registry.ssl.key.password"

# Seconds for one request, and before each further round. A restarting registry is back within these 13 s. After that
# the query should fail and say why.
_TIMEOUT = 10.0
_PAUSES = (0.2, 0.8, 2.0, 4.0, 6.0)
# Statuses of failures that may pass.
_PASSING = {408, 425, 429, 500, 502, 503, 504}
# The registry's code for an unknown schema id. Any other 404 comes from a wrong URL, or from a proxy.
_UNKNOWN = 40403
# An unknown id may be so new that this replica of the registry does not have it yet. It is requested again after these
# seconds, but only once per reader: records that are not Avro may contain any number of ids.
_NEWS = (0.2, 0.8, 2.0)
# Protobuf's descriptors instead of its text, which only protoc can read.
_SERIALIZED = "serialized"


def _urls(given: UserOptions, name: str) -> tuple[str, ...]:
    """Addresses, tried in order."""
    urls = tuple(url.strip().rstrip("/") for url in given.text(name).split(",") if url.strip())
    for url in urls:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingError(_URL, _without_login(url), "is not a registry's URL.", "For example http://host:8081.")
        if parts.username or parts.password:
            raise SettingError(_URL, _without_login(url), "contains a login.", f"Set {_USER} instead.")
    if not urls:
        raise SettingError(_URL, given.text(name), "has no URL.", "For example http://host:8081.")
    return urls


@dataclass(frozen=True)
class RegistryOptions:
    """Addresses of a registry, and the login."""

    urls: tuple[str, ...] = option(_URL, _urls, type="URL", shown="one of three")
    """avro, protobuf: the registry with the schema ids of the records."""
    user_info: str = text(_USER, type="user:password", secret=True)
    """avro, protobuf: login for the registry. Never written to logs, offsets or errors."""
    ca: str = text(_CA, type="path", shown="the system's")
    """avro, protobuf: the registry's authorities."""
    certificate: str = text(_CERTIFICATE, type="path")
    """avro, protobuf: the client's certificate."""
    key: str = text(_KEY, type="path")
    """avro, protobuf: its key."""
    key_password: str = text(_PASSWORD, secret=True)
    """avro, protobuf: the key's password. Secret."""
    # Seconds before each further round of requests.
    pauses: tuple[float, ...] = _PAUSES

    @classmethod
    def parse(cls, given: UserOptions) -> Self:
        """Parse the options.

        Raises
        ------
        SettingError
            For a malformed option, or one that needs another option.
        """
        found = cls(**values(cls, given))
        if found.user_info and ":" not in found.user_info:
            raise SettingError(_USER, "***", "is not user:password.", "Write both, with a colon between.")
        if found.key and not found.certificate:
            raise SettingError(_KEY, found.key, f"needs {_CERTIFICATE}.", "Give both.")
        if found.key_password and not found.certificate:
            raise SettingError(_PASSWORD, "***", f"needs {_CERTIFICATE}.", "Give both.")
        if (found.ca or found.certificate) and not any(url.startswith("https:") for url in found.urls):
            name, value = (_CA, found.ca) if found.ca else (_CERTIFICATE, found.certificate)
            raise SettingError(name, value, f"needs TLS, but {_URL} is http.", "Use a URL with https.")
        return found


class NoSchema(BacklogError):
    """The registry works but has no fitting schema with an id. The record with that id is malformed."""


class Registry:
    """Fetches schemas. Only its options are pickled.

    Parameters
    ----------
    options : RegistryOptions
        No connection is opened before the first `schema`.
    """

    def __init__(self, options: RegistryOptions) -> None:
        self.options = options
        self._news = list(_NEWS)
        self._client: SchemaRegistryClient | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.options,))

    def __str__(self) -> str:
        return f"the schema registry {', '.join(self.options.urls)}"

    def protobuf(self, id: int) -> list[bytes]:
        """The Protobuf schema of an id, as files of descriptors. The last one is its own; it imports the others.

        Raises
        ------
        NoSchema
            If the registry does not know the id, or the schema is not Protobuf.
        BacklogError
            As of `schema`. If the registry gives no descriptors.
        """
        return self._of(id, self._protobuf)

    def schema(self, id: int) -> Any:
        """The Avro schema of an id, as parsed JSON. Types of other schemas, to which it refers, are defined in it.

        Raises
        ------
        NoSchema
            If the registry does not know the id, or the schema is not Avro.
        BacklogError
            If the registry cannot be reached, refuses the login, or gives an undocumented answer.
        """
        return self._of(id, self._avro)

    def register(self, subject: str, schema: Any) -> int:
        """The id of an Avro schema, which is a new version of the subject unless the subject has it.

        Raises
        ------
        BacklogError
            If no registry can be reached, or it refuses the login or the schema.
        """

        def ask(client: SchemaRegistryClient) -> int:
            from confluent_kafka.schema_registry import Schema

            return int(client.register_schema(subject, Schema(json.dumps(schema), "AVRO")))

        return self._asked(f"the subject {subject}", ask)

    def _of(self, id: int, get: Callable[[SchemaRegistryClient, int], _T]) -> _T:
        try:
            return self._asked(f"schema {id}", lambda client: get(client, id))
        except NoSchema as missing:
            _log.warning("%s Records that name it are malformed.", missing.problem)
            raise

    def _avro(self, client: SchemaRegistryClient, id: int) -> Any:
        found = _typed(client.get_schema(id), id, "AVRO")
        return self._whole(client, found) if found.references else json.loads(found.schema_str)

    def _protobuf(self, client: SchemaRegistryClient, id: int) -> list[bytes]:
        found = _typed(client.get_schema(id, None, _SERIALIZED), id, "PROTOBUF")
        files: dict[str, bytes] = {}
        self._imported(client, found, files)
        return [*files.values(), _descriptor(found.schema_str, f"schema-{id}.proto")]

    def _imported(self, client: SchemaRegistryClient, schema: Schema, files: dict[str, bytes]) -> None:
        for other in schema.references or ():
            if other.name not in files:
                found = client.get_version(other.subject, other.version, True, _SERIALIZED).schema
                self._imported(client, found, files)
                files[other.name] = _descriptor(found.schema_str, other.name)

    def _whole(self, client: SchemaRegistryClient, schema: Schema) -> Any:
        named: dict[str, Any] = {}
        for other in schema.references or ():
            found = client.get_version(other.subject, other.version, True).schema
            named.update(definitions(self._whole(client, found)))
        return inlined(json.loads(schema.schema_str), named)

    def _asked(self, what: str, ask: Callable[[SchemaRegistryClient], _T]) -> _T:
        """The client's answer. It is asked again after failures that may pass."""
        failure, pauses = "", [0.0, *self.options.pauses]
        while pauses:
            time.sleep(pauses.pop(0))
            client = self._opened()
            from confluent_kafka.schema_registry import SchemaRegistryError

            try:
                return ask(client)
            except SchemaRegistryError as error:
                status = error.http_status_code
                if status in (401, 403):
                    raise BacklogError(f"{self} refuses the login ({status}).", f"Check {_USER}.") from None
                if status == 404 and error.error_code == _UNKNOWN:
                    if not self._news:
                        raise NoSchema(
                            f"{self} has no {what}.",
                            "Check that the topic's producers use this registry, and write the schema's id.",
                        ) from None
                    pauses.insert(0, self._news.pop(0))
                elif status not in _PASSING:
                    raise self._rejected(what, error) from None
                failure = f"it answers {status}"
            except BacklogError:
                raise
            except (ValueError, KeyError, TypeError, AttributeError):
                raise BacklogError(
                    f"the answer of {self} for {what} has an undocumented form.",
                    f"Check that {_URL} is a registry's base URL.",
                ) from None
            except Exception as error:  # of httpx, or of httpx2
                failure = str(error) or type(error).__name__
                if "CERTIFICATE_VERIFY_FAILED" in failure:
                    raise BacklogError(
                        f"the certificate of {self} is not trusted: {failure}.",
                        f"Set {_CA} to the authority's certificate.",
                    ) from None
        raise BacklogError(
            f"{self} did not answer for {what} in {1 + len(self.options.pauses)} tries: {failure}.",
            f"Check {_URL}, and whether driver and executors can reach the registry.",
        )

    def _rejected(self, what: str, error: Any) -> BacklogError:
        # A text without a code is not the registry's own.
        text = (
            " ".join(str(error.error_message).split()).rstrip(".") if error.error_code != error.UNKNOWN else "no reason"
        )
        return BacklogError(
            f"{self} answers {error.http_status_code} for {what}: {text}.",
            f"Check {_URL}. 409: readers of the older schema could not read the new one; change the columns, or the "
            "subject's compatibility.",
        )

    def _opened(self) -> SchemaRegistryClient:
        if self._client is None:
            require("a schema registry", "authlib")  # of the client's own extra
            from confluent_kafka.schema_registry import SchemaRegistryClient

            o, system = self.options, ssl.get_default_verify_paths()
            ca = o.ca or system.cafile or system.capath
            settings = {"url": ",".join(o.urls), "timeout": _TIMEOUT, "max.retries": 0}
            settings |= {"basic.auth.user.info": o.user_info} if o.user_info else {}
            settings |= {"ssl.ca.location": ca} if ca else {}
            if o.certificate:
                # Without a password OpenSSL would ask for it on the terminal.
                settings |= {"ssl.certificate.location": o.certificate, "ssl.key.password": o.key_password}
                settings |= {"ssl.key.location": o.key} if o.key else {}
            name, path = _CA, o.ca
            try:
                if o.ca:
                    ssl.create_default_context(cafile=o.ca)
                name, path = _CERTIFICATE, o.certificate
                self._client = SchemaRegistryClient(settings)
            except (OSError, ssl.SSLError) as error:
                why = error.strerror or "it is not a PEM file, or it has another password"
                raise SettingError(
                    name, path, f"cannot be used: {why}.", "Give a PEM file that the executors have."
                ) from None
        return self._client


def _typed(schema: Schema, id: int, kind: str) -> Schema:
    if schema.schema_type != kind:
        raise NoSchema(
            f"schema {id} of the registry is of type {schema.schema_type}, not {kind}.",
            "Set valueFormat to the format of the records, or read the value raw.",
        )
    return schema


def _descriptor(text: str, name: str) -> bytes:
    """A file of descriptors in base64, under the name by which others import it."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        raise BacklogError(
            f"the schema registry gives no descriptor of {name}, although it was asked for format={_SERIALIZED}.",
            "Set protobufDescriptorFile and protobufMessage instead of its URL.",
        ) from None
    file.name = name
    return bytes(file.SerializeToString())


def _without_login(url: str) -> str:
    return url.rpartition("@")[2] if "@" in url else url
