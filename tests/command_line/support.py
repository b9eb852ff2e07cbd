"""Start `python -m kernai` as a user does, also in a terminal, and the agents that the tests run."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

SRC = Path(__file__).resolve().parents[2] / "src"

#: an agent that calls a skill and answers; its model is a mock
AGENT = '''
import kernai
from kernai import Agent, MockProvider

STOCK = {"lamp": 12}

@kernai.skill
def count_stock(product: str) -> str:
    """Say how many pieces of a product are in stock."""
    return f"{STOCK[product]} in stock"

agent = Agent(
    instructions="Look facts up.",
    provider=MockProvider('<command name="count_stock">lamp</command>', "<final>We have 12 lamps.</final>"),
    skills=["count_stock"],
)
'''

#: an agent that repeats its input
ECHO = """
from kernai import Agent, MockProvider

def answer(messages, model):
    return f"<final>You said: {messages[-1].text}</final>"

agent = Agent(instructions="Repeat.", provider=MockProvider().on_call(answer), protocols=[])
"""


def environment(**variables: str) -> dict[str, str]:
    """Return an environment without keys, proxies or servers, apart from the given variables."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    nowhere = {"OLLAMA_HOST": "http://127.0.0.1:9", "COLUMNS": "120"}
    return {**kept, **nowhere, "PYTHONPATH": str(SRC), "PYTHONWARNINGS": "error", **variables}


def kernai(
    *arguments: str, cwd: Path, input: str | bytes = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the program to its end. Both outputs are decoded, with invalid bytes as surrogates."""
    done = subprocess.run(
        [sys.executable, "-m", "kernai", *arguments], cwd=cwd, env=environment() if env is None else env,
        input=input if isinstance(input, bytes) else input.encode(), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    shown = (stream.decode("utf-8", "surrogateescape") for stream in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, *shown)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def events_of(path: Path) -> list[dict[str, Any]]:
    from kernai.recording_file import read_recording

    return read_recording(path)


def error_lines(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith(("kernai: ", "hint: "))]


def as_json(text: str) -> Any:
    return json.loads(text)


# ----------------------------------------------------------------------------------------------------------- a terminal


PATIENCE = 60.0  # seconds until an expected output counts as missing, even on a busy machine
CTRL_C = "\x03"
CTRL_D = "\x04"

# The first terminal that a session leader opens becomes its controlling terminal; then it executes the program.
_LAUNCH = """
import os, sys
terminal = os.open(sys.argv[1], os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(terminal, stream)
os.execv(sys.executable, [sys.executable, "-m", "kernai", *sys.argv[2:]])
"""


class Terminal:
    """`kernai` in its own terminal. `until` waits for a text, `type` presses keys, `talk` does both in turn."""

    def __init__(self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self._screen, self._slave = pty.openpty()
        self._read = b""
        self._seen = 0
        plain = write(cwd, ".inputrc", "set enable-bracketed-paste off\n")  # no control sequences around the prompt
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, os.ttyname(self._slave), *arguments],
            cwd=cwd, env={**env, "TERM": "dumb", "INPUTRC": str(plain)}, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._slave)
        os.close(self._screen)

    @property
    def shown(self) -> str:
        return self._read.decode("utf-8", "replace").replace("\r\n", "\n")

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def until(self, text: str) -> None:
        """Wait for a text after the last one that was waited for."""
        assert self._comes(text, PATIENCE), f"{text!r} was not shown; this was: {self.shown[self._seen:]!r}"

    def _comes(self, text: str, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (at := self.shown.find(text, self._seen)) < 0:
            if not select.select([self._screen], [], [], max(end - time.monotonic(), 0))[0]:
                return False
            self._read += os.read(self._screen, 65536)
        self._seen = at + len(text)
        return True

    def talk(self, *script: str) -> None:
        """Wait for the first text, type the second, and so on."""
        for at, text in enumerate(script):
            (self.type if at % 2 else self.until)(text)

    def insist(self, keys: str, text: str) -> None:
        """Type the keys again until a text is shown, because a late Ctrl-C may clear the typed line."""
        for wait in (0.5, 1, 2, 4, 8, 16, 32):
            self.type(keys)
            if self._comes(text, wait):
                return
        raise AssertionError(f"{text!r} was not shown; this was: {self.shown[self._seen:]!r}")

    def end(self) -> int:
        return self._process.wait(PATIENCE)
