"""Leases: which worker a run belongs to, and for how long.

The holder of a run's lease works on the run. The store keeps the lease, decides by its own clock when it is over, and
counts claims: an append under an older claim is refused. This module is the holder's side.

- A holder is a process: host, pid, and when the process began. Where it ran on this machine and is dead, its lease is
  over at once; elsewhere its time has to run out.
- One daemon thread renews everything that this process holds, when a third of the time has passed, and looks for
  requests to cancel. Leases of runs that end sooner cost it nothing. It ends when it has nothing to do.
- The holder's own clock says when its lease *may* be over: so many seconds after the last renewal was sent, whatever
  became of it. That clock runs on while the machine sleeps.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from kernai._util.api import Value
from kernai.durable.store import RUNNING, leased
from kernai.errors import KernaiError, RunBusyError, RunConflictError
from kernai.interrupts import calls_out

if TYPE_CHECKING:
    from kernai.durable.store import Entry, RunInfo, RunStore
    from kernai.values.media import Media

#: how often the thread looks whether it has something to do, in seconds
TICK = 1.0
_LINUX = sys.platform == "linux"


def boottime() -> float:
    """Seconds on a clock that never jumps, and runs on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if _LINUX else time.monotonic()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lease(Value):
    """Who works on a run. `token` grows with each claim. `since` and `until` are times of the store's clock, ISO 8601.

    `number` counts how often the run's id was used before, by runs that were deleted. `cancel` is why somebody wants
    the run to end, None where nobody does.
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
        """The worker, as a person reads it."""
        return shown_worker(self.worker)


# ------------------------------------------------------------------------------------------------------- workers

_numbers = count()
#: workers of this process that have ended and could not give their lease back
_GONE: set[str] = set()


def new_worker() -> str:
    """A name for somebody in this process who takes a lease: ``HOST:PID:START:MACHINE:NUMBER``."""
    return f"{_process(os.getpid())}:{next(_numbers)}"


@cache  # a forked child has another pid
def _process(pid: int) -> str:
    import platform

    return f"{platform.node().replace(':', '-')}:{pid}:{_start_of(pid) or ''}:{_machine()}"


def _machine() -> str:
    """What processes share whose pids can be compared. Empty if that is unknown."""
    if _LINUX:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123 - text in
                # two containers on one machine have each a process 1
                return f"{file.read().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 - text in
        except OSError:
            return ""
    if os.name != "posix":
        return ""
    import uuid

    return f"{uuid.getnode():x}"


def _start_of(pid: int) -> str | None:
    """When a process began; empty for a zombie, None if that cannot be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - text in
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in b"ZX" else fields[19].decode("ascii")


def is_dead(worker: str) -> bool:
    """Whether the worker is known to be gone: its process ran on this machine, and is dead."""
    if worker in _GONE:
        return True
    parts = worker.split(":")
    if len(parts) != 5 or not parts[3] or parts[3] != _process(os.getpid()).rpartition(":")[2]:  # noqa: PLR2004 - above
        return False
    pid = int(parts[1])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is another user's
    start = _start_of(pid)
    return start is not None and start != parts[2]


def shown_worker(worker: str) -> str:
    """A worker's name as a person reads it."""
    host, _, rest = worker.partition(":")
    pid = rest.partition(":")[0]
    return f"process {pid} on {host}" if worker.count(":") == 4 else worker  # noqa: PLR2004 - as `new_worker` makes it


def end_run(store: RunStore, run_id: str, reason: str = "") -> bool:
    """Closes a run and returns True. A run that somebody works on is asked to end as cancelled instead, which may take
    seconds.
    """
    try:
        store.close(run_id, reason or "somebody cancelled the run")
    except RunBusyError:
        store.request_cancel(run_id, reason)
        return False
    return True


# ------------------------------------------------------------------------------------------------ what is held here


