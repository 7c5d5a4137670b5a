"""Hadoop's settings of a store, as arguments of fsspec and of delta-rs."""

from __future__ import annotations

import json

import pytest

from backlog_spark.common.hadoop_arguments import fs_options, with_keys
from backlog_spark.errors import SettingError

S3 = {"fs.s3a.access.key": "me", "fs.s3a.secret.key": "hunter22"}
OAUTH = {
    "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.com/a-tenant/oauth2/token",
    "fs.azure.account.oauth2.client.id.lake.dfs.core.windows.net": "an-id",
    "fs.azure.account.oauth2.client.secret": "hunter22",
}


@pytest.mark.parametrize(
    ("options", "conf", "expected"),
    [
        ({"path": "s3a://b/x"}, S3, {"fs.s3.key": "me", "fs.s3.secret": "hunter22"}),
        ({"path": "/local", "backlog.list": "s3n://b/x"}, S3, {"fs.s3.key": "me", "fs.s3.secret": "hunter22"}),
        ({"path": '["s3://b/x", "s3a://b/y"]'}, S3, {"fs.s3.key": "me", "fs.s3.secret": "hunter22"}),
        # Hadoop takes a bucket's own setting before the common one.
        (
            {"path": "s3a://b/x"},
            {**S3, "fs.s3a.bucket.b.secret.key": "its own", "fs.s3a.bucket.c.access.key": "other"},
            {"fs.s3.key": "me", "fs.s3.secret": "its own"},
        ),
        ({"path": "s3a://b/x", "fs.key": "given"}, S3, {}),
        ({"path": "s3a://b/x", "fs.s3.anon": "true"}, S3, {}),
        ({"path": "s3a://b/x", "fs.abfs.account_key": "given"}, S3, {"fs.s3.key": "me", "fs.s3.secret": "hunter22"}),
        ({"path": "/a/b"}, S3, {}),
        ({"path": "s3a://b/x"}, {}, {}),
        (
            {"path": "s3a://b/x"},
            {**S3, "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"},
            {"fs.s3.anon": "true"},
        ),
        (
            {"path": "s3a://b/x"},
            {
                "fs.s3a.session.token": "t",
                "fs.s3a.endpoint": "store:9000",
                "fs.s3a.connection.ssl.enabled": "false",
                "fs.s3a.endpoint.region": "eu-1",
                "fs.s3a.path.style.access": "true",
            },
            {
                "fs.s3.token": "t",
                "fs.s3.endpoint_url": "http://store:9000",
                "fs.s3.client_kwargs": json.dumps({"region_name": "eu-1"}),
                "fs.s3.config_kwargs": json.dumps({"s3": {"addressing_style": "path"}}),
            },
        ),
        # Spark does not use keys for which no provider asks.
        (
            {"path": "s3a://b/x"},
            {**S3, "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider"},
            {},
        ),
        (
            {"path": "s3a://b/x"},
            {
                **S3,
                "fs.s3a.bucket.b.aws.credentials.provider": "x.IAMProvider, org.apache.hadoop.fs.s3a."
                "SimpleAWSCredentialsProvider",
            },
            {"fs.s3.key": "me", "fs.s3.secret": "hunter22"},
        ),
        ({"path": "s3a://b/x"}, {"fs.s3a.endpoint": "s3.amazonaws.com"}, {}),
        ({"path": "s3a://b/x"}, {"fs.s3a.endpoint": "s3.eu.x"}, {"fs.s3.endpoint_url": "https://s3.eu.x"}),
        (
            {"path": "s3a://b/x", "phases": "old : delta, files"},
            {**S3, "fs.s3a.endpoint": "http://store", "fs.s3a.endpoint.region": "eu-1", "fs.s3a.session.token": "t"},
            {
                "fs.s3.key": "me",
                "fs.s3.secret": "hunter22",
                "fs.s3.token": "t",
                "fs.s3.endpoint_url": "http://store",
                "fs.s3.client_kwargs": json.dumps({"region_name": "eu-1"}),
                "phase.old.fs.s3.access_key_id": "me",
                "phase.old.fs.s3.secret_access_key": "hunter22",
                "phase.old.fs.s3.session_token": "t",
                "phase.old.fs.s3.region": "eu-1",
                "phase.old.fs.s3.allow_http": "true",
            },
        ),
        (
            {"path": "abfss://c@lake.dfs.core.windows.net/x"},
            {"fs.azure.account.key.lake.dfs.core.windows.net": "hunter22"},
            {"fs.abfs.account_name": "lake", "fs.abfs.account_key": "hunter22"},
        ),
        (
            {"path": "abfs://c@lake.dfs.core.windows.net/x"},
            {"fs.azure.sas.fixed.token.lake.dfs.core.windows.net": "sig=x"},
            {"fs.abfs.account_name": "lake", "fs.abfs.sas_token": "sig=x"},
        ),
        ({"path": "abfss://c@other.dfs.core.windows.net/x"}, {"fs.azure.account.key.lake.dfs": "x"}, {}),
        (
            {"path": "abfss://c@lake.dfs.core.windows.net/x"},
            OAUTH,
            {
                "fs.abfs.account_name": "lake",
                "fs.abfs.client_id": "an-id",
                "fs.abfs.client_secret": "hunter22",
                "fs.abfs.tenant_id": "a-tenant",
            },
        ),
        (
            {"path": "gs://b/x"},
            {"google.cloud.auth.service.account.json.keyfile": "/etc/key.json"},
            {"fs.gs.token": "/etc/key.json"},
        ),
        (
            {"path": "gs://b/x", "phases": "delta"},
            {"fs.gs.auth.service.account.json.keyfile": "/etc/key.json"},
            {"fs.gs.token": "/etc/key.json", "phase.delta.fs.gs.service_account": "/etc/key.json"},
        ),
    ],
)
def test_the_arguments(options: dict[str, str], conf: dict[str, str], expected: dict[str, str]) -> None:
    assert fs_options(options, conf.get) == expected
    assert with_keys("hybrid", options, lambda: conf.get) == {**options, **expected}
    assert with_keys("kafka", options, lambda: conf.get) == options


def test_two_keys_for_one_file_system_are_refused() -> None:
    conf = {**S3, "fs.s3a.bucket.b.access.key": "other", "fs.s3a.bucket.b.secret.key": "hunter33"}
    with pytest.raises(SettingError, match=r"spark\.hadoop\.fs\.s3a.*one key") as told:
        fs_options({"path": "s3a://a/x", "backlog.list": "s3a://b/y"}, conf.get)
    assert "hunter" not in repr(told.value)
    assert fs_options({"path": "s3a://a/x", "backlog.list": "s3a://b/y", "fs.s3.key": "x"}, conf.get) == {}
