"""The command line with a PostgreSQL store: what a team types on the first day."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kernai.command_line import main
from kernai.postgres import PostgresStore, Workers
from kernai.testing.run_store_rules import asked, ended
from tests.postgres.server import Server
from tests.warm_python import WarmPython

PATIENCE = 60.0
#: a clerk whose payments need approval
AGENTS = """
from kernai import Agent, MockProvider, skill

@skill(register=False, approval=True)
def pay(amount: int) -> str:
    with open({paid!r}, "a") as file:
        file.write(f"{{amount}} ")
    return "paid"

def answer(messages, model):
    last = messages[-1].text
    if last.startswith("Pay"):
        return '<command name="pay">{{"amount": 3}}</command>'
    return "<final>too bad</final>" if "too much" in last else "<final>done</final>"

clerk = Agent(instructions="You pay.", skills=[pay], protocols=[], provider=MockProvider().on_call(answer))
"""


class Shop:
    """A folder with agents, a separate database schema, and the command line."""

    def __init__(self, server: Server, folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        self.address = server.dsn.replace("/postgres?", f"/{name}?")
        self.folder, self.paid, self._capsys = folder, folder / "paid", capsys
        (folder / "agents.py").write_text(AGENTS.format(paid=str(self.paid)))

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        status = main([one.replace("STORE", self.address) for one in arguments])
        shown = self._capsys.readouterr()
        return status, shown.out, shown.err


@pytest.fixture
def shop(
    server: Server, schema: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shop:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Shop(server, tmp_path, capsys, schema)


def migrated(shop: Shop) -> PostgresStore:
    assert shop("store", "migrate", "STORE")[0] == 0
    return PostgresStore(shop.address)


def test_a_store_is_migrated_once_and_only_on_request(shop: Shop) -> None:
    status, _, errors = shop("runs", "STORE")
    assert (status, "has no kernai tables: make them with `kernai store migrate`" in errors) == (2, True)
    for _ in range(2):
        assert shop("store", "migrate", "STORE")[:2] == (0, f"the tables in {Path(shop.address.partition('host=')[2])}"
                                                            f"/{shop.address.partition('?')[0].rpartition('/')[2]} (kernai) are up to date\n")
    assert shop("runs", "STORE")[0] == 0


def test_a_run_is_started_listed_decided_on_resumed_viewed_and_deleted(shop: Shop) -> None:
    migrated(shop).close()
    assert shop("run", "agents.py", "Pay 3", "--store", "STORE", "--run-id", "r", "-q")[0] == 4
    assert shop("runs", "STORE", "--status", "final")[1:] == ("", f"{shop.address} has no such runs\n")
    (listed,) = json.loads(shop("runs", "STORE", "--status", "waiting", "--json")[1])
    assert (listed["run_id"], listed["status"], listed["input"]) == ("r", "waiting", "Pay 3")
    status, shown, note = shop("approve", "STORE", "r", "0.0", "--by", "ann")
    assert (status, shown) == (0, 'approved: 0.0 pay {"amount": 3}\n')
    assert "kernai resume AGENT" in note
    assert shop("resume", "agents.py", "STORE", "r", "-q")[:2] == (0, "done\n")
    assert shop.paid.read_text() == "3 "
    assert shop("view", "STORE", "r")[:2] == (0, "r.html\n")
    assert shop("replay", "agents.py", "STORE", "r")[:2] == (0, "the same\n")
    assert shop("runs", "STORE", "--delete", "--older-than", "1d")[1] == "0 runs deleted\n"
    assert shop("runs", "STORE", "--delete", "--status", "final")[1] == "1 run deleted\n"


@pytest.mark.parametrize("address, says", [
    ("postgresql://ann:s3cret@/x?host=/nowhere", "cannot open the store in /nowhere/x"),
    ("postgresql://ann:s3cret%zz@a/x", 'not an address such as postgresql:///app: invalid percent-encoded token: "***"'),
    ("postgresql://a/x?hots=b", 'invalid URI query parameter: "hots"'), ("postgresql://ann:@s3cret@a/x", "as %40 or %2F"),
    ("postgresql://ann:/s3cret@a/x", "as %40 or %2F"),
])
def test_a_server_that_cannot_be_reached_is_an_error_without_the_password(address: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", address]) in (1, 2)
    errors = capsys.readouterr().err
    assert (says in errors, "s3cret" in errors) == (True, False)


@pytest.mark.process
def test_a_worker_runs_what_another_program_has_submitted(shop: Shop, python: WarmPython) -> None:
    program = shop.folder / "worker.py"
    program.write_text("import sys\nfrom kernai.command_line import main\nsys.exit(main(sys.argv[1:]))\n")
    agents: dict[str, Any] = {}
    exec((shop.folder / "agents.py").read_text(), agents)
    with migrated(shop) as store:
        status, _, errors = shop("worker", "agents.py", "--store", "STORE", "--queue", "")
        assert (status, "--queue: queue must be a name, got ''" in errors) == (2, True)
        own = Workers(store, dict.fromkeys(("clerk", "gone"), agents["clerk"]))
        handle, _, over = own.submit("clerk", "Pay 3"), own.submit("gone", "Pay 3", run_id="r"), own.submit("clerk", "", run_id="s")
        store.append("s", 1, [asked(), ended("timeout")], [])
        assert (over.info().status, "kernai resume AGENT" in shop("approve", "STORE", "s", "0.0")[2]) == ("timeout", True)
        with python.run(program, "worker", str(shop.folder / "agents.py"), "--store", shop.address) as worker:
            assert handle.result(PATIENCE).stop_reason == "interrupt"
            status, _, note = shop("approve", "STORE", handle.run_id, "0.0")
            assert (status, note) == (0, "")
            assert handle.result(PATIENCE).text == "done"
            worker.send_signal(signal.SIGTERM)
            _, errors = worker.communicate()
    assert worker.returncode == 0
    assert "WARNING kernai.workers: run r is blocked: this worker has no agent 'gone'; it has 'clerk'" in errors
    assert shop.paid.read_text() == "3 "
