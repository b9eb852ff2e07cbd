"""`kernai run`, as a process and with a server on this machine in a vendor's format."""

from __future__ import annotations

import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernai.command_line import main
from tests.command_line.conftest import Here
from tests.command_line.support import (
    AGENT,
    ECHO,
    Terminal,
    as_json,
    environment,
    error_lines,
    events_of,
    kernai,
    write,
)
from vendor_wires import WIRES
from wire_server import Answer, Gate, WireServer, hang_up

OLLAMA = WIRES["ollama"]
PIXEL = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489")


@contextmanager
def vendor(*answers: Answer) -> Iterator[tuple[WireServer, dict[str, str]]]:
    """A local server with Ollama's API and these answers, and an environment that points to it."""
    with WireServer(list(answers)) as server:
        yield server, environment(OLLAMA_HOST=server.url)


@pytest.mark.process
def test_the_answer_goes_to_stdout_and_progress_to_stderr(tmp_path: Path) -> None:
    write(tmp_path, "agent.py", AGENT)
    done = kernai("run", "agent.py", "How many lamps?", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "We have 12 lamps.\n")
    *lines, summary = done.stderr.splitlines()
    assert lines[:2] == ["step 0", '  call count_stock {"product": "lamp"}']
    assert re.fullmatch(r"  result of count_stock \(\d+ ms\): 12 in stock", lines[2])
    assert lines[3:] == ["step 1"]
    assert summary.startswith("final: 2 steps, 2 model calls, ")


FORMS = {
    "a file whose agent is called agent": ("agent.py", ECHO + "\nother = agent.replace(instructions='y')"),
    "a file with one agent": ("agent.py", ECHO + "\nbob = agent; del agent"),
    "a name in a file": ("agent.py:bob", ECHO + "\nbob = agent; del agent; eve = bob.replace(name='eve')"),
    "a name in a module": ("agent:bob", ECHO + "\nbob = agent; del agent; eve = bob.replace(name='eve')"),
    "a name in a class": ("agent.py:Shop.bob", ECHO + "\nclass Shop:\n    bob = agent\n"),
    "a file without an ending": ("agent", ECHO),
}


@pytest.mark.parametrize("target, source", FORMS.values(), ids=FORMS.keys())
def test_an_agent_can_be_given_as(here: Here, tmp_path: Path, target: str, source: str) -> None:
    write(tmp_path, "agent" if target == "agent" else "agent.py", source)
    assert here("run", target, "hello", "-q", cwd=tmp_path).stdout == "You said: hello\n"


