"""README.md and docs/ are run: what a reader copies works.

The `python` blocks of one file run in order, in one module, in an empty working directory. `pycon` blocks are checked
as doctests in the same module. A block is left out only with a reason, in a comment in front of it:

    <!-- test: skip needs a local Ollama -->

A block with another library's code is run where that is installed: `<!-- test: needs langgraph -->`. The pages for those who
come from one say with which version they were run.

Of `bash` blocks only the commands of `dev.py` and the scripts that they name are looked up.
"""

from __future__ import annotations

import doctest
import importlib.util
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})[ ]*(?P<language>[^\s`]*)")
SKIP = re.compile(r"^\s*<!--\s*test:\s*skip\b\s*(?P<reason>.*?)\s*-->\s*$")
NEEDS = re.compile(r"^\s*<!--\s*test:\s*needs\s+(?P<module>\w+)\s*-->\s*$")
DISGUISED_PYTHON = {"py", "python3", "py3", "Python", "pycon3", "pyi"}  # would look right and never run
DEV_COMMAND = re.compile(r"\bdev\.py +([\w-]+)")
SCRIPT = re.compile(r"\bpython3? +([\w./-]+\.py)\b")


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
    """The fenced blocks of a page, in order; a block that never ends is an error."""
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
    """Why the block after this comment is left out, or None if it is run."""
    skip, needs = SKIP.match(comment), NEEDS.match(comment)
    if needs:
        return None if importlib.util.find_spec(needs["module"]) else f"needs {needs['module']}"
    return skip["reason"] if skip else None


def run_python(block: CodeBlock, module: types.ModuleType) -> None:
    """Run a block with its own file and line numbers, so that a traceback points into the page."""
    padded = "\n" * (block.line - 1) + block.code
    exec(compile(padded, str(block.page), "exec", dont_inherit=True), module.__dict__)


def run_session(block: CodeBlock, module: types.ModuleType) -> None:
    """Check an interpreter session; what it defines is there for the blocks after it."""
    session = doctest.DocTestParser().get_doctest(
        block.code, module.__dict__, block.place, str(block.page), block.line - 1
    )
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(session, out=report.append, clear_globs=False)
    module.__dict__.update(session.globs)
    assert not report, "".join(report)


def run_page(page: Path) -> None:
    """Run every block of a page, in order; a failure says which file and line."""
    module = types.ModuleType("page_under_test")
    sys.modules[module.__name__] = module  # dataclasses and type hints look their module up
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
    if page.name in ("README.md", "tutorial.md", "durable.md", "skills.md"):  # what somebody has copied is run again, beside the files it left
        run_page(page)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    for block in code_blocks(page):
        if block.language != "bash" or block.skip_reason is not None:
            continue
        unknown = set(DEV_COMMAND.findall(block.code)) - dev_commands()
        missing = {script for script in SCRIPT.findall(block.code) if not (ROOT / script).is_file()}
        assert unknown | missing == set(), f"{block.place}: names what does not exist"


def test_the_readme_begins_with_the_demo_and_the_tests() -> None:
    commands = [block.code for block in code_blocks(ROOT / "README.md") if block.language == "bash"]
    assert {"demo", "test"} <= set(DEV_COMMAND.findall("\n".join(commands)))


def test_a_failing_block_names_its_page_and_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\nx = 1 / 0\n```\n", encoding="utf-8")
    with pytest.raises(ZeroDivisionError) as caught:
        run_page(page)
    assert caught.value.__notes__ == [f"in the block at {page}:4"]
    last = caught.traceback[-1]
    assert (str(last.path), last.lineno + 1) == (str(page), 5)
