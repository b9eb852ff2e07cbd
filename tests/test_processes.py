"""What only a separate process can show: real signals, and that nothing keeps a program from ending."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernai import JsonlSink
from tests.warm_python import WarmProcess, WarmPython

pytestmark = [pytest.mark.process, pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")]

ROOT = Path(__file__).resolve().parents[1]
#: seconds after which a program that hangs fails its test; none takes that long when all is well
PATIENCE = 30

#: the start of every program: `model` and `agent` make runs of several kinds, `sink` records them
OPENING = """
import asyncio, sys, threading
import kernai
from kernai import Agent, Block, JsonlSink, LlmResponse, Provider, Recorder, skill

def command(name, content=""):
    return str(Block("command", name, content))

def say(what):
    sys.stdout.write(what + "\\n")  # in one piece, for threads say things too
    sys.stdout.flush()

class Script(Provider):  # says the first text to the user, the last to whoever a plan or another agent asks
    def __init__(self, *texts):
        self.texts = texts
    def call(self, messages, model, generation, on_chunk):
        return LlmResponse(self.texts[0 if messages[-1].text == "go" else -1])

class Endless(Provider):
    def call(self, messages, model, generation, on_chunk):
        while True:
            on_chunk(".")
            say("streaming")

class Quiet(Provider):  # for programs that end meanwhile: Python crashes where a thread holds stdout then
    def call(self, messages, model, generation, on_chunk):
        while True:
            on_chunk(".")

class NativeEndless(Endless):
    async def acall(self, messages, model, generation, on_chunk):
        while True:
            await on_chunk(".")
            say("streaming")
            await asyncio.sleep(0)

@skill(register=False)
def hang():
    say("hanging")
    while True:  # not one wait: a signal that comes in the instant before it is not seen (CPython has no other way)
        threading.Event().wait(0.02)

@skill(register=False)
def hang_until_cancelled(ctx: kernai.SkillContext):
    say("hanging")
    while not ctx.cancelled:
        threading.Event().wait(0.01)
    return "left"

@skill(register=False)
async def hang_later():
    say("hanging")
    await asyncio.Event().wait()

def ticking(work):
    # asyncio.run on a loop that wakes now and then, for the same reason
    async def run():
        asyncio.get_running_loop().slow_callback_duration = 60  # in development mode, asyncio reports slow steps on stderr
        async def tick():
            while True:
                await asyncio.sleep(0.02)
        ticker = asyncio.ensure_future(tick())
        try:
            return await work
        finally:
            ticker.cancel()
    return asyncio.run(run())

sink = JsonlSink(sys.argv[1])
recorder = Recorder(sink)
skills = [hang, hang_until_cancelled, hang_later]
def agent(*texts, **options):
    return Agent(instructions="x", skills=skills, provider=Script(*texts), **options)
skills.append(agent(command("hang")).as_skill("inner", "i"))
tasks = '{"id": "a", "input": "x"}, {"id": "b", "input": "x"}'
plan = str(Block("plan", None, '{"strategy": "parallel", "tasks": [' + tasks + ']}'))
"""


@pytest.fixture(scope="module")
def strict_python() -> Iterator[WarmPython]:
    """A Python that has imported kernai, in development mode, which warns about files and sockets left open."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with WarmPython("kernai", environment=environment, options=["-X", "dev"]) as python:
        yield python


@contextmanager
def program(python: WarmPython, path: Path, source: str, *words: str) -> Iterator[WarmProcess]:
    """Start a program and wait until it has printed `words`, one per line; it is killed at the end."""
    script = path.with_name("program.py")
    script.write_text(OPENING + source)
    with python.run(script, str(path)) as process:
        try:
            for word in words:
                said = process.stdout.readline()
                while said == "streaming\n" != f"{word}\n":  # a model in a thread may be the first to say something
                    said = process.stdout.readline()
                assert said == f"{word}\n"
            yield process
        finally:
            process.kill()


def end_of(process: WarmProcess) -> str:
    """Wait for the program to end, and return what it wrote to standard error."""
    _, stderr = process.communicate(timeout=PATIENCE)
    return stderr


def entries_of(path: Path) -> list[dict[str, Any]]:
    """Read the recording; its last event must be the root's result."""
    entries = JsonlSink.read(path)
    assert (entries[-1]["event"], entries[-1]["scope"]) == ("result", "")
    return entries


def reasons(entries: list[dict[str, Any]]) -> dict[str, str]:
    return {entry["scope"]: entry["data"]["stop_reason"] for entry in entries if entry["event"] == "result"}


