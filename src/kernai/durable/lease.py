"""Leases: which worker a run belongs to, and for how long.

The holder of a run's lease works on the run. The store keeps the lease, decides by its own clock when it expires, and
numbers the claims: it refuses an append under an older claim. This module is the holder's side.

- A holder is identified by its process: host, pid, and the process's start time. If the process ran on this machine and
  is dead, its lease ends at once. Otherwise others must wait until the lease expires.
- One daemon thread renews every lease of this process after a third of its time, and looks for requests to cancel. Runs
  that end sooner are never renewed. The thread ends when there is nothing left to renew.
- The holder's own clock says when its lease *may* have expired: `seconds` after it sent the last successful append or
  renewal. On Linux, that clock keeps running while the machine sleeps.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from typing import Any
from weakref import WeakSet

from kernai._util.api import Value
from kernai.durable.store import RUNNING, Entry, RunInfo, RunStore, leased
from kernai.errors import RunBusyError, RunConflictError
from kernai.interrupts import calls_out
from kernai.values.media import Media

#: how often the thread checks for work, in seconds
TICK = 1.0
_LINUX = sys.platform == "linux"
#: seconds on a clock that never jumps, and on Linux keeps running while the machine sleeps
boottime: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if _LINUX else time.monotonic


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lease(Value):
    """Says who works on a run.

    `token` grows with each claim. `since` and `until` are times by the store's clock, ISO 8601. `number` is how many
    deleted runs had the same id before. `cancel` is the reason if somebody has asked for the run to end, else None.
    """

    run_id: str
    worker: str
    token: int
    seconds: float
    since: str = ""
    until: str = ""
    number: int = 0
    cancel: str | None = None

    @property
    def holder(self) -> str:
        return shown_worker(self.worker)


def busy(lease: Lease) -> RunBusyError:
    """The error for another worker that wants the run."""
    return RunBusyError(lease.run_id, lease.holder, lease.since, lease.until)


# ------------------------------------------------------------------------------------------------------- workers

_numbers = count()
#: workers of this process that have ended without releasing their lease
_GONE: set[str] = set()


def new_worker() -> str:
    """A new name for a holder of leases in this process: ``HOST:PID:START:MACHINE:NUMBER``."""
    return f"{_process(os.getpid())}:{next(_numbers)}"


@cache  # a forked child has another pid
def _process(pid: int) -> str:
    import platform

    return f"{platform.node().replace(':', '-')}:{pid}:{_start_of(pid) or ''}:{_machine()}"


def _machine() -> str:
    """An id shared by all processes whose pids can be compared with this one's. Empty if unknown."""
    if _LINUX:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123 - text in
                # with the pid namespace: each container on a machine has its own process 1
                return f"{file.read().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 - text in
        except OSError:
            return ""
    if os.name != "posix":
        return ""
    import uuid

    return f"{uuid.getnode():x}"


def _start_of(pid: int) -> str | None:
    """The start time of a process; empty for a zombie, None if it cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - text in
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in b"ZX" else fields[19].decode("ascii")


def is_dead(worker: str) -> bool:
    """Whether the worker is known to be gone: its process ran here and is dead, or it ended without a release here."""
    if worker in _GONE:
        return True
    parts = worker.split(":")
    if len(parts) != 5 or not parts[3] or parts[3] != _process(os.getpid()).rpartition(":")[2]:  # noqa: PLR2004 - as `new_worker` makes it
        return False
    pid = int(parts[1])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it exists, and belongs to another user
    start = _start_of(pid)
    return start is not None and start != parts[2]


def shown_worker(worker: str) -> str:
    """A worker's name in readable form."""
    parts = worker.split(":")
    return f"process {parts[1]} on {parts[0]}" if len(parts) == 5 else worker  # noqa: PLR2004 - as `new_worker` makes it


def end_run(store: RunStore, run_id: str, reason: str = "") -> bool:
    """Closes the run and returns True. If somebody works on the run, requests its cancellation instead, which may take
    seconds, and returns False.
    """
    try:
        store.close(run_id, reason or "somebody cancelled the run")
    except RunConflictError:  # somebody works on it, or has just continued it
        store.request_cancel(run_id, reason)
        return False
    return True


# ------------------------------------------------------------------------------------------------ what is held here


def key_of(store: RunStore, run_id: str, number: int) -> str:
    """The prefix of a run's idempotency keys; `number` is how many earlier runs had its id."""
    tenant = store.tenant_name
    return (f"{tenant}/" if tenant else "") + run_id + (f"~{number}" if number else "")


