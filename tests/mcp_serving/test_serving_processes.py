"""What only a separate process can show: signals, stray output, and that nothing keeps a server from ending.

Most are forked from a Python that has imported the SDK (`tests/warm_python.py`). Where the start of the interpreter
matters, and for the example, a real process is started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.warm_python import WarmProcess, WarmPython

PROGRAM = Path(__file__).parent / "served.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "mcp_server.py"
PATIENCE = 60

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and descriptors of POSIX")


class Process:
    """A server process and the lines of JSON-RPC sent to it and received from it."""

    def __init__(self, process: subprocess.Popen[str] | WarmProcess) -> None:
        self.process: Any = process  # with a pipe for each stream that a test uses
        self.id = 0

    def send(self, method: str, params: dict[str, Any], **more: Any) -> int:
        self.id += 1
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": self.id}) + "\n")
        self.process.stdin.flush()
        return self.id

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def initialize(self) -> None:
        self.send("initialize", {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"},
        })
        assert self.read()["result"]["serverInfo"]["name"]

    def call(self, tool: str, **arguments: Any) -> int:
        return self.send("tools/call", {"name": tool, "arguments": arguments, "_meta": {"progressToken": tool}})

    def begin(self, tool: str) -> None:
        """Call a tool and wait for its first progress."""
        self.call(tool)
        assert self.read()["method"] == "notifications/progress"

    def end(self) -> tuple[int, str, str]:
        """Return the exit status, the rest of stdout, and stderr."""
        out, stderr = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, stderr


@contextmanager
def running(python: WarmPython, environment: dict[str, str], *arguments: str, program: Path = PROGRAM) -> Iterator[Process]:
    """Start a program that serves, in a forked process."""
    with python.run(program, *arguments, environment=environment) as process:
        try:
            yield Process(process)
        finally:
            process.kill()


@contextmanager
def started(environment: dict[str, str], *arguments: str, program: Path = PROGRAM, **options: Any) -> Iterator[Process]:
    given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    command = [sys.executable, "-W", "error", str(program), *arguments]
    with subprocess.Popen(command, env=environment, **given) as process:
        try:
            yield Process(process)
        finally:
            process.kill()


def interrupt(process: Process, how: str) -> None:
    if how == "EOF":
        process.process.stdin.close()
        if isinstance(process.process, subprocess.Popen):
            process.process.stdin = None  # otherwise `communicate` would flush it again
    else:
        process.process.send_signal(getattr(signal, how))


@pytest.mark.parametrize("how, tool", [
    ("EOF", None), ("EOF", "stuck"), ("EOF", "stuck_later"), ("SIGINT", "poll"), ("SIGINT", "stuck"), ("SIGTERM", None),
    ("SIGTERM", "poll_later"), ("SIGTERM", "stuck_later"),
])
def test_a_stdio_server_shuts_down_cleanly_whatever_its_skills_do(
    python: WarmPython, environment: dict[str, str], impatient: dict[str, str], how: str, tool: Any
) -> None:
    with running(python, impatient if tool == "stuck_later" else environment) as server:
        server.initialize()
        if tool is not None:
            server.begin(tool)
        interrupt(server, how)
        code, out, stderr = server.end()
    assert (code, stderr) == (0, "")
    for line in out.splitlines():
        assert json.loads(line)["error"]["message"] == "Connection closed"


def test_a_second_signal_ends_a_server_whose_skill_is_stuck(python: WarmPython, environment: dict[str, str]) -> None:
    with running(python, {**environment, "KERNAI_TEST_PATIENCE": "600"}) as server:
        server.initialize()
        server.begin("stuck_later")
        interrupt(server, "SIGTERM")
        assert server.read()["error"]["message"] == "Connection closed"  # the first signal is taking effect
        interrupt(server, "SIGTERM")
        assert server.end()[0] == -signal.SIGTERM


def test_stray_output_goes_to_stderr_and_does_not_disturb_the_protocol(
    python: WarmPython, environment: dict[str, str], tmp_path: Path
) -> None:
    program = tmp_path / "talks.py"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r})\n"
        "print('before', end='')\nfrom served import *\nfrom kernai.mcp import serve\n"
        "serve(SKILLS, **OPTIONS)\nprint('after')\n"
    )
    with running(python, environment, program=program) as server:
        server.initialize()
        server.call("shout", text="hello")
        assert server.read()["result"]["content"][0]["text"] == "shouted"
        interrupt(server, "EOF")
        code, out, stderr = server.end()
    assert (code, out) == (0, "after\n"), "stdout is given back"
    assert stderr.startswith("before")
    for way in ("print", "original", "descriptor", "child", "unflushed"):
        assert f"{way}: hello" in stderr


def test_a_client_that_reads_nothing_cannot_keep_the_server_from_ending(python: WarmPython, impatient: dict[str, str]) -> None:
    with running(python, impatient) as server:
        server.initialize()
        server.call("repeat", text="x", times=1_000_000)
        assert server.process.stdout.read(1) == "{"  # the server is writing more than the pipe can hold
        interrupt(server, "SIGTERM")
        assert server.process.wait(PATIENCE) == 0


def test_the_server_ends_when_the_client_closes_the_output(python: WarmPython, environment: dict[str, str]) -> None:
    with running(python, environment) as server:
        server.initialize()
        server.process.stdout.close()
        server.call("add", a=1)
        assert server.process.wait(PATIENCE) == 0, "though its stdin is open"
        assert server.process.stderr.read() == ""


def test_without_a_stderr_stray_output_is_discarded(environment: dict[str, str]) -> None:
    with started(environment, stderr=None, preexec_fn=lambda: os.close(2)) as server:
        server.initialize()
        server.call("shout", text="hello")
        assert server.read()["result"]["content"][0]["text"] == "shouted"
        interrupt(server, "EOF")
        assert server.process.wait(PATIENCE) == 0


def test_the_example_serves_over_both_transports(environment: dict[str, str]) -> None:
    with started(environment, program=EXAMPLE) as server:
        server.initialize()
        server.call("ask_concierge", input="a trip")
        while (answer := server.read()).get("method") == "notifications/progress":
            pass
        assert answer["result"]["content"][0]["text"] == "Take the train. A map is drawn."
        interrupt(server, "EOF")
        assert server.end() == (0, "", "")
    with started(environment, "--http", "--port", "0", "--token", "x", program=EXAMPLE) as server:
        assert "http://127.0.0.1:" in server.process.stderr.readline()
        interrupt(server, "SIGTERM")
        assert server.end() == (0, "", "")


@pytest.mark.parametrize("arguments,code,words", [
    (["--help"], 0, "--token"), (["--port", "1"], 2, "--host and --port are for --http"), (["--http", "--tok", "x"], 2, "--tok"),
    (["--http", "--host", "0.0.0.0"], 2, "so it needs token="), (["--http", "--token", "a b"], 2, "token must be"),
])
def test_the_example_explains_its_options(
    python: WarmPython, environment: dict[str, str], arguments: list[str], code: int, words: str
) -> None:
    with running(python, environment, *arguments, program=EXAMPLE) as server:
        ended, out, stderr = server.end()
    assert ended == code
    assert words in " ".join((out + stderr).split())
