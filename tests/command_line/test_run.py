"""`kernai run`, as a process and with a server on this machine in a vendor's format."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.command_line.conftest import Here, Screen
from tests.command_line.support import AGENT, ECHO, as_json, environment, error_lines, events_of, kernai, write
from vendor_wires import WIRES
from wire_server import Answer, WireServer

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


def test_a_note_names_skills_of_the_agent_that_are_not_registered(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", AGENT.replace('skills=["', 'skills=["re'))
    note = "note: no skill 'recount_stock' is registered; similar: count_stock\n"
    assert [note in here("run", "agent.py", "x", *quiet).stderr for quiet in ((), ("-q",))] == [True, False]


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
    assert here("run", target, "hello", "-q").stdout == "You said: hello\n"


def test_a_file_can_import_modules_beside_it_and_is_not_the_main_program(here: Here, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    write(folder, "helpers.py", ECHO)
    write(tmp_path, "helpers.py", "")
    sys.path.insert(0, str(tmp_path))  # as if kernai was started with `python -m`
    write(folder, "agent.py", "from helpers import agent\nprint('loaded')\nif __name__ == '__main__': raise SystemExit('no')\n")
    done = here("run", "shop/agent.py", "hello", "-q")
    assert (done.stdout, done.stderr) == ("You said: hello\n", "loaded\n")
    assert not list(folder.glob("__pycache__/agent*"))


FAULTY = {
    "a syntax error": ("x = (\n", "agent.py", "agent.py:1: SyntaxError: '(' was never closed"),
    "an exception": ("\n\nx = 1 / 0\n", "agent.py", "agent.py:3: ZeroDivisionError: division by zero"),
    "an exit": ("import sys\nsys.exit(3)\n", "agent.py", "agent.py:2: SystemExit: 3"),
    "what is no Exception": ("raise BaseException('no')\n", "agent.py", "agent.py:1: BaseException: no"),
    "what is no Exception, in a module": ("raise GeneratorExit\n", "agent:agent", "agent.py:1: GeneratorExit"),
    "a wrong option": ("import kernai\na = kernai.Agent(instructions='x', model='gpt')\n", "agent.py", "agent.py:2: TypeError: model must be a Model, not text"),
    "a wrong option, in a module": ("import kernai\na = kernai.Agent(instructions='x', know_how='no')\n", "agent:a", "/agent.py:2: ValueError: know_how: cannot read"),
    "an unknown vendor, in a module": ("from kernai_providers import resolve\nresolve('no/x')\n", "agent:a", "/agent.py:2: UnknownVendorError: unknown"),
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
    done = here("run", target, "x")
    found, hint = error_lines(done.stderr)
    assert done.returncode == (1 if name in FAULTY else 2)
    assert error in found
    assert (hint == "hint: --debug shows the traceback") == (name in FAULTY)


def test_the_hint_for_a_file_that_imports_from_its_own_package_is_to_give_its_module(here: Here, tmp_path: Path) -> None:
    (tmp_path / "shop" / "desk").mkdir(parents=True)
    write(tmp_path / "shop", "base.py", ECHO)
    for package in ("..", "shop."):
        write(tmp_path / "shop" / "desk", "agents.py", f"from {package}base import agent\n")
        assert "name its module" in error_lines(here("run", "shop/desk/agents.py", "x").stderr)[1]
    assert here("run", "shop.desk.agents:agent", "hi", "-q").stdout == "You said: hi\n"


@pytest.mark.parametrize("arguments", [(), ("-",), ("--quiet", "-"), ("-", "--max-steps", "3")])
def test_input_from_stdin_loses_its_byte_order_mark_and_last_line_break(here: Here, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    write(tmp_path, "agent.py", ECHO)
    done = here("run", "agent.py", *arguments, input="\ufefftwo\nlines\n")
    assert done.stdout == "You said: two\nlines\n"


def test_options_may_be_between_the_agent_and_its_input(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    assert here("run", "--quiet", "agent.py", "--max-steps", "2", "-5 degrees").stdout == "You said: -5 degrees\n"
    for words in (("agent.py", "-q", "--", "--json"), ("-q", "--", "agent.py", "--json"), ("--", "agent.py", "--json")):
        assert here("run", *words).stdout == "You said: --json\n"


def test_with_json_stdout_has_the_whole_result_and_nothing_else(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", AGENT.replace("return f", "print('counting')\n    return f") + "\nprint('loading')\n")
    done = here("run", "agent.py", "How many?", "--json")
    result = as_json(done.stdout)
    assert (result["text"], result["stop_reason"], result["steps"]) == ("We have 12 lamps.", "final", 2)
    assert result["messages"][0] == {"role": "user", "content": "How many?", "by": "user"}
    assert "loading\n" in done.stderr
    assert "counting\n" in done.stderr


@pytest.mark.parametrize("limit", ["--max-steps=1", "--max-calls=0", "--max-calls=1", "--max-tokens=0", "--max-tokens=1", "--timeout=0"])
def test_a_limit_ends_the_run_with_exit_status_1(here: Here, tmp_path: Path, limit: str) -> None:
    write(tmp_path, "agent.py", AGENT)
    done = here("run", "agent.py", "x", "-q", "--json", limit)
    assert done.returncode == 1
    option = limit.partition("=")[0]
    assert as_json(done.stdout)["stop_reason"] == option.lstrip("-").replace("-", "_")
    assert error_lines(done.stderr)[1] == f"hint: {option} allows more"


BUSY = """
from kernai import Agent, MockProvider, Skill

