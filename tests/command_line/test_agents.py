"""Agents made from options of the command line, with their skills, and `kernai skills`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command_line.conftest import Here, Screen
from tests.command_line.support import as_json, environment, error_lines, write
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


@pytest.mark.parametrize("words", [("run", "How many lamps?"), ("run", "-"), ("run",), ("chat", "-q")])
def test_skills_and_instructions_may_be_given_on_the_command_line(here: Here, tmp_path: Path, words: tuple[str, ...]) -> None:
    write(tmp_path, "stock.py", STOCK.replace("skill", 'skill(requires="vision")', 1))
    call = OPENAI.answer('<command name="count_stock">lamp</command>')
    with WireServer([call, OPENAI.answer("<final>12 lamps.</final>")]) as server:
        model = ("--model", "local/tiny", "--model-capabilities", "text,vision")
        options = ("--skills", "*.py", "--system", "You mind the shop.", *model)
        done = here(
            *words, *options, "--base-url", f"{server.url}/v1", "--record", "run.jsonl", input="" if "How many lamps?" in words else "How many lamps?\n",
        )
        first, second = [request.body.decode() for request in server.requests]
    assert (done.returncode, done.stdout) == (0, "12 lamps.\n")
    assert "You mind the shop." in first
    assert '"How many lamps?"' in first
    assert "### count_stock" in first, "it is listed, so that no turn goes into asking"
    assert "12 of lamp" in second
    assert here("replay", *options, "run.jsonl", "--strict").stdout == "the same\n"


PAY = STOCK + """
@kernai.skill
def refund(amount: int, ctx: kernai.SkillContext) -> str:
    if ctx.approval is None:
        raise kernai.Pause("From which account?")
    return f"{amount} paid back"
"""


def test_the_command_in_the_hint_continues_a_waiting_run(here: Here, tmp_path: Path) -> None:
    asks = "(ctx: kernai.SkillContext, amount: int) -> str:\n    if ctx.approval is None:\n        raise kernai.Pause('?', {'of': 1})"
    write(tmp_path, "pay.py", PAY.replace("(approval=True)", "").replace("(amount: int) -> str:", asks))
    with WireServer([OPENAI.answer('<command name="refund">30</command>'), OPENAI.answer("<final>Done.</final>")]) as server:
        options = ("--skills", "pay.py", "--system", "You refund.", "--model", "local/tiny", "--base-url", f"{server.url}/v1")
        done = here("run", "Refund it", *options, "--store", "runs.db", "--run-id", "r")
        assert done.returncode == 4, done.stderr
        hint, others = done.stderr.splitlines()[-1].removeprefix("hint: kernai ").split(", ", 1)
        assert others == "--approve 0.0=ANSWER, or --refuse 0.0=WHY"
        again = here(*shlex.split(hint))
    assert (again.returncode, again.stdout) == (0, "Done.\n"), again.stderr
    other = here("replay", "--skills", "pay.py", "runs.db", "r")
    assert other.stdout == "the same\n- instructions changed\n"
    terminal: Any = {"screen": Screen(), "env": environment(TERM="xterm", NO_COLOR="")}
    other = here("replay", "--skills", "pay.py", "runs.db", "r", "--strict", **terminal)
    shown = "the agent decides the same, but has changed since the recording:\n\x1b[31m- instructions changed\x1b[0m\n"
    assert (other.returncode, other.stdout) == (1, shown)


@pytest.mark.parametrize("words", [("run", "pay.py", "Refund it"), ("chat", "pay.py")])
def test_a_run_that_must_wait_without_a_store_says_what_to_add(here: Here, tmp_path: Path, words: tuple[str, ...]) -> None:
    mock = """MockProvider('<command name="refund">30</command>')"""
    agent = f"\nfrom kernai import Agent, MockProvider\nagent = Agent(instructions='', skills=[refund], provider={mock})\n"
    write(tmp_path, "pay.py", PAY + agent)
    done = here(*words, input="Refund it\n")
    error, hint = error_lines(done.stderr)
    assert "and a run can only wait in a store" in error
    assert hint == "hint: with --store STORE the run waits for your decision"
    assert "store=" not in done.stderr


# -------------------------------------------------------------------------------------------------------- kernai skills


SKILLS = '''
import kernai

@kernai.skill
def count(product: str, at_least: int = 1) -> str:
    """Count a product."""

@kernai.skill(register=False, requires="vision", credentials={"api_key": kernai.Credential(required=True)})
def look(picture: kernai.Media) -> str:
    """Look at a picture."""

price = kernai.Skill("price", execute=lambda product: 1, description="Say a price.", produces="text")
print("loading")
'''
LISTING = """\
Available skills, each called with a command block:

