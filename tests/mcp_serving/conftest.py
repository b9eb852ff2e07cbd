"""Clients of the official SDK for the skills of `served.py`, over both transports, in old and new revisions of MCP."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import pytest_asyncio
from mcp import Client, StdioServerParameters

from kernai import MappingResolver, configure
from kernai.mcp.serving import Server
from tests.warm_python import WarmPython
from tests.ways import join_threads

HERE = Path(__file__).parent
PROGRAM = HERE / "served.py"
SRC = HERE.parents[1] / "src"
PATIENCE = 60  # seconds; everything takes milliseconds, so only a hang fails


@contextmanager
def loaded() -> Iterator[ModuleType]:
    """Load the module of skills again; after the test, no thread of its skills or its server may be left."""
    before = set(threading.enumerate())
    spec = importlib.util.spec_from_file_location("kernai_served", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    module.OVER.set()
    for name in ("kernai-worker", "kernai-mcp-server"):
        join_threads(name, before)


@pytest.fixture
def credentials() -> None:
    """The credential that one of the skills needs when this process serves them."""
    configure(credential_resolver=MappingResolver({"login": {"key": "s3cret"}}))


@pytest.fixture
def served(credentials: None) -> Iterator[ModuleType]:
    """The module of skills, loaded again for each test."""
    with loaded() as module:
        yield module


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The environment of a process that serves; its output is buffered, as by default."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    return {**inherited, "PYTHONPATH": str(SRC), "KERNAI_SKILL_LOGIN_KEY": "s3cret"}


@pytest.fixture(scope="session")
def impatient(environment: dict[str, str]) -> dict[str, str]:
    """Like `environment`, for a server that waits only briefly for skills that ignore cancellation."""
    return {**environment, "KERNAI_TEST_PATIENCE": "0.1"}


@pytest.fixture(scope="session")
def python(environment: dict[str, str]) -> Iterator[WarmPython]:
    """A Python that has imported everything that serving needs."""
    with WarmPython("kernai.mcp.serving", environment=environment) as python:
        yield python


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["stdio-auto", "http-legacy"])
async def client(request: pytest.FixtureRequest, environment: dict[str, str]) -> AsyncIterator[Client]:
    """A client of a server process (stdio), or of a server in this process (HTTP), in a revision of MCP.

    One task enters and exits it, as the SDK requires.
    """
    transport, mode = request.param.split("-")
    opened, over = asyncio.get_running_loop().create_future(), asyncio.Event()
    program = StdioServerParameters(command=sys.executable, args=[str(PROGRAM)], env=environment)

    async def keep() -> None:
        with loaded() as served, Server(served.SKILLS, port=0, **served.OPTIONS) as server:
            source = program if transport == "stdio" else server.url
            async with Client(source, mode=mode, read_timeout_seconds=PATIENCE) as client:
                opened.set_result(client)
                await over.wait()

    kept = asyncio.create_task(keep())
    yield await asyncio.wait_for(opened, PATIENCE)
    over.set()
    await asyncio.wait_for(kept, PATIENCE)
