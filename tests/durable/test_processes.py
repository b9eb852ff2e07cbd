"""Processes that share runs in an `SqliteStore`: they take turns, they die, they fork, their disk is full, they resume one
run at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from kernai import SqliteStore
from tests.warm_python import WarmProcess, WarmPython

pytestmark = [pytest.mark.process, pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")]

SRC = Path(__file__).resolve().parents[2] / "src"
#: seconds after which a program that hangs fails its test
PATIENCE = 60
PROCESSES = 8

OPENING = """
import os, sys
from kernai import KernaiError, SqliteStore

def entry(data):
    return {"event": "progress", "scope": "", "timestamp": "2026-11-20T10:00:00.000Z", "data": data}

def say(what):
    print(what, flush=True)
"""

Start = Callable[..., WarmProcess]


@pytest.fixture
def started(python: WarmPython, tmp_path: Path) -> Iterator[Start]:
    """Starts programs; those that a failing test leaves behind are killed."""
    programs: list[WarmProcess] = []

    def start(code: str, *arguments: object) -> WarmProcess:
        path = tmp_path / f"program-{len(programs)}.py"
        path.write_text(OPENING + code)
        programs.append(python.run(path, *map(str, arguments)))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()
        with program:
            pass


def finished(*programs: WarmProcess) -> list[list[str]]:
    """The lines that each has printed, when all have ended well."""
    lines = []
    for program in programs:
        out, errors = program.communicate()
        assert program.returncode == 0, errors
        lines.append(out.splitlines())
    return lines


def released(programs: Sequence[WarmProcess]) -> None:
    """Lets programs that wait for it continue, when all of them are there."""
    for program in programs:
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        program.stdin.write("go\n")
        program.stdin.flush()


@pytest.mark.slow
def test_processes_that_create_a_store_at_once_share_it(started: Start, tmp_path: Path) -> None:
    code = """
say("ready"); input()
with SqliteStore(sys.argv[1]) as store:
    store.append(sys.argv[2], 0, [entry(0)], [])
"""
    programs = [started(code, tmp_path / "runs.db", number) for number in range(PROCESSES)]
    released(programs)
    finished(*programs)
    with SqliteStore(tmp_path / "runs.db") as store:
        assert len(list(store.runs())) == PROCESSES


FORKS = """
path = sys.argv[1]
store = SqliteStore(path)
store.append("r", 0, [entry("parent")], [])
ready, signal_ready = os.pipe()
child = os.fork()
if child == 0:
    store.append("r", 1, [entry("child")], [])
    os.read(ready, 1)  # the parent has closed the store
    store.append("r", 2, [entry("child, after the parent has closed")], [])
    with SqliteStore(path) as other:
        say(len(other.load("r")))
    os._exit(0)
while len(store.load("r")) < 2:
    pass
store.append("s", 0, [entry("parent")], [])
store.close()
os.write(signal_ready, b"x")
sys.exit(os.waitpid(child, 0)[1])
"""


def test_a_store_can_be_used_on_both_sides_of_a_fork(started: Start, tmp_path: Path) -> None:
    assert finished(started(FORKS, tmp_path / "runs.db")) == [["3"]]
    with SqliteStore(tmp_path / "runs.db") as store:
        assert [one["data"] for one in store.load("r")] == ["parent", "child", "child, after the parent has closed"]
        assert len(store.load("s")) == 1


@pytest.mark.slow
def test_a_fork_while_threads_append_harms_neither_process(started: Start, tmp_path: Path) -> None:
    finished(started("""
import threading, warnings
warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
store = SqliteStore(sys.argv[1], "process")
end, counts = threading.Event(), {}
def work(number):
    counts[number] = 0
    while not end.is_set():
        store.append(f"thread-{number}", counts[number], [entry(0)], [])
        counts[number] += 1
threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
failed = 0
for number in range(20):
    child = os.fork()
    if child == 0:
        store.append(f"child-{number}", 0, [entry(number)], [])
        os._exit(0)
    failed += os.waitpid(child, 0)[1] != 0
end.set()
for thread in threads:
    thread.join()
assert not failed
assert [len(store.load(f"thread-{number}")) for number in range(3)] == [counts[number] for number in range(3)]
assert len(list(store.runs())) == 20 + sum(count > 0 for count in counts.values())
store.close()
""", tmp_path / "runs.db"))


@pytest.mark.skipif(sys.platform == "win32", reason="this system limits no files")
def test_a_file_size_limit_fails_only_the_append(started: Start, tmp_path: Path) -> None:
    (lines,) = finished(started("""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
with SqliteStore(sys.argv[1]) as store:
    seq = 0
    try:
        while seq < 10_000:
            store.append("r", seq, [entry("x" * 3000), entry(seq)], [])
            seq += 2
    except KernaiError as error:
        say(error)
    loaded = len(store.load("r"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.append("r", seq, [entry("x" * 3000), entry(seq)], [])
    say(f"{loaded - seq} {len(store.load('r')) - seq}")
""", tmp_path / "runs.db"))
    assert lines[0].startswith("cannot append entries ")
    assert f"of run 'r' in '{tmp_path / 'runs.db'}': disk I/O error" in lines[0]
    assert lines[1] == "0 2"


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no modes there")
def test_a_folder_without_write_permission_is_reported(started: Start) -> None:
    with tempfile.TemporaryDirectory() as name:  # not below `tmp_path`, where another user may not even look
        folder = Path(name)
        with SqliteStore(folder / "runs.db") as store:
            store.append("r", 0, [{"event": "progress"}], [])
        (folder / "new").mkdir()
        for closed in (folder / "new", folder):
            closed.chmod(0o555)
        code = """
if os.geteuid() == 0:  # who may do everything is refused nothing
    os.setuid(65534)
for name in ("new/runs.db", "runs.db"):
    try:
        with SqliteStore(os.path.join(sys.argv[1], name)) as store:
            store.append("s", 0, [entry(0)], [])
    except KernaiError as error:
        say(error)
"""
        (lines,) = finished(started(code, folder))
        folder.chmod(0o700)
        (folder / "new").chmod(0o700)
    assert lines[0].startswith(f"cannot open the store in '{folder}/new/runs.db': Permission denied")
    assert f"'{folder}/runs.db'" in lines[1]


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="root alone can be two users")
def test_only_the_owner_may_use_a_store_and_others_leave_no_files_beside_it(started: Start) -> None:
    code = """
os.setuid(int(sys.argv[2]))
try:
    with SqliteStore(sys.argv[1]) as store:
        say([run.run_id for run in store.runs()])
        store.append("r", 0, [entry(0)], [])
except KernaiError as error:
    say(error)
"""
    with tempfile.TemporaryDirectory() as name:  # not below `tmp_path`, where another user may not even look
        folder, path = Path(name), Path(name) / "runs.db"
        folder.chmod(0o777)
        owner, other = 65533, 65534
        assert finished(started(code, path, owner)) == [["[]"]]
        path.chmod(0o666)
        for _ in range(2):
            (lines,) = finished(started(code, path, other))
            assert lines == [f"{str(path)!r} belongs to another user, and only its owner may use a store: use another file"]
            assert os.listdir(folder) == ["runs.db"]
        assert finished(started(code, path, owner))[0][0] == "['r']"


# --------------------------------------------------------------------------------------------- resuming at once

#: by the state that the first worker leaves the run in: the options with which the eight resume it
RESUMED = {
    "a run that is alive": "{}", "a run that was killed": "{}", "chat turns": "{'input': 'and this?'}",
    "a run that waits": "{'approvals': {'0.0': True}}",
}
WORKER = """
import sys, kernai
from kernai import Agent, MockProvider, Skill, SqliteStore
{imports}
given = eval(sys.argv[2])
def note(what):
    with open({calls!r}, "a") as file:
        file.write(what + "\\n")
def answer(messages, model):
    note("call")
    if sys.argv[1] == "first":
        print("calling", flush=True)
        sys.stdin.readline()
    pays = "approvals" in given and messages[-1].text == "go"
    return '<block type="command" name="pay"></block>' if pays else "<final>done</final>"
pay = Skill("pay", execute=lambda: note("paid"), inputs={{}}, approval=True)
agent = Agent(instructions="x", skills=[pay], provider=MockProvider().on_call(answer))
store = {store}
if sys.argv[1] == "first" and kernai.execute(agent, "go", store=store, run_id="r").pending:
    sys.exit()
print("ready", flush=True)
sys.stdin.readline()
try:
    print(kernai.resume(agent, "r", store=store, **given).text)
except (kernai.RunConflictError, ValueError) as error:
    print(type(error).__name__)
"""


def check_eight_resumers(python: WarmPython, folder: Path, store: str, case: str, imports: str = "") -> None:
    """Only one of eight processes calls the model. `store` is the Python that opens it, which needs the `imports`."""
    calls, script, given = folder / "calls", folder / "worker.py", RESUMED[case]
    script.write_text(WORKER.format(store=store, imports=imports, calls=str(calls)))
    with ExitStack() as stack:
        first = stack.enter_context(python.run(script, "first", given))
        assert first.stdout.readline() == "calling\n"
        if case == "a run that was killed":
            first.send_signal(signal.SIGKILL)  # within its model call
            first.wait()
        elif case != "a run that is alive":
            first.communicate("go\ngo\n")
            calls.write_text("call\n")  # without the call that it made when it resumed the run itself
        workers = [stack.enter_context(python.run(script, "resumes", given)) for _ in range(PROCESSES)]
        released(workers)
        said = [worker.communicate()[0].strip() for worker in workers]
        if case == "a run that is alive":
            first.communicate("go\ngo\n")
    noted = calls.read_text().split()
    made = noted.count("call")
    if case == "a run that is alive":
        assert set(said) == {"RunBusyError"}
        assert made == 1
    else:
        assert set(said) <= {"done", "RunBusyError", "RunConflictError", *(["ValueError"] if "approvals" in given else [])}
        # a turn that begins when another has ended is one more turn; otherwise the later ones only get the result
        assert made == 1 + (said.count("done") if case == "chat turns" else 1)
        assert noted.count("paid") == (case == "a run that waits")


@pytest.mark.slow
@pytest.mark.parametrize("case", RESUMED)
def test_only_one_of_eight_processes_that_resume_a_run_at_once_calls_the_model(python: WarmPython, tmp_path: Path, case: str) -> None:
    check_eight_resumers(python, tmp_path, f"SqliteStore({str(tmp_path / 'runs.db')!r}, durability='process')", case)


# ---------------------------------------------------------------------------------------------- kills and interrupts


def check_harness(path: Path, *arguments: str) -> str:
    """Runs a short form of `dev.py kills`, `interrupts` or `chaos`. Gives what it has complained of."""
    command = [sys.executable, str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.stdout.splitlines()[-1:], done.returncode) == (["faults: 0"], 0), done.stdout + done.stderr
    return done.stderr


@pytest.mark.slow
def test_runs_whose_processes_are_killed_end_the_same_and_nothing_is_lost_or_doubled() -> None:
    assert check_harness(Path(__file__).with_name("kills.py"), "--times", "10", "--step", "9") == ""


@pytest.mark.slow
@pytest.mark.parametrize("presses", [["--times", "100"], ["--times", "40", "--twice"]], ids=["once", "twice"])
def test_after_ctrl_c_at_any_moment_the_run_can_be_resumed_and_no_thread_is_left(presses: list[str]) -> None:
    assert check_harness(Path(__file__).with_name("interrupts.py"), *presses) == ""
