"""Gives fsspec's file systems the keys that Spark has in Hadoop's settings (pure).

A Python source reads through fsspec, which looks for keys in its own options and in the environment. People have them
in ``spark.hadoop.fs.s3a.*``, ``fs.azure.*`` and ``fs.gs.*``.

Sources: Hadoop documentation, "Hadoop-AWS module" and "Hadoop Azure Support: ABFS"; documents of s3fs, adlfs, gcsfs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from backlog_spark.common.store_interface import SCHEMES
from backlog_spark.common.stores import arguments_for
from backlog_spark.errors import SettingError

__all__ = ["Get", "fs_options", "with_keys"]

Get = Callable[[str], str | None]
"""A setting of Hadoop's, also one that is kept by a credential provider."""

# The authority is a bucket, or a container with its account.
_URL = re.compile(r"\b(s3[an]?|abfss?|gs)://([^/\s\"',\]}\\]+)")
_ANONYMOUS = "AnonymousAWSCredentialsProvider"
# Of the other providers s3fs knows some too: it finds keys in the environment, and the machine's role.
_BY_KEY = re.compile("(Simple|Temporary)AWSCredentialsProvider")
_CENTRAL = "s3.amazonaws.com"  # Hadoop then finds the bucket's region, as s3fs does without an endpoint
_OWN = "fs."
_READ_STORES = frozenset({"hybrid", "mysql_cdc"})  # they have options fs.*


def fs_options(options: Mapping[str, str], get: Get) -> dict[str, str]:
    """The options ``fs.*`` that a source lacks, for the URLs among its options.

    Parameters
    ----------
    options : mapping of str to str
        Those of the source. If it has arguments for a file system, nothing is added for this one.
    get : callable
        Hadoop's settings.

    Raises
    ------
    SettingError
        Hadoop has several keys for one file system, by bucket or account. fsspec's options have one.
    """
    given = {name[len(_OWN) :]: text for name, text in options.items() if name.lower().startswith(_OWN)}
    found: dict[str, dict[str, str]] = {}
    for scheme, authority in sorted({url for text in options.values() for url in _URL.findall(text)}):
        if arguments_for(f"{scheme}://{authority}", given):
            continue
        kind = SCHEMES.get(scheme, scheme)
        arguments = _KINDS[kind](authority, get)
        if found.setdefault(kind, arguments) != arguments:
            raise SettingError(
                f"spark.hadoop.fs.{'azure' if kind == 'abfs' else f'{kind}a'}.*",
                "different keys for two buckets or accounts",
                f"the source reads {scheme}:// with one key.",
                f"Give the source its own with options such as fs.{kind}.key, or read them with two sources.",
            )
    added = {f"{_OWN}{kind}.{name}": text for kind, arguments in found.items() for name, text in arguments.items()}
    for phase in options.get("phases", "").split(","):
        name, _, of_kind = (each.strip() for each in phase.partition(":"))
        if (of_kind or name) == "delta":
            for kind, arguments in found.items():
                own = _for_delta_rs(kind, arguments)
                added |= {f"phase.{name}.{_OWN}{kind}.{argument}": text for argument, text in own.items()}
    return added


def with_keys(source_format: str, options: Mapping[str, str], get: Callable[[], Get]) -> dict[str, str]:
    """A source's options, with `fs_options` if it reads stores. ``get`` is only called where they are needed."""
    if source_format not in _READ_STORES or not any(map(_URL.search, options.values())):
        return dict(options)
    return {**options, **fs_options(options, get())}


def _for_delta_rs(kind: str, arguments: Mapping[str, str]) -> dict[str, str]:
    """What delta-rs, which reads a Delta table, calls otherwise. It has S3's bucket in the path by default."""
    found = {_DELTA_RS[kind, name]: text for name, text in arguments.items() if (kind, name) in _DELTA_RS}
    if region := json.loads(arguments.get("client_kwargs", "{}")).get("region_name"):
        found["region"] = region
    if arguments.get("endpoint_url", "").startswith("http:"):
        found["allow_http"] = "true"
    return found


def _s3(bucket: str, get: Get) -> dict[str, str]:
    def of(name: str) -> str:
        return (get(f"fs.s3a.bucket.{bucket}.{name}") or get(f"fs.s3a.{name}") or "").strip()

    providers = of("aws.credentials.provider")
    found = {}
    if _ANONYMOUS in providers:
        found = {"anon": "true"}
    elif not providers or _BY_KEY.search(providers):
        found = _named(of, {"key": "access.key", "secret": "secret.key", "token": "session.token"})
    endpoint = "" if of("endpoint") == _CENTRAL else of("endpoint")
    if endpoint and "://" not in endpoint:
        endpoint = f"{'http' if of('connection.ssl.enabled') == 'false' else 'https'}://{endpoint}"
    if endpoint:
        found["endpoint_url"] = endpoint
    if region := of("endpoint.region"):
        found["client_kwargs"] = json.dumps({"region_name": region})
    if of("path.style.access") == "true":
        found["config_kwargs"] = json.dumps({"s3": {"addressing_style": "path"}})
    return found


def _azure(authority: str, get: Get) -> dict[str, str]:
    host = authority.rpartition("@")[2]
    account = host.partition(".")[0]

    def of(name: str) -> str:
        return (get(f"fs.azure.{name}.{host}") or get(f"fs.azure.{name}") or "").strip()

    found = _named(of, {"account_key": "account.key", "sas_token": "sas.fixed.token"})
    if tenant := re.search(r"//[^/]+/([^/]+)/oauth2/", of("account.oauth2.client.endpoint")):
        found |= _named(of, {"client_id": "account.oauth2.client.id", "client_secret": "account.oauth2.client.secret"})
        found["tenant_id"] = tenant[1]
    return {"account_name": account, **found} if found else {}


def _google(bucket: str, get: Get) -> dict[str, str]:
    names = ("fs.gs.auth.service.account.json.keyfile", "google.cloud.auth.service.account.json.keyfile")
    return next(({"token": path} for path in map(get, names) if path), {})


def _named(of: Callable[[str], str], names: Mapping[str, str]) -> dict[str, str]:
    return {argument: text for argument, name in names.items() if (text := of(name))}


_DELTA_RS = {
    ("s3", "key"): "access_key_id",
    ("s3", "secret"): "secret_access_key",
    ("s3", "token"): "session_token",
    ("s3", "anon"): "skip_signature",
    ("gs", "token"): "service_account",
}
_KINDS: Mapping[str, Callable[[str, Get], dict[str, str]]] = {"s3": _s3, "abfs": _azure, "gs": _google}
