"""What README.md shows but `test_docs` cannot run: the provider that needs a server."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from kernai import Agent, Event, Media, Models, Provider, ProviderError, execute

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
ADDRESS = '"http://127.0.0.1:11434/api/chat"'

ANSWER = [
    {"message": {"role": "assistant", "content": "<final>12 "}, "done": False},
    {"message": {"role": "assistant", "content": "lamps</final>"}, "done": False},
    {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop", "prompt_eval_count": 31},
]


def provider_in_readme(address: str) -> Provider:
    """The class as README has it, but for the server's address."""
    code = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "class Ollama" in block)
    assert ADDRESS in code
    names: dict[str, Any] = {}
    exec(code.replace(ADDRESS, repr(address)), names)
    made: Provider = names["Ollama"]()
    return made


@contextmanager
def server(status: int, lines: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """A server that answers each request with these JSON lines; gives its address and the requests it got."""
    requests: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()
            self.wfile.write("".join(json.dumps(line) + "\n" for line in lines).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}/", requests
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def test_the_provider_in_readme_streams_an_answer() -> None:
    events: list[Event] = []
    image = Media.from_bytes(b"image", mime_type="image/png")
    with server(200, ANSWER) as (address, requests):
        agent = Agent(instructions="Be brief.", provider=provider_in_readme(address), model=Models.LLAMA_3_1)
        result = execute(agent, ["How many? ", image], on_event=events.append)
    assert result.text == "12 lamps"
    assert result.usage.prompt_tokens == 31
    assert [event.data for event in events if event.type == "block_content"] == ["12 ", "lamps"]
    assert requests == [{
        "model": "llama3.1",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "How many? [image unavailable: image/png]"},
        ],
    }]


@pytest.mark.parametrize(
    "status, lines, complaint",
    [
        (200, ANSWER[:2], "stream broke off"),
        (200, [], "stream broke off"),
        (200, [{"error": "model not found"}], "Ollama failed: KeyError"),
        (200, ["text"], "TypeError"),
        (500, [], "Ollama failed: <HTTPError 500"),
    ],
    ids=["cut off", "empty", "an error in the stream", "nonsense", "a status"],
)
def test_the_provider_in_readme_never_takes_a_failure_for_an_answer(
    status: int, lines: list[Any], complaint: str
) -> None:
    with server(status, lines) as (address, _):
        result = execute(Agent(instructions="", provider=provider_in_readme(address)), "How many?")
    assert result.stop_reason == "error"
    assert isinstance(result.error, ProviderError)
    assert re.search(complaint, str(result.error))
    if isinstance(result.error.__cause__, HTTPError):
        result.error.__cause__.close()  # it holds the response


def test_the_provider_in_readme_is_as_short_as_it_claims_to_be() -> None:
    code = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "class Ollama" in block)
    assert len(code[code.index("class Ollama"):].splitlines()) <= 20
