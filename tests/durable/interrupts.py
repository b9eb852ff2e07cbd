"""Sends SIGINT into runs at random moments; says what it found, and ends with 1 if something was wrong.

    python3 dev.py interrupts --times 2000 --seed 7

It makes one run after another, in turn each of `KINDS`, and a thread sends one SIGINT into each, or with --twice two, at
a random moment (some come before or after the run). After each it looks at the exception that the caller got, at the
rows in the store, at threads that are left, and resumes the run.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import kernai  # noqa: E402 - from the source tree beside this file
from kernai import MemoryStore, Result, SqliteStore  # noqa: E402
from tests.durable.durable_cases import Performed, agent, call_faults, command, provider  # noqa: E402
from tests.loop.loop_cases import plan, task  # noqa: E402

LOOK, MANY = command("look", '{"at": "x"}'), command("many", "2")
CALLS = {
    "go": [LOOK, MANY + command("ask_clerk", "job") + command("picture") + LOOK, "<final>done</final>"],
    "job": [command("many", "3"), "<final>counted</final>"],
}
TASKS = {
    "go": [
        plan(task("a", "one"), task("b", "two"), task("c", "three", depends_on=["a"]), strategy="parallel"),
        "<final>done</final>",
    ],
    "one": [LOOK, "<final>1</final>"], "two": [MANY, "<final>2</final>"], "three": ["<final>3</final>"],
}
#: the scripts, how the agent is made, whether there is a callback, whether it is a stream
KINDS: dict[str, tuple[dict[str, list[str]], dict[str, Any], bool, bool]] = {
    "sync": (CALLS, {"parallel_skills": False}, False, False),
    "stream": (CALLS, {"parallel_skills": True}, False, True),
    "parallel": (CALLS, {"parallel_skills": True}, False, False),
    "tasks": (TASKS, {}, False, False),
    "callbacks": (CALLS, {"parallel_skills": True}, True, False),
}

#: seconds after which a run hangs
PATIENCE = 20


def threads() -> list[str]:
    """The names of all threads, except the one that renews the leases of the process."""
    return [one.name for one in threading.enumerate() if one.name != "kernai-leases"]


class Trials:
    def __init__(self, seed: int, *, is_twice: bool) -> None:
        #: how often Ctrl-C was raised where Python only prints it
        self.unheard = 0
        sys.unraisablehook = self._take_unheard
        self.is_twice = is_twice
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.folder = tempfile.TemporaryDirectory()
        self.sqlite = SqliteStore(Path(self.folder.name, "runs.db"), durability="process")
        self.longest = {kind: self._measured(kind) for kind in KINDS}
        self.slowest_end = 0.0

    def _measured(self, kind: str) -> float:
        begun = time.monotonic()
        for _ in range(5):
            self._perform(kind, self._store(kind), Performed())
        return (time.monotonic() - begun) / 5

    def _store(self, kind: str) -> MemoryStore | SqliteStore:
        if kind not in ("sync", "tasks"):
            return MemoryStore()
        self.sqlite.delete("r")
        return self.sqlite

    def _perform(self, kind: str, store: MemoryStore | SqliteStore, performed: Performed) -> Result:
        scripts, options, listens, streams = KINDS[kind]
        it = agent(performed, **options)
        given: dict[str, Any] = {"provider": provider(scripts), "store": store, "run_id": "r"}
        if not streams:
            given |= {"on_event": lambda event: event.to_dict()} if listens else {}
            return kernai.execute(it, "go", **given)
        with kernai.stream(it, "go", **given) as events:
            for _ in events:
                pass
        return events.result

    def trial(self, kind: str) -> None:
        store, performed = self._store(kind), Performed()
        delay = self.chance.random() * self.longest[kind]
        sent: list[float] = []
        go = threading.Event()

        def send() -> None:
            go.wait()
            until = time.perf_counter() + delay
            while time.perf_counter() < until:  # sleeping is too coarse
                time.sleep(0)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
            if self.is_twice:
                time.sleep(self.chance.random() * 0.004)
                os.kill(os.getpid(), signal.SIGINT)

        self.sender = sender = threading.Thread(target=send, daemon=True)
        sender.start()
        came, ended = 0, False
        try:
            try:
                go.set()
                self._perform(kind, store, performed)
                ended = True
            except KeyboardInterrupt:
                came += 1
                self.slowest_end = max(self.slowest_end, time.monotonic() - sent[0])
            sender.join()
            for _ in range(3):
                time.sleep(0.001)
        except KeyboardInterrupt:  # the signal came after the run had ended
            came += 1
            ended = True
            sender.join()
        came, self.unheard = came + self.unheard, 0
        self.counts["sent"] += 1
        self.counts["reached the caller"] += came == 1
        self.counts["after the run"] += ended
        if came == 0 or (came > 1 and not self.is_twice):
            self._fault(kind, f"{came} KeyboardInterrupts")
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            self._fault(kind, "the handler was not put back")
        self._look_at_threads(kind)
        self._look_at_rows(kind, store, performed)

    def _take_unheard(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Before or after a run Python's own handler may raise where nobody hears of it: as an object is freed, say.

        So may a second press within a run; the run raises it again at its end.
        """
        is_pythons = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if unraisable.exc_type is KeyboardInterrupt and (is_pythons or self.is_twice):
            self.unheard += is_pythons
        else:
            sys.__unraisablehook__(unraisable)

    def _fault(self, kind: str, what: str) -> None:
        self.counts[f"fault: {what[:40]}"] += 1
        self.faults.append(f"{kind}: {what}")

    def _look_at_threads(self, kind: str) -> None:
        until = time.monotonic() + PATIENCE / 2
        while len(left := threads()) > 1 and time.monotonic() < until:
            time.sleep(0.001)
        if len(left) > 1:
            self._fault(kind, f"threads are left: {left}")

    def _look_at_rows(self, kind: str, store: MemoryStore | SqliteStore, performed: Performed) -> None:
        rows = store.load("r")
        self.counts["rows"] += len(rows)
        if not rows:
            self.counts["no rows"] += 1
            return
        once = Counter(
            (row["event"], row["scope"], row["step"]) for row in rows
            if row["event"] in ("run_start", "result", "messages_sent", "llm_response", "workflow_start")
        )
        if twice := [key for key, count in once.items() if count > 1]:
            self._fault(kind, f"rows twice: {twice}")
        if (rows[-1]["event"], rows[-1]["scope"]) != ("result", ""):
            self.counts["without result"] += 1
            if not self.is_twice:  # a second signal may come anywhere
                self._fault(kind, f"no result: {[row['event'] for row in rows]}")
        calls = performed.calls
        for fault in call_faults(rows, {f"r:{key.partition(':')[2]}": count for key, count in calls.items()}):
            self._fault(kind, fault)
        # what was under way may have taken effect, and is called again as `in_flight` says
        under_way = {row["data"]["call_id"] for row in rows if row["event"] == "skill_execute"} - {
            row["data"]["call_id"] for row in rows
            if row["event"] in ("skill_result", "skill_error") and not row["data"].get("interrupted")
        }
        scripts, options, *_ = KINDS[kind]
        try:
            if not self.is_twice:
                kernai.replay(agent(Performed(), **options), "r", store=store)
            it = agent(performed, **options)
            result = kernai.resume(it, "r", provider=provider(scripts), store=store, in_flight="retry")
            kernai.replay(agent(Performed(), **options), "r", store=store)
        except kernai.KernaiError as error:
            self._fault(kind, f"resume: {error} {[row['event'] for row in rows]}")
            return
        if result.text != "done":
            self._fault(kind, f"the answer is {result.text!r}")
        again = [key for key, count in calls.items() if count > 1 and key.partition(":")[2] not in under_way]
        if again:
            self._fault(kind, f"performed twice: {again}")
        self.counts["resumed right"] += result.text == "done"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--twice", action="store_true", help="two presses: records may lack their end")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    trials = Trials(given.seed, is_twice=given.twice)
    for number in range(given.times):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)  # a process that hangs is an error
        try:
            trials.trial([*KINDS][number % len(KINDS)])
        except KeyboardInterrupt:
            trials.sender.join()
            if not given.twice:  # the second one may come after the run has ended
                trials.faults.append(f"a KeyboardInterrupt too many: {traceback.format_exc()}")
    for name, count in trials.counts.items():
        print(f"{name}: {count}")
    print(f"slowest end: {trials.slowest_end:.3f} s")
    for fault in trials.faults[:20]:
        print(fault)
    print(f"faults: {len(trials.faults)}")
    return 1 if trials.faults else 0


if __name__ == "__main__":
    sys.exit(main())
