"""Clients of the official SDK that talk to the skills of `served.py`, over both transports, as of both eras of MCP."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernai import MappingResolver, configure

HERE = Path(__file__).parent
PROGRAM = HERE / "served.py"
SRC = HERE.parents[1] / "src"


@pytest.fixture
def served() -> Iterator[ModuleType]:
    """The module of skills, fresh, with the credential that one of them reads. No thread of them outlives the test."""
    before = set(threading.enumerate())
    spec = importlib.util.spec_from_file_location("kernai_served", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    configure(credential_resolver=MappingResolver({"login": {"key": "s3cret"}}))
    yield module
    module.OVER.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name == "kernai-worker":
            thread.join(20)
            assert not thread.is_alive(), "a skill goes on after its test"


@pytest.fixture
def environment() -> dict[str, str]:
    """What a process that serves needs."""
    return {**os.environ, "PYTHONPATH": str(SRC), "KERNAI_SKILL_LOGIN_KEY": "s3cret"}


Connect = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture(params=["stdio-auto", "http-legacy"])
def connect(request: pytest.FixtureRequest, served: ModuleType, environment: dict[str, str]) -> Iterator[Connect]:
    """``async with connect() as client``: a client of a process (stdio) or of a server in this one (HTTP)."""
    yield from _connect(request.param, served, environment)


@pytest.fixture(params=["stdio-legacy", "stdio-auto", "http-legacy", "http-auto"])
def connect_each_way(
    request: pytest.FixtureRequest, served: ModuleType, environment: dict[str, str]
) -> Iterator[Connect]:
    """The same for every transport and era, where the SDK goes a way of its own for each."""
    yield from _connect(request.param, served, environment)


def _connect(way: str, served: ModuleType, environment: dict[str, str]) -> Iterator[Connect]:
    from mcp import Client, StdioServerParameters

    from kernai.mcp.serving import Server

    transport, mode = way.split("-")
    if transport == "stdio":
        program = StdioServerParameters(
            command=sys.executable, args=[str(PROGRAM)], env=environment
        )
        yield lambda **options: Client(program, mode=mode, read_timeout_seconds=60, **options)
        return
    with Server(served.SKILLS, port=0, **served.OPTIONS) as server:
        yield lambda **options: Client(server.url, mode=mode, read_timeout_seconds=60, **options)
