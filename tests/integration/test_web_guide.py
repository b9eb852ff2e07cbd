"""docs/guides/web.md on a real server: pieces come while the model writes, and a browser that leaves ends the run."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from kernai import Agent, LlmResponse, Provider
from tests.test_docs import code_blocks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "web.md"
PATIENCE = 20.0


class Endless(Provider):
    """Writes an answer for as long as anybody listens."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def call(self, messages: Any, model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        try:
            on_chunk("<final>")
            while True:
                on_chunk("word ")
        finally:
            self.ended.set()


@contextmanager
def served(app: Any) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.mark.slow
def test_pieces_come_while_the_model_writes_and_a_browser_that_leaves_ends_the_run() -> None:
    names: dict[str, Any] = {}
    exec(next(block.code for block in code_blocks(PAGE) if block.language == "python"), names)
    provider = Endless()
    names["agent"] = Agent(instructions="", provider=provider)
    with served(names["app"]) as address, socket.create_connection(address, PATIENCE) as browser:
        browser.sendall(b"GET /ask?q=Go. HTTP/1.1\r\nHost: localhost\r\n\r\n")
        come = b""
        while b'event: piece\ndata: "word' not in come:
            come += browser.recv(4096)
        assert b"text/event-stream" in come
        assert not provider.ended.is_set()
        browser.close()
        assert provider.ended.wait(PATIENCE)
