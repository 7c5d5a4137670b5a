"""Files, checkpoint and table on S3 by Hadoop's ``s3a://``, and on HDFS."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cluster.hdfs import HdfsServer
from tests.sinks.s3 import lake, s3a

pytestmark = [pytest.mark.process, pytest.mark.grid]

LIMIT_S = 400


def run(root: str, readable: str, conf: dict[str, str]) -> str:
    """Run the program without keys in its environment, and compare what it found."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.stored_files_job", root, readable, json.dumps(conf)],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**clean, "AWS_EC2_METADATA_DISABLED": "true"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found: ")]
    assert json.loads(line.removeprefix("found: ")) == [list(range(400)), list(range(300))]
    return done.stdout + done.stderr


def test_s3a() -> None:
    with lake() as store:
        assert "hunter22" not in run("s3a://lake/a root", "s3a://lake/a root", s3a(store))


def test_hdfs() -> None:
    with HdfsServer() as server:
        run(f"{server.url}/a root", f"{server.web_url}/a root", {})
