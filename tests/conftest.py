"""Rules for every test: no network beyond this machine, and no global state left behind."""

from __future__ import annotations

import functools
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings

import kernai

# Deadlines measure the machine, not the code. The examples are the same in every run, so a failure is due to a change.
# `--hypothesis-profile thorough` tries many more, and different ones each time: use it before a release, and when you
# change code that a property test covers. A failing case prints the line that reproduces it.
settings.register_profile("daily", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=2000)
settings.load_profile("daily")

# Background jobs of a shell ignore Ctrl-C, and `nohup` ignores hangups. Processes that tests start would inherit that.
for _name, _handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    if hasattr(signal, _name) and signal.getsignal(getattr(signal, _name)) is signal.SIG_IGN:
        signal.signal(getattr(signal, _name), _handler)

# `dev.py installed` tests a wheel, which must not import the source tree beside it.
if (_tested := os.environ.get("KERNAI_TESTED_FROM")) and not str(kernai.__file__).startswith(_tested):
    raise RuntimeError(f"kernai comes from {kernai.__file__}, not from the wheel in {_tested}")

PATIENCE = 20  # seconds
LOOPBACK = ("127.", "localhost", "::1", "0.0.0.0")


# Not an audit hook, because that also runs at every `sys.settrace`. CPython refuses to trace a thread that starts
# while another thread is inside the hook, so under coverage a worker would die before its first line.
def _guarded(reach: Callable[..., Any], address_at: int) -> Callable[..., Any]:
    """Wrap a socket function so that it only reaches this machine: a test that needs a network is not reliable."""

    @functools.wraps(reach)
    def guarded(*arguments: Any, **named: Any) -> Any:
        address = arguments[address_at]
        host = address[0] if isinstance(address, tuple) else address
        # a Unix socket's path is not a host, and an empty name means this machine
        if not isinstance(host, str) or not host or "/" in host or host.startswith(LOOPBACK):
            return reach(*arguments, **named)
        raise RuntimeError(f"a test tried to reach {host!r}; tests use MockProvider or a server on 127.0.0.1")

    return guarded


socket.socket.connect = _guarded(socket.socket.connect, 1)  # type: ignore[method-assign]
socket.socket.connect_ex = _guarded(socket.socket.connect_ex, 1)  # type: ignore[method-assign]
socket.getaddrinfo = _guarded(socket.getaddrinfo, 0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of two folders. Other tests are marked where they are written, or by the browser fixture."""
    for item in items:
        if item.path.parent.name in ("mcp", "mcp_serving"):
            item.add_marker("mcp")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect without garbage collection, then freeze: the modules and tests live until the process ends."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    """Give each test default configuration and empty registries, and restore the previous ones afterwards."""
    with kernai.isolated():
        kernai.reset()
        yield


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Fail a test whose runs leave a thread behind: ``pytestmark = pytest.mark.usefixtures("no_thread_is_left")``."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name == "kernai-leases":  # one for the whole process, shared by all runs
            continue
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"{thread.name} outlived its run"


@pytest.fixture
def threads_are_often_switched() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
