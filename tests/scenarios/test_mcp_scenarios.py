"""The scenarios with real MCP servers: their good runs, and bad runs that their expectations detect."""

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

from harness import Outcome, UsageError

import kernai
import mcp_filesystem
import skill_and_mcp
from kit import node_servers
from tests.mcp.conftest import NPM_PACKAGES
from tests.scenarios.scenario_process import (
    ENVIRONMENT,
    SCENARIOS,
    Change,
    Tape,
    both,
    failures,
    ran_here,
    recorded,
    replaced,
    without,
)

pytestmark = pytest.mark.mcp

NAMES = ("mcp_filesystem", "mcp_memory", "skill_and_mcp")
#: set in CI: a missing server then fails the tests; otherwise they are skipped, and pytest's summary says why
REQUIRED = bool(os.environ.get("KERNAI_REQUIRE_MCP_SERVERS"))


@pytest.fixture(scope="module")
def servers() -> Path:
    """The folder where the servers are installed. Without them the test is skipped, or fails if they are required."""
    try:
        return node_servers.installed()
    except UsageError as error:
        if REQUIRED:
            pytest.fail(str(error))
        pytest.skip(str(error))


# ------------------------------------------------------------------------------------------------ the good runs


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.usefixtures("servers")
def test_a_scenario_passes_offline_and_sends_the_messages_of_its_tape(name: str) -> None:
    assert recorded(name)


@pytest.mark.usefixtures("servers")
def test_two_runs_in_one_process_have_separate_folders(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = []
    for name in ("MCP_SERVERS", "MCP_FOLDER"):  # which a run sets
        monkeypatch.setenv(name, "")
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            mcp_filesystem.scenario.main(["--offline", "--no-log"])
        assert ended.value.code == 0, capsys.readouterr().out
        folders.append(os.environ["MCP_FOLDER"])
    assert folders[0] != folders[1]


@pytest.mark.usefixtures("servers")
def test_a_scenario_as_a_process_sends_the_messages_of_its_tape_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(SCENARIOS / "skill_and_mcp.py"), "--offline", "--no-log"]
    environment = ENVIRONMENT | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr, list(tmp_path.iterdir()), "note:" in done.stdout) == (0, "", [], False)


# ------------------------------------------------------------------------------------------------- the bad runs


def forgetting_ada(tape: Tape) -> None:
    """Delete one relation too many."""
    ben, ada = '{"from": "Ben", "to": "Bees", "relationType": "keeps"}', '{"from": "Ada", "to": "Garden club", "relationType": "chairs"}'
    replaced(f"[{ben}]", f"[{ben}, {ada}]")(tape)


THE_FILE, READ_BACK = "the file that was written holds the sums", "the file was read back after it was written"
SAME = "after the transfers everybody has paid the same"


@pytest.mark.parametrize("name, changes, faults", [
    ("mcp_filesystem",
     [replaced("apples,29", "apples,30"), replaced("apples: 29", "apples: 30"), replaced("I cannot tell", "at 17.35 I cannot tell")],
     [THE_FILE, "the answer states the sums", "these prices were shown: 17.35"]),
    ("mcp_filesystem", [without('"write_file"'), replaced("Worth: unknown", "Worth: 1234.50")],
     [f"{THE_FILE}; there is no shop/totals.csv", READ_BACK, "nothing from outside the folder was shown"]),
    ("mcp_filesystem", [without('{"path": "totals.csv"}')], [READ_BACK]),
    ("mcp_memory",
     [without("delete_relations"), replaced("comes from Turin", "comes from afar"), replaced("18:30", "half past six")],
     ["in memory.jsonl the bees are kept by Ben", "cleo is a person of the club from turin",
      "the answer says when the club meets"]),
    ("mcp_memory",
     [replaced('"entityType": "person"', '"entityType": "human"'), forgetting_ada, replaced("\nBees: Cleo", "\nBees: Ben")],
     ["does not hold [('Cleo', 'person')]", "memory.jsonl has lost [('Ada', 'chairs', 'Garden club', '')]",
      "only cleo keeps the bees"]),
    ("mcp_memory", [without('["Cleo", "Ben", "Bees"]')], ["the memory was read after its last change"]),
    ("skill_and_mcp",
     [replaced("Boris Okafor,165.61", "Boris Okafor,156.61"), replaced("pays Ada Moreau 43.68", "pays Ada Moreau 43.69")],
     [SAME, "the server wrote down", "the answer states the transfers"]),
    ("skill_and_mcp", [replaced("Dorothy Lind,Boris", "Dot,Boris"), replaced('"amount": "44.00"', '"amount": "45.00"')],
     ["lets 'Dot' pay 'Boris Okafor' 165.61", "the skill was given the servers answers"]),
    ("skill_and_mcp", [replaced("from,to,amount", "from;to;amount"), without('"settle"')],
     ["is not made of the columns from, to and amount",
      "the skill was given the servers answers; the skill was never asked"]),
    ("skill_and_mcp", [without('"write_file"')], ["there is no trip/settlement.csv"]),
])
@pytest.mark.usefixtures("servers")
def test_a_bad_run_fails_and_says_in_what(name: str, changes: list[Change], faults: list[str], tmp_path: Path) -> None:
    """One run may be bad in several independent ways, because starting its servers is slow."""
    found = failures(name, both(*changes), tmp_path)
    assert [any(fault in line for line in found) for fault in faults] == [True] * len(faults), found