class HeldRun:
    """One run in its store, and its lease, from the append that claims it to the append that releases it.

    In a `Store` without leases, another worker goes unnoticed until an append fails.
    """

    def __init__(self, store: Any, run_id: str, seconds: float, on_cancel: Callable[[str], object]) -> None:
        self.store: RunStore = store
        self.has_leases = leased(store) is not None
        self.run_id = run_id
        self.seconds = seconds
        self.lease: Lease | None = None
        #: the prefix of the run's idempotency keys
        self.key = run_id
        self._worker = new_worker()
        #: whether the store may have the lease: True once the claim is sent, since Ctrl-C may interrupt its response
        self.may_hold = False
        #: called with the reason if somebody has asked for the run to end
        self.on_cancel = on_cancel
        self._sent = 0.0
        #: why the last renewal failed; after a conflict there is no other
        self._failure: Exception | None = None
        #: set when the run must be left to another worker
        self.stopping: threading.Event | None = getattr(store, "stopping", None)

    @calls_out
    def append(self, first_seq: int, entries: Sequence[Entry], media: Sequence[Media], info: RunInfo) -> None:
        """Appends under the lease. The first append claims it; the append that ends the run releases it.

        `info` is the run's summary after this append.
        """
        if not self.has_leases:
            self.store.append(self.run_id, first_seq, entries, media)
            return
        ends = info.status != RUNNING
        terms: dict[str, Any] = {"lease": self.lease} if self.lease else {"claim": (self._worker, self.seconds)}
        self.may_hold, sent = True, boottime()
        terms |= {"info": info, "release": ends, "writer": f"{self._worker}/{first_seq}"}
        try:
            lease = self.store.append(self.run_id, first_seq, entries, media, **terms)
        except RunConflictError as refused:
            self.may_hold = self.lease is not None  # a refused append claims nothing
            # unless it was sent again for so long that the first may have claimed the run, and lost it since
            refused.run_id = None if self.may_hold or boottime() - sent >= self.seconds else self.run_id
            raise
        if ends:
            self._drop()
        else:
            self._renewed(lease, sent)

    def look(self) -> None:
        """Raises `RunConflictError` if the lease may have expired."""
        if self.lease is None:
            return
        if isinstance(self._failure, RunConflictError):
            raise self._failure
        if (passed := boottime() - self._sent) >= self.seconds:
            raise RunConflictError(
                f"the lease on run {self.run_id!r} may have expired: it lasts {self.seconds:g} s and was last renewed "
                f"{passed:.0f} s ago; the process was suspended, or the store unavailable. Nothing more is written; "
                "resume the run"
            ) from self._failure

    def _renewed(self, lease: Lease | None, sent: float) -> None:
        """Notes the lease that an append or a renewal returned, sent at `sent` by `boottime`."""
        if lease is None:
            return
        first, self.lease, self._sent, self._failure = self.lease is None, lease, sent, None
        if first:
            self.key = key_of(self.store, self.run_id, lease.number)
            LEASES.add(self)
        if lease.cancel is not None:
            self.on_cancel(lease.cancel)

    def renew(self) -> bool:
        """Renews the lease and returns True if that is due. One that may be another's by now is not renewed."""
        lease, sent = self.lease, boottime()
        is_due = self.seconds / 3 <= sent - self._sent < self.seconds
        if lease is None or not is_due or isinstance(self._failure, RunConflictError):
            return False
        try:
            self._renewed(self.store.renew(lease), sent)
        except Exception as failure:  # noqa: BLE001 - try again later; if that takes too long, `look` ends the run
            self._failure = failure
        return True

    def release(self) -> None:
        """Releases the lease of a run that broke off, and therefore has no final append."""
        if not self.may_hold:
            return
        _GONE.add(self._worker)  # first, since the rest may fail or be cut off by a second Ctrl-C
        lease = self.lease
        self._drop()
        with suppress(Exception):  # the error that broke off the run is raised instead; the lease will expire
            # otherwise it has expired, perhaps because the store is away: do not wait for it
            if lease is not None and boottime() - self._sent < self.seconds:
                self.store.release(lease)
                _GONE.discard(self._worker)

    def _drop(self) -> None:
        self.lease, self.may_hold = None, False
        LEASES.discard(self)


class Leases:
    """The leases that this process holds, and the thread that renews them. A forked child holds none."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._held: WeakSet[HeldRun] = WeakSet()  # weak, so that an abandoned run is not renewed forever
        self._sooner = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, held: HeldRun) -> None:
        with self._lock:
            self._held.add(held)
            if held.seconds / 6 < TICK:
                self._sooner.set()
            if self._thread is None:
                with suppress(RuntimeError):  # if no thread can be started, only appends renew
                    thread = threading.Thread(target=self._work, name="kernai-leases", daemon=True)
                    thread.start()
                    self._thread = thread

    def discard(self, held: HeldRun) -> None:
        with self._lock:
            self._held.discard(held)

    def _work(self) -> None:
        tick = TICK
        while True:
            self._sooner.wait(tick)
            self._sooner.clear()
            with self._lock:
                held = list(self._held)
                if not held:
                    self._thread = None
                    return
            tick = min([TICK, *(one.seconds / 6 for one in held)])
            self._renew_or_check(held)
            del held  # it would keep a run in the set that nobody else refers to

    @staticmethod
    def _renew_or_check(held: Sequence[HeldRun]) -> None:
        not_due: dict[int, list[HeldRun]] = {}
        for one in held:
            if not one.renew() and one.lease is not None:
                not_due.setdefault(id(one.store), []).append(one)
        for ones in not_due.values():
            with suppress(Exception):  # the store is unavailable
                asked = ones[0].store.cancel_requests([one.run_id for one in ones])
                for one in ones:
                    if one.run_id in asked:
                        one.on_cancel(asked[one.run_id])


LEASES = Leases()
if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=LEASES.reset)