def test_a_file_can_import_modules_beside_it_and_is_not_the_main_program(here: Here, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    write(folder, "helpers.py", ECHO)
    write(folder, "agent.py", "from helpers import agent\nprint('loaded')\nif __name__ == '__main__': raise SystemExit('no')\n")
    done = here("run", "shop/agent.py", "hello", "-q", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("You said: hello\n", "loaded\n")
    assert not list(folder.glob("__pycache__/agent*"))


FAULTY = {
    "a syntax error": ("x = (\n", "agent.py", "agent.py:1: SyntaxError: '(' was never closed"),
    "an exception": ("\n\nx = 1 / 0\n", "agent.py", "agent.py:3: ZeroDivisionError: division by zero"),
    "an exit": ("import sys\nsys.exit(3)\n", "agent.py", "agent.py:2: SystemExit: 3"),
    "what is no Exception": ("raise BaseException('no')\n", "agent.py", "agent.py:1: BaseException: no"),
    "what is no Exception, in a module": ("raise GeneratorExit\n", "agent:agent", "agent.py:1: GeneratorExit"),
    "a wrong option": ("import kernai\na = kernai.Agent(instructions='x', model='gpt')\n", "agent.py", "agent.py:2: TypeError: model must be a Model, not text"),
    "a missing package": ("import no_such_package\n", "agent.py", "agent.py:1: ModuleNotFoundError: No module named 'no_such_package'"),
    "a module's exception": ("x = 1 / 0\n", "agent:a", "/agent.py:1: ZeroDivisionError: division by zero"),
    "a module's missing package": ("import no_such_package\n", "agent:a", "/agent.py:1: ModuleNotFoundError: No module named 'no_such_package'"),
    "null bytes": ("x = '\0'\n", "agent.py", "agent.py"),
}  # fmt: skip
NO_AGENT = {
    "none": ("x = 1", "agent.py", "agent.py holds no agent"),
    "several": (ECHO + "\nbob = agent.replace(name='b'); eve = agent; del agent", "agent.py", "agent.py holds several agents: bob, eve"),
    "no such name": (ECHO, "agent.py:bob", "agent.py:bob: no 'bob'"),
    "something else": (ECHO, "agent.py:answer", "agent.py:answer: 'answer' must be an Agent, got function"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FAULTY, *NO_AGENT])
def test_a_file_that_is_faulty_or_without_the_agent_is_reported_with_the_reason(here: Here, tmp_path: Path, name: str) -> None:
    source, target, error = (FAULTY | NO_AGENT)[name]
    write(tmp_path, "agent.py", source)
    done = here("run", target, "x", cwd=tmp_path)
    found, hint = error_lines(done.stderr)
    assert done.returncode == (1 if name in FAULTY else 2)
    assert error in found
    assert hint.startswith("hint: ")


def test_the_hint_for_a_file_with_relative_imports_is_to_give_its_module(here: Here, tmp_path: Path) -> None:
    (tmp_path / "shop" / "desk").mkdir(parents=True)
    for folder in ("shop", "shop/desk"):
        write(tmp_path / folder, "__init__.py", "")
    write(tmp_path / "shop", "base.py", ECHO)
    write(tmp_path / "shop" / "desk", "agents.py", "from ..base import agent\n")
    hint = error_lines(here("run", "shop/desk/agents.py", "x", cwd=tmp_path).stderr)[1]
    assert hint == f"hint: name the agent of a package's file by its module: in {tmp_path}, shop.desk.agents:NAME"
    assert here("run", "shop.desk.agents:agent", "hi", "-q", cwd=tmp_path).stdout == "You said: hi\n"
    write(tmp_path, "agent.py", "from . import other\n")
    assert error_lines(here("run", "agent.py", "x", cwd=tmp_path).stderr)[1] == "hint: --debug shows the traceback"


@pytest.mark.process
def test_output_of_programs_that_skills_start_is_not_on_stdout(tmp_path: Path) -> None:
    starts = "import subprocess, sys\n" + AGENT.replace(
        "return f", "subprocess.run([sys.executable, '-c', 'print(\"counting\")'], check=True)\n    return f"
    )
    write(tmp_path, "agent.py", starts)
    done = kernai("run", "agent.py", "How many?", cwd=tmp_path)
    assert done.stdout == "We have 12 lamps.\n"
    assert "counting\n" in done.stderr


@pytest.mark.slow
def test_a_silent_vendor_is_not_waited_for_beyond_the_timeout_of_the_run(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = environment(OLLAMA_HOST=f"http://127.0.0.1:{silent.getsockname()[1]}")
        done = here("run", "agent.py", "x", "-q", "--model", "ollama/m", "--timeout", "0.3", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert error_lines(done.stderr) == ["kernai: error: timeout=0.3 s has passed", "hint: --timeout allows more"]


@pytest.mark.parametrize("arguments", [(), ("-",), ("--quiet", "-"), ("-", "--max-steps", "3")])
def test_input_from_stdin_loses_its_last_line_break(here: Here, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    write(tmp_path, "agent.py", ECHO)
    done = here("run", "agent.py", *arguments, cwd=tmp_path, input="two\nlines\n")
    assert done.stdout == "You said: two\nlines\n"


def test_options_may_be_between_the_agent_and_its_input(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    assert here("run", "--quiet", "agent.py", "--max-steps", "2", "-5 degrees", cwd=tmp_path).stdout == "You said: -5 degrees\n"
    assert here("run", "agent.py", "-q", "--", "--json", cwd=tmp_path).stdout == "You said: --json\n"


def test_stdin_that_is_not_text_is_refused(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    done = here("run", "agent.py", cwd=tmp_path, input=b"\xff\xfe")
    assert done.returncode == 2
    assert error_lines(done.stderr)[0] == "kernai: error: cannot read stdin: byte 0 is not UTF-8 text"


def test_with_json_stdout_has_the_whole_result_and_nothing_else(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", AGENT.replace("return f", "print('counting')\n    return f") + "\nprint('loading')\n")
    done = here("run", "agent.py", "How many?", "--json", cwd=tmp_path)
    result = as_json(done.stdout)
    assert (result["text"], result["stop_reason"], result["steps"]) == ("We have 12 lamps.", "final", 2)
    assert result["messages"][0] == {"role": "user", "content": "How many?", "by": "user"}
    assert "loading\n" in done.stderr
    assert "counting\n" in done.stderr


def test_json_of_a_run_without_an_answer_says_why(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", AGENT)
    done = here("run", "agent.py", "x", "--json", "--max-steps", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert as_json(done.stdout)["stop_reason"] == "max_steps"
    assert error_lines(done.stderr)[1] == "hint: --max-steps allows more"


@pytest.mark.parametrize("limit", ["--max-calls=1", "--max-tokens=1", "--timeout=0"])
def test_a_limit_ends_the_run_with_exit_status_1(here: Here, tmp_path: Path, limit: str) -> None:
    write(tmp_path, "agent.py", AGENT)
    done = here("run", "agent.py", "x", "-q", limit, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    error, hint = error_lines(done.stderr)
    assert limit.partition("=")[0].lstrip("-").replace("-", "_") in error
    assert hint == f"hint: {limit.partition('=')[0]} allows more"


BUSY = """
from kernai import Agent, MockProvider, Skill

look = Skill("look", execute=lambda: "nothing")
calls = '<command name="look"></command>' * 100
agent = Agent(instructions="", skills=[look], provider=MockProvider(calls, chunk_size=9999))
"""


def test_without_a_limit_a_run_may_make_as_many_calls_as_in_a_program(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", BUSY)
    done = here("run", "agent.py", "x", "-q", cwd=tmp_path)
    error, hint = error_lines(done.stderr)
    assert (done.returncode, hint) == (1, "hint: --max-calls allows more")
    assert "the 500 calls of one input are used up" in error


def test_a_model_from_the_command_line_is_used_instead_of_the_agents(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", AGENT)
    with vendor(OLLAMA.answer("<final>Many ", "lamps.</final>")) as (server, env):
        done = here("run", "agent.py", "How many?", "--model", "ollama/llama3.2", cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (0, "Many lamps.\n")
    [request] = server.requests
    assert request.json["model"] == "llama3.2"
    assert OLLAMA.text_of(request)[-1] == ("user", "How many?")
    assert "120 tokens" in done.stderr


def test_max_cost_works_with_a_given_price(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    arguments = ("run", "agent.py", "x", "--model", "ollama/m", "--price", "10000,10000")
    with vendor(OLLAMA.answer('<command name="/skills"></command>')) as (_, env):
        spent = here(*arguments, "--max-cost", "1", cwd=tmp_path, env=env)
    with vendor(OLLAMA.answer("<final>ok</final>")) as (_, env):
        done = here(*arguments, "--max-cost", "9", cwd=tmp_path, env=env)
    assert spent.returncode == 1
    assert "max_cost" in error_lines(spent.stderr)[0]
    assert "$1.2000" in done.stderr


FAILURES = {
    "a refusal": (OLLAMA.error(401, "who are you?"), "who are you?"),
    "a hang-up": (hang_up(), "ollama"),
    "a stream that breaks off": (OLLAMA.reply(OLLAMA.without_end(["half"])), "ollama"),
}


@pytest.mark.slow
@pytest.mark.parametrize("answer, error", FAILURES.values(), ids=FAILURES.keys())
def test_a_vendors_failure_is_recorded_and_exit_status_3(here: Here, tmp_path: Path, answer: Answer, error: str) -> None:
    write(tmp_path, "agent.py", ECHO)
    with vendor(answer) as (_, env):
        done = here(
            "run", "agent.py", "x", "-q", "--model", "ollama/m", "--timeout", "5", "--record", "r.json", cwd=tmp_path, env=env
        )
    assert (done.returncode, done.stdout) == (3, "")
    assert error in error_lines(done.stderr)[0]
    last = events_of(tmp_path / "r.json")[-1]
    assert (last["event"], last["data"]["stop_reason"]) == ("result", "error")


@pytest.mark.parametrize("name", ["run.json", "run.jsonl"])
def test_a_recording_is_complete_private_and_replaces_an_older_one(here: Here, tmp_path: Path, name: str) -> None:
    write(tmp_path, "agent.py", AGENT)
    path = tmp_path / name
    for _ in range(2):
        assert here("run", "agent.py", "x", "-q", "--record", name, cwd=tmp_path).returncode == 0
        events = [event["event"] for event in events_of(path)]
        assert (events[0], events[-1], events.count("run_start")) == ("run_start", "result", 1)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(one.name for one in tmp_path.iterdir()) == ["agent.py", name]


def test_media_of_a_run_are_stored_beside_its_recording(here: Here, tmp_path: Path) -> None:
    draws = f"""
import kernai
@kernai.skill(produces="image")
def draw() -> kernai.Media:
    return kernai.Media.from_bytes({PIXEL + b"2"!r}, mime_type="image/x-odd")
provider = kernai.MockProvider('<command name="draw"></command>', "<final>ok</final>")
agent = kernai.Agent(instructions="x", provider=provider, skills=["draw"], model=kernai.Models.GPT_4O)
"""
    write(tmp_path, "agent.py", draws)
    (tmp_path / "photo.PNG").write_bytes(PIXEL)
    done = here(
        "run", "agent.py", "x", "--media", "photo.PNG", "--media", "https://example.com/a.jpg?secret=1",
        "--record", "run.jsonl", cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ok\n")
    folder = tmp_path / "run.jsonl.media"
    files = {file.suffix: file for file in folder.iterdir()}
    assert {suffix: file.read_bytes() for suffix, file in files.items()} == {".png": PIXEL, ".bin": PIXEL + b"2"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files.values()} == {0o600}
    recording = (tmp_path / "run.jsonl").read_text()
    assert all(file.stem in recording for file in files.values())
    assert "secret" not in recording


def test_media_that_the_model_cannot_see_are_noted(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    (tmp_path / "photo.png").write_bytes(PIXEL)
    done = here("run", "agent.py", "--media", "photo.png", cwd=tmp_path)
    assert done.stdout.startswith("You said: [image:media_")
    assert "note: the model text-only is not known to take image input (no vision)" in done.stderr


def test_a_model_with_capabilities_is_sent_the_media(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    (tmp_path / "photo.png").write_bytes(PIXEL)
    with vendor(OLLAMA.answer("<final>A pixel.</final>")) as (server, env):
        done = here(
            "run", "agent.py", "What is it?", "--media", "photo.png", "--model", "ollama/new",
            "--model-capabilities", "text,vision", cwd=tmp_path, env=env,
        )  # fmt: skip
    assert done.stdout == "A pixel.\n"
    assert "note:" not in done.stderr
    assert len(server.requests[0].json["messages"][-1]["images"]) == 1


def test_an_incomplete_recording_is_reported_and_the_answer_is_still_shown(here: Here, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    write(tmp_path, "agent.py", "import shutil\n" + ECHO.replace("    return", "    shutil.rmtree('gone')\n    return"))
    done = here("run", "agent.py", "x", "-q", "--record", "gone/run.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "You said: x\n")
    assert error_lines(done.stderr)[0].startswith("kernai: error: the recording gone/run.json is incomplete: ")


@pytest.mark.process
@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_a_complete_recording(tmp_path: Path, number: int, status: int) -> None:
    write(tmp_path, "agent.py", ECHO)
    gate = Gate()
    with vendor(OLLAMA.answer("<final>never", " seen</final>").trickle(gate)) as (server, env):
        with subprocess.Popen(
            [sys.executable, "-m", "kernai", "run", "agent.py", "x", "--model", "ollama/m", "--record", "r.json"],
            cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            server.until(lambda: len(server.requests) == 1)
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
        gate.set()
    assert (process.returncode, out) == (status, "")
    assert len(error_lines(err)) == 1
    last = events_of(tmp_path / "r.json")[-1]
    assert (last["event"], last["data"]["stop_reason"]) == ("result", "cancelled")


def test_control_characters_of_a_model_never_reach_the_notes(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", AGENT.replace('return f"{STOCK[product]} in stock"', 'return "\\x1b]0;owned\\x07\\u202e"'))
    done = here("run", "agent.py", "x", "--verbose", cwd=tmp_path)
    assert "\x1b" not in done.stderr
    assert "\x07" not in done.stderr
    assert "]0;owned\ufffd" in done.stderr


def test_a_call_is_shown_on_one_line_no_longer_than_the_terminal(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", AGENT.replace('return f"{STOCK[product]} in stock"', 'return "one\\ntwo " + "x" * 5000'))
    lines = here("run", "agent.py", "x", cwd=tmp_path, env=environment(COLUMNS="60")).stderr.splitlines()
    assert [line.split(" (")[0] for line in lines] == ["step 0", '  call count_stock {"product": "lamp"}', "  result of count_stock", "step 1", lines[-1]]
    assert re.fullmatch(r"  result of count_stock \(\d+ ms\): one t.*\.\.\. \(5,008 characters\)", lines[2])
    assert max(map(len, lines[:-1])) <= 60


@pytest.mark.process
def test_an_answer_is_unchanged_in_a_pipe_and_printable_on_a_terminal(tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO.replace('f"<final>You said: {messages[-1].text}</final>"', '"<final>\\x1b[2Jowned\\x07</final>"'))
    assert kernai("run", "agent.py", "x", "-q", cwd=tmp_path).stdout == "\x1b[2Jowned\x07\n"
    with Terminal(["run", "agent.py", "x", "-q"], tmp_path, environment()) as terminal:
        terminal.until("[2Jowned\n")
        assert terminal.end() == 0
    assert "\x1b" not in terminal.shown


@pytest.mark.process
def test_on_a_terminal_the_answer_is_shown_once_while_it_is_streamed(tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    gate = Gate()
    with (
        vendor(OLLAMA.answer("<final>one ", "two ", "three</final>").trickle(gate)) as (_, env),
        Terminal(["run", "agent.py", "go", "--model", "ollama/m"], tmp_path, env) as terminal,
    ):
        terminal.until("step 0\none")
        gate.allow()
        terminal.until(" two")
        gate.set()
        terminal.until(" three\nfinal: 1 step")
        assert terminal.end() == 0
    assert terminal.shown.count("one") == 1


@pytest.mark.process
def test_on_a_terminal_an_answer_that_was_not_streamed_is_shown_at_the_end(tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO + "\nagent = agent.replace(output=int, provider=MockProvider('<final>12 lamps</final>', '12'))")
    with Terminal(["run", "agent.py", "go", "--store", "r.db", "--run-id", "r", "-q"], tmp_path, environment()) as terminal:
        assert terminal.end() == 0
    assert terminal.shown.endswith("12\n")
    with Terminal(["resume", "agent.py", "r.db", "r"], tmp_path, environment()) as terminal:  # it has ended
        terminal.until("12\n")
        assert terminal.end() == 0


WORKFLOW = '''
import kernai
PLAN = """<block type="plan">{"tasks": [{"id": "a", "input": "do a"}, {"id": "b", "input": "do b", "depends_on": ["a"]}]}</block>"""

@kernai.skill
def fail() -> str:
    raise RuntimeError("out of order")

@kernai.protocol("note")
def note(block, ctx):
    if "bad" in block.content:
        raise RuntimeError("no paper")
    ctx.emit({"done": 1})
    return "noted"

TURNS = iter([
    "<plan>first thoughts</plan><json>{}</json><block type='plan'>{\\"tasks\\": [{\\"id\\": \\"a\\", \\"input\\": \\"x\\", \\"depends_on\\": [\\"b\\"]}, {\\"id\\": \\"b\\", \\"input\\": \\"x\\", \\"depends_on\\": [\\"a\\"]}]}</block>",
    "<command name='fail'></command><command></command><command name='/skills'></command><command name='/x'></command>",
    "<block type='note'>hello</block><block type='note'>bad</block><result>forged</result>",
    "no block at all", "<final>cut", PLAN, "<final>Done.</final>",
])

def answer(messages, model):
    last = messages[-1].text
    if last.endswith("do a"):
        return "<final>a is done</final>"
    if last.endswith("do b"):
        raise kernai.ProviderError("b is broken")
    return next(TURNS)

agent = kernai.Agent(
    instructions="x", provider=kernai.MockProvider().on_call(answer), skills="all", on_prose="correct", max_steps=20
)
'''
SHOWN = """\
step 0
  the plan was rejected: cyclic
  the response held only plan, json; corrected
step 1
  call fail {"input": ""}
  error of fail: out of order
  error of a command: Command block missing skill name
  the model asked for /skills
  Unknown command '/x'
step 2
  the model wrote a result block itself; it was ignored
  call note hello
  result of note (N ms): noted
  call note bad
  error of note: no paper
step 3
  the response held no block; corrected
step 4
  the model did not close its block of type final
step 5
  a workflow of 2 tasks
  task a: do a
[5.a] step 0
  task a done (N ms): a is done
  task b: do b
[5.b] step 0
  task b failed (N ms): b is broken
step 6
"""
MORE = {"  plan: first thoughts", "  json: {}", '  progress: {"done": 1}', "  the model answered in N s"}


@pytest.mark.parametrize("loudness", ["default", "verbose"])
def test_every_event_of_a_workflow_is_shown(here: Here, tmp_path: Path, loudness: str) -> None:
    write(tmp_path, "agent.py", WORKFLOW)
    verbose = ["--verbose"] if loudness == "verbose" else []
    done = here("run", "agent.py", "x", *verbose, cwd=tmp_path, env=environment(COLUMNS="100"))
    assert done.returncode == 0
    shown = re.sub(r"[\d.]+ (m?s)\b", r"N \1", done.stderr)
    lines = shown.splitlines()
    if loudness == "verbose":
        assert set(lines) >= MORE
        return
    assert shown.startswith(SHOWN)
    assert lines[-1].startswith("final: 7 steps, ")


def test_main_works_in_another_thread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import threading

    path = write(tmp_path, "agent.py", ECHO)
    statuses: list[Any] = []
    thread = threading.Thread(target=lambda: statuses.append(main(["run", str(path), "hi", "-q", "--record", str(tmp_path / "r.json")])))
    before = list(sys.path)
    thread.start()
    thread.join()
    sys.path[:] = before
    assert statuses == [0]
    assert capsys.readouterr().out == "You said: hi\n"