### count
Count a product.
Inputs:
- product (string, required)
- at_least (integer, default 1)
Usage: <block type="command" name="count">{"product": "...", "at_least": 1}</block>

### look
"""


def test_skills_are_listed_as_a_model_reads_them_or_only_those_that_it_can_use(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "skills.py", SKILLS)
    done = here("skills", "skills.py")
    assert (done.returncode, done.stderr) == (0, "loading\n")
    assert done.stdout.startswith(LISTING)
    assert "### price\n" in done.stdout
    blind = here("skills", "skills.py", "--model-capabilities", "text")
    assert "### look" not in blind.stdout
    assert blind.stderr.endswith("note: 'look' is not listed: it requires vision\n")


FAULTY = {
    "a syntax error": ("def f(:\n", 1, "SyntaxError: invalid syntax"),
    "a type that no input has": ("import kernai\n\n@kernai.skill\ndef f(x: object): ...\n", 3, "TypeError: skill 'f': parameter 'x'"),
    "what is no Exception": ("\nraise GeneratorExit('no')\n", 2, "GeneratorExit: no"),
}  # fmt: skip


@pytest.mark.parametrize("source, line, reason", FAULTY.values(), ids=FAULTY.keys())
def test_a_faulty_file_is_reported_and_the_others_are_listed(here: Here, tmp_path: Path, source: str, line: int, reason: str) -> None:
    write(tmp_path, "bad.py", source)
    write(tmp_path, "good.py", SKILLS)
    done = here("skills", "bad.py", "good.py")
    assert done.returncode == 1
    assert "### count" in done.stdout
    error, hint = error_lines(done.stderr)
    assert error.startswith(f"kernai: error: bad.py:{line}: {reason}")
    assert hint == "hint: --debug shows the traceback"
    assert "Traceback" not in done.stderr
    alone = here("skills", "bad.py", "--debug")
    assert ("Traceback" in alone.stderr, alone.stdout) == (True, "")
    used = here("run", "x", "--skills", "bad.py", "--model", "ollama/m")
    assert (used.returncode, used.stdout) == (1, "")
    assert error_lines(used.stderr)[0].startswith(f"kernai: error: --skills: bad.py:{line}: {reason}")


def test_json_has_each_skill_and_each_error(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "a.py", SKILLS)
    write(tmp_path, "b.py", "1 / 0")
    before = set(sys.modules)
    done = here("skills", "*.py", "a.py", "--json", "--model-capabilities", "text")
    assert done.returncode == 1
    shown = as_json(done.stdout)
    count, look, price = sorted(shown["skills"], key=lambda one: one["name"])
    assert (count["registered"], count["listed"], look["registered"], look["listed"]) == (True, True, False, False)
    assert count["inputs"][1] == {"name": "at_least", "type": "integer", "required": False, "description": ""}
    assert count["schema"]["properties"]["at_least"]["type"] == "integer"
    assert look["credentials"] == ["api_key"]
    assert price["produces"] == ["text"]
    assert shown["faults"] == [{"file": "b.py", "line": 1, "reason": "ZeroDivisionError: division by zero"}]
    assert {name for name in set(sys.modules) - before if name.startswith("_kernai_skill")} == set()


def test_a_skill_name_used_in_two_files_is_noted(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "a.py", SKILLS)
    write(tmp_path, "b.py", "import kernai\n@kernai.skill\ndef count() -> str:\n    'Other.'\n")
    done = here("skills", "a.py", "b.py")
    assert done.returncode == 0
    assert done.stdout.count("### count") == 1
    assert "note: 'count' of b.py replaces the one in a.py" in done.stderr


def test_a_skill_file_may_import_from_the_working_directory(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "helper.py", "NAME = 'x'")
    (tmp_path / "skills").mkdir()
    write(tmp_path / "skills", "a.py", "import kernai, helper\n@kernai.skill(name=helper.NAME)\ndef f() -> str: ...\n")
    assert "### x" in here("skills", "skills/*.py").stdout
    write(tmp_path, "shared.py", "import kernai\n@kernai.skill(register=False)\ndef shared() -> str: ...\n")
    for name in "bc":
        write(tmp_path, f"{name}.py", "from shared import shared\n")
    done = here("skills", "b.py", "c.py")
    assert (done.stdout.count("### shared"), done.stderr) == (1, "")