look = Skill("look", execute=lambda: "nothing")
calls = '<command name="look"></command>' * 100
agent = Agent(instructions="", skills=[look], provider=MockProvider(calls, chunk_size=9999))
"""


def test_without_a_limit_a_run_may_make_as_many_calls_as_in_a_program(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", BUSY)
    done = here("run", "agent.py", "x", "-q")
    error, hint = error_lines(done.stderr)
    assert (done.returncode, hint) == (1, "hint: --max-calls allows more")
    assert "the 500 calls of one input are used up" in error


@pytest.mark.parametrize("capabilities, pictures", [((), 0), (("--model-capabilities", "text,vision"), 1)])
def test_a_model_from_the_command_line_is_used_instead_of_the_agents_and_sent_media_if_it_can_see_them(
    here: Here, tmp_path: Path, capabilities: tuple[str, ...], pictures: int
) -> None:
    write(tmp_path, "agent.py", ECHO)
    (tmp_path / "photo.png").write_bytes(PIXEL)
    with vendor(OLLAMA.answer("<final>A ", "pixel.</final>")) as (server, env):
        options = ("--media", "photo.png", "--model", "ollama/new", *capabilities)
        done = here("run", "agent.py", "What is it?", *options, env=env)
    assert (done.returncode, done.stdout) == (0, "A pixel.\n")
    [request] = server.requests
    assert request.json["model"] == "new"
    assert request.json["messages"][-1]["content"].startswith("What is it?")
    assert len(request.json["messages"][-1].get("images", ())) == pictures
    assert ("note: the model new is not known to take image input (no vision)" in done.stderr) == (pictures == 0)
    assert "120 tokens" in done.stderr


def test_max_cost_works_with_a_given_price(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    arguments = ("run", "agent.py", "x", "--model", "ollama/m", "--price", "0.5,24000")
    for most, used in ("0.0", "0.000000"), ("1.0", "1.200035"):
        with vendor(OLLAMA.answer('<command name="/skills"></command>')) as (_, env):
            spent = here(*arguments, "--max-cost", most, env=env)
        assert spent.returncode == 1
        assert f"max_cost={most} is used up ({used} dollars)" in error_lines(spent.stderr)[0]
    with vendor(OLLAMA.answer("<final>ok</final>")) as (_, env):
        done = here(*arguments, "--max-cost", "9", env=env)
    assert "$1.2000" in done.stderr
    with vendor(OLLAMA.answer("<final>ok</final>")) as (_, env):
        assert "under $0.0001" in here("run", "agent.py", "x", "--model", "ollama/m", "--price", "0.5,0", env=env).stderr


def test_media_of_a_run_are_stored_beside_its_recording_even_if_its_file_changes_the_folder(here: Here, tmp_path: Path) -> None:
    draws = f"""
import kernai, os
os.chdir("/")
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
        "--record", "run.jsonl",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ok\n")
    folder = tmp_path / "run.jsonl.media"
    files = {file.suffix: file for file in folder.iterdir()}
    assert {suffix: file.read_bytes() for suffix, file in files.items()} == {".png": PIXEL, ".bin": PIXEL + b"2"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files.values()} == {0o600}
    recording = (tmp_path / "run.jsonl").read_text()
    assert all(file.stem in recording for file in files.values())
    assert "secret" not in recording


@pytest.mark.parametrize("ends, status, out, error", [
    ("return f", 1, "You said: x\n", "kernai: error: the recording"),
    ("raise __import__('kernai').ProviderError('down'); f", 3, "", "warning: the recording"),
])
def test_an_incomplete_recording_is_reported_beside_the_answer_or_the_failure(
    here: Here, tmp_path: Path, ends: str, status: int, out: str, error: str
) -> None:
    (tmp_path / "gone").mkdir()
    write(tmp_path, "agent.py", "import shutil\n" + ECHO.replace("return f", f"shutil.rmtree('gone'); {ends}"))
    done = here("run", "agent.py", "x", "-q", "--record", "gone/run.json")
    assert (done.returncode, done.stdout) == (status, out)
    assert done.stderr.startswith(f"{error} gone/run.json is incomplete: ")
    assert len(error_lines(done.stderr)) == 2


