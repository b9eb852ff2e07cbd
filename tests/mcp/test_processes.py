"""No server outlives its host, however that ends; nothing is left of an adapter that was shut down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from kernai.mcp import setup
from tests.mcp.support import RAW_SERVER, call, processes_with, raw_adapter, wait_until_ended

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

#: a host of a server, which says when the server serves and then ends in the way that its last lines say
HOST = f"""
import os, signal, sys, threading
sys.path[:0] = [{str(ROOT / "src")!r}, {str(ROOT)!r}]
from kernai import Block, SkillContext
from tests.mcp.support import call, raw_adapter

def hang():
    context = SkillContext(None, emit=lambda data: print("hanging", flush=True))
    adapter.protocol.handler(Block("mcp", None, '{{"method": "tools/call", "params": {{"name": "hang"}}}}'), context)

adapter = raw_adapter(*sys.argv[1:])
print("serving", call(adapter, "pid").text, flush=True)
sys.stdin.readline()
"""
ENDINGS = {
    "a normal end": ("", None),
    "an exception": ("raise RuntimeError('the host fails')", None),
    "sys.exit in a thread's company": ("threading.Thread(target=lambda: None).start(); sys.exit(3)", None),
    "Ctrl-C": ("print('waiting', flush=True); signal.pause()", signal.SIGINT),
    "Ctrl-C in the middle of a call": ("hang()", signal.SIGINT),
    "SIGTERM": ("print('waiting', flush=True); signal.pause()", signal.SIGTERM),
    "SIGTERM in the middle of a call": ("hang()", signal.SIGTERM),
    "SIGKILL": ("print('waiting', flush=True); signal.pause()", signal.SIGKILL),
    "os._exit": ("os._exit(0)", None),
}


def host(code: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOST + code, *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": ""},
    )


STUBBORN = ("a normal end", "Ctrl-C in the middle of a call", "SIGTERM", "SIGKILL")


@pytest.mark.parametrize(
    "ending, options", [(ending, []) for ending in ENDINGS] + [(ending, ["--stubborn"]) for ending in STUBBORN]
)
def test_no_server_outlives_its_host(ending: str, options: list[str], tmp_path: Path) -> None:
    code, sent = ENDINGS[ending]
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    with host(code, "--hold", str(held), *options) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("serving")
        left_behind = processes_with(str(held))  # the server and its guard, and the host itself
        assert len(left_behind) == 3
        assert process.stdin is not None
        process.stdin.write("go on\n")
        process.stdin.flush()
        if sent is not None:
            assert process.stdout.readline() in ("waiting\n", "hanging\n")
            process.send_signal(sent)
        process.communicate(timeout=60)
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # the end: the last one that held it open has died
    os.close(reader)
    assert wait_until_ended(left_behind) == []


def test_what_a_server_has_started_itself_ends_with_it() -> None:
    with raw_adapter() as adapter:
        child = int(call(adapter, "spawn").text)
    assert wait_until_ended([child]) == []


def test_what_a_server_that_died_has_left_behind_is_ended() -> None:
    with raw_adapter() as adapter:
        child = int(call(adapter, "spawn").text)
        assert call(adapter, "die").error is not None
        assert wait_until_ended([child]) == []


def open_files() -> Counter[str]:
    """The open files by what they are; of sockets and pipes the kind only."""
    found: Counter[str] = Counter()
    for file in Path("/proc/self/fd").iterdir():
        try:
            found[file.readlink().name.partition(":")[0]] += 1
        except OSError:
            continue  # the one that listed the folder
    return found


def test_a_hundred_setups_and_shutdowns_leave_no_process_thread_or_socket(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    with raw_adapter() as adapter:  # what is loaded once and for all is not counted
        call(adapter, "pid")
    threads, files = set(threading.enumerate()), open_files()
    for _ in range(100):
        with raw_adapter("--description", mark) as adapter:
            Path(mark).touch()
            assert call(adapter, "echo", text="hello").text == "hello"
    assert set(threading.enumerate()) - threads == set()
    assert open_files() <= files  # what others have left behind may be gone by now
    assert wait_until_ended(processes_with(mark)) == []


def test_an_adapter_that_was_never_asked_has_started_nothing() -> None:
    threads = set(threading.enumerate())
    adapter = setup({"servers": {"raw": {"command": sys.executable, "args": [str(RAW_SERVER)]}}}, register=False)
    assert set(threading.enumerate()) - threads == set()
    adapter.shutdown()


def test_a_thousand_calls_from_sixteen_threads_each_get_their_own_answer() -> None:
    wrong: list[str] = []
    with raw_adapter() as adapter:

        def work(thread: int) -> None:
            for number in range(63):
                text = f"{thread}/{number}"
                answer = call(adapter, "echo", text=text)
                if answer.text != text:
                    wrong.append(f"{text}: {answer}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_after_a_fork_the_child_says_that_it_needs_an_adapter_of_its_own_and_leaves_the_parents_alone() -> None:
    code = """
child = os.fork()
if child == 0:
    print(call(adapter, "echo", text="x").error, flush=True)
    sys.exit(0)
os.waitpid(child, 0)
print(call(adapter, "echo", text="the parent's still serves").text, flush=True)
"""
    with host(code) as process:
        printed, errors = process.communicate("go on\n", timeout=60)
    assert "belongs to the parent process" in printed
    assert printed.rstrip().endswith("the parent's still serves")
    assert "Traceback" not in errors


def test_a_server_that_prints_nonsense_makes_no_noise_in_its_host() -> None:
    with host("", "--garbage") as process:
        printed, errors = process.communicate("go on\n", timeout=60)
    assert printed.startswith("serving")
    assert errors == ""
