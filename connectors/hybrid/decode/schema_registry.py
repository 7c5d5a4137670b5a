"""Fetches schemas of Avro records from a schema registry, by the id at the start of each record.

Source: Confluent's documentation of the wire format (a byte 0, the id in four bytes, the Avro binary) and of the REST
interface (``GET /schemas/ids/{id}``), which Apicurio, Karapace and Redpanda have too.
"""

from __future__ import annotations

import base64
import json
import logging
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any, Self

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spi.options import option, text, values
from backlog_spark.spi.user_options import UserOptions

__all__ = ["NoSchema", "Registry", "RegistryOptions"]

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
_LARGEST = 8 << 20
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


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
    """avro: the registry with the schema ids of the records."""
    user_info: str = text(_USER, type="user:password", secret=True)
    """avro: login for the registry. Never written to logs, offsets or errors."""
    ca: str = text(_CA, type="path", shown="the system's")
    """avro: the registry's authorities."""
    certificate: str = text(_CERTIFICATE, type="path")
    """avro: the client's certificate."""
    key: str = text(_KEY, type="path")
    """avro: its key."""
    key_password: str = text(_PASSWORD, secret=True)
    """avro: the key's password. Secret."""
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
    """The registry works but has no Avro schema with an id. The record with that id is malformed."""


class Registry:
    """Fetches schemas, each one once. Only its options are pickled.

    Parameters
    ----------
    options : RegistryOptions
        No connection is opened before the first `schema`.
    """

    def __init__(self, options: RegistryOptions) -> None:
        self.options = options
        self._schemas: dict[int, Any] = {}
        self._missing: dict[int, NoSchema] = {}
        self._news = list(_NEWS)
        self._opener: urllib.request.OpenerDirector | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.options,))

    def schema(self, id: int) -> Any:
        """The Avro schema of an id, as parsed JSON.

        Raises
        ------
        NoSchema
            If the registry does not know the id, or the schema is not Avro.
        BacklogError
            If the registry cannot be reached, refuses the login, or gives an undocumented answer. If the schema refers
            to other schemas.
        """
        if id in self._missing:
            raise self._missing[id]
        if id not in self._schemas:
            try:
                self._schemas[id] = self._parsed(id, self._fetch(f"/schemas/ids/{id}", id))
            except NoSchema as missing:
                self._missing[id] = missing
                _log.warning("%s Records that name it are malformed.", missing.problem)
                raise
        return self._schemas[id]

    def _parsed(self, id: int, body: bytes) -> Any:
        try:
            answer = json.loads(body)
            kind, references, text = answer.get("schemaType", "AVRO"), answer.get("references"), answer["schema"]
            schema = json.loads(text) if kind == "AVRO" else None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BacklogError(
                f"the schema registry's answer for id {id} has an undocumented form.",
                f"Check that {_URL} is a registry's base URL.",
            ) from None
        if kind != "AVRO":
            raise NoSchema(
                f"schema {id} of the registry is of type {kind}.", "Only Avro can be decoded. Read the value raw."
            )
        if references:
            raise BacklogError(
                f"schema {id} of the registry refers to other schemas.", "Register it as one schema, or set avroSchema."
            )
        return schema

    def _fetch(self, path: str, id: int) -> bytes:
        failure, pauses = "", [0.0, *self.options.pauses]
        while pauses:
            time.sleep(pauses.pop(0))
            missing: NoSchema | None = None
            for url in self.options.urls:
                try:
                    with self._opened().open(self._request(url + path), timeout=_TIMEOUT) as answer:
                        body: bytes = answer.read(_LARGEST)
                        return body
                except urllib.error.HTTPError as error:
                    with error:
                        try:
                            self._check(error, id, url)
                        except NoSchema as found:
                            missing = found
                            continue
                    failure = f"{url} answers {error.code}"
                except (urllib.error.URLError, OSError, ValueError) as error:
                    reason = getattr(error, "reason", error)
                    if isinstance(reason, ssl.SSLCertVerificationError):
                        raise BacklogError(
                            f"the certificate of the schema registry {url} is not trusted: {reason.verify_message}.",
                            f"Set {_CA} to the authority's certificate.",
                        ) from None
                    failure = f"{url}: {reason}"
            if missing and not self._news:
                raise missing
            if missing:
                pauses.insert(0, self._news.pop(0))
        raise BacklogError(
            f"the schema registry did not give schema {id} in {1 + len(self.options.pauses)} tries: {failure}.",
            f"Check {_URL}, and whether the executors can reach the registry.",
        )

    def _check(self, answer: urllib.error.HTTPError, id: int, url: str) -> None:
        """Raise an error for an answer that will not change."""
        status = answer.code
        if status in _PASSING:
            return
        if status in (401, 403):
            raise BacklogError(f"the schema registry {url} refuses the login ({status}).", f"Check {_USER}.")
        if status == 404 and _error_code(answer) == _UNKNOWN:
            raise NoSchema(
                f"the schema registry {url} has no schema {id}.",
                "Check that the topic's producers use this registry, and that the values are Avro with a schema id.",
            )
        raise BacklogError(f"the schema registry {url} answers {status} for schema {id}.", f"Check {_URL}.")

    def _request(self, url: str) -> urllib.request.Request:
        headers = {"Accept": _ACCEPT}
        if self.options.user_info:
            headers["Authorization"] = "Basic " + base64.b64encode(self.options.user_info.encode()).decode()
        return urllib.request.Request(url, headers=headers)

    def _opened(self) -> urllib.request.OpenerDirector:
        options = self.options
        if self._opener is None:
            handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
            if any(url.startswith("https:") for url in options.urls):
                context = _made(_CA, options.ca, lambda: ssl.create_default_context(cafile=options.ca or None))
                if options.certificate:
                    chain = (options.certificate, options.key or None, options.key_password)
                    _made(_CERTIFICATE, options.certificate, lambda: context.load_cert_chain(*chain))
                handlers.append(urllib.request.HTTPSHandler(context=context))
            self._opener = urllib.request.build_opener(*handlers)
        return self._opener


def _error_code(answer: urllib.error.HTTPError) -> Any:
    try:
        return json.loads(answer.read(_LARGEST)).get("error_code")
    except (ValueError, AttributeError, OSError):
        return None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirections: the login must not go to another server."""

    def redirect_request(self, *arguments: Any) -> None:
        """None: the redirection itself is the answer."""
        return


def _made(name: str, path: str, make: Any) -> Any:
    try:
        return make()
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or "it is not a PEM file, or it has another password"
        raise SettingError(name, path, f"cannot be used: {why}.", "Give a PEM file that the executors have.") from None


def _without_login(url: str) -> str:
    return url.rpartition("@")[2] if "@" in url else url
