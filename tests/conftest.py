"""What holds for every test: no network beyond this machine, nothing global left behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

import kernai

# Deadlines measure the machine, not the code; a failing case prints the line that reproduces it.
settings.register_profile("kernai", deadline=None, print_blob=True)
settings.load_profile("kernai")

LOOPBACK = ("127.", "localhost", "::1", "0.0.0.0")


def _forbid_network(event: str, arguments: tuple[object, ...]) -> None:
    """Stop a test that would reach beyond this machine: such a test passes or fails by accident."""
    if event == "socket.connect":
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else ""  # a path is a Unix socket
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    if isinstance(host, str) and host and not host.startswith(LOOPBACK):
        raise RuntimeError(f"a test tried to reach {host!r}; tests use MockProvider or a server on 127.0.0.1")


sys.addaudithook(_forbid_network)


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    """Give each test default configuration and empty registries, and put back what was there."""
    with kernai.isolated():
        kernai.reset()
        yield
