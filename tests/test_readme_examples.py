"""What the pages say and `test_docs` cannot run: the tour's provider, the map of modules, links."""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from kernai import (
    Agent,
    Event,
    Media,
    Models,
    Provider,
    ProviderError,
    Result,
    execute,
    isolated,
)
from kernai.runs.run_request import RunOptions
from tests.test_imports import ORDER
from vendor_wires import WIRES
from wire_format import Answering
from wire_server import WireServer

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
ADDRESS = '"http://127.0.0.1:11434/api/chat"'

ANSWER = [
    {"message": {"role": "assistant", "content": "<final>12 "}, "done": False},
    {"message": {"role": "assistant", "content": "lamps</final>"}, "done": False},
    {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop", "prompt_eval_count": 31},
]


def provider_of_the_tour(address: str) -> Provider:
    """The class as the page has it, but for the server's address."""
    code = next(block for block in re.findall(r"```python\n(.*?)```", TOUR, re.DOTALL) if "class Ollama" in block)
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
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
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


def test_the_provider_of_the_tour_streams_an_answer() -> None:
    events: list[Event] = []
    image = Media.from_bytes(b"image", mime_type="image/png")
    with server(200, ANSWER) as (address, requests):
        agent = Agent(instructions="Be brief.", provider=provider_of_the_tour(address), model=Models.LLAMA_3_1)
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
def test_the_provider_of_the_tour_never_takes_a_failure_for_an_answer(
    status: int, lines: list[Any], complaint: str
) -> None:
    with server(status, lines) as (address, _):
        result = execute(Agent(instructions="", provider=provider_of_the_tour(address)), "How many?")
    assert result.stop_reason == "error"
    assert isinstance(result.error, ProviderError)
    assert re.search(complaint, str(result.error))
    if isinstance(result.error.__cause__, HTTPError):
        result.error.__cause__.close()  # it holds the response


def test_the_provider_of_the_tour_is_as_short_as_it_claims_to_be() -> None:
    code = next(block for block in re.findall(r"```python\n(.*?)```", TOUR, re.DOTALL) if "class Ollama" in block)
    assert len(code[code.index("class Ollama"):].splitlines()) <= 20


# --------------------------------------------------------------------------------------- README's first screen


def test_the_example_of_readme_runs_with_a_vendor_and_pays_once_somebody_agrees(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    turns = [
        '<block type="command" name="find_order">{"number": 1042}</block>',
        '<block type="command" name="refund">{"number": 1042, "reason": "damaged"}</block>',
        "<final>You get your 35 euros back.</final>",
    ]
    asked: list[str] = []

    def say_yes(question: str) -> str:
        asked.append(question)
        return "y"

    wire = WIRES["openai"]
    with WireServer(Answering(wire, turns, key="sk-test", model="gpt-4o-mini")) as server, isolated():
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", wire.base_url(server.url))
        names: dict[str, Any] = {"__name__": "program", "input": say_yes}
        exec(code, names)
        names["provider"].close()
    assert asked == ["refund {'number': 1042, 'reason': 'damaged'}? [y/n] "]
    assert "35.0 euros paid back" in names["result"].messages[4].text
    assert capsys.readouterr().out == "You get your 35 euros back.\n"


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 250


def test_every_option_and_every_field_of_a_result_is_in_a_table_of_the_page_on_running() -> None:
    page = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    in_tables = {name for cell in re.findall(r"^\| ([^|]*) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)}
    named = {*inspect.signature(Agent.__init__).parameters, *RunOptions.__annotations__} - {"self", "unknown"}
    named |= {field.name for field in fields(Result)}
    assert named - in_tables == set()


BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
CLAIM = re.compile(r"^\| (?P<claim>.+) \| (?P<measured>.+) \| `(?P<command>python3 dev\.py .+)` \| (?P<day>.+) \|$", re.MULTILINE)
CLAIMED = re.compile(r"\*Measured:\*(?P<text>.*?)\[`(?P<command>[^`]+)`\]\(docs/benchmarks\.md#claims\)", re.DOTALL)
FIGURE = re.compile(r"\d[\d,.]*[ \u202f]?(?:µs|ms|seconds|minutes|%|[kMG]?B(?:/s)?\b|lines|times)")


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\b\d[\d,.]*\b", text))


def test_the_benchmarks_open_with_one_table_of_claims_each_with_a_command_and_a_day() -> None:
    first_table = BENCHMARKS[: BENCHMARKS.index("\n## How to measure\n")]
    rows = [line for line in first_table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(list(CLAIM.finditer(first_table))) >= 3
    for row in CLAIM.finditer(first_table):
        assert re.fullmatch(r"\d+ \w+ 20\d\d", row["day"]), row[0]


def test_each_figure_of_readme_is_in_the_table_of_claims_with_its_command_and_says_what_was_not_measured() -> None:
    known = {row["command"]: row["measured"] for row in CLAIM.finditer(BENCHMARKS)}
    claims = list(CLAIMED.finditer(README))
    assert len(claims) == 3
    for claim in claims:
        assert numbers(claim["text"].replace("SmolLM2", "")) <= numbers(known[claim["command"]]), claim["command"]
        assert "*Not measured:*" in claim["text"]
    text = CLAIMED.sub("", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
    assert FIGURE.findall(text) == []


def test_the_claims_say_what_the_tables_say() -> None:
    measured = BENCHMARKS[BENCHMARKS.index("\n### Framing\n"):]
    for row in CLAIM.finditer(BENCHMARKS):
        if row["command"].split()[-1] in ("framing", "dialects", "model"):
            assert row["command"] in measured
            assert numbers(row["measured"].replace("SmolLM2", "")) - {"135"} <= numbers(measured), row[0]


# -------------------------------------------------------------------------------- the map of modules, and links

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_map_of_the_house_has_a_row_for_each_folder_and_file_in_the_order_of_the_layers() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    layers = text[text.index("## Layers") : text.index("## kernai_providers")]
    assert re.findall(r"^\| `(\w+)` \|", layers, re.MULTILINE) == list(ORDER)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(f"{target}#{anchor}" if anchor else target)
    assert broken == []
