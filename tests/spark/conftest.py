"""Fixtures for the tests of this package."""

from __future__ import annotations

# Its source does what a test wrote down.
from tests.operators.conftest import _scripted  # noqa: F401
