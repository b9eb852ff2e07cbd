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
from typing import Any

import pytest
import pytest_asyncio
from mcp import Client, StdioServerParameters

from kernai import MappingResolver, configure
from kernai.mcp.serving import Server
from tests.warm_python import WarmPython

HERE = Path(__file__).parent
PROGRAM = HERE / "served.py"
SRC = HERE.parents[1] / "src"
PATIENCE = 60  # seconds; everything takes milliseconds, so only a hang fails


def load() -> ModuleType:
    """Load the module of skills again."""
    spec = importlib.util.spec_from_file_location("kernai_served", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def loaded() -> Iterator[ModuleType]:
    """Load the module of skills; after the test, none of its skills may still run in a thread."""
    before = set(threading.enumerate())
    module = load()
    yield module
    module.OVER.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name == "kernai-worker":
            thread.join(20)
            assert not thread.is_alive(), "a skill is still running after its test"


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
    """The same for a server that waits only briefly for skills that ignore cancellation."""
    return {**environment, "KERNAI_TEST_PATIENCE": "0.1"}


@pytest.fixture(scope="session")
def python(environment: dict[str, str]) -> Iterator[WarmPython]:
    """A Python that has imported everything that serving needs."""
    with WarmPython("kernai.mcp.serving", environment=environment) as python:
        yield python




class Clients:
    """One client per transport and revision, created on first use and kept, because stdio starts a process."""

    def __init__(self, http: str, stdio: StdioServerParameters) -> None:
        self._servers: dict[str, Any] = {"http": http, "stdio": stdio}
        self._clients: dict[str, Client] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()

    async def by(self, way: str) -> Client:
        if way not in self._clients:
            there = asyncio.Event()
            self._tasks.append(asyncio.create_task(self._keep(way, there)))
            await asyncio.wait_for(there.wait(), PATIENCE)
        return self._clients[way]

    async def close(self) -> None:
        self._over.set()
        await asyncio.wait_for(asyncio.gather(*self._tasks), PATIENCE)

    async def _keep(self, way: str, there: asyncio.Event) -> None:
        """Keep a client open in its own task: the SDK must be exited by the task that entered it."""
        transport, mode = way.split("-")
        async with Client(self._servers[transport], mode=mode, read_timeout_seconds=PATIENCE) as client:
            self._clients[way] = client
            there.set()
            await self._over.wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(environment: dict[str, str]) -> AsyncIterator[Clients]:
    """Clients of a server process (stdio) and of a server in this process (HTTP)."""
    program = StdioServerParameters(command=sys.executable, args=[str(PROGRAM)], env=environment)
    with loaded() as served, Server(served.SKILLS, port=0, **served.OPTIONS) as server:
        clients = Clients(server.url, program)
        yield clients
        await clients.close()


@pytest_asyncio.fixture(loop_scope="module", params=["stdio-auto", "http-legacy"])
async def client(request: pytest.FixtureRequest, clients: Clients, credentials: None) -> Client:
    return await clients.by(request.param)
