"""Kill and stop workers and their PostgreSQL while they work on runs; exit with 1 if anything was lost or done twice.

    python3 dev.py chaos --runs 1000 --seed 7

There are five kinds of runs: a workflow, an approval, a sub-agent, an async skill, and two skills in sequence. They are
submitted to worker processes on one real server. Meanwhile, at random, a worker is killed, or ended with SIGTERM, or
stopped for longer than its lease and then continued, or the server is killed and restarted. Waiting calls are approved.
If a run is blocked on a call that was in progress, the call is not repeated.

A worker notes each call of a skill or a model in a file before it makes the call, and each append after it has
returned. At the end these notes are compared with the stored entries.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import kernai  # noqa: E402 - from the source tree beside this file
from kernai import Agent, KernaiError, MockProvider, Skill, SkillContext  # noqa: E402
from kernai.durable.store import Entry  # noqa: E402
from kernai.postgres import PostgresStore, Workers  # noqa: E402
from kernai.values.media import Media  # noqa: E402
from tests.durable.durable_cases import call_faults, command, provider  # noqa: E402
from tests.durable.kills import Notes  # noqa: E402
from tests.loop.loop_cases import plan, task  # noqa: E402
from tests.postgres.server import Server  # noqa: E402

PLAN = plan(task("a", "task one", parallel=True), task("b", "task two", parallel=True), task("c", "task one", depends_on=["a", "b"]), strategy="mixed")
SCRIPTS = {
    "team": [PLAN, "<final>done</final>"],
    "pay": [command("pay"), command("look"), "<final>done</final>"],
    "ask": [command("ask_clerk", "task one"), command("book"), "<final>done</final>"],
    "nap": [command("nap") + command("book"), "<final>done</final>"],
    "book": [command("look"), command("book"), command("book"), "<final>done</final>"],
    "task one": [command("book"), "<final>one</final>"],
    "task two": [command("look"), command("nap"), "<final>two</final>"],
}
KINDS = ("team", "pay", "ask", "nap", "book")
IDEMPOTENT = "look"
#: seconds after which a run that has not ended counts as lost
PATIENCE = 900.0


class NotedStore(PostgresStore):
    acknowledged: Notes

    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media], **terms: Any) -> Any:
        lease = super().append(run_id, first_seq, entries, media, **terms)
        answers = sum(one["event"] == "llm_response" for one in entries)
        self.acknowledged.note(run_id, first_seq + len(entries), os.getpid(), answers)
        return lease


def agent(effects: Notes, models: Notes) -> Agent[Any]:
    """The agent of all runs; each call is noted with its idempotency key."""

    def note(ctx: SkillContext[Any]) -> str:
        effects.note(ctx.idempotency_key, os.getpid())
        time.sleep(0.01)
        return "done"

    async def nap(ctx: SkillContext[Any]) -> str:
        return note(ctx)

    inner = provider(SCRIPTS)

    def answer(messages: Any, model: Any) -> Any:
        models.note(os.getpid())
        time.sleep(0.02)
        return inner.call(messages, model, kernai.GenerationOptions(), lambda piece: None)

    def skill(name: str, **flags: Any) -> Skill:
        return Skill(name, execute=nap if name == "nap" else note, inputs={}, **flags)

    skills = [skill("look", idempotent=True), skill("book"), skill("nap"), skill("pay", approval=True)]
    model = MockProvider().on_call(answer)
    clerk = Agent(instructions="You help.", skills=skills, provider=model)
    helper = clerk.as_skill("ask_clerk", "Asks the clerk.")
    return Agent(instructions="You work.", skills=[*skills, helper], provider=model)


def work(folder: Path, dsn: str, lease: float) -> None:
    NotedStore.acknowledged = Notes(folder / "acknowledged")
    it = agent(Notes(folder / "effects"), Notes(folder / "models"))
    while True:
        try:
            store = NotedStore(dsn)
        except KernaiError:  # the server is down
            time.sleep(0.2)
        else:
            Workers(store, {"worker": it}, concurrency=8, lease=lease, grace=10).run()
            return


class Chaos:
    """A server and worker processes, which are killed and stopped at random."""

    def __init__(self, options: argparse.Namespace, folder: Path, server: Server) -> None:
        self.options, self.folder, self.server = options, folder, server
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.harmed: set[int] = set()
        self.ended: set[int] = set()
        self.longest_outage = 0.0
        self.workers: list[subprocess.Popen[bytes]] = []
        self.stopped: dict[int, float] = {}

    def start(self) -> None:
        command = [sys.executable, __file__, "--work", str(self.folder), self.server.dsn, str(self.options.lease)]
        log = (self.folder / "log").open("ab")
        self.workers.append(subprocess.Popen(command, stdout=log, stderr=log))
        log.close()

    def harm(self, chance: random.Random) -> None:
        for pid, until in [*self.stopped.items()]:
            if time.monotonic() > until:
                del self.stopped[pid]
                os.kill(pid, signal.SIGCONT)
        running = [one for one in self.workers if one.pid not in self.stopped]
        what = chance.choices(("kill", "stop", "end", "server"), (4, 3, 2, 1))[0]
        if what == "server":
            began = time.monotonic()
            self.server.kill()
            self.server.start()
            self.counts["server killed"] += 1
            self.longest_outage = max(self.longest_outage, time.monotonic() - began)
            return
        if len(running) < 2 or (what == "stop" and self.stopped):
            return
        victim = chance.choice(running)
        if what == "stop":
            os.kill(victim.pid, signal.SIGSTOP)
            self.stopped[victim.pid] = time.monotonic() + self.options.lease * 1.5
            self.counts["workers stopped for longer than the lease"] += 1
        else:
            victim.send_signal(signal.SIGKILL if what == "kill" else signal.SIGTERM)
            status = victim.wait(60)
            self.counts["workers killed" if what == "kill" else "workers ended by SIGTERM"] += 1
            began = any(int(words[2]) == victim.pid for words in self.notes("acknowledged"))
            if what == "end" and status != 0 and (began or status != -signal.SIGTERM):  # it may still be starting
                self.faults.append(f"a worker that was ended by SIGTERM ended with {status}")
            self.workers.remove(victim)
            self.start()
        (self.ended if what == "end" else self.harmed).add(victim.pid)

    def decide(self, store: PostgresStore) -> None:
        """Decide as a person would: approve calls, but do not repeat one that may have taken effect."""
        for status in ("waiting", "blocked"):
            for run in store.runs(status=status):
                if not run.pending:
                    self.faults.append(f"{run.run_id} is blocked: {run.why}")
                    store.close(run.run_id, "it is blocked")
                for call in run.pending:
                    if call.call_id not in run.decisions:
                        store.decide(run.run_id, call.call_id, True if status == "waiting" else "nobody knows whether it was done")
                        self.counts["approved" if status == "waiting" else "blocked on a call under way"] += 1

    def go(self) -> None:
        chance = random.Random(self.options.seed)
        with PostgresStore(self.server.dsn, create=True) as store:
            it = agent(Notes(self.folder / "effects"), Notes(self.folder / "models"))
            own = Workers(store, {"worker": it})
            for number in range(self.options.runs):
                own.submit("worker", f"{KINDS[number % len(KINDS)]} {number}", run_id=f"r{number}", tags={"kind": KINDS[number % len(KINDS)]})
            for _ in range(self.options.workers):
                self.start()
            done = threading.Event()

            def harming() -> None:
                while not done.wait(chance.uniform(0.5, 1.5) * self.options.every):
                    self.harm(chance)

            thread = threading.Thread(target=harming)
            thread.start()
            began = time.monotonic()
            left = self.options.runs
            while left and time.monotonic() - began < PATIENCE:
                with suppress(KernaiError, ValueError):  # the server is down, or the run has continued
                    self.decide(store)
                    left = sum(len(store.runs(status=one).page(2000)) for one in ("queued", "running", "abandoned", "waiting", "blocked"))
                time.sleep(0.5)
            self.counts["seconds"] = round(time.monotonic() - began)
            done.set()
            thread.join()
            for pid in self.stopped:
                os.kill(pid, signal.SIGCONT)
            for one in self.workers:
                one.send_signal(signal.SIGTERM)
            for one in self.workers:
                one.wait(60)
            self.check(store)

    def check(self, store: PostgresStore) -> None:
        """Compare the stored entries with the notes."""
        performed = Counter(words[0] for words in self.notes("effects"))
        ends: dict[str, int] = {}
        kept: Counter[int] = Counter()
        for run_id, end, pid, answers in self.notes("acknowledged"):
            ends[run_id] = max(ends.get(run_id, 0), int(end))
            kept[int(pid)] += int(answers)
        for run in store.runs():
            entries = store.load(run.run_id)
            if run.status != "final":
                self.faults.append(f"{run.run_id} is {run.status}: {run.why or entries[-1]['data']}")
            if len(entries) != run.length or len(entries) < ends.get(run.run_id, 0):
                self.faults.append(f"{run.run_id} has lost entries")
            self.faults += call_faults(entries, performed, run.run_id, idempotent=[IDEMPOTENT])
            self.counts["runs"] += 1
            self.counts["entries"] += len(entries)
            self.counts["answers"] += sum(one["event"] == "llm_response" for one in entries)
        self.counts["skills called"] = len(performed)
        self.counts["idempotent skills called again"] = performed.total() - len(performed)
        made = Counter(int(words[0]) for words in self.notes("models"))
        self.counts["model calls"] = made.total()
        self.counts["model calls whose answer is not on record"] = made.total() - self.counts["answers"]
        self.counts["seconds of the longest outage"] = round(self.longest_outage)
        survived = self.longest_outage + 3 < self.options.lease  # plus 3 seconds to reconnect
        thrown = {one: made[one] - kept[one] for one in made}
        for one in made.keys() - self.harmed if survived else ():
            if thrown[one]:
                how = "ended by SIGTERM" if one in self.ended else "not harmed"
                self.faults.append(f"a worker that was {how} threw {thrown[one]} answers away")

    def notes(self, name: str) -> list[list[str]]:
        return [line.split(" ") for line in Notes(self.folder / name).lines()]


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill and stop workers and their PostgreSQL while they work.")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--lease", type=float, default=15.0, help="seconds")
    parser.add_argument("--every", type=float, default=1.5, help="seconds between two faults")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(Path(options.work[0]), options.work[1], float(options.work[2]))
        return 0
    if (why := Server.why_not()) is not None:
        print(f"chaos needs PostgreSQL: {why}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="kernai-chaos-") as folder, Server(durable=True) as server:
        chaos = Chaos(options, Path(folder), server)
        chaos.go()
        for name, count in sorted(chaos.counts.items()):
            print(f"{name}: {count:,}")
        for fault in chaos.faults[:20]:
            print(f"FAULT: {fault}")
        print(f"faults: {len(chaos.faults)}")
        if chaos.faults:
            print((Path(folder) / "log").read_text()[-3000:], file=sys.stderr)
        return 1 if chaos.faults else 0


if __name__ == "__main__":
    sys.exit(main())
