"""Start programs quickly: one Python imports the slow modules, then forks for each program.

The MCP SDK takes a second to import, and many tests need a process that uses it and then ends in some way: by a signal,
by the end of its input, by an exception. `WarmPython` is one process for all of them. Each fork has its own standard
streams, signals, environment, working directory and exit, including the interpreter's finalization; it shares only the
imports. Tests of how an interpreter starts, without a stdin for example, start a real one.

::

    with WarmPython("mcp.server", environment=environment) as python:
        with python.run("program.py", "--option") as process:
            process.stdin.write("hello\\n")
            out, errors = process.communicate()

Run as a program, this file is the process that forks. POSIX only.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

PATIENCE = 60.0  # seconds; programs take milliseconds, so only one that hangs fails


class WarmPython:
    """A Python started with ``-W error`` and `options` that has imported `modules`."""

    def __init__(self, *modules: str, environment: Mapping[str, str], options: Sequence[str] = ()) -> None:
        self._control, its = socket.socketpair()
        with its:
            # pipes, because each program replaces these three streams with its own pipes
            self._process = subprocess.Popen(
                [sys.executable, *options, "-W", "error", __file__, str(its.fileno()), *modules], env=dict(environment),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[its.fileno()],
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._control.close()  # ends the loop that waits for programs
        outputs = self._process.communicate(timeout=PATIENCE)
        assert (self._process.returncode, *outputs) == (0, b"", b"")

    def run(self, program: Path | str, *arguments: str, environment: Mapping[str, str] | None = None) -> WarmProcess:
        """Start a file as ``python PROGRAM ARGUMENT...`` does; nothing is added to `environment`, as in `Popen`."""
        given = {
            "program": str(program), "arguments": arguments, "folder": os.getcwd(),
            "environment": dict(os.environ if environment is None else environment),
        }
        line, its_line = socket.socketpair()
        its_stdin, stdin = os.pipe()
        stdout, its_stdout = os.pipe()
        stderr, its_stderr = os.pipe()
        request = json.dumps(given).encode() + b"\n"
        socket.send_fds(self._control, [request], [its_stdin, its_stdout, its_stderr, its_line.fileno()])
        its_line.close()
        for its in (its_stdin, its_stdout, its_stderr):
            os.close(its)
        return WarmProcess(line, open(stdin, "w"), open(stdout), open(stderr))


class WarmProcess:
    """A process of a `WarmPython`, with those methods of `Popen` that the tests need."""

    def __init__(self, line: socket.socket, stdin: TextIO, stdout: TextIO, stderr: TextIO) -> None:
        line.settimeout(PATIENCE)
        self._line = line
        self._reports = line.makefile()
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.returncode: int | None = None
        number = self._reports.readline()
        assert number, "the process that forks has ended; its own failure shows what it said"
        self.pid = int(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            with suppress(BrokenPipeError):
                stream.close()
        self.wait()
        self._reports.close()
        self._line.close()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended: another process may have its id by now."""
        ended = self.returncode is not None or select.select([self._line], [], [], 0)[0]
        if not ended:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = PATIENCE) -> int:
        if self.returncode is None:
            self._line.settimeout(timeout)
            self.returncode = int(self._reports.readline())
        return self.returncode

    def communicate(self, input: str = "", timeout: float = PATIENCE) -> tuple[str, str]:
        """Write `input`, close stdin, read the rest of both outputs, and wait for the process to end."""
        if not self.stdin.closed:
            with suppress(BrokenPipeError):
                self.stdin.write(input)
                self.stdin.close()
        outputs: dict[TextIO, str] = {}
        readers = [
            threading.Thread(target=lambda stream: outputs.update({stream: stream.read()}), args=(stream,), daemon=True)
            for stream in (self.stdout, self.stderr)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
            assert not reader.is_alive(), f"process {self.pid} holds its output open"
        self.wait(timeout)
        return outputs[self.stdout], outputs[self.stderr]


# ------------------------------------------------------------------------------------------- the process that forks


def wait_for_a_program(control_number: int, modules: Sequence[str]) -> str:
    """Fork for each request. Returns only in the children, with the path of the program to run."""
    for name in modules:
        import_module(name)
    gc.freeze()  # so that garbage collection, even at a program's end, does not copy every page of memory
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that run `keep`
    with socket.socket(fileno=control_number) as control:
        while True:
            request, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 4)
            if not request:
                sys.exit()
            while not request.endswith(b"\n"):
                request += control.recv(1 << 16)
            if os.fork() == 0:
                break
            for descriptor in descriptors:
                os.close(descriptor)
    *streams, line = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if process := os.fork():
        keep(process, line, [0, 1, 2, *streams])
    os.close(line)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    given = json.loads(request)
    os.chdir(given["folder"])
    os.environ.clear()
    os.environ.update(given["environment"])
    program: str = given["program"]
    sys.argv[:] = [program, *given["arguments"]]
    sys.path[0] = os.path.dirname(program)
    return program


def keep(process: int, line: int, streams: Sequence[int]) -> None:
    """Report the program's process id and exit status to the tests, which are not its parent. Does not return."""
    try:
        for stream in streams:
            os.close(stream)
        os.write(line, f"{process}\n".encode())
        os.write(line, f"{os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])}\n".encode())
    finally:
        os._exit(0)


if __name__ == "__main__":
    __file__ = wait_for_a_program(int(sys.argv[1]), sys.argv[2:])
    exec(compile(Path(__file__).read_bytes(), __file__, "exec", dont_inherit=True))
