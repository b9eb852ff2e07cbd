"""All scenarios pass offline; users can write their own in their own folder."""

from __future__ import annotations

import ast
import importlib
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from kit.scenario_files import find_scenarios
from tests.scenarios.scenario_process import ENVIRONMENT, PICTURES, ROOT, recorded
from tests.test_docs import code_blocks

SCENARIOS = find_scenarios(ROOT / "scenarios")


def test_every_scenario_has_a_tape_a_description_and_expectations() -> None:
    assert len(SCENARIOS) >= 24
    for one in SCENARIOS:
        assert one.tape.is_file(), one.name
        assert one.description, one.name
        assert importlib.import_module(one.name).scenario.definition.expectations, one.name


@pytest.mark.parametrize("name", [one.name for one in SCENARIOS if "mcp" not in one.name])  # those have tests of their own
def test_a_scenario_passes_offline_and_sends_the_messages_of_its_tape(name: str) -> None:
    if name in PICTURES:
        pytest.importorskip("PIL", reason="Pillow is not installed: pip install pillow")
    assert recorded(name)[-1]["data"]["usage"]["total_tokens"] > 0


# ----------------------------------------------- the sample of the docs, run as a user runs it in a folder of their own


FOLDER = ROOT / "scenarios"
NAME = "reading_room"
#: the environment of a user who has only installed kernai
INSTALLED = ENVIRONMENT | {"PYTHONPATH": str(ROOT / "src")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the sample from the docs and its tape, in the places that the docs name."""
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
def test_a_scenario_in_another_folder_uses_the_tape_beside_it_and_writes_its_log_there(folder: Path) -> None:
    before = set((FOLDER / "logs").glob("*"))
    done = ran(f"{NAME}.py", "--offline", cwd=folder, PYTHONPATH=os.pathsep.join([INSTALLED["PYTHONPATH"], str(FOLDER)]))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert [json.loads(log.read_text())["passed"] for log in (folder / "logs").glob(f"*-{NAME}-*.json")] == [True]
    assert set((FOLDER / "logs").glob("*")) == before


def test_dev_py_runs_the_scenario_file_that_is_given_and_not_another_of_that_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = runpy.run_path(str(ROOT / "dev.py"))["scenario"]
    given: dict[str, str] = {}
    # instead of a process; the real one may use the network
    python = lambda arguments, _, **environment: given.update(environment) or arguments  # noqa: E731 - brief
    monkeypatch.setitem(scenario.__globals__, "_python", python)
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.chdir(folder)
    Path("inventory_lookup.py").touch()
    assert scenario(["inventory_lookup", "--offline"]) == ["scenarios/inventory_lookup.py", "--offline"]
    assert scenario(["scenarios/inventory_lookup.py"]) == ["scenarios/inventory_lookup.py"]
    assert scenario([str(FOLDER / "inventory_lookup.py")]) == ["scenarios/inventory_lookup.py"]
    assert given == {}
    assert scenario(["inventory_lookup.py", "--offline"]) == [str(folder / "inventory_lookup.py"), "--offline"]
    assert given == {"PYTHONPATH": os.pathsep.join(["mine", str(FOLDER)])}
