"""The metadata of the package, and how `dev.py` handles its command line and old Pythons."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.programs import ran_here

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_is_a_constant_of_the_package_and_heads_the_changelog(project: dict[str, Any]) -> None:
    import kernai

    assert project["project"]["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", kernai.__version__)
    versions = re.findall(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert versions[0] == kernai.__version__


def test_ci_tests_every_python_that_the_package_says_it_supports(project: dict[str, Any]) -> None:
    classifiers = "\n".join(project["project"]["classifiers"])
    supported = re.findall(r"Python :: (3\.\d+)$", classifiers, re.MULTILINE)
    matrix = re.search(r"^        python: \[(.*)\]$", (ROOT / ".github/workflows/checks.yml").read_text("utf-8"), re.MULTILINE)
    assert matrix is not None
    assert re.findall(r"[\d.]+", matrix[1]) == supported


@pytest.mark.parametrize("arguments, complaint", [
    ((), "dev.py: error: name a command; `dev.py --help` lists them"),
    (("tests",), "dev.py: error: there is no command 'tests'; did you mean test?"),
    (("xyz",), "there is no command 'xyz'; `dev.py --help` lists them"),
    (("scenario", "fraud_investigaton"), "there is no scenario 'fraud_investigaton'; did you mean fraud_investigation?"),
    (("wheel", "--fast"), "dev.py: error: wheel takes no arguments, got: --fast"),
    (("bench", "framing", "parser"), "dev.py: error: bench framing has an environment of its own, and is run alone"),
    (("rehearse", "0.2.0", "now"), "dev.py: error: rehearse takes one argument, the version"),
    (("demo", "--model", "huge"), "dev.py: error: the only model to install is smollm2: `dev.py demo --model smollm2`"),
])
def test_a_wrong_command_line_is_refused_with_one_clear_line(arguments: tuple[str, ...], complaint: str) -> None:
    refused = ran_here(ROOT / "dev.py", *arguments, environment=os.environ)
    assert refused.returncode == 2
    assert complaint in refused.stderr.splitlines()[-1]


def test_dev_py_parses_on_pythons_that_it_refuses() -> None:
    entry = ast.parse((ROOT / "dev.py").read_text(encoding="utf-8"), feature_version=(3, 6))
    imported = {node.module for node in ast.walk(entry) if isinstance(node, ast.ImportFrom)}
    assert "__future__" not in imported, "a feature that a Python does not know is a syntax error there"


@pytest.mark.process
def test_an_old_python_gets_a_clear_error_before_code_it_cannot_run() -> None:
    """Python 3.6 is one example: `CompletedProcess[str]` in a signature raises there, and it lacks some modules."""
    program = (
        "import runpy, subprocess, sys\n"
        "sys.version_info = (3, 6, 15, 'final', 0)\n"
        "sys.modules.update(dict.fromkeys(['dataclasses', 'contextvars', 'tomllib', 'zoneinfo', 'graphlib']))\n"
        "subprocess.CompletedProcess = object\n"
        f"runpy.run_path({str(ROOT / 'dev.py')!r}, run_name='__main__')\n"
    )
    refused = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stderr) == (
        2, "dev.py: error: kernai needs Python 3.11 or later, and this is 3.6.15; try python3.11 dev.py\n",
    )


@pytest.mark.slow
@pytest.mark.process
def test_pyright_infers_the_type_of_an_answer_and_reports_mistakes(tmp_path: Path) -> None:
    """mypy checks the same file in `dev.py types`."""
    pyright = [sys.executable, "-m", "pyright"]
    if subprocess.run([*pyright, "--version"], capture_output=True, timeout=300, check=False).returncode:
        pytest.skip("pyright is not installed, or finds no node")
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps({
        "include": [str(ROOT / "tests" / "typed_use.py")], "extraPaths": [str(ROOT / "src")], "pythonVersion": "3.11",
        "typeCheckingMode": "strict", "enableTypeIgnoreComments": False, "reportUnnecessaryTypeIgnoreComment": True,
    }))
    done = subprocess.run([*pyright, "-p", str(config)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
