"""Fixtures of the tests of processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import kernai
from kernai import MemoryStore
from tests.durable.durable_cases import Performed, agent, provider
from tests.warm_python import WarmPython

SRC = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture(scope="session")
def whole() -> MemoryStore:
    """A store with the run of `durable_cases`."""
    store = MemoryStore()
    assert kernai.execute(agent(Performed()), "do everything", provider=provider(), store=store, run_id="r").ok
    return store


@pytest.fixture(scope="session")
def python() -> Iterator[WarmPython]:
    """A Python that has imported kernai."""
    with WarmPython("kernai", environment={**os.environ, "PYTHONPATH": str(SRC)}) as python:
        yield python
