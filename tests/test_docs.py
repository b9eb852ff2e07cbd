"""Run the code of README.md and docs/, so that what a reader copies works.

The `python` blocks of one file run in order, in one module, in an empty working directory. `pycon` blocks are checked
as doctests in the same module. A block is left out only with a reason, in a comment in front of it:

    <!-- test: skip needs a local Ollama -->

A block that uses another library is run if the library is installed: `<!-- test: needs langgraph -->`. The guides for
users of other libraries say which versions they were run with.

`bash` blocks are not run; the `dev.py` commands and scripts that they name must exist.
"""

from __future__ import annotations

import doctest
import importlib.util
import re
import socket
import sys
import textwrap
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kernai import Agent, LlmResponse, Provider, isolated
from vendor_wires import WIRES
from wire_server import WireServer

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})[ ]*(?P<language>[^\s`]*)")
SKIP = re.compile(r"^\s*<!--\s*test:\s*skip\b\s*(?P<reason>.*?)\s*-->\s*$")
NEEDS = re.compile(r"^\s*<!--\s*test:\s*needs\s+(?P<module>\w+)\s*-->\s*$")
DISGUISED_PYTHON = {"py", "python3", "py3", "Python", "pycon3", "pyi"}  # these would look right but never run
DEV_COMMAND = re.compile(r"\bdev\.py +([\w-]+)")
SCRIPT = re.compile(r"\bpython3? +([\w./-]+\.py)\b")


#: pages whose code leaves files: it must also run a second time, when those files exist
RUN_TWICE = {
    "README.md", "tutorial.md", "durable.md", "skills.md", "recording.md", "batch.md", "chats.md", "sqlite.md",
    "from-openai-agents.md", "from-pydantic-ai.md",
}


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block; `line` is the line of its first line of code, counted from 1."""

    page: Path
    line: int
    language: str
    code: str
    skip_reason: str | None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def code_blocks(page: Path) -> Iterator[CodeBlock]:
    """Yield the fenced blocks of a page, in order; a block that is never closed is an error."""
    lines = page.read_text(encoding="utf-8").splitlines()
    last_text, number = "", 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        number += 1
        if not opening:
            last_text = lines[number - 1].strip() or last_text
            continue
        start = number
        closing = re.compile(rf"^ *{re.escape(opening['fence'])}[`~]*\s*$")
        while number < len(lines) and not closing.match(lines[number]):
            number += 1
        assert number < len(lines), f"{page}:{start}: this block is never closed"
        code = textwrap.dedent("\n".join(lines[start:number]) + "\n")
        yield CodeBlock(page, start + 1, opening["language"], code, skip_reason(last_text))
        last_text, number = "", number + 1


def skip_reason(comment: str) -> str | None:
    """Return why the block after this comment is skipped, or None if it is run."""
    skip, needs = SKIP.match(comment), NEEDS.match(comment)
    if needs:
        return None if importlib.util.find_spec(needs["module"]) else f"needs {needs['module']}"
    return skip["reason"] if skip else None


def block_with(word: str, page: Path) -> str:
    """Return the first Python block of a page that contains `word`."""
    return next(block.code for block in code_blocks(page) if block.language == "python" and word in block.code)


def run_python(block: CodeBlock, module: types.ModuleType) -> None:
    """Run a block with its own file and line numbers, so that a traceback points into the page."""
    padded = "\n" * (block.line - 1) + block.code
    exec(compile(padded, str(block.page), "exec", dont_inherit=True), module.__dict__)


def run_session(block: CodeBlock, module: types.ModuleType) -> None:
    """Check an interpreter session; later blocks can use the names it defines."""
    session = doctest.DocTestParser().get_doctest(block.code, module.__dict__, block.place, str(block.page), block.line - 1)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(session, out=report.append, clear_globs=False)
    module.__dict__.update(session.globs)
    assert not report, "".join(report)


def run_page(page: Path) -> None:
    """Run every block of a page, in order; a failure names the file and line."""
    module = types.ModuleType("page_under_test")
    sys.modules[module.__name__] = module  # dataclasses and type hints look up their module here
    try:
        for block in code_blocks(page):
            assert block.language not in DISGUISED_PYTHON, f"{block.place}: call this block `python`"
            assert block.skip_reason != "", f"{block.place}: a skipped block needs a reason"
            if block.language in {"python", "pycon"} and block.skip_reason is None:
                run_block(block, module)
    finally:
        del sys.modules[module.__name__]


def run_block(block: CodeBlock, module: types.ModuleType) -> None:
    try:
        (run_python if block.language == "python" else run_session)(block, module)
    except Exception as error:
        error.add_note(f"in the block at {block.place}")
        raise


def dev_commands() -> set[str]:
    spec = importlib.util.spec_from_file_location("dev_entry", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return set(module.COMMANDS)


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(autouse=True)
def _empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.mcp] if page.name == "mcp.md" else []) for page in PAGES], ids=page_id
)
def test_the_python_of_a_page_runs(page: Path) -> None:
    run_page(page)
    if page.name in RUN_TWICE:
        run_page(page)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    for block in code_blocks(page):
        if block.language != "bash" or block.skip_reason is not None:
            continue
        unknown = set(DEV_COMMAND.findall(block.code)) - dev_commands()
        missing = {script for script in SCRIPT.findall(block.code) if not (ROOT / script).is_file()}
        assert unknown | missing == set(), f"{block.place}: names what does not exist"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


# --------------------------------------------------------------------------------------- README's first screen


def test_the_readme_example_runs_with_a_vendor_and_pays_once_somebody_approves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = block_with("find_order", ROOT / "README.md")
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
    with WireServer([*map(wire.answer, turns)]) as server, isolated():
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", wire.base_url(server.url))
        names: dict[str, Any] = {"__name__": "program", "input": say_yes}
        exec(code, names)
        names["provider"].close()
    assert [(one.headers["authorization"], one.json["model"]) for one in server.requests] == [("Bearer sk-test", "gpt-6-luna")] * len(turns)
    assert asked == ["refund {'number': 1042, 'reason': 'damaged'}? [y/n] "]
    assert "35.0 euros paid back" in names["result"].messages[4].text
    assert capsys.readouterr().out == "You get your 35 euros back.\n"


# ------------------------------------------------------------------------------- the guide to web servers, on a real one

PATIENCE = 20.0


class Endless(Provider):
    """Streams an answer that ends only when the run is cancelled."""

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
    import uvicorn

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
def test_the_web_guide_streams_while_the_model_writes_and_a_closed_connection_ends_the_run() -> None:
    names: dict[str, Any] = {}
    exec(block_with("/ask", ROOT / "docs" / "guides" / "web.md"), names)
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
