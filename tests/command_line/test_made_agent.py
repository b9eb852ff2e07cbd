"""`kernai run` without a file: options describe the agent, its skills and where its model is served."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.command_line.conftest import Here
from tests.command_line.support import environment, error_lines, write
from vendor_wires import WIRES
from wire_server import WireServer

OLLAMA, OPENAI = WIRES["ollama"], WIRES["openai"]
STOCK = '''
import kernai

@kernai.skill
def count_stock(product: str) -> str:
    """Count what is in stock."""
    return f"12 of {product}"
'''


def test_a_prompt_runs_with_skills_and_instructions_from_the_command_line(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "stock.py", STOCK)
    call = OPENAI.answer('<command name="count_stock">lamp</command>')
    with WireServer([call, OPENAI.answer("<final>12 lamps.</final>")]) as server:
        done = here(
            "run", "How many lamps?", "--skills", "stock.py", "--system", "You mind the shop.", "--model", "local/tiny",
            "--base-url", f"{server.url}/v1", cwd=tmp_path,
        )
        first, second = [request.body.decode() for request in server.requests]
    assert (done.returncode, done.stdout) == (0, "12 lamps.\n")
    assert "You mind the shop." in first
    assert "### count_stock" in first, "it is listed, so that no turn goes into asking"
    assert "12 of lamp" in second


@pytest.mark.parametrize("given", [("-",), ()], ids=["a dash", "nothing"])
def test_a_prompt_comes_from_stdin_too(here: Here, tmp_path: Path, given: tuple[str, ...]) -> None:
    with WireServer([OLLAMA.answer("<final>Adria.</final>")]) as server:
        done = here(
            "run", *given, "--system", "One word.", "--model", "ollama/tiny", "-q", cwd=tmp_path, input="Which sea?\n",
            env=environment(OLLAMA_HOST=server.url),
        )
        assert "Which sea?" in server.requests[0].body.decode()
    assert done.stdout == "Adria.\n"


def test_chat_takes_them_too(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "stock.py", STOCK)
    with WireServer([OLLAMA.answer("<final>Hello.</final>")]) as server:
        done = here(
            "chat", "--skills", "*.py", "--system", "You mind the shop.", "--model", "ollama/tiny", "-q", cwd=tmp_path,
            input="Hi\n", env=environment(OLLAMA_HOST=server.url),
        )
        assert "You mind the shop." in server.requests[0].body.decode()
        assert "### count_stock" in server.requests[0].body.decode()
    assert done.stdout == "Hello.\n"


WRONG = {
    "a file and a description": (("agent.py", "x", "--system", "y"), "--system makes an agent, and AGENT names another: agent.py"),
    "no agent at all": ((), "there is no agent"),
    "a file that is not there": (("x", "--skills", "gone.py", "--model", "ollama/m"), "no file 'gone.py'"),
    "a file that fails": (("x", "--skills", "bad.py", "--model", "ollama/m"), "--skills: bad.py:1: ZeroDivisionError"),
    "a file without skills": (("x", "--skills", "none.py", "--model", "ollama/m"), "--skills: there is no skill in none.py"),
    "no model": (("x", "--system", "y"), "the agent has no provider"),
    "a URL without a model": (("x", "--system", "y", "--base-url", "http://x"), "--base-url is for a --model"),
    "a URL that is none": (("x", "--system", "y", "--model", "local/m", "--base-url", "here"), "--model: "),
    "a URL for a file": (("x", "--system", "y", "--model", "gguf//m.gguf", "--base-url", "http://x"), "--model: "),
}  # fmt: skip


@pytest.mark.parametrize("arguments, error", WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_one_line(here: Here, tmp_path: Path, arguments: tuple[str, ...], error: str) -> None:
    write(tmp_path, "bad.py", "1 / 0")
    write(tmp_path, "none.py", "")
    done = here("run", *arguments, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert error_lines(done.stderr)[0].startswith(f"kernai: error: {error}")


PAY = STOCK + """
@kernai.skill(approval=True)
def refund(amount: int) -> str:
    return f"{amount} paid back"
"""


def test_the_command_in_the_hint_continues_a_run_that_waits(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "pay.py", PAY)
    with WireServer([OPENAI.answer('<command name="refund">30</command>'), OPENAI.answer("<final>Done.</final>")]) as server:
        options = ("--skills", "pay.py", "--system", "You refund.", "--model", "local/tiny", "--base-url", f"{server.url}/v1")
        done = here("run", "Refund it", *options, "--store", "runs.db", "--run-id", "r", cwd=tmp_path)
        assert done.returncode == 4, done.stderr
        hint = done.stderr.splitlines()[-1].removeprefix("hint: kernai ").partition(", or")[0]
        again = here(*shlex.split(hint), cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, "Done.\n"), again.stderr
    same = here("replay", *options[:6], "runs.db", "r", cwd=tmp_path)
    assert (same.returncode, same.stdout) == (0, "the same\n"), same.stderr
    other = here("replay", "--skills", "pay.py", "runs.db", "r", cwd=tmp_path)
    assert other.stdout == "the same\nchanged: instructions changed\n"


def test_without_a_store_a_run_that_must_wait_says_what_to_add(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "pay.py", PAY)
    with WireServer([OPENAI.answer('<command name="refund">30</command>')]) as server:
        done = here(
            "run", "Refund it", "--skills", "pay.py", "--model", "local/tiny", "--base-url", f"{server.url}/v1", cwd=tmp_path
        )
    error, hint = error_lines(done.stderr)
    assert "and a run can only wait in a store" in error
    assert "with --store STORE the run waits" in hint
    assert "store=" not in done.stderr
    write(tmp_path, "mock.py", PAY + """
from kernai import Agent, MockProvider
agent = Agent(instructions="", skills=[refund], provider=MockProvider('<command name="refund">30</command>'))
""")
    error, hint = error_lines(here("chat", "mock.py", cwd=tmp_path, input="Refund it\n").stderr)
    assert "and a run can only wait in a store" in error
    assert "kernai chat --store STORE" in hint
