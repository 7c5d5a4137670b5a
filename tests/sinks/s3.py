"""An S3 server with one bucket, in a process of its own: deltalake holds Python's lock while it writes."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import s3fs

__all__ = ["lake", "s3a"]


def s3a(options: Mapping[str, str]) -> dict[str, str]:
    """The same for Spark: its settings for ``s3a://``."""
    from servers.s3a_jars import s3a_jars

    settings = {
        "endpoint": options["AWS_ENDPOINT_URL"],
        "endpoint.region": options["AWS_REGION"],
        "access.key": options["AWS_ACCESS_KEY_ID"],
        "secret.key": options["AWS_SECRET_ACCESS_KEY"],
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    return {
        "spark.jars": ",".join(map(str, s3a_jars())),
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()},
    }


@contextmanager
def lake() -> Iterator[dict[str, str]]:
    """deltalake's storage options for the bucket ``lake``."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-c", f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            limit = time.monotonic() + 60
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    assert time.monotonic() < limit
                    time.sleep(0.05)
            s3fs.S3FileSystem(key="me", secret="hunter22", client_kwargs={"endpoint_url": endpoint}).mkdir("lake")
            yield {
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "me",
                "AWS_SECRET_ACCESS_KEY": "hunter22",
            }
        finally:
            server.kill()
