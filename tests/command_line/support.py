"""Starting `python -m kernai` as a user does, also in a terminal, and the files that the tests give it."""

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

#: an agent that looks something up and answers; a mock plays the model
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

#: repeats what it is asked
ECHO = """
from kernai import Agent, MockProvider

def answer(messages, model):
    return f"<final>You said: {messages[-1].text}</final>"

agent = Agent(instructions="Repeat.", provider=MockProvider().on_call(answer), protocols=[])
"""


def environment(**variables: str) -> dict[str, str]:
    """No keys, no proxies and no servers but those a test names."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    nowhere = {"OLLAMA_HOST": "http://127.0.0.1:9", "COLUMNS": "120"}
    return {**kept, **nowhere, "PYTHONPATH": str(SRC), "PYTHONWARNINGS": "error", **variables}


def kernai(
    *arguments: str, cwd: Path, input: str | bytes = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end. Both streams come as text, wrong bytes and all."""
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
    """The lines of an error and its hint."""
    return [line for line in stderr.splitlines() if line.startswith(("kernai: ", "hint: "))]


def as_json(text: str) -> Any:
    return json.loads(text)


# ----------------------------------------------------------------------------------------------------------- a terminal


PATIENCE = 60.0  # seconds, on a machine that is busy, until something that should have been shown long ago is called missing
CTRL_C = "\x03"
CTRL_D = "\x04"

#: what may be the beginning of something that is shown otherwise, or not at all
UNFINISHED = re.compile(r"(\r|\x1b[^A-Za-z]*|\x1b\[\?2004[hl]\r?)\Z")

# A process that leads a session gets the first terminal it opens as its own; then it becomes the program.
_LAUNCH = """
import os, sys
terminal = os.open(sys.argv[1], os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(terminal, stream)
os.execv(sys.executable, [sys.executable, "-m", "kernai", *sys.argv[2:]])
"""


class Terminal:
    """`kernai` in a terminal of its own. `until` waits for a text, `type` presses keys, `talk` does both, `end` gives the exit status."""

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
        """What has been shown since the last call, up to this text and with it."""
        end = time.monotonic() + PATIENCE
        while (at := self.shown.find(text, self._seen)) < 0:
            left = end - time.monotonic()
            assert left > 0, f"{text!r} was not shown; this was: {self.shown[self._seen:]!r}"
            self._read(left)
        shown = self.shown[self._seen : at + len(text)]
        self._seen = at + len(text)
        return shown

    def talk(self, *script: str) -> None:
        """What to wait for and what to type, in turn."""
        for at, text in enumerate(script):
            (self.type if at % 2 else self.until)(text)

    def insist(self, keys: str, text: str) -> None:
        """Types until this is shown: for when a Ctrl-C that is still on its way may clear what was typed."""
        for wait in (0.5, 1, 2, 4, 8, 16, 32):
            self.type(keys)
            end = time.monotonic() + wait
            while time.monotonic() < end:
                if text in self.shown[self._seen :]:
                    self._seen = self.shown.rfind(text) + len(text)  # a prompt may have come with it
                    return
                self._read(0.1)
        raise AssertionError(f"{text!r} was not shown; this was: {self.shown[self._seen:]!r}")

    def end(self) -> int:
        """The exit status, once the program has left; `shown` is whole then."""
        status = self._process.wait(PATIENCE)
        self._close_slave()  # the last who has it open: what is still on its way comes, and then the end
        while self._read(PATIENCE):
            pass
        self._show(self._held)
        return status

    def _close_slave(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self._slave)

    def _read(self, timeout: float) -> bool:
        """Reads what there is; returns whether there was something."""
        if not select.select([self._screen], [], [], timeout)[0]:
            return False
        try:
            piece = os.read(self._screen, 65536)
        except OSError:  # on Linux, when the other end is closed
            return False
        text = self._held + self._decoder.decode(piece)
        unfinished = UNFINISHED.search(text)
        whole = len(text) if unfinished is None else unfinished.start()
        self._held = text[whole:]
        self._show(text[:whole])
        return bool(piece)

    def _show(self, text: str) -> None:
        # a terminal may give its text in pieces that end anywhere; 2004 is readline's own switch for pasted text
        self.shown += re.sub(r"\x1b\[\?2004[hl]\r?", "", text.replace("\r\n", "\n"))
