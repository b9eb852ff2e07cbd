"""examples/providers/ are run as a user runs them, against the vendors' wire formats on loopback.

Where a process can show no more, the program's file is run within this one.
"""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernai import Agent, execute
from tests.programs import ran_here
from vendor_wires import WIRES
from wire_format import Wire
from wire_server import Gate, WireServer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "providers"
KEY = "sk-test-1234567890"

#: the program: which wire format it speaks, and the variable that holds its key
PROGRAMS = {
    "openai_provider.py": ("openai", "OPENAI_API_KEY"),
    "anthropic_provider.py": ("anthropic", "ANTHROPIC_API_KEY"),
    "gemini_provider.py": ("gemini", "GEMINI_API_KEY"),
    "ollama_provider.py": ("ollama", None),
    "custom_provider.py": ("openai", "OPENAI_API_KEY"),
}
WITH_KEY = [program for program, (_, variable) in PROGRAMS.items() if variable]
PNG = b"\x89PNG\r\n\x1a\n"
IN_BASE64 = "iVBORw0KGgo="


def environment(**variables: str) -> dict[str, str]:
    """Nothing of the machine's own keys, proxies and settings; the sources, as an installed package would be."""
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8", **variables}


def keyed(program: str) -> dict[str, str]:
    variable = PROGRAMS[program][1]
    return environment(**({variable: KEY} if variable else {}))


