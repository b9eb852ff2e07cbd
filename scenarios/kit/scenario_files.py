"""Finds scenarios by reading their files without running them, so that a broken file does not affect others."""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from kit.definition import UsageError


@dataclass(frozen=True)
class ScenarioFile:
    """A file that makes a `Scenario` under the module-level name `scenario`."""

    path: Path
    #: in one line; blank if the file has none as a plain text
    description: str

    @property
    def name(self) -> str:
        """The file's name without the extension, which is the scenario's name."""
        return self.path.stem

    @property
    def tape(self) -> Path:
        """The path of its tape, which need not exist."""
        return self.path.parent / "tapes" / f"{self.name}.json"


def find_scenarios(folder: Path) -> list[ScenarioFile]:
    """The scenarios of a folder by name. Raises `UsageError` if it has none or cannot be read."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    made = ((path, _maker(path)) for path in sorted(folder.glob("*.py")))
    found = [ScenarioFile(path, _description(call)) for path, call in made if call is not None]
    if not found:
        raise UsageError(f"{folder} holds no scenario: a file with `scenario = Scenario(...)` at its top level")
    return found


def select_scenarios(found: Sequence[ScenarioFile], patterns: Iterable[str]) -> list[ScenarioFile]:
    """The scenarios that match one of the names or globs, each once, in the order of `found`; all without a pattern.

    Raises `UsageError` for a pattern that matches none: a misspelled name must not look like a passed test.
    """
    names = [one.name for one in found]
    wanted: set[str] = set()
    for pattern in patterns:
        fitting = fnmatch.filter(names, pattern.removesuffix(".py"))
        if not fitting:
            raise UsageError(f"no scenario is called {pattern!r}{_guess(pattern, names)}")
        wanted.update(fitting)
    return [one for one in found if one.name in wanted] if wanted else list(found)


def _guess(pattern: str, names: Sequence[str]) -> str:
    close = get_close_matches(pattern, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else "; --list shows them all"


def _maker(path: Path) -> ast.Call | None:
    """The call `Scenario(...)` of `scenario = Scenario(...)`; None if there is none.

    A file that is not valid Python but mentions a scenario counts as one, so that it fails by name and is not skipped.
    """
    source = path.read_text(encoding="utf-8", errors="replace")
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Call(ast.Name("Scenario"), [], []) if "\nscenario = Scenario(" in source else None
    for statement in module.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="scenario")], value=ast.Call() as call) if _makes_scenario(call):
                return call
            case ast.AnnAssign(target=ast.Name(id="scenario"), value=ast.Call() as call) if _makes_scenario(call):
                return call
    return None


def _makes_scenario(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    return name == "Scenario"


def _description(call: ast.Call) -> str:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "description"] or call.args[1:2]
    text = given[0].value if given and isinstance(given[0], ast.Constant) else ""
    return " ".join(str(text).split())
