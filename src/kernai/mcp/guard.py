"""Stands between this process and a stdio server, so that the server never outlives it.

Run as a program, ``python -I -S guard.py COMMAND ARGUMENT...``, on POSIX systems. It starts the command with its own
standard streams and waits for one of two things: that the command ends, or that the other end of standard input is
closed, which the operating system does also for a host that was killed. Then whatever is left of the process group
(the guard's own, made by the transport) is ended. It reads nothing and writes nothing, so it costs no latency.

Imports next to nothing, for one runs beside each server.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

#: for a server whose input has ended; the transport's own patience is as long
GRACE_SECONDS = 2.0
#: from SIGTERM to SIGKILL
TERMINATION_SECONDS = 1.0
#: how often the parent is looked at: a forked child of the host may hold the input open after the host's death
POLL_MILLISECONDS = 1000
NOT_FOUND = 127


def main(command: list[str]) -> int:
    """Runs the command; its exit status, 128 + N for signal N."""
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    parent = os.getppid()
    child = os.fork()
    if child == 0:
        _become(command)
    signal.signal(signal.SIGTERM, lambda *_: None)  # meant for the group: the server has got it too
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # the server alone holds the output, so that its end is seen
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    status = _wait(child, wake, parent)
    _end_group()
    return status


def _become(command: list[str]) -> None:
    """In the child: never returns."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606 - no shell is the point
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
    finally:
        os._exit(NOT_FOUND)


def _wait(child: int, wake: int, parent: int) -> int:
    """Until the child has ended, or has had its grace after the input's end."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(0, 0)  # only for the hang-up, which is always reported
    deadline = None
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) % 256
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return 1
        left = POLL_MILLISECONDS if deadline is None else min(POLL_MILLISECONDS, int((deadline - now) * 1000) + 1)
        for file, _ in poll.poll(left):
            if file == wake:
                os.read(wake, 512)
            else:
                poll.unregister(0)
                deadline = deadline or time.monotonic() + GRACE_SECONDS
        if deadline is None and os.getppid() != parent:
            deadline = time.monotonic() + GRACE_SECONDS


def _end_group() -> None:
    """Ends what the server has left behind. The last signal ends the guard too."""
    if os.getpgrp() != os.getpid():
        return  # not a group of our own: somebody started this file by hand
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + TERMINATION_SECONDS
    while _others_live():
        if time.monotonic() >= deadline:
            os.killpg(0, signal.SIGKILL)
        time.sleep(0.01)


def _others_live() -> bool:
    """Whether anyone but the guard is in its group."""
    group = os.getpid()
    for process in _processes():
        try:
            if process != group and os.getpgid(process) == group and not _is_zombie(process):
                return True
        except OSError:
            continue  # it has just ended
    return False


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - pathlib is slow
    except OSError:
        with os.popen("ps -A -o pid=") as listing:  # noqa: S605, S607 - systems without /proc
            return [int(one) for one in listing.read().split()]


def _is_zombie(process: int) -> bool:
    """One that has ended and that nobody has asked about yet."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - as above
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
