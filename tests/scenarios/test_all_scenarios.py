"""All scenarios pass offline and run the same in every way; users can write their own in their own folder."""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kernai
from kernai.loop import kernel
from kit.scenario_files import find_scenarios
from kit.tape import Tape
from kit.tape_provider import TapeProvider
from tests.scenarios.scenario_process import ENVIRONMENT, PICTURES, ROOT, TAPES, recorded
from tests.test_docs import code_blocks
from tests.ways import ALL, Way, by_execute

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
        pytest.importorskip("PIL")
    assert recorded(name)[-1]["data"]["usage"]["total_tokens"] > 0


# ----------------------------- every way to run, from a provider that streams and from one that does not: one recording


#: scenarios whose runs are resumed from a store
KEPT = {"approval_of_payments", "crash_and_resume", "fork_another_way"}
PLAYED = sorted(path.stem for path in TAPES.glob("*.json") if "mcp" not in path.stem and path.stem not in KEPT)
#: fields that hold measured times
MEASURED = frozenset({"duration_ms", "latency_ms"})


class Silent(TapeProvider):
    """Gives the answers of the tape without streaming."""

    def call(self, *given: Any) -> kernai.LlmResponse:
        messages, model, generation, _ = given
        return super().call(messages, model, generation, lambda _: None)


class Native(TapeProvider):

    async def acall(self, *given: Any) -> kernai.LlmResponse:
        await asyncio.sleep(0)
        return self.call(*given)


def recording_of(name: str, way: Way, kind: type[TapeProvider]) -> list[dict[str, Any]]:
    definition = importlib.import_module(name).scenario.definition
    provider, recorder = kind(Tape.load(TAPES / f"{name}.json", name)), kernai.Recorder()
    for prepare in definition.preparations:
        prepare()
    with definition.agent(provider, kernai.Model("tape", definition.capabilities)) as agent:
        content = definition.input if isinstance(definition.input, list) else [definition.input]
        way(agent, *content, recorder=recorder, limits=definition.limits, run_id="run-1")
    assert provider.left == provider.unplayed == []
    entries = json.loads(recorder.to_json())
    for entry in entries:
        del entry["timestamp"]
        if isinstance(entry["data"], dict):
            entry["data"] = {key: one for key, one in entry["data"].items() if key not in MEASURED}
    return list(entries)


def comparable(entries: list[dict[str, Any]]) -> list[Any]:
    """Return the events by scope, in order: between concurrent tasks the order varies."""
    by_scope: dict[str, list[str]] = {}
    for entry in entries:
        text = json.dumps(entry, sort_keys=True)
        by_scope.setdefault(f"tasks of {entry['scope']}" if "task_" in entry["event"] else entry["scope"], []).append(text)
    return sorted((scope, sorted(events) if "tasks of" in scope else events) for scope, events in by_scope.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
def test_every_way_to_run_records_the_same(name: str) -> None:
    first = comparable(recording_of(name, by_execute, TapeProvider))
    for way in ALL:
        for kind in (TapeProvider, Silent, Native):
            assert comparable(recording_of(name, way, kind)) == first, (way.__name__, kind.__name__)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
def test_the_fast_path_for_plain_calls_records_the_same_events_as_the_general_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = comparable(recording_of(name, by_execute, TapeProvider))
    monkeypatch.setattr(kernel, "plain_call", lambda *_: None)
    assert comparable(recording_of(name, by_execute, TapeProvider)) == short


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
def test_the_matrix_runs_scenarios_in_another_folder(folder: Path) -> None:
    done = ran(FOLDER / "run_matrix.py", "--folder", folder, "--offline", cwd=folder)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert f"pass  {NAME}" in done.stdout


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
    inside = scenario.__globals__
    monkeypatch.setitem(inside, "_install", lambda group: None)  # the real one may use the network
    monkeypatch.setitem(inside, "_python", lambda arguments: arguments)
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.chdir(folder)
    Path("inventory_lookup.py").touch()
    assert scenario(["inventory_lookup", "--offline"]) == ["scenarios/inventory_lookup.py", "--offline"]
    assert scenario(["scenarios/inventory_lookup.py"]) == ["scenarios/inventory_lookup.py"]
    assert scenario([str(FOLDER / "inventory_lookup.py")]) == ["scenarios/inventory_lookup.py"]
    assert os.environ["PYTHONPATH"] == "mine"
    assert scenario(["inventory_lookup.py", "--offline"]) == [str(folder / "inventory_lookup.py"), "--offline"]
    assert os.environ["PYTHONPATH"] == os.pathsep.join(["mine", str(FOLDER)])
