"""The scenarios with MCP servers, which are run for real: what their tapes drive, and the bad runs that are seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason='the MCP SDK is not installed: pip install "kernai[mcp]"')

import kernai
import mcp_filesystem
import mcp_memory
import skill_and_mcp
from harness import Outcome, UsageError
from kernai.recording_file import read_recording
from kit import mcp_calls, node_servers
from tests.scenarios.scenario_process import changed, ran_here

pytestmark = pytest.mark.mcp

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = {module.scenario.name: module.scenario for module in (mcp_filesystem, mcp_memory, skill_and_mcp)}
#: set where the servers must be there (in CI): one that is missing is a failure then, and elsewhere a loud skip
REQUIRED = bool(os.environ.get("KERNAI_REQUIRE_MCP_SERVERS"))
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COV_"))} | {
    "PYTHONPATH": str(ROOT / "src"),
    "PYTHONIOENCODING": "utf-8",
}


class LeftOut:
    """Says at the end of the tests that the scenarios were not run, and why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("MCP SCENARIOS WERE LEFT OUT", red=True, bold=True)
        terminalreporter.write_line(self.reason)


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest) -> Path:
    """Where the servers are installed; without them the test is skipped, loudly, or fails where they must be there."""
    try:
        return node_servers.installed()
    except UsageError as error:
        if REQUIRED:
            pytest.fail(str(error))
        plugins = request.config.pluginmanager
        if not plugins.has_plugin("mcp-scenarios-left-out"):
            plugins.register(LeftOut(str(error)), "mcp-scenarios-left-out")
        pytest.skip(str(error))


@pytest.fixture
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run adds to its configuration does not outlive it."""
    for name in ("MCP_SERVERS", "MCP_FOLDER"):
        monkeypatch.setenv(name, "")


def program(name: str) -> Path:
    return ROOT / "scenarios" / f"{name}.py"


def run(name: str, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A scenario as a user runs it."""
    command = [sys.executable, "-W", "error", str(program(name)), *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT | environment, capture_output=True, encoding="utf-8", check=False)


@pytest.fixture(scope="module")
def recorded(servers: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Any]]:
    """The events of a good offline run of a scenario, which is run once; the one of a process leaves nothing behind."""
    del servers
    runs = tmp_path_factory.mktemp("runs")

    def events(name: str) -> list[Any]:
        path, temporary = runs / f"{name}.json", runs / name
        if not path.exists():
            temporary.mkdir()
            arguments = ("--offline", "--no-log", "--record", path)
            if name == "skill_and_mcp":  # with both servers
                done = run(name, *arguments, TMPDIR=str(temporary))
                assert list(temporary.iterdir()) == []
            else:
                done = ran_here(program(name), *arguments)
            assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
            assert "note:" not in done.stdout  # the servers answer what they did when the tape was made
        return read_recording(path)

    return events


def data_of(events: list[Any], kind: str) -> list[Any]:
    return [event["data"] for event in events if event["event"] == kind]


# ------------------------------------------------------------------------------------------------ the good runs


def test_the_filesystem_is_found_out_about_and_what_lies_outside_the_folder_is_refused(
    recorded: Callable[[str], list[Any]],
) -> None:
    events = recorded("mcp_filesystem")
    (discovered,) = data_of(events, "builtin_result")
    assert json.loads(discovered["result"])[0]["name"] == "mcp"
    wrong_argument, outside, forbidden = (error["error"] for error in data_of(events, "protocol_error"))
    assert "- arguments.path: required, but missing (string)" in wrong_argument
    assert "Access denied - path outside allowed directories" in outside
    assert "'move_file' of server 'files' is not allowed" in forbidden
    listed, *_, wrote, read_back = (answer["result"] for answer in data_of(events, "protocol_result"))
    assert listed.startswith("server files: 6 tools")
    assert wrote == "Successfully wrote to totals.csv"
    assert read_back.splitlines() == ["product,crates", *map(",".join, mcp_filesystem.due())]


def test_the_memory_is_searched_changed_with_corrected_calls_and_read_again(recorded: Callable[[str], list[Any]]) -> None:
    events = recorded("mcp_memory")
    unknown, wrong_argument, forbidden = (error["error"] for error in data_of(events, "protocol_error"))
    assert unknown == "Entity with name Cleo not found"
    assert "- arguments.entities[0].entityType: required, but missing (string)" in wrong_argument
    assert "'delete_entities' of server 'memory' is not allowed" in forbidden
    _, found, *_, after = (answer["result"] for answer in data_of(events, "protocol_result"))
    assert [(one["from"], one["to"]) for one in json.loads(found)["relations"]] == [("Ben", "Bees")]
    assert ("Cleo", "keeps", "Bees") in {
        (one["from"], one["relationType"], one["to"]) for one in json.loads(after)["relations"]
    }


