"""Scenarios of one's own, in a folder of one's own: the sample of the docs, run as a user runs it there."""

from __future__ import annotations

import ast
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.scenario_process import ENVIRONMENT
from tests.test_docs import code_blocks

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "scenarios"
NAME = "reading_room"
#: as a user has it, to whom only kernai is installed
INSTALLED = ENVIRONMENT | {"PYTHONPATH": str(ROOT / "src")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The docs' sample and its tape, in the places that the docs name."""
    blocks = [block.code for block in code_blocks(ROOT / "docs" / "scenarios.md") if block.language == "python"]
    (sample,) = (code for code in blocks if f'Scenario("{NAME}"' in code)
    (making,) = (code for code in blocks if code.startswith("import json\n\ntape = "))
    literals = (node.value for node in ast.parse(making).body if isinstance(node, ast.Assign))
    made = tmp_path / "50 % mine"
    (made / "tapes").mkdir(parents=True)
    (made / f"{NAME}.py").write_text(sample)
    (made / "tapes" / f"{NAME}.json").write_text(json.dumps(ast.literal_eval(next(literals))))
    return made


def ran(*command: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, env=INSTALLED | more, capture_output=True, encoding="utf-8",
        timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.process
def test_the_matrix_runs_a_folder_whose_scenarios_find_the_harness_by_themselves(folder: Path) -> None:
    done = ran(SCENARIOS / "run_matrix.py", "--folder", folder, "--offline", cwd=folder)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert f"pass  {NAME}" in done.stdout


@pytest.mark.process
def test_a_scenario_elsewhere_takes_the_tape_beside_it_and_leaves_its_log_there(folder: Path) -> None:
    before = set((SCENARIOS / "logs").glob("*"))
    done = ran(f"{NAME}.py", "--offline", cwd=folder, PYTHONPATH=os.pathsep.join([INSTALLED["PYTHONPATH"], str(SCENARIOS)]))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert [json.loads(log.read_text())["passed"] for log in (folder / "logs").glob(f"*-{NAME}-*.json")] == [True]
    assert set((SCENARIOS / "logs").glob("*")) == before


def test_the_entry_runs_a_file_that_is_named_and_no_other_of_that_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = runpy.run_path(str(ROOT / "dev.py"))["scenario"]
    inside = scenario.__globals__
    monkeypatch.setitem(inside, "_install", lambda group: None)  # which may ask the network
    monkeypatch.setitem(inside, "_python", lambda arguments: arguments)
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.chdir(folder)
    Path("inventory_lookup.py").touch()
    assert scenario(["inventory_lookup", "--offline"]) == ["scenarios/inventory_lookup.py", "--offline"]
    assert scenario(["scenarios/inventory_lookup.py"]) == ["scenarios/inventory_lookup.py"]
    assert scenario([str(SCENARIOS / "inventory_lookup.py")]) == ["scenarios/inventory_lookup.py"]
    assert os.environ["PYTHONPATH"] == "mine"
    assert scenario(["inventory_lookup.py", "--offline"]) == [str(folder / "inventory_lookup.py"), "--offline"]
    assert os.environ["PYTHONPATH"] == os.pathsep.join(["mine", str(SCENARIOS)])
