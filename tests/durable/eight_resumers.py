"""Eight processes that resume one run at once, in a store of any kind: one of them pays for the model call."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

from tests.warm_python import WarmPython

#: what becomes of the first worker, and how the eight resume the run
RESUMED = {"a run that is alive": "{}", "a run that was killed": "{}", "chat turns": "{'input': 'and this?'}"}
SCRIPT = """
import sys, kernai
from kernai import Agent, MockProvider, SqliteStore
{imports}
def answer(messages, model):
    with open({calls!r}, "a") as file:
        file.write("call\\n")
    if sys.argv[1] == "first":
        print("calling", flush=True)
        sys.stdin.readline()
    return "<final>done</final>"
agent = Agent(instructions="x", provider=MockProvider().on_call(answer))
store = {store}
if sys.argv[1] == "first":
    kernai.execute(agent, "go", store=store, run_id="r")
print("ready", flush=True)
sys.stdin.readline()
try:
    print(kernai.resume(agent, "r", store=store, **eval(sys.argv[2])).text)
except kernai.RunConflictError as error:
    print(type(error).__name__)
"""


def check_eight_resumers(python: WarmPython, folder: Path, store: str, case: str, imports: str = "") -> None:
    """`store`: the Python that opens it; `imports`: what that needs besides kernai."""
    calls, script, given = folder / "calls", folder / "worker.py", RESUMED[case]
    script.write_text(SCRIPT.format(store=store, imports=imports, calls=str(calls)))
    with ExitStack() as stack:
        first = stack.enter_context(python.run(script, "first", given))
        assert first.stdout.readline() == "calling\n"
        if case == "a run that was killed":
            first.send_signal(signal.SIGKILL)  # within its model call
            first.wait()
        elif case == "chat turns":
            first.communicate("go\ngo\n")
            calls.write_text("call\n")  # what it asked when it resumed itself aside
        workers = [stack.enter_context(python.run(script, "resumes", given)) for _ in range(8)]
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        said = [worker.communicate()[0].strip() for worker in workers]
        if case == "a run that is alive":
            first.communicate("go\ngo\n")
    made = len(calls.read_text().split())
    print(f"eight resumers of {case}: {said}, {made} model calls")
    if case == "a run that is alive":
        assert set(said) == {"RunBusyError"}
        assert made == 1
    else:
        assert set(said) <= {"done", "RunBusyError", "RunConflictError"}
        # a turn that begins when another has ended is one more turn; after a crash the later ones only get the result
        assert made == 1 + (1 if given == "{}" else said.count("done"))