def test_a_vendors_failure_is_recorded_and_exit_status_3(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    with vendor(OLLAMA.error(401, "who are you?")) as (_, env):
        done = here("run", "agent.py", "x", "-q", "--model", "ollama/m", "--record", "r.json", env=env)
    assert (done.returncode, done.stdout) == (3, "")
    assert "who are you?" in error_lines(done.stderr)[0]
    last = events_of(tmp_path / "r.json")[-1]
    assert (last["event"], last["data"]["stop_reason"]) == ("result", "error")


@pytest.mark.process
@pytest.mark.parametrize("words", [("run", "agent.py", "How many?"), ("chat", "agent.py")])
def test_output_of_skills_and_their_programs_goes_to_stderr(tmp_path: Path, words: tuple[str, ...]) -> None:
    prints = "print('counting')\n    import subprocess; subprocess.run(['echo', 'a program'], check=True)\n    return f"
    write(tmp_path, "agent.py", AGENT.replace("return f", prints))
    done = kernai(*words, cwd=tmp_path, input="How many?\n")
    assert done.stdout == "We have 12 lamps.\n"
    assert {"counting", "a program"} <= set(done.stderr.splitlines())


@pytest.mark.process
@pytest.mark.parametrize("does", ["sys.stdout.close()", "sys.stdout = None", "sys.stderr = None"])
def test_the_answer_of_an_agent_whose_skill_takes_a_stream_away_is_not_lost(tmp_path: Path, does: str) -> None:
    write(tmp_path, "agent.py", AGENT.replace("return f", f"import sys; {does}\n    return f"))
    done = kernai("chat", "agent.py", cwd=tmp_path, input="How many?\n")
    assert (done.returncode, done.stdout) == (0, "We have 12 lamps.\n")


def test_control_characters_reach_neither_a_terminal_nor_the_notes(here: Here, tmp_path: Path) -> None:
    result = 'return "one\\ntwo \\x1b]0;owned\\x07\\u202e"'
    answer = AGENT.replace("We have 12 lamps.", "\\x1b[2Jowned\\x07").replace('return f"{STOCK[product]} in stock"', result)
    write(tmp_path, "agent.py", answer)
    done = here("run", "agent.py", "x")
    assert done.stdout == "\x1b[2Jowned\x07\n", "in a pipe the answer is unchanged"
    assert re.search(r"\): one two \]0;owned\ufffd\n", done.stderr)
    assert here("run", "agent.py", "x", "-q", screen=Screen()).stdout == "[2Jowned\n"


def test_on_a_terminal_the_answer_is_shown_once_while_it_is_streamed(here: Here, tmp_path: Path) -> None:
    agent = AGENT.replace("</command>'", "</command><final>Some.</final>'").replace('"<final>', '"So: <final>').replace('</final>"', '\\xa0</final> Done."')
    write(tmp_path, "agent.py", agent)
    screen = Screen()
    done = here("run", "agent.py", "x", screen=screen)
    assert done.stdout == "Some.\nSo:\nWe have 12 lamps.\xa0\nDone.\n"
    assert screen.written[:3] == ["S", "o", "m"]
    assert done.stderr.count("  the model answered before it saw the results; that answer is set aside\n") == 1
    piped = here("run", "agent.py", "x", "--run-id", "r")
    assert (piped.stdout, {"Some.", "Done.", "note: --run-id without --store or --record: the run is not kept"} <= set(piped.stderr.splitlines())) == ("We have 12 lamps.\xa0\n", True)


def test_a_typed_answer_is_shown_at_the_end_as_it_was_written_and_in_a_pipe_as_json(here: Here, tmp_path: Path) -> None:
    answers = "'<final>12 lamps</final>', '```json\\n[3,1,]\\n```'"
    write(tmp_path, "agent.py", ECHO + f"\nagent = agent.replace(output=set[int], provider=MockProvider({answers}))")
    shown = here("run", "agent.py", "go", "--store", "r.db", "--run-id", "r", "-q", screen=Screen()).stdout
    assert shown == "12 lamps\n```json\n[3,1,]\n```\n"
    resume = "resume", "agent.py", "r.db", "r"
    assert here(*resume, screen=Screen()).stdout == "```json\n[3,1,]\n```\n", "the run has ended"
    assert here(*resume).stdout == "[3, 1]\n"
