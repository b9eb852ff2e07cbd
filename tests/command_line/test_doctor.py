"""`kernai doctor`: what it reports, and what it must never show."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import time
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, Protocol

import pytest

import kernai as package
from kernai.command_line import main, setup_command
from kernai.command_line.setup_command import EXTRAS, check_programs
from tests.command_line.conftest import Here
from tests.command_line.support import SRC, as_json, environment, write
from wire_server import Reply, WireServer, plain
from wire_server import as_json as json_reply

SECRET = "sk-verysecret"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without keys, proxies and servers, and without programs, which doctor would start."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    for name in list(os.environ):
        if name.upper().endswith(("_KEY", "_TOKEN", "_PROXY", "_BASE_URL", "_BEDROCK")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")
    monkeypatch.setattr(setup_command, "USUAL", ())  # so that servers running on this machine are not found
    monkeypatch.setattr(setup_command, "_SERVER_TIMEOUT", 30.0)
    monkeypatch.setitem(setup_command.EXTRAS, "local", ("not-installed",))


class Doctor(Protocol):
    def __call__(self, *options: str, status: int = 1, **variables: str) -> str: ...


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    def run(*options: str, status: int = 1, **variables: str) -> str:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert main(["doctor", *options]) == status
        return "".join(capsys.readouterr())

    return run


def test_names_of_keys_are_shown_but_never_their_values(here: Here) -> None:
    env = environment(OPENAI_API_KEY=SECRET, GEMINI_API_KEY=" ", HTTPS_PROXY=f"http://me:{SECRET}@proxy:8080/x?y")
    done = here("doctor", env=env)
    assert done.stdout.startswith("python\n  ok  Python ")
    assert "ok  openai         OPENAI_API_KEY is set\n" in done.stdout
    assert "!!  gemini         GEMINI_API_KEY is set, but blank\n" in done.stdout
    assert "ok  https proxy    http://proxy:8080\n" in done.stdout
    assert done.stdout.count("to fix: GEMINI_API_KEY is blank: give it a value or unset it\n") == 1  # two adapters read it
    assert done.returncode == 1
    everything = here("doctor", "--json", env=env)
    assert SECRET not in done.stdout + done.stderr + everything.stdout + everything.stderr


ADDRESSES = {
    "a user and a password": f"http://me:{SECRET}@127.0.0.1:9",
    "no scheme": f"me:{SECRET}@127.0.0.1:9",
    "no port": f"http://127.0.0.1:{SECRET}",
    "a query": f"http://127.0.0.1:9/?key={SECRET}",
    "no address": f"http://[{SECRET}",
    "another scheme": f"ftp://{SECRET}/",
}


@pytest.mark.parametrize("variable, address, named", [
    *(
        (variable, address, f"the environment variable {variable}")
        for variable in ("OLLAMA_HOST", "LOCAL_BASE_URL") for address in ADDRESSES.values()
    ),
    *(
        ("https_proxy", address.format(f"user:{SECRET}@"), "the environment's proxy for https")
        for address in ("http://{}[bad", "http://{}h\u2100x", "http://{}proxy:port", "socks4://{}proxy:1", "http://{}")
    ),
])
def test_a_wrong_url_is_to_be_fixed_and_its_password_never_shown(doctor: Doctor, variable: str, address: str, named: str) -> None:
    given: Any = {variable: address}
    shown = doctor(**given)
    assert f"to fix: {named} " in shown
    assert re.search("  !!  .* is not a valid address\n", shown)
    assert SECRET not in shown


def test_a_key_that_the_vendor_cannot_be_used_with_is_shown_with_the_reason(doctor: Doctor) -> None:
    shown = doctor(AZURE_OPENAI_API_KEY=SECRET, GROQ_API_KEY=f"{SECRET}\u00e9")
    assert "--  azure          AZURE_OPENAI_API_KEY is set, but azure needs resource=" in shown
    assert "!!  groq           GROQ_API_KEY is set, but " in shown
    assert "to fix: the environment variable GROQ_API_KEY contains a character that no key has" in shown
    assert SECRET not in shown


def test_servers_that_answer_are_listed_with_their_models(doctor: Doctor) -> None:
    models = {"models": [{"name": f"m{number}"} for number in range(7)]}
    with WireServer(json_reply(models)) as ollama, WireServer(json_reply({"data": [{"id": "qwen"}]})) as local:
        address = f"{local.url}/v1/chat/completions"  # adapters accept this form too
        shown = doctor(status=0, OLLAMA_HOST=ollama.url, LOCAL_BASE_URL=address, LOCAL_API_KEY=SECRET)
        [asked] = ollama.requests
        [other] = local.requests
    assert f"ok  ollama         {ollama.url} answers: m0, m1, m2, m3, m4 and 2 more\n" in shown
    assert f"ok  local          {local.url}/v1 answers: qwen\n" in shown
    assert "nothing to fix\n" in shown
    assert (asked.path, other.path) == ("/api/tags", "/v1/models")
    assert SECRET not in str(other.headers)


def test_servers_on_usual_ports_are_shown_only_if_they_answer(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    with WireServer(json_reply({"data": [{"id": "qwen"}]})) as local:
        monkeypatch.setattr(setup_command, "USUAL", (("vllm", f"{local.url}/v1"), ("lmstudio", "http://127.0.0.1:9/v1")))
        shown = doctor()  # OLLAMA_HOST does not answer
    assert f"ok  vllm           {local.url}/v1 answers: qwen\n" in shown
    assert "lmstudio" not in shown


ODD = {
    "no JSON": (plain(b"<html>"), "answers, but not as a model server does"),
    "another JSON": (json_reply([1]), "answers, but not as a model server does"),
    "no HTTP": (Reply(before=(b"SSH-2.0\r\n\r\n",)), "answers, but not as a model server does"),
    "JSON without end": (plain(b"[" * 200_000), "answers, but not as a model server does"),
    "no models": (json_reply({"models": []}), "answers: no models"),
    "an error": (plain(b"{}", 500), "answers, but not as a model server does"),
    "a key is wanted": (plain(b"", 401), "answers: (it wants a key)"),
}


@pytest.mark.parametrize("reply, expected", ODD.values(), ids=ODD.keys())
def test_a_server_with_an_unexpected_answer_is_reported(doctor: Doctor, reply: Reply, expected: str) -> None:
    with WireServer(reply) as server:
        assert expected in doctor(status="not as" in expected, OLLAMA_HOST=server.url)


@pytest.mark.parametrize("drips", [False, True])
def test_a_server_that_is_silent_or_answers_byte_by_byte_is_not_waited_for(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, drips: bool) -> None:
    monkeypatch.setattr(setup_command, "_SERVER_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n[" if drips else b"")
                while drips:
                    client.sendall(b" ")
                    time.sleep(0.02)
                client.recv(1000)  # the request; then the end
                client.recv(1000)

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        shown = doctor(OLLAMA_HOST=f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join(30)
    assert "to fix: OLLAMA_HOST names a server that does not answer\n" in shown
    assert not thread.is_alive()


def test_without_a_key_or_a_server_doctor_suggests_how_to_reach_a_model(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_HOST")
    shown = as_json(doctor("--json"))
    names = {one["name"]: one for one in shown["findings"]}
    assert names["kernai"]["text"] == package.__version__
    assert names["Python"]["good"]
    assert names["ollama"]["problem"] is None
    assert any("OPENAI_API_KEY" in problem for problem in shown["problems"])
    monkeypatch.setitem(setup_command.EXTRAS, "local", ("pytest",))  # a model in this process
    assert "nothing to fix\n" in doctor(status=0)


def test_the_extras_are_those_of_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    project = tomllib.loads((SRC.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    given = {
        extra: tuple(one.partition(">")[0].partition("[")[0] for one in requirements)
        for extra, requirements in project["optional-dependencies"].items()
    }
    assert given == EXTRAS


def test_a_partly_installed_extra_is_reported_as_to_fix(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("PyYAML", "httpx", "httpcore"):
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(setup_command, "version", version)
    shown = doctor()
    assert '--  httpx          not installed; pip install "kernai[httpx]"\n' in shown
    assert 'to fix: the extra mcp lacks PyYAML: pip install "kernai[mcp]"\n' in shown


def test_versions_of_programs_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = write(tmp_path, "node", f"#!{sys.executable}\nprint('v99.1')\nprint('more')\n")
    npx = write(tmp_path, "npx", "no program\n")
    for path in (node, npx):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {one.name: (one.text, one.good) for one in check_programs()}
    assert found == {
        "node": (f"v99.1 at {node}", True),
        "npx": (f"does not run at {npx}", False),
        "uvx": ("not found (fetches and runs MCP servers written for Python)", False),
    }

