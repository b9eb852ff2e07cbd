"""Every scenario passes offline: as the matrix runs them, each in a process of its own."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit.scenario_files import find_scenarios
from tests.scenarios.scenario_process import ENVIRONMENT, ROOT

pytestmark = pytest.mark.process

SCENARIOS = find_scenarios(ROOT / "scenarios")
NAMES = {
    "inventory_lookup", "simple_baseline", "customer_support_triage", "incident_investigation",
    "conflicting_instructions",
    "sequential_pipeline", "parallel_fan_out", "fraud_investigation", "redundant_tasks", "task_failure_recovery",
    "invalid_plan_fallback", "cyclic_plan_rejected", "unknown_dependency", "sub_agent_must_not_plan",
    "describe_image", "vision_gated_skill", "drawn_image", "text_only_fallback",
    "mcp_filesystem", "mcp_memory", "skill_and_mcp",
    "approval_of_payments", "crash_and_resume", "fork_another_way",
}


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All scenarios with their tapes, in one matrix."""
    folder = tmp_path_factory.mktemp("matrix")
    output = folder / "matrix.json"
    command = [sys.executable, str(ROOT / "scenarios" / "run_matrix.py"), "--offline", "--output", str(output)]
    more = ["--logs", str(folder / "logs"), "--timeout", "120"]
    done = subprocess.run([*command, *more], env=ENVIRONMENT, capture_output=True, encoding="utf-8", check=False)
    assert done.stderr == ""
    loaded: dict[str, Any] = json.loads(output.read_text())
    return loaded


def test_the_scenarios_that_the_project_promises_are_there_with_a_tape_and_a_description() -> None:
    assert {one.name for one in SCENARIOS} >= NAMES
    assert [one.name for one in SCENARIOS if not one.tape.is_file() or not one.description] == []


@pytest.mark.parametrize("name", [one.name for one in SCENARIOS])
def test_a_scenario_passes_offline(matrix: dict[str, Any], name: str) -> None:
    (cell,) = (cell for cell in matrix["cells"] if cell["scenario"] == name)
    assert (cell["passed"], cell["reason"], cell["faults"]) == (True, None, []), cell["stderr_tail"]
    assert cell["tokens"] > 0


@pytest.mark.parametrize("name", [one.name for one in SCENARIOS])
def test_a_tape_is_asked_what_it_was_asked_when_it_was_made(matrix: dict[str, Any], name: str) -> None:
    log = run_log(matrix, name)
    assert log["notes"] == []
    assert log["expectations"], "a scenario must say what a good run shows"


def run_log(matrix: dict[str, Any], name: str) -> dict[str, Any]:
    (cell,) = (cell for cell in matrix["cells"] if cell["scenario"] == name)
    (path,) = (path for path in Path(cell["folder"]).glob("*.json") if path.name != "manifest.json")
    return _read(path)


@functools.cache
def _read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded
