"""Starting `python -m kernai` as a user does, and the files that the tests give it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
