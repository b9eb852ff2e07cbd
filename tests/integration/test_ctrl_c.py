"""Ctrl-C as a user presses it: a real signal to a real process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kernai import JsonlSink
from tests.warm_python import WarmPython

pytestmark = [pytest.mark.process, pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")]

PROGRAM = """
import os, sys, threading
import kernai

def under_way():
    os.write(1, b"under way\\n")  # one piece, so that two threads write two lines

class Endless(kernai.Provider):
    def call(self, messages, model, generation, on_chunk):
        if WHERE == "provider" or len(messages) == 2 and messages[-1].text.startswith("do "):
            under_way()
            while True:
                on_chunk(".")
        return kernai.LlmResponse(TURNS[WHERE])

TURNS = {
    "provider": "",
    "skill": '<block type="command" name="wait"></block>',
    "async skill": '<block type="command" name="await"></block>',
    "parallel calls": '<block type="command" name="wait"></block>' * 2,
    "parallel async calls": '<block type="command" name="await"></block>' * 2,
    "tasks": '<block type="plan">{"strategy": "parallel", "tasks": ['
             '{"id": "a", "input": "do a"}, {"id": "b", "input": "do b"}]}</block>',
}
WHERE = sys.argv[2]

@kernai.skill
def wait():
    under_way()
    threading.Event().wait()

@kernai.skill(name="await")
async def wait_for_ever():
    import asyncio
    under_way()
    await asyncio.Event().wait()

agent = kernai.Agent(instructions="x", provider=Endless(), skills="all", parallel_skills=True)
with kernai.JsonlSink(sys.argv[1]) as sink:
    recorder = kernai.Recorder(sink)
    if sys.argv[3] == "run":
        kernai.run(agent, "go", recorder=recorder)
    elif sys.argv[3] == "stream":
        for _ in kernai.stream(agent, "go", recorder=recorder):
            pass
    else:
        import asyncio

        async def ticking():
            # a signal in the instant before the loop waits is seen only when it wakes: CPython has no other way
            async def tick():
                while True:
                    await asyncio.sleep(0.02)
            ticker = asyncio.ensure_future(tick())
            try:
                await kernai.arun(agent, "go", recorder=recorder)
            finally:
                ticker.cancel()

        asyncio.run(ticking())
"""


@pytest.mark.parametrize(
    "way, where",
    [
        *[("run", where) for where in ("provider", "skill", "async skill", "tasks")],
        *[(way, f"parallel {which}") for way in ("run", "stream", "arun") for which in ("calls", "async calls")],
    ],
)
def test_one_ctrl_c_ends_the_run_with_a_result_event_and_then_the_program(
    strict_python: WarmPython, tmp_path: Path, way: str, where: str
) -> None:
    path, script = tmp_path / "run.jsonl", tmp_path / "program.py"
    script.write_text(PROGRAM)
    with strict_python.run(script, str(path), where, way) as process:
        for _ in range(2 if where == "tasks" or "parallel" in where else 1):
            assert process.stdout.readline() == "under way\n"
        process.send_signal(signal.SIGINT)
        try:
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()  # one that hangs fails this test, and not the whole run of tests
    assert process.returncode == -signal.SIGINT
    assert stderr.rstrip().endswith("KeyboardInterrupt")
    entries = JsonlSink.read(path)
    assert (entries[-1]["event"], entries[-1]["scope"]) == ("result", "")
    assert {entry["data"]["stop_reason"] for entry in entries if entry["event"] == "result"} == {"cancelled"}
