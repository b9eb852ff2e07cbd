"""Runs between this process and a stdio server, so that the server never outlives it.

Run as a program, ``python -I -S guard.py HOST COMMAND ARGUMENT...``, on POSIX systems. It starts the command in a new
process group, with the guard's standard streams. It ends all processes of the group when the command has ended, when
the process HOST has, or on SIGTERM. It neither reads nor writes data, so it adds no latency.

Imports next to nothing, because there is one guard per server.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

#: seconds that a server has to end after its host, whose end closed its input
GRACE_SECONDS = 2.0
#: seconds between SIGTERM and SIGKILL
TERMINATION_SECONDS = 1.0
#: seconds between two checks of whether the host has ended, which no signal reports
POLL_SECONDS = 1.0


def main(arguments: list[str]) -> int:
    """Runs the command and returns its exit status."""
    host, *command = arguments  # the host may end before this process could ask for its parent
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    try:
        child = os.posix_spawnp(command[0], command, os.environ, setpgroup=0)
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # only the server keeps the output open, so that the host notices its end
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    status = _wait(child, wake, int(host))
    _end_group(child)
    return status


def _wait(child: int, wake: int, host: int) -> int:
    """Waits for the child and returns its exit status. Gives up on SIGTERM, or `GRACE_SECONDS` after the host's end."""
    deadline = None
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) % 256
        if deadline is None and os.getppid() != host:
            deadline = time.monotonic() + GRACE_SECONDS
        if deadline is not None and time.monotonic() >= deadline:
            return 1
        woken, _, _ = select.select([wake], [], [], POLL_SECONDS)
        if woken and signal.SIGTERM in os.read(wake, 512):
            return 1


def _end_group(group: int) -> None:
    """Ends the server, if it still runs, and all other processes of its group."""
    deadline = time.monotonic() + TERMINATION_SECONDS
    with suppress(OSError):  # raised once the group has no more processes
        os.killpg(group, signal.SIGTERM)
        while time.monotonic() < deadline:
            time.sleep(0.01)
            with suppress(ChildProcessError):  # a server that has ended belongs to the group until it is waited for
                os.waitpid(group, os.WNOHANG)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
