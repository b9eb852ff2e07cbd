"""pyright reads the types as mypy does, which checks all of this anyway."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.process
def test_pyright_knows_the_answers_type_and_what_is_a_mistake(tmp_path: Path) -> None:
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