class Held:
    """One run in its store, and its lease from the append that claims it to the one that gives it back.

    In a `Store` without leases another worker cannot be noticed before an append fails.
    """

    def __init__(self, store: Any, run_id: str, seconds: float, cancel: Callable[[str], object]) -> None:
        self.store: RunStore = store
        self.has_leases = leased(store) is not None
        self.run_id = run_id
        self.seconds = seconds
        self.lease: Lease | None = None
        #: what idempotency keys begin with
        self.key = run_id
        self._worker = new_worker()
        #: whether the store may have the lease, even where Ctrl-C came before the claim's answer
        self.may_hold = False
        self.cancel = cancel
        self._sent = 0.0
        self._conflict: RunConflictError | None = None
        self._stopping: threading.Event | None = getattr(store, "stopping", None)

    @property
    def is_unwanted(self) -> bool:
        """Whether the run is to be left to another worker."""
        return self._stopping is not None and self._stopping.is_set()

    @calls_out
    def append(self, first_seq: int, entries: Sequence[Entry], media: Sequence[Media], info: RunInfo) -> None:
        """Appends under the lease; the first append claims it, the one with the end of the run gives it back.

        `info` is what the run is after it.
        """
        if not self.has_leases:
            self.store.append(self.run_id, first_seq, entries, media)
            return
        ends = info.status != RUNNING
        terms: dict[str, Any] = {"lease": self.lease} if self.lease else {"claim": (self._worker, self.seconds)}
        self.may_hold, sent = True, boottime()
        terms |= {"info": info, "release": ends, "writer": f"{self._worker}/{first_seq}"}
        lease = self.store.append(self.run_id, first_seq, entries, media, **terms)
        if ends:
            self._drop()
        else:
            self._renewed(lease, sent)

    def look(self) -> None:
        """`RunConflictError` where the lease may be over."""
        if self.lease is None:
            return
        if self._conflict is not None:
            raise self._conflict
        if (passed := boottime() - self._sent) >= self.seconds:
            raise RunConflictError(
                f"the lease on run {self.run_id!r} may have expired: it lasts {self.seconds:g} s and was last renewed "
                f"{passed:.0f} s ago; the process was suspended, or the store unavailable. Nothing more is written; "
                "resume the run"
            )

    def _renewed(self, lease: Lease | None, sent: float) -> None:
        """After an append or a renewal that was sent at that time of `boottime`."""
        if lease is None:
            return
        first, self.lease, self._sent = self.lease is None, lease, sent
        if first:
            tenant = self.store.tenant_name
            self.key = (f"{tenant}/" if tenant else "") + self.run_id + (f"~{lease.number}" if lease.number else "")
            LEASES.add(self)
        if lease.cancel is not None:
            self.cancel(lease.cancel)

    def is_due(self, now: float) -> bool:
        return self.lease is not None and self._conflict is None and now - self._sent >= self.seconds / 3

    def renew(self) -> None:
        """Renews the lease, as long as it is surely still held."""
        lease, sent = self.lease, boottime()
        if lease is None or sent - self._sent >= self.seconds:
            return
        try:
            self._renewed(self.store.renew(lease), sent)
        except RunConflictError as conflict:
            self._conflict = conflict
        except KernaiError:
            pass  # the store is away; it is asked again, and the run ends where that takes too long

    def give_back(self) -> None:
        """Gives back the lease of a run that broke off, so that no append did."""
        if not self.may_hold:
            return
        _GONE.add(self._worker)  # first: the rest may fail, or a second Ctrl-C may end it anywhere
        lease = self.lease
        self._drop()
        if lease is None:
            return
        with suppress(Exception):  # whatever broke the run off is raised; the lease runs out
            self.store.release(lease)
            _GONE.discard(self._worker)

    def _drop(self) -> None:
        self.lease, self.may_hold = None, False
        LEASES.discard(self)


class Leases:
    """What this process holds, and the thread that renews it. A forked child holds nothing."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._held: WeakSet[Held] = WeakSet()  # a run that is dropped in the middle is not renewed for ever
        self._sooner = threading.Event()
        self._tick = TICK
        self._thread: threading.Thread | None = None

    def add(self, held: Held) -> None:
        with self._lock:
            self._held.add(held)
            if held.seconds / 6 < self._tick:
                self._tick = held.seconds / 6
                self._sooner.set()
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._work, name="kernai-leases", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread can be started: each append renews
                return
            self._thread = thread

    def discard(self, held: Held) -> None:
        with self._lock:
            self._held.discard(held)

    def _work(self) -> None:
        while True:
            self._sooner.wait(self._tick)
            self._sooner.clear()
            with self._lock:
                held = list(self._held)
                if not held:
                    self._thread, self._tick = None, TICK
                    return
            self._attend_to(held)

    @staticmethod
    def _attend_to(held: Sequence[Held]) -> None:
        now = boottime()
        older: dict[RunStore, list[Held]] = {}
        for one in held:
            if one.is_due(now):
                one.renew()
            elif one.lease is not None:
                older.setdefault(one.store, []).append(one)
        for store, ones in older.items():
            with suppress(KernaiError):  # the store is away
                asked = store.cancel_requests([one.run_id for one in ones])
                for one in ones:
                    if one.run_id in asked:
                        one.cancel(asked[one.run_id])


LEASES = Leases()
if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=LEASES.reset)
