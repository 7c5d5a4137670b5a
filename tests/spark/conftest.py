"""What the tests of this room share."""

from __future__ import annotations

# Its source does what a test wrote down.
from tests.operators.conftest import _scripted  # noqa: F401
