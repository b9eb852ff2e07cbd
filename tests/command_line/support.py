"""Start `python -m kernai` as a user does, also in a terminal, and the agents that the tests run."""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
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
        [sys.executable, "-m", "kernai", *arguments],
        cwd=cwd,
        env=environment() if env is None else env,
        input=input if isinstance(input, bytes) else input.encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
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
    """Return the lines of an error and its hint."""
    return [line for line in stderr.splitlines() if line.startswith(("kernai: ", "hint: "))]


def as_json(text: str) -> Any:
    return json.loads(text)


# ----------------------------------------------------------------------------------------------------------- a terminal


PATIENCE = 60.0  # seconds until an expected output counts as missing, even on a busy machine
CTRL_C = "\x03"
CTRL_D = "\x04"

#: the start of a sequence that is handled only once it is complete
UNFINISHED = re.compile(r"(\r|\x1b[^A-Za-z]*|\x1b\[\?2004[hl]\r?)\Z")

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
        self._screen, slave = pty.openpty()
        self._slave = slave
        self._is_open = True
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.shown = ""
        self._seen = 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, os.ttyname(slave), *arguments],
            cwd=cwd, env={**env, "TERM": "dumb"}, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._close_slave()
        os.close(self._screen)

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def until(self, text: str) -> str:
        """Wait for a text, and return what was shown since the last call, up to and including the text."""
        end = time.monotonic() + PATIENCE
        while (at := self.shown.find(text, self._seen)) < 0:
            left = end - time.monotonic()
            assert left > 0, f"{text!r} was not shown; this was: {self.shown[self._seen:]!r}"
            self._read(left)
        shown = self.shown[self._seen : at + len(text)]
        self._seen = at + len(text)
        return shown

    def talk(self, *script: str) -> None:
        """Wait for the first text, type the second, and so on."""
        for at, text in enumerate(script):
            (self.type if at % 2 else self.until)(text)

    def insist(self, keys: str, text: str) -> None:
        """Type the keys again until a text is shown, because a late Ctrl-C may clear the typed line."""
        for wait in (0.5, 1, 2, 4, 8, 16, 32):
            self.type(keys)
            end = time.monotonic() + wait
            while time.monotonic() < end:
                if text in self.shown[self._seen :]:
                    self._seen = self.shown.rfind(text) + len(text)  # the prompt may contain the text too
                    return
                self._read(0.1)
        raise AssertionError(f"{text!r} was not shown; this was: {self.shown[self._seen:]!r}")

    def end(self) -> int:
        """Wait for the program to end and return its exit status; `shown` is then complete."""
        status = self._process.wait(PATIENCE)
        self._close_slave()  # with no other holder, the rest can be read and then the end of file
        while self._read(PATIENCE):
            pass
        self._show(self._held)
        return status

    def _close_slave(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self._slave)

    def _read(self, timeout: float) -> bool:
        """Read what is available; return whether there was anything."""
        if not select.select([self._screen], [], [], timeout)[0]:
            return False
        try:
            piece = os.read(self._screen, 65536)
        except OSError:  # Linux raises this when the other end is closed
            return False
        text = self._held + self._decoder.decode(piece)
        unfinished = UNFINISHED.search(text)
        whole = len(text) if unfinished is None else unfinished.start()
        self._held = text[whole:]
        self._show(text[:whole])
        return bool(piece)

    def _show(self, text: str) -> None:
        # pieces may end anywhere; readline sends 2004 to switch bracketed paste on and off
        self.shown += re.sub(r"\x1b\[\?2004[hl]\r?", "", text.replace("\r\n", "\n"))