def test_requests_that_call_no_tool_are_ignored() -> None:
    protocol = kernai.Protocol("mcp", lambda block, ctx: "answered", "")
    requests = ["not JSON", "[]", '{"method": "tools/list"}', '{"method": "tools/call", "params": 1}',
                '{"method": "tools/call", "params": {"name": "read"}}']
    turns = [f'<block type="mcp">{request}</block>' for request in requests]
    agent = kernai.Agent(instructions="", provider=kernai.MockProvider(*turns, "<final>x</final>"), protocols=[protocol])
    recorder = kernai.Recorder()
    outcome = Outcome(kernai.execute(agent, "?", recorder=recorder), recorder.entries)
    assert node_servers.tool_calls(outcome) == [node_servers.ToolCall("read", "answered")]
    assert node_servers.results_since(outcome, "write") == []


# -------------------------------------------------------------------------------------------- missing software


@pytest.mark.parametrize("name", NAMES)
def test_without_node_one_line_says_what_to_install(name: str, tmp_path: Path) -> None:
    done = ran_here(SCENARIOS / f"{name}.py", "--offline", "--no-log", PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (
        2, f"{name}: error: this scenario runs MCP servers with Node.js 20 or later and npm: install it from "
        "https://nodejs.org\n",
    )


def test_without_the_packages_one_line_says_what_to_install() -> None:
    command = [sys.executable, "-S", str(SCENARIOS / "mcp_memory.py"), "--offline", "--no-log"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, encoding="utf-8", check=False)
    wanted = '"mcp>=2.3" "PyYAML>=6.0" "jsonschema>=4.20"'
    assert (done.returncode, done.stderr) == (
        2, f"mcp_memory: error: this scenario needs more than kernai: pip install {wanted}\n",
    )


# ----------------------------------------------------------------------------------------------------- the skill


def payment(who: str, amount: str) -> dict[str, object]:
    return {"who": who, "amount": Decimal(amount)}


@pytest.mark.parametrize("people, payments, transfers", [
    *((["a", "b"], payments, []) for payments in ([], [payment("a", "5"), payment("b", "5.00")])),
    (["a", "b"], [payment("a", "5")], [("b", "a", "2.50")]),
    (["a", "b", "c"], [payment("c", "0.01")], [("a", "c", "0.01")]),
])
def test_costs_are_settled_to_the_cent(people: list[str], payments: list[Any], transfers: list[Any]) -> None:
    settled = skill_and_mcp.settle(people, payments)
    assert [(one["giver"], one["taker"], str(one["amount"])) for one in settled] == transfers


# --------------------------------------- the installation of the servers, with a script in place of npm: no network


def test_the_scenarios_use_the_server_versions_of_the_mcp_tests() -> None:
    assert {name: NPM_PACKAGES[name] for name in node_servers.VERSIONS} == node_servers.VERSIONS


WRITES_PACKAGES = "".join(
    f"mkdir -p node_modules/{name}; echo '{json.dumps({'version': version})}' > node_modules/{name}/package.json\n"
    for name, version in node_servers.VERSIONS.items()
)


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A machine with an empty cache, on which `npm` is this shell script."""
    if os.name != "posix":
        pytest.skip("the stand-in for npm is a shell script")
    monkeypatch.setattr(node_servers, "CACHE", tmp_path / ".cache" / "mcp-servers")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def install(script: str) -> None:
        for name in ("npm", "node"):
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{script}")
            path.chmod(0o755)

    return install


def test_the_servers_are_installed_once_and_a_line_says_so_but_other_versions_are_refused(
    npm: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    npm(WRITES_PACKAGES)
    folder = node_servers.installed()
    output = capsys.readouterr().out
    assert output.startswith("installing server-filesystem, server-memory from npm into .cache/mcp-servers, this once ...\n")
    assert list(node_servers.CACHE.iterdir()) == [folder]  # no unfinished installation is left

    npm("exit 1")
    assert node_servers.installed() == folder
    assert capsys.readouterr().out == ""

    npm(WRITES_PACKAGES)
    about = folder / "node_modules" / "@modelcontextprotocol" / "server-memory" / "package.json"
    about.write_text('{"version": "0.6.2"}')
    with pytest.raises(UsageError, match="is incomplete: delete it and try again"):
        node_servers.installed()


@pytest.mark.parametrize("script, reason", [
    ("echo 'npm warn old'; printf 'npm error code E404\\nnpm error 404 Not Found\\n' >&2; exit 1", "404 Not Found"),
    ("exit 3", "npm ended with status 3"),
    ("exit 0", "is incomplete: delete it and try again"),
], ids=["npm says why", "npm says nothing", "npm does nothing"])
def test_an_installation_that_fails_is_reported_in_one_line(npm: Callable[[str], None], script: str, reason: str) -> None:
    npm(script)
    with pytest.raises(UsageError, match=r"^cannot install the MCP servers: ") as failed:
        node_servers.installed()
    assert reason in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_workspace_that_is_not_open_says_so() -> None:
    with pytest.raises(RuntimeError, match="not open yet: call open"):
        node_servers.Workspace("mcp_memory").read("memory.jsonl")
