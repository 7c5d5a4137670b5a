"""Pipelines add the folder of their file to the paths of the process: each test puts them back."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_paths() -> Iterator[None]:
    path, given = [*sys.path], os.environ.get("PYTHONPATH")
    yield
    sys.path[:] = path
    os.environ.pop("PYTHONPATH", None)
    if given is not None:
        os.environ["PYTHONPATH"] = given