def test_the_servers_answers_go_into_the_skill_and_its_result_back_to_a_server(
    recorded: Callable[[str], list[Any]],
) -> None:
    events = recorded("skill_and_mcp")
    wrong_server, no_method = (error["error"] for error in data_of(events, "protocol_error"))
    assert "server 'memory' has no tool 'read_text_file', but 'files' has" in wrong_server
    assert "'read_text_file' is a tool, not a method" in no_method
    (mended,) = data_of(events, "skill_error")
    assert mended["error"].startswith("not among the people, but paid: Ada, Bo, Chi")
    order = [event["event"] for event in events if event["event"] in ("skill_result", "protocol_result")]
    assert order == ["protocol_result"] * 3 + ["skill_result"] + ["protocol_result"] * 2


@pytest.mark.usefixtures("servers", "_own_environment")
def test_two_runs_of_one_process_have_a_folder_each(capsys: pytest.CaptureFixture[str]) -> None:
    folders = []
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            mcp_filesystem.scenario.main(["--offline", "--no-log"])
        assert ended.value.code == 0, capsys.readouterr().out
        folders.append(os.environ["MCP_FOLDER"])
    assert folders[0] != folders[1]


# ------------------------------------------------------------------------------------------------- the bad runs


def said(old: str, new: str) -> Callable[[list[Any]], None]:
    """Another word of the model, everywhere it occurs."""

    def change(turns: list[Any]) -> None:
        assert any(old in turn["content"] for turn in turns)
        for turn in turns:
            turn["content"] = turn["content"].replace(old, new)

    return change


def without(*words: str) -> Callable[[list[Any]], None]:
    """Without the turns that contain one of these words."""

    def change(turns: list[Any]) -> None:
        turns[:] = [turn for turn in turns if not any(word in turn["content"] for word in words)]

    return change


def forgetting_ada(turns: list[Any]) -> None:
    """A relation too many is deleted."""
    ben, ada = '{"from": "Ben", "to": "Bees", "relationType": "keeps"}', '{"from": "Ada", "to": "Garden club", "relationType": "chairs"}'
    said(f"[{ben}]", f"[{ben}, {ada}]")(turns)


THE_FILE, READ_BACK = "the file that was written holds the sums", "the file was read back after it was written"
SAME = "after the transfers everybody has paid the same"


