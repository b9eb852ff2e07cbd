"""The official conformance package tests served skills and the client.

Each of its scenarios is run here, or docs/mcp.md says why not.
"""

from __future__ import annotations

import json
import re
import socketserver
import subprocess
import sys
import tempfile
import threading
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from kernai.mcp.serving import Server
from tests.mcp.conformance_subjects import SKILLS, call_every_tool
from tests.mcp.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.process]

HERE = Path(__file__).parent
DOCUMENTATION = ROOT / "docs" / "mcp.md"
SECONDS = 120
REVISIONS = ("2025-11-25", "2026-07-28")


#: scenarios that pass; docs/mcp.md says why the others are left out
SERVED = (
    "server-initialize", "server-session-lifecycle", "server-stateless", "ping", "tools-list",
    "tools-call-simple-text", "tools-call-image", "tools-call-audio", "tools-call-embedded-resource",
    "tools-call-mixed-content", "tools-call-error", "tools-call-with-progress", "server-sse-multiple-streams",
    "sep-2164-resource-not-found", "dns-rebinding-protection", "caching", "http-header-validation",
)
USED = (
    "initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry", "request-metadata",
    "sep-2322-client-request-state", "http-standard-headers", "http-custom-headers", "http-invalid-tool-headers",
    "json-schema-ref-no-deref", "json-schema-2020-12-preservation", "auth/metadata-default", "auth/metadata-var1",
    "auth/metadata-var2", "auth/metadata-var3", "auth/basic-cimd", "auth/scope-from-www-authenticate",
    "auth/scope-from-scopes-supported", "auth/scope-omitted-when-undefined", "auth/scope-step-up",
    "auth/scope-retry-limit", "auth/token-endpoint-auth-basic", "auth/token-endpoint-auth-post",
    "auth/token-endpoint-auth-none", "auth/pre-registration", "auth/2025-03-26-oauth-metadata-backcompat",
    "auth/2025-03-26-oauth-endpoint-fallback", "auth/resource-mismatch", "auth/offline-access-scope",
    "auth/offline-access-not-supported", "auth/authorization-server-migration", "auth/iss-supported",
    "auth/iss-not-advertised", "auth/iss-supported-missing", "auth/iss-wrong-issuer", "auth/iss-unexpected",
    "auth/iss-normalized", "auth/metadata-issuer-mismatch", "auth/client-credentials-jwt",
    "auth/client-credentials-basic",
)
#: checks in these scenarios of features that are not offered
NOT_OFFERED: dict[str, set[str]] = {
    "server-stateless": {  # need tools that log or send requests to the client
        "sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400",
        "sep-2575-http-server-no-independent-requests-on-stream", "sep-2575-server-no-log-without-loglevel",
    },
    "caching": {  # need prompts and resources
        "sep-2549-prompts-list-caching-hints", "sep-2549-resources-list-caching-hints",
        "sep-2549-resources-templates-list-caching-hints",
    },
    # calls a tool with null where its schema says boolean: kernai does not send that, and the model reads why
    "http-custom-headers": {"sep-2243-client-omit-null"},
}


def results(folder: Path) -> dict[str, list[Any]]:
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
def served(conformance: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[Any]]]:
    """The package's checks of the served skills, by revision and scenario."""
    folders = {revision: tmp_path_factory.mktemp(revision) for revision in REVISIONS}
    with Server(SKILLS, port=0) as server:
        running = [
            subprocess.Popen(
                [*conformance, "server", "--url", server.url, "--suite", "all", "--spec-version", revision, "-o", str(folder)],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for revision, folder in folders.items()
        ]
        for one in running:  # the status of each is that of the scenarios left out
            one.wait(SECONDS)
    return {revision: results(folder) for revision, folder in folders.items()}


class Relay(socketserver.StreamRequestHandler):
    """Does the work of a client that the package has started, see `conformance_relay.py`."""

    def handle(self) -> None:
        url, environment = json.loads(self.rfile.readline())
        scenario = environment["MCP_CONFORMANCE_SCENARIO"]
        if scenario in USED:
            call_every_tool(url, scenario, json.loads(environment.get("MCP_CONFORMANCE_CONTEXT") or "{}"))


class Clients(socketserver.ThreadingUnixStreamServer):
    """The server of the relays. An exception of a client is kept for the test."""

    def __init__(self, path: str) -> None:
        super().__init__(path, Relay)
        self.failed: list[BaseException | None] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.failed.append(sys.exception())


@pytest.fixture(scope="module")
def used(conformance: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The package's checks of the client in each scenario. The package is started once for all scenarios; in those left
    out the client does nothing.
    """
    folder = tmp_path_factory.mktemp("used")
    with tempfile.TemporaryDirectory() as short, Clients(f"{short}/clients") as clients:  # for a short socket path
        thread = threading.Thread(target=clients.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        command = f"{sys.executable} -I -S {HERE / 'conformance_relay.py'} {short}/clients"
        arguments = ["client", "--command", command, "--suite", "all", "--timeout", "90000", "-o", str(folder)]
        # its status is that of the scenarios left out
        subprocess.run([*conformance, *arguments], capture_output=True, timeout=SECONDS, check=False)
        clients.shutdown()
        thread.join()
    assert clients.failed == []
    found = results(folder)
    return {scenario: found[scenario] for scenario in USED}


# one test for all scenarios, so that only one worker runs the package
def test_served_skills_conform(served: dict[str, dict[str, list[Any]]]) -> None:
    missing = [scenario for scenario in SERVED if not any(scenario in found for found in served.values())]
    assert missing == [], "they belong to neither revision"
    assert [
        one for found in served.values() for scenario in SERVED if scenario in found
        for one in failures(scenario, found[scenario])
    ] == []


@pytest.mark.filterwarnings("ignore:Omitting `issuer`")  # the package does not send it
def test_the_client_conforms(used: dict[str, list[Any]]) -> None:
    assert [one for scenario, checks in used.items() for one in failures(scenario, checks)] == []
    assert [(scenario, one) for scenario, found in used.items() for one in found if one["status"] == "WARNING"] == []


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
