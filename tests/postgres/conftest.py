"""A PostgreSQL server for the tests: Debian's, on a socket in a temporary folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.postgres.server import Server
from tests.warm_python import WarmPython

ROOT = Path(__file__).resolve().parents[2]

IS_REQUIRED = bool(os.environ.get("KERNAI_REQUIRE_POSTGRES"))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests of a process. Without PostgreSQL the tests are skipped, unless it is required."""
    if (why := Server.why_not()) is not None:
        (pytest.fail if IS_REQUIRED else pytest.skip)(f"the tests of PostgreSQL need a server: {why}")
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def python() -> Iterator[WarmPython]:
    with WarmPython("kernai.postgres", environment={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"}) as python:
        yield python


@pytest.fixture
def schema(server: Server) -> str:
    """A schema's name that no other test has."""
    return f"k{next(_SCHEMAS)}"


_SCHEMAS = count()
