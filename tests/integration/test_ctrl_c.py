"""Ctrl-C as a user presses it: a real signal to a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernai import JsonlSink

pytestmark = pytest.mark.process

SRC = Path(__file__).resolve().parents[2] / "src"

PROGRAM = """
import sys, threading
import kernai

class Endless(kernai.Provider):
    def call(self, messages, model, generation, on_chunk):
        if WHERE == "provider" or len(messages) == 2 and messages[-1].text.startswith("do "):
            print("under way", flush=True)
            while True:
                on_chunk(".")
        return kernai.LlmResponse(TURNS[WHERE])

TURNS = {
    "provider": "",
    "skill": '<block type="command" name="wait"></block>',
    "async skill": '<block type="command" name="await"></block>',
    "tasks": '<block type="plan">{"strategy": "parallel", "tasks": ['
             '{"id": "a", "input": "do a"}, {"id": "b", "input": "do b"}]}</block>',
}
WHERE = sys.argv[2]

@kernai.skill
def wait():
    print("under way", flush=True)
    threading.Event().wait()

@kernai.skill(name="await")
async def wait_for_ever():
    import asyncio
    print("under way", flush=True)
    await asyncio.Event().wait()

agent = kernai.Agent(instructions="x", provider=Endless(), skills="all")
with kernai.JsonlSink(sys.argv[1]) as sink:
    kernai.run(agent, "go", recorder=kernai.Recorder(sink))
"""


@pytest.mark.parametrize("where", ["provider", "skill", "async skill", "tasks"])
def test_ctrl_c_ends_the_run_with_a_result_event_and_then_the_program(tmp_path: Path, where: str) -> None:
    path = tmp_path / "run.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), where],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(2 if where == "tasks" else 1):
            assert process.stdout.readline() == "under way\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert told.rstrip().endswith("KeyboardInterrupt")
    entries = JsonlSink.read(path)
    assert (entries[-1]["event"], entries[-1]["scope"]) == ("result", "")
    assert {entry["data"]["stop_reason"] for entry in entries if entry["event"] == "result"} == {"cancelled"}