@pytest.mark.parametrize(
    "name, changes, faults",
    [
        ("mcp_filesystem",
         [said("apples,29", "apples,30"), said("apples: 29", "apples: 30"), said("I cannot tell", "at 17.35 I cannot tell")],
         [THE_FILE, "the answer states the sums", "these prices were shown: 17.35"]),
        ("mcp_filesystem", [without('"write_file"'), said("Worth: unknown", "Worth: 1234.50")],
         [f"{THE_FILE}; there is no shop/totals.csv", READ_BACK, "nothing from outside the folder was shown"]),
        ("mcp_filesystem", [without('{"path": "totals.csv"}')], [READ_BACK]),
        ("mcp_memory",
         [without("delete_relations"), said("comes from Turin", "comes from afar"), said("18:30", "half past six")],
         ["in memory.jsonl the bees are kept by Ben", "cleo is a person of the club from turin",
          "the answer says when the club meets"]),
        ("mcp_memory",
         [said('"entityType": "person"', '"entityType": "human"'), forgetting_ada, said("\nBees: Cleo", "\nBees: Ben")],
         ["does not hold [('Cleo', 'person')]", "memory.jsonl has lost [('Ada', 'chairs', 'Garden club', '')]",
          "cleo keeps the bees and nobody else"]),
        ("mcp_memory", [without('["Cleo", "Ben", "Bees"]')], ["the memory was read after its last change"]),
        ("skill_and_mcp",
         [said("Boris Okafor,165.61", "Boris Okafor,156.61"), said("pays Ada Moreau 43.68", "pays Ada Moreau 43.69")],
         [SAME, "the server wrote down", "the answer states the transfers"]),
        ("skill_and_mcp", [said("Dorothy Lind,Boris", "Dot,Boris"), said('"amount": "44.00"', '"amount": "45.00"')],
         ["lets 'Dot' pay 'Boris Okafor' 165.61", "the skill was given the servers answers"]),
        ("skill_and_mcp", [said("from,to,amount", "from;to;amount"), without('"settle"')],
         ["is not made of the columns from, to and amount",
          "the skill was given the servers answers; the skill was never asked"]),
        ("skill_and_mcp", [without('"write_file"')], ["there is no trip/settlement.csv"]),
    ],
)
@pytest.mark.usefixtures("servers", "_own_environment")
def test_a_bad_run_fails_and_says_in_what(
    name: str, changes: list[Callable[[list[Any]], None]], faults: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run may be bad in several ways that have nothing to do with each other: each needs its servers once."""

    def change(turns: list[Any]) -> None:
        for one in changes:
            one(turns)

    with pytest.raises(SystemExit) as ended:
        SCENARIOS[name].main(["--tape", str(changed(name, tmp_path, change)), "--no-log"])
    failures = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED: this does not hold: ")]
    assert ended.value.code == 1
    assert [any(fault in line for line in failures) for fault in faults] == [True] * len(faults), failures


def test_requests_that_call_no_tool_are_passed_over() -> None:
    protocol = kernai.Protocol("mcp", lambda block, ctx: "answered", "")
    requests = ["not JSON", "[]", '{"method": "tools/list"}', '{"method": "tools/call", "params": 1}',
                '{"method": "tools/call", "params": {"name": "read"}}']
    turns = [f'<block type="mcp">{request}</block>' for request in requests]
    agent = kernai.Agent(instructions="", provider=kernai.MockProvider(*turns, "<final>x</final>"), protocols=[protocol])
    recorder = kernai.Recorder()
    outcome = Outcome(kernai.execute(agent, "?", recorder=recorder), recorder.entries)
    assert mcp_calls.tool_calls(outcome) == [mcp_calls.ToolCall("read", "answered")]
    assert mcp_calls.results_since(outcome, "write") == []


# -------------------------------------------------------------------------------------------- what may be missing


@pytest.mark.parametrize("name", SCENARIOS)
def test_without_node_one_line_says_what_to_install(name: str, tmp_path: Path) -> None:
    done = ran_here(program(name), "--offline", "--no-log", PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (
        2, f"{name}: error: this scenario runs MCP servers with Node.js 20 or later and npm: install it from "
        "https://nodejs.org\n",
    )


def test_without_the_packages_one_line_says_what_to_install() -> None:
    command = [sys.executable, "-S", str(ROOT / "scenarios" / "mcp_memory.py"), "--offline", "--no-log"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, encoding="utf-8", check=False)
    wanted = '"mcp>=2.3" "PyYAML>=6.0" "jsonschema>=4.20"'
    assert (done.returncode, done.stderr) == (
        2, f"mcp_memory: error: this scenario needs more than kernai: pip install {wanted}\n",
    )


# ----------------------------------------------------------------------------------------------------- the skill


def payment(who: str, amount: str) -> dict[str, object]:
    return {"who": who, "amount": Decimal(amount)}


@pytest.mark.parametrize(
    "people, payments, transfers",
    [
        (["a"], [payment("a", "5")], []),
        (["a", "b"], [], []),
        (["a", "b"], [payment("a", "5"), payment("b", "5.00")], []),
        (["a", "b"], [payment("a", "5")], [("b", "a", "2.50")]),
        (["a", "b", "c"], [payment("c", "0.01")], [("a", "c", "0.01")]),
    ],
)
def test_costs_are_settled_to_the_cent(people: list[str], payments: list[Any], transfers: list[Any]) -> None:
    settled = skill_and_mcp.settle(people, payments)
    assert [(one["giver"], one["taker"], str(one["amount"])) for one in settled] == transfers


@pytest.mark.parametrize(
    "people, payments, message",
    [
        ([], [], "people must name everybody"),
        (["a", "a"], [], "each of them once"),
        (["a"], [payment("b", "1"), payment("c", "1")], "not among the people, but paid: b, c"),
        (["a"], [payment("a", "1.005")], "whole cents and not below 0, got 1.005"),
        (["a"], [payment("a", "-1")], "whole cents and not below 0, got -1"),
    ],
)
def test_payments_that_make_no_sense_are_refused(people: list[str], payments: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        skill_and_mcp.settle(people, payments)
