"""`kernai skills`: what files hold, and which of them is at fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernai.command_line import main
from tests.command_line.conftest import Here
from tests.command_line.support import as_json, error_lines, write

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


def test_skills_are_listed_as_a_model_reads_them(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "skills.py", SKILLS)
    done = here("skills", "skills.py", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(LISTING)
    assert "### price\n" in done.stdout
    assert done.stderr == "loading\n"


def test_for_a_model_only_what_it_can_use_is_listed(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "skills.py", SKILLS)
    done = here("skills", "skills.py", "--model-capabilities", "text", cwd=tmp_path)
    assert "### look" not in done.stdout
    assert done.stderr.endswith("note: 'look' is not listed: it requires vision\n")


FAULTY = {
    "a syntax error": ("def f(:\n", 1, "SyntaxError: invalid syntax"),
    "a type that no input has": ("import kernai\n\n@kernai.skill\ndef f(x: object): ...\n", 3, "TypeError: skill 'f': parameter 'x'"),
    "what is no Exception": ("\nraise GeneratorExit('no')\n", 2, "GeneratorExit: no"),
}  # fmt: skip


@pytest.mark.parametrize("source, line, reason", FAULTY.values(), ids=FAULTY.keys())
def test_a_faulty_file_is_reported_and_the_others_are_listed(here: Here, tmp_path: Path, source: str, line: int, reason: str) -> None:
    write(tmp_path, "bad.py", source)
    write(tmp_path, "good.py", SKILLS)
    done = here("skills", "bad.py", "good.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "### count" in done.stdout
    error, hint = error_lines(done.stderr)
    assert error.startswith(f"kernai: error: bad.py:{line}: {reason}")
    assert hint == "hint: --debug shows the traceback"
    assert "Traceback" not in done.stderr
    assert "Traceback" in here("skills", "bad.py", "--debug", cwd=tmp_path).stderr


def test_json_has_each_skill_and_each_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "a.py", SKILLS)
    write(tmp_path, "b.py", "1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    assert main(["skills", "*.py", "a.py", "--json", "--model-capabilities", "text"]) == 1
    shown = as_json(capsys.readouterr().out)
    count, look, price = sorted(shown["skills"], key=lambda one: one["name"])
    assert (count["registered"], count["listed"], look["registered"], look["listed"]) == (True, True, False, False)
    assert count["inputs"][1] == {"name": "at_least", "type": "integer", "required": False, "description": ""}
    assert count["schema"]["properties"]["at_least"]["type"] == "integer"
    assert look["credentials"] == ["api_key"]
    assert price["produces"] == ["text"]
    assert shown["faults"] == [{"file": "b.py", "line": 1, "reason": "ZeroDivisionError: division by zero"}]
    assert {name for name in set(sys.modules) - before if name.startswith("_kernai_skill")} == set()


def test_a_name_that_two_files_use_is_noted(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "a.py", SKILLS)
    write(tmp_path, "b.py", "import kernai\n@kernai.skill\ndef count() -> str:\n    'Other.'\n")
    done = here("skills", "a.py", "b.py", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.count("### count") == 1
    assert "note: 'count' of b.py replaces the one in a.py" in done.stderr


def test_a_skill_file_may_import_from_the_working_directory(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "helper.py", "NAME = 'x'")
    (tmp_path / "skills").mkdir()
    write(tmp_path / "skills", "a.py", "import kernai, helper\n@kernai.skill(name=helper.NAME)\ndef f() -> str: ...\n")
    assert "### x" in here("skills", "skills/*.py", cwd=tmp_path).stdout


def test_a_file_without_skills_says_so(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "a.py", "x = 1")
    assert here("skills", "a.py", cwd=tmp_path).stdout == "No skills are available.\n"