#: how an agent is run
HOW = {
    "run": "kernai.run({}, 'go', recorder=recorder)",
    "stream": "with kernai.stream({}, 'go', recorder=recorder) as events:\n    for event in events: pass",
    "open stream": "for event in kernai.stream({}, 'go', recorder=recorder): pass",
    "consumer": """
with kernai.stream({}, 'go', recorder=recorder) as events:
    for event in events:
        if event.type == 'text_chunk':
            say('consuming')
            while True: threading.Event().wait(0.02)
""",
    "arun": "ticking(kernai.arun({}, 'go', recorder=recorder))",
    "astream": """
async def main():
    async with kernai.astream({}, 'go', recorder=recorder) as events:
        async for event in events: pass
ticking(main())
""",
    "open astream": """
async def main():
    async for event in kernai.astream({}, 'go', recorder=recorder): pass
ticking(main())
""",
}
AT_ONCE = "agent(command({!r}) * {}, parallel_skills=True)".format
ENDLESS, NATIVE = (f"Agent(instructions='x', provider={name}())" for name in ("Endless", "NativeEndless"))
#: how an agent is run, the agent, what the program says before Ctrl-C, and the scopes that end with a result
INTERRUPTED: list[tuple[str, str, list[str], set[str]]] = [
    ("run", ENDLESS, ["streaming"], {""}),
    ("run", "agent(command('hang'))", ["hanging"], {""}),
    ("run", "agent(command('hang_later'))", ["hanging"], {""}),
    ("run", AT_ONCE("hang_until_cancelled", 3), ["hanging"] * 3, {""}),
    ("run", AT_ONCE("hang_later", 3), ["hanging"] * 3, {""}),
    ("run", AT_ONCE("hang", 2), ["hanging"] * 2, {""}),
    ("run", "agent(plan, command('hang'))", ["hanging"] * 2, {"", "0.a", "0.b"}),
    ("run", "agent(command('inner', 'x'))", ["hanging"], {"", "0.0"}),
    ("stream", "agent(command('hang_later'))", ["hanging"], {""}),
    ("consumer", ENDLESS, ["consuming"], {""}),
    ("open stream", AT_ONCE("hang", 2), ["hanging"] * 2, {""}),
    ("arun", NATIVE, ["streaming"], {""}),
    ("arun", ENDLESS, ["streaming"], {""}),
    ("arun", "agent(command('hang'))", ["hanging"], {""}),
    ("arun", AT_ONCE("hang_later", 2), ["hanging"] * 2, {""}),
    ("arun", AT_ONCE("hang_until_cancelled", 3), ["hanging"] * 3, {""}),
    ("astream", "agent(command('hang_later'))", ["hanging"], {""}),
    ("open astream", "agent(command('hang_later'))", ["hanging"], {""}),
]


@pytest.mark.parametrize("how, agent, words, scopes", INTERRUPTED)
def test_ctrl_c_ends_the_run_with_a_result_event_and_then_the_program(
    strict_python: WarmPython, tmp_path: Path, how: str, agent: str, words: list[str], scopes: set[str]
) -> None:
    path = tmp_path / "run.jsonl"
    with program(strict_python, path, HOW[how].format(agent), *words) as process:
        process.send_signal(signal.SIGINT)
        stderr = end_of(process)
    assert process.returncode == -signal.SIGINT, stderr
    assert stderr.rstrip().endswith("KeyboardInterrupt")
    assert reasons(entries_of(path)) == dict.fromkeys(scopes, "cancelled")


ENDING: dict[str, str] = {
    "a stream that was left open": """
events = kernai.stream(Agent(instructions="x", provider=Quiet()), "go", recorder=recorder)
for _ in range(5): next(events)
""",
    "an async stream that was left open": """
async def main():
    events = kernai.astream(Agent(instructions="x", provider=Quiet()), "go", recorder=recorder)
    for _ in range(5): await anext(events)
ticking(main())
""",
    "a run that was cancelled and whose skill never ends": """
inside = threading.Event()
@skill(register=False)
def never():
    inside.set()
    threading.Event().wait()
skills.append(never)
async def main():
    running = asyncio.ensure_future(kernai.arun(agent(command("never")), "go", recorder=recorder))
    await asyncio.to_thread(inside.wait)
    running.cancel()
    await asyncio.wait([running])
ticking(main())
""",
    "a run in a daemonic thread": """
inside = threading.Barrier(3)  # both calls: Python 3.11.2 crashes where a thread is just starting as the program ends
@skill(register=False)
def never():
    inside.wait()
    threading.Event().wait()
skills.append(never)
threading.Thread(target=lambda: kernai.run(agent(command("never") * 2, parallel_skills=True), "go"), daemon=True).start()
inside.wait()
""",
    "an async skill of a run at exit, when Python refuses to import its thread pool": """
import atexit
@skill(register=False)
async def late(): pass
skills.append(late)
atexit.register(lambda: kernai.run(agent(command("late"), "done"), "go"))
""",
}


@pytest.mark.parametrize("source", ENDING.values(), ids=ENDING.keys())
def test_nothing_keeps_a_program_from_ending(strict_python: WarmPython, tmp_path: Path, source: str) -> None:
    with program(strict_python, tmp_path / "run.jsonl", source + "\nsay('the end')") as process:
        stderr = end_of(process)
    assert process.returncode == 0, stderr
    assert stderr == ""


@pytest.mark.slow
def test_runs_abandoned_streams_and_cancelled_calls_leave_nothing_behind() -> None:
    """A small part of what `dev.py soak` runs."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "soak.py"), "--share", "0.005"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    for what in ("100 runs", "10 abandoned streams", "10 cancelled calls"):
        assert f"{what} in" in done.stdout
    assert done.stdout.count("tasks left 0") == 3