def command(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", str(EXAMPLES / program), *arguments]


def run(program: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end in this process; no key is in its output."""
    done = ran_here(EXAMPLES / program, *arguments, environment=env or keyed(program))
    assert KEY not in done.stdout + done.stderr
    return done


def wire_of(program: str) -> Wire:
    return WIRES[PROGRAMS[program][0]]


def at(wire: Wire, server: WireServer) -> list[str]:
    return ["--base-url", wire.base_url(server.url), "--model", wire.model]


def failure_of(done: subprocess.CompletedProcess[str], status: int) -> str:
    assert done.returncode == status, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_every_program_is_tested_and_listed() -> None:
    found = {path.name for path in EXAMPLES.glob("*.py")} - {"command_line.py"}
    assert found == set(PROGRAMS)
    listing = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [name for name in sorted(found) if f"[providers/{name}](providers/{name})" not in listing] == []


@pytest.mark.parametrize("program", WITH_KEY)
@pytest.mark.parametrize("key", ["", f"{KEY}\nX-Other: 1"], ids=["missing", "impossible"])
def test_a_missing_or_impossible_key_is_one_line_that_names_the_variable_and_shows_no_key(program: str, key: str) -> None:
    variable = str(PROGRAMS[program][1])
    line = failure_of(run(program, env=environment(**{variable: key})), 1)
    assert (variable in line, "X-Other" in line) == (True, False)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_file_that_is_missing_or_no_image_is_one_line_and_costs_no_call(program: str, tmp_path: Path) -> None:
    notes, wire = tmp_path / "notes.txt", wire_of(program)
    notes.write_text("no pixels")
    with WireServer(wire.answer("never asked")) as server:
        for wrong in (tmp_path / "missing.png", notes, tmp_path):
            assert str(wrong) in failure_of(run(program, *at(wire, server), "--image", str(wrong)), 1)
        assert server.accepts == 0


@pytest.mark.parametrize("arguments, message", [
    (["--image", "http://example.org/a.png"], "--image takes a file"),
    (["--modle", "x"], "unrecognized arguments: --modle"),
    (["--model"], "--model: expected one argument"),
    (["--model", " "], "model is blank"),
    ([" "], "question is blank"),
])
def test_wrong_usage_is_one_line_and_status_2(arguments: list[str], message: str) -> None:
    line = failure_of(run("openai_provider.py", *arguments), 2)
    assert message in line
    assert "--help" in line


def test_ollama_is_given_no_image_url_since_it_would_not_look_at_it() -> None:
    assert "a file only" in failure_of(run("ollama_provider.py", "--image", "https://example.org/a.png"), 2)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_question_is_answered_with_its_usage(program: str) -> None:
    wire = wire_of(program)
    with WireServer(wire.answer("Blue light is scattered ", "most. - Größe, 空.", usage=(1234, 56))) as server:
        done = run(program, *at(wire, server), "Why is the sky blue?")
        (request,) = server.requests
    assert (done.returncode, done.stderr) == (0, "")
    answer, usage = done.stdout.splitlines()
    assert answer == "Blue light is scattered most. - Größe, 空."
    assert "1,234 in, 56 out; finish reason: stop" in usage
    assert f"[model: {wire.model}" in usage.replace("gpt-4o-2024", "gpt-4o")
    assert (request.method, request.path) == ("POST", wire.path(wire.model))
    assert any(KEY in value for value in request.headers.values()) == bool(PROGRAMS[program][1])
    assert b"Why is the sky blue?" in request.body


@pytest.mark.parametrize("program, by_url", [*((program, False) for program in PROGRAMS), ("openai_provider.py", True)])
def test_an_image_reaches_the_vendor_also_where_the_model_is_unknown(program: str, by_url: bool, tmp_path: Path) -> None:
    image, wire = tmp_path / "chart.PNG", wire_of(program)
    image.write_bytes(PNG)
    given = "https://example.org/chart?id=7" if by_url else str(image)
    with WireServer(wire.answer("A chart.")) as server:
        done = run(program, "--base-url", wire.base_url(server.url), "--model", "brand-new", "--image", given)
        (request,) = server.requests
    assert done.stdout.startswith("A chart.\n")
    assert (given if by_url else IN_BASE64) in request.body.decode()
    assert b"What does this image show?" in request.body


@contextmanager
def started(program: str, gate: Gate) -> Iterator[subprocess.Popen[bytes]]:
    """The program, once it has shown the first piece; the server sends no more before the gate opens."""
    wire = wire_of(program)
    events = wire.stream(["first ", "second"])
    (shown,) = (number for number, event in enumerate(events, 1) if b"first" in event)
    with (
        WireServer(wire.reply(events).hold(gate, shown)) as server,
        subprocess.Popen(
            command(program, *at(wire, server)), env=keyed(program), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.read(6) == b"first "
        yield process


@pytest.mark.process
@pytest.mark.parametrize("program", ["openai_provider.py", "ollama_provider.py", "custom_provider.py"])
def test_the_answer_is_shown_while_it_is_streamed(program: str) -> None:
    gate = Gate()
    with started(program, gate) as process:
        gate.set()
        rest, errors = process.communicate(timeout=60)
    assert rest.startswith(b"second")
    assert (process.returncode, errors) == (0, b"")


# command_line.py, which they share, ends a program
@pytest.mark.process
def test_closing_the_output_early_ends_the_program_quietly() -> None:
    gate = Gate()
    with started("openai_provider.py", gate) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        gate.set()
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGINT to one process")
@pytest.mark.parametrize("program", ["openai_provider.py", "custom_provider.py"])  # which brings its own adapter
def test_ctrl_c_ends_the_program_at_once_while_the_vendor_is_silent(program: str) -> None:
    with started(program, Gate()) as process:
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)  # less than what the provider would wait
    assert (process.returncode, rest, errors) == (130, b"", b"")


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("broken", ["cut", "error in the stream", "unauthorized"])
def test_a_failure_is_one_line_after_what_was_shown(program: str, broken: str) -> None:
    wire = wire_of(program)
    replies = {
        "cut": wire.reply(wire.without_end(["half an ", "answer"])),
        "error in the stream": wire.reply(wire.error_in_stream(["half an ", "answer"])),
        "unauthorized": wire.error(401, "wrong key"),
    }
    with WireServer(replies[broken]) as server:
        done = run(program, *at(wire, server))
        asked = len(server.requests)
    failure_of(done, 1)
    assert done.stdout == ("" if broken == "unauthorized" else "half an answer")
    assert asked == 1


def test_the_custom_provider_sends_what_generation_extra_holds_and_takes_a_wrong_finish_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = WIRES["openai"]
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.syspath_prepend(EXAMPLES)  # used as a module, as somebody would who copies it
    with WireServer(wire.reply(wire.stream(["Hi", "!"], (3, 4), "eos"))) as server:
        chat = runpy.run_path(str(EXAMPLES / "custom_provider.py"))["ChatProvider"](wire.base_url(server.url))
        result = execute(Agent(instructions="", provider=chat, generation={"extra": {"seed": 7}}), "Hi")
        (request,) = server.requests
    assert (result.text, result.usage.total_tokens) == ("Hi!", 7)
    assert (request.headers["authorization"], request.headers["content-type"]) == (f"Bearer {KEY}", "application/json")
    system, user = request.json["messages"]
    assert (system["role"], user) == ("system", {"role": "user", "content": [{"type": "text", "text": "Hi"}]})
    asked = {"stream": True, "stream_options": {"include_usage": True}, "seed": 7}
    assert {name: request.json[name] for name in asked} == asked


# `dev.py bench model --provider`: what anyone with a key runs to add rows to docs/model-results.md.


TABLE = re.compile(r"^\| model \| way \|.*$", re.MULTILINE)


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/run.py", "model", "--quick", *arguments]
    names = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "no_proxy": "*", **environment}
    return subprocess.run(command, cwd=ROOT, env=names, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.process
def test_any_provider_gives_rows_in_the_form_of_the_table() -> None:
    wire = WIRES["openai"]
    turns = ["<final>yes</final>"] * 10 + ["I do not know."] * 10
    with WireServer([*map(wire.answer, turns)]) as server:
        done = bench("--provider", "openai/gpt-4o-mini", OPENAI_API_KEY="sk-test", OPENAI_BASE_URL=wire.base_url(server.url))
    assert "`openai/gpt-4o-mini` | free | 10 | 0 | 10 | 0 | 0 | 0 | 0 |" in done.stdout, done.stderr
    assert "`openai/gpt-4o-mini` | native | 10 | 0 | 10 | 0 | 0 | 0 | 0 |" in done.stdout
    page = (ROOT / "docs" / "model-results.md").read_text(encoding="utf-8")
    assert TABLE.findall(done.stdout) == TABLE.findall(page)
