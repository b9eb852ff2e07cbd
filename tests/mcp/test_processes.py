"""No server outlives its host, however the host ends, and an adapter that was shut down leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from kernai.mcp import guard
from tests.mcp.support import call, processes_with, raw_adapter, wait_until_ended
from tests.warm_python import WarmProcess, WarmPython

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

#: a host that starts a server, says when it serves, and then runs the code of one of the ENDINGS
HOST = """
import os, sys, threading, time
from kernai import Block, SkillContext
from kernai.mcp import setup
from tests.mcp.support import call, raw

def hang(tool="hang"):
    context = SkillContext(None, emit=lambda data: print("hanging", flush=True))
    adapter.protocol.handler(Block("mcp", None, '{"method": "tools/call", "params": {"name": "%s"}}' % tool), context)

def never_return(context, params):
    print("hanging", flush=True)
    threading.Event().wait()

def idle():
    print("waiting", flush=True)
    while True:  # a signal that arrives just before a system call does not end that call
        time.sleep(0.01)

adapter = setup(raw(*sys.argv[1:]), register=False, elicitation=never_return)
print("serving", call(adapter, "pid").text, flush=True)
sys.stdin.readline()
"""
ENDINGS = {
    "a normal end": ("", None),
    "an exception": ("raise RuntimeError('the host fails')", None),
    "Ctrl-C": ("idle()", signal.SIGINT),
    "Ctrl-C in the middle of a call": ("hang()", signal.SIGINT),
    "Ctrl-C in the middle of a callback": ("hang('elicit')", signal.SIGINT),
    "SIGTERM": ("idle()", signal.SIGTERM),
    "SIGKILL": ("idle()", signal.SIGKILL),
    "os._exit": ("os._exit(0)", None),
}


def host(python: WarmPython, folder: Path, code: str, *options: str) -> WarmProcess:
    program = folder / "host.py"
    program.write_text(HOST + code)
    return python.run(program, *options)


class Ending:
    """A host with its server and the server's guard, which is then ended in some way."""

    def __init__(self, python: WarmPython, folder: Path, how: str, *options: str) -> None:
        code, self._sent = ENDINGS[how]
        held = folder / "held"
        os.mkfifo(held)
        self._reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
        self._host = host(python, folder, code, "--hold", str(held), *options)
        assert self._host.stdout.readline().startswith("serving")
        self._server = processes_with(str(held))
        assert len(self._server) == 2  # the server and its guard

    def begin(self) -> None:
        self._host.stdin.write("go on\n")
        self._host.stdin.flush()
        if self._sent is not None:
            assert self._host.stdout.readline() in ("waiting\n", "hanging\n")
            self._host.send_signal(self._sent)

    def assert_nothing_is_left(self) -> None:
        with self._host:
            self._host.communicate()
        os.set_blocking(self._reader, True)
        assert os.read(self._reader, 1) == b""  # end of file: every process that held the FIFO open has ended
        os.close(self._reader)
        assert wait_until_ended([self._host.pid, *self._server]) == []


@pytest.mark.parametrize("how", ENDINGS)
def test_no_server_outlives_its_host(python: WarmPython, how: str, tmp_path: Path) -> None:
    ending = Ending(python, tmp_path, how)
    ending.begin()
    ending.assert_nothing_is_left()


def test_no_server_that_ignores_sigterm_and_closed_input_outlives_its_host(python: WarmPython, tmp_path: Path) -> None:
    """All at the same time, because each has a grace period of seconds before it is killed."""
    endings = []
    for how in ("a normal end", "Ctrl-C in the middle of a call", "SIGTERM", "SIGKILL"):
        folder = tmp_path / how
        folder.mkdir()
        endings.append(Ending(python, folder, how, "--stubborn"))
    for ending in endings:
        ending.begin()
    for ending in endings:
        ending.assert_nothing_is_left()


@pytest.mark.parametrize("dies", [False, True])
def test_processes_that_a_server_started_end_with_it(dies: bool) -> None:
    with raw_adapter() as adapter:
        child = int(call(adapter, "spawn").text)
        if dies:
            assert call(adapter, "die").error is not None
            assert wait_until_ended([child]) == []
    assert wait_until_ended([child]) == []


def test_a_guard_that_gets_sigterm_ends_its_server_first(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    Path(mark).touch()
    with raw_adapter("--description", mark) as adapter:
        server = int(call(adapter, "pid").text)
        (guard,) = {*processes_with(mark)} - {server}
        os.kill(guard, signal.SIGTERM)
        assert wait_until_ended([server, guard]) == []
        while (answer := call(adapter, "pid")).error:  # a call may be sent before the adapter notices the end
            pass
        assert int(answer.text) != server


def test_a_guard_whose_host_was_gone_before_it_started_ends_its_server() -> None:
    code = f"import sys; sys.path.append({str(Path(guard.__file__).parent)!r}); import guard"  # alone, for the SDK is slow
    code += "; guard.GRACE_SECONDS = 0.01; sys.exit(guard.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "-1", sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.wait(timeout=60) == 1


def test_a_group_is_asked_to_end_before_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "TERMINATION_SECONDS", 600.0)
    waits = "from signal import *; pthread_sigmask(SIG_BLOCK, [SIGTERM]); print('ready', flush=True); sigwait([SIGTERM])"
    command = [sys.executable, "-c", f"{waits}; print('asked')"]  # blocked, it is not lost just before the wait
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        guard._end_group(server.pid)
        assert server.stdout.read() == "asked\n"


def open_files() -> Counter[str]:
    """Count the open files by name, but sockets and pipes only by kind."""
    found: Counter[str] = Counter()
    for file in Path("/proc/self/fd").iterdir():
        try:
            found[file.readlink().name.partition(":")[0]] += 1
        except OSError:
            continue  # the descriptor that lists the folder
    return found


def test_setups_and_shutdowns_leave_no_process_thread_or_socket(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    with raw_adapter() as adapter:  # the first round opens files that stay open
        call(adapter, "pid")
    threads, files = set(threading.enumerate()), open_files()
    for _ in range(4):
        with raw_adapter("--description", mark) as adapter:
            assert set(threading.enumerate()) <= threads  # nothing is started before the first request
            Path(mark).touch()
            assert call(adapter, "echo", text="hello").text == "hello"
        for thread in set(threading.enumerate()) - threads:
            thread.join(60)  # asyncio's thread that waited for the server may still be ending
    assert set(threading.enumerate()) <= threads
    assert open_files() <= files  # files left open by other tests may be closed by now
    assert wait_until_ended(processes_with(mark)) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_after_a_fork_the_child_is_told_to_make_its_own_adapter_and_the_parents_still_works(
    python: WarmPython, tmp_path: Path
) -> None:
    code = """
import kernai.mcp
parents = kernai.mcp.setup({"servers": {}})
child = os.fork()
if child == 0:
    own = kernai.mcp.setup({"servers": {}})
    print(call(adapter, "echo", text="x").error, flush=True)
    sys.exit(0)
os.waitpid(child, 0)
print(call(adapter, "echo", text="the parent's still serves").text, flush=True)
"""
    with host(python, tmp_path, code) as process:
        printed, errors = process.communicate("go on\n")
    assert "belongs to the parent process" in printed
    assert printed.rstrip().endswith("the parent's still serves")
    assert "Traceback" not in errors


def test_nonsense_from_a_server_prints_no_warnings_in_its_host(python: WarmPython, tmp_path: Path) -> None:
    with host(python, tmp_path, "", "--garbage") as process:
        printed, errors = process.communicate("go on\n")
    assert printed.startswith("serving")
    assert errors == ""
