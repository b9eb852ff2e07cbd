"""What the tests of processes share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm_python import WarmPython

SRC = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture(scope="session")
def strict_python() -> Iterator[WarmPython]:
    """A Python that has imported kernai, in development mode, which warns of whatever is left open."""
    with WarmPython("kernai", environment={**os.environ, "PYTHONPATH": str(SRC)}, options=["-X", "dev"]) as python:
        yield python
