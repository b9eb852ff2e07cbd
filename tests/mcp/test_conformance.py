"""The official conformance package tests served skills and the client.

Each of its scenarios is run here, or docs/mcp.md says why not.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.conftest import ROOT
from tests.warm_python import WarmPython

pytestmark = [pytest.mark.slow, pytest.mark.process]

HERE = Path(__file__).parent
DOCUMENTATION = ROOT / "docs" / "mcp.md"
SECONDS = 120
REVISIONS = ("2025-11-25", "2026-07-28")



def listed(start: str, end: str) -> list[str]:
    """Return the names in a part of the documentation's section on conformance."""
    section = DOCUMENTATION.read_text(encoding="utf-8").partition("## Conformance\n")[2].partition("\n## ")[0]
    return re.findall(r"`([^`]+)`", section.partition(start)[2].partition(end)[0])


SERVED = listed("Servers:", "Clients:")
USED = listed("Clients:", "These are left out")
#: checks in these scenarios of features that are not offered; docs/mcp.md has the reasons
NOT_OFFERED: dict[str, set[str]] = {
    "server-stateless": {
        "sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400",
        "sep-2575-http-server-no-independent-requests-on-stream", "sep-2575-server-no-log-without-loglevel",
    },
    "caching": {
        "sep-2549-prompts-list-caching-hints", "sep-2549-resources-list-caching-hints",
        "sep-2549-resources-templates-list-caching-hints",
    },
    "http-custom-headers": {"sep-2243-client-omit-null"},
}


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def results(folder: Path) -> dict[str, list[Any]]:
    """Return the checks of each scenario that was run."""
    return {
        re.sub(r"^server-(?=.*-\d{4}-\d\d-\d\dT)|-\d{4}-\d\d-\d\dT.*", "", str(file.parent.relative_to(folder))):
        json.loads(file.read_text())
        for file in folder.rglob("checks.json")
    }


def failures(scenario: str, checks: list[Any]) -> list[str]:
    """Return what is wrong with a scenario, apart from features that are not offered."""
    failed = {one["id"]: one.get("errorMessage") for one in checks if one["status"] == "FAILURE"}
    expected = NOT_OFFERED.get(scenario, set())
    wrong = [f"{scenario}: {check}: {failed.get(check, 'passed')}" for check in sorted(failed.keys() ^ expected)]
    return wrong if any(one["status"] == "SUCCESS" for one in checks) else [*wrong, f"{scenario}: nothing passed"]


@pytest.fixture(scope="module")
def served(
    conformance: list[str], python: WarmPython, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, list[Any]]]:
    """The package's checks of the served skills, by revision and scenario."""
    folders = {revision: tmp_path_factory.mktemp(revision) for revision in REVISIONS}
    with python.run(HERE / "conformance_program.py", environment=environment()) as server:
        try:
            url = server.stdout.readline().strip()
            for revision, folder in folders.items():
                arguments = ["server", "--url", url, "--suite", "all", "--spec-version", revision, "-o", str(folder)]
                # its status is that of the scenarios left out
                subprocess.run([*conformance, *arguments], capture_output=True, timeout=SECONDS, check=False)
        finally:
            server.send_signal(signal.SIGTERM)
    return {revision: results(folder) for revision, folder in folders.items()}


class Relay(socketserver.StreamRequestHandler):
    """Runs a client for `conformance_relay.py`, in a separate process."""

    def handle(self) -> None:
        server = self.server
        assert isinstance(server, Clients)
        asked = json.loads(self.rfile.readline())
        with server.starting:  # the process that forks takes one request at a time
            client = server.python.run(HERE / "conformance_program.py", asked["url"], environment=asked["environment"])
        with client:
            output, errors = client.communicate()
        server.statuses[asked["environment"]["MCP_CONFORMANCE_SCENARIO"]] = client.wait()
        ended = {"status": client.wait(), "output": output, "errors": errors}
        self.wfile.write(json.dumps(ended).encode() + b"\n")


class Clients(socketserver.ThreadingUnixStreamServer):
    """The server that runs the clients and keeps their exit statuses."""

    def __init__(self, path: str, python: WarmPython) -> None:
        super().__init__(path, Relay)
        self.python = python
        self.starting = threading.Lock()
        self.statuses: dict[str, int] = {}


@pytest.fixture(scope="module")
def used(
    conformance: list[str], python: WarmPython, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[int, list[Any]]]:
    """The client's exit status in each scenario and the package's checks of it. The package is started once for all
    scenarios; in those left out the client does nothing.
    """
    folder = tmp_path_factory.mktemp("used")
    with tempfile.TemporaryDirectory() as short, Clients(f"{short}/clients", python) as clients:  # for a short socket path
        thread = threading.Thread(target=clients.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        relay = f"exec {sys.executable} -I -S {HERE / 'conformance_relay.py'} {short}/clients"
        command = f'client() {{ case $MCP_CONFORMANCE_SCENARIO in {"|".join(USED)}) {relay} $1;; esac; }}; client'
        arguments = ["client", "--command", command, "--suite", "all", "--timeout", "90000", "-o", str(folder)]
        # its status is that of the scenarios left out
        subprocess.run([*conformance, *arguments], env=environment(), capture_output=True, timeout=SECONDS, check=False)
        clients.shutdown()
        thread.join()
    found = results(folder)
    return {scenario: (clients.statuses[scenario], found[scenario]) for scenario in USED}


# one test for all scenarios, so that only one worker runs the package
def test_served_skills_conform(served: dict[str, dict[str, list[Any]]]) -> None:
    missing = [scenario for scenario in SERVED if not any(scenario in found for found in served.values())]
    assert missing == [], "they belong to neither revision"
    assert [
        one for found in served.values() for scenario in SERVED if scenario in found
        for one in failures(scenario, found[scenario])
    ] == []


def test_the_client_conforms(used: dict[str, tuple[int, list[Any]]]) -> None:
    assert [one for scenario, (_, checks) in used.items() for one in failures(scenario, checks)] == []
    warnings = [(scenario, one) for scenario, (_, found) in used.items() for one in found if one["status"] == "WARNING"]
    assert warnings == []
    assert {scenario: status for scenario, (status, _) in used.items() if status} == {}


def test_the_documentation_lists_each_scenario_as_run_or_left_out_with_a_reason(conformance: list[str]) -> None:
    listing = subprocess.run([*conformance, "list"], capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    every = re.findall(r"^  - (\S+)", listing.partition("Authorization server")[0], re.MULTILINE)
    reasons = DOCUMENTATION.read_text(encoding="utf-8").partition("| scenarios | why |")[2].partition("\nWithin")[0]
    cells = [row.split("|")[1] for row in reasons.splitlines() if row.startswith("| `")]
    left_out = [pattern for cell in cells for pattern in re.findall(r"`([^`]+)`", cell)]
    for scenario in every:
        why_not = [pattern for pattern in left_out if fnmatchcase(scenario, pattern)]
        assert (scenario in {*SERVED, *USED}) == (why_not == []), (scenario, why_not)
    assert {*SERVED, *USED} <= set(every)
    assert [one for one in left_out if not any(fnmatchcase(scenario, one) for scenario in every)] == []
    assert {one for checks in NOT_OFFERED.values() for one in checks} <= {*listed("Within the scenarios", "\n## ")}
