"""Kills runs with SIGKILL and resumes them; prints what it found, and ends with 1 if something was lost.

    python3 dev.py kills --times 500 --seed 7

Each run is that of `durable_cases`, in a SQLite file, in processes of its own: this one forks them, so that a kill costs
milliseconds. A process notes each effect in a file before it does anything else, and each append once it has returned.

- at random: a process is killed at a random moment and the next one continues, until the run has ended; then another run.
- at appends: a process kills itself immediately before or after its nth append, for every n.
- again and again: every process dies at its third append.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import kernai  # noqa: E402 - from the source tree beside this file
from kernai import SqliteStore  # noqa: E402
from kernai.durable.store import Entry  # noqa: E402
from kernai.values.media import Media  # noqa: E402
from tests.durable.durable_cases import Performed, agent, call_faults, provider  # noqa: E402

#: skills that may be repeated with the same key; others must not be
IDEMPOTENT = ("look", "many", "nothing")
ANSWER = "all is done"
#: the number of processes after which a run counts as never ending
MOST_SEGMENTS = 500
#: a folder in memory, where there is one: what a killed process has written is there as it is on a disk
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Notes(Performed):
    """Lines in a file, which survive the death of their writer."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def lines(self) -> list[str]:
        """Return the complete lines; a kill may have cut off the last one."""
        return self._path.read_text().split("\n")[:-1]


class DyingStore(SqliteStore):
    """Kills its process immediately before or after its nth append; counts how many entries an append made."""

    def __init__(self, path: Path, acknowledged: Notes, die_at: int = 0, *, after: bool = False) -> None:
        self._acknowledged, self._left, self._after = acknowledged, die_at, after
        super().__init__(path, durability="process")

    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Sequence[Media], **terms: Any) -> Any:
        self._left -= 1
        if self._left == 0 and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        lease = super().append(run_id, first_seq, entries, media, **terms)
        self._acknowledged.note(first_seq + len(entries))
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return lease


class Trial:
    """One run, until it has ended, and what was found on the way."""

    def __init__(self, folder: Path, number: int, counts: Counter[str]) -> None:
        self.folder = folder / f"run-{number}"
        self.folder.mkdir()
        self.counts = counts
        self.effects, self.acknowledged = Notes(self.folder / "effects"), Notes(self.folder / "acknowledged")
        self.segments = 0
        self.entries: list[Entry] = []
        self.faults: list[str] = []
        counts["runs"] += 1

    def segment(self, die_at: int = 0, *, after: bool = False, kill: Callable[[int], None] | None = None) -> bool:
        """One process that starts or continues the run; returns whether the run has ended."""
        self.segments += 1
        self.counts["processes"] += 1
        process = os.fork()
        if process == 0:
            try:
                self._work(die_at, after)
            except BaseException:
                import traceback

                (self.folder / "fault").write_text(traceback.format_exc())
            os._exit(1)
        if kill is not None:
            kill(process)
        _, status = os.waitpid(process, 0)
        self.counts["killed"] += os.WIFSIGNALED(status)
        self._look()
        return (self.folder / "result").exists() or bool(self.faults)

    def _work(self, die_at: int, after: bool) -> None:
        store = DyingStore(self.folder / "runs.db", self.acknowledged, die_at, after=after)
        it = agent(self.effects, idempotent=IDEMPOTENT)
        begun = bool(store.load("r"))
        options: dict[str, Any] = {"store": store, "provider": provider()}
        if self.segments % 2:
            result = (
                kernai.resume(it, "r", in_flight="skip", **options) if begun
                else kernai.execute(it, "do everything", run_id="r", **options)
            )
        else:
            result = asyncio.run(
                kernai.aresume(it, "r", in_flight="skip", **options) if begun
                else kernai.aexecute(it, "do everything", run_id="r", **options)
            )
        (self.folder / "result.part").write_text(json.dumps([result.text, str(result.stop_reason)]))
        (self.folder / "result.part").rename(self.folder / "result")
        os._exit(0)

    def _look(self) -> None:
        fault = self.folder / "fault"
        if fault.exists():
            self.faults.append(fault.read_text())
            return
        before = self.entries
        with SqliteStore(self.folder / "runs.db") as store:
            self.entries = store.load("r")
        acknowledged = list(map(int, self.acknowledged.lines()))
        if self.entries[:len(before)] != before:
            self.faults.append("an entry that was there has changed")
        if len(self.entries) < max(acknowledged, default=0):
            self.faults.append("an entry is lost whose append had returned")
            self.counts["entries lost"] += 1

    def check(self) -> None:
        if not (self.folder / "result").exists():
            self.faults.append(f"it has not ended after {self.segments} processes")
        elif not self.faults:
            text, reason = json.loads((self.folder / "result").read_text())
            if (text, reason) != (ANSWER, "final"):
                self.faults.append(f"the answer is {text!r} ({reason})")
        performed = Counter(self.effects.lines())
        self.counts["effects"] += len(performed)
        self.counts["entries"] += len(self.entries)
        self.counts["skipped, outcome unknown"] += sum(
            one["event"] == "in_flight" and one["data"]["decision"] == "skip" for one in self.entries
        )
        faults = call_faults(self.entries, performed, idempotent=IDEMPOTENT)
        self.counts["lost, doubled or recorded twice"] += len(faults)
        self.faults += faults
        try:
            with SqliteStore(self.folder / "runs.db") as store:
                kernai.replay(agent(Performed(), idempotent=IDEMPOTENT), "r", store=store)
        except kernai.KernaiError as error:
            self.faults.append(f"the replay says: {error}")


def at_random(folder: Path, times: int, chance: random.Random, counts: Counter[str]) -> list[Trial]:
    """Kills processes until so many have died; the moments spread over what a whole run takes."""
    trials = [Trial(folder, 0, counts)]
    begun = time.monotonic()
    trials[0].segment()
    longest = time.monotonic() - begun
    while counts["killed"] < times:
        trial = Trial(folder, len(trials), counts)
        trials.append(trial)
        has_ended = False
        while not has_ended:
            # short lives more often than long ones, so that a run is killed several times
            moment = longest * chance.random() ** 2
            spared = counts["killed"] >= times or trial.segments > MOST_SEGMENTS
            has_ended = trial.segment(kill=None if spared else partial(_kill_after, moment))
    return trials


def _kill_after(seconds: float, process: int) -> None:
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)


def at_appends(folder: Path, counts: Counter[str], step: int) -> list[Trial]:
    """A process kills itself at its nth append; the next one ends the run."""
    trials = list[Trial]()
    for after in (False, True):
        for at in count(1, step):
            trials.append(Trial(folder, len(trials), counts))
            if trials[-1].segment(at, after=after):
                break  # the run has fewer appends
            counts["kill points"] += 1
            trials[-1].segment()
    return trials


def again_and_again(folder: Path, counts: Counter[str]) -> list[Trial]:
    """Every process dies at its third append, and the run ends all the same: the first of a resume takes the run."""
    trials = list[Trial]()
    for after in (False, True):
        trial = Trial(folder, len(trials), counts)
        trials.append(trial)
        while not trial.segment(3, after=after) and trial.segments < MOST_SEGMENTS:
            pass
    return trials


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dev.py kills", description="Kill runs and take them up again.")
    parser.add_argument("--times", type=int, default=500, help="how many processes are killed at random (default: 500)")
    parser.add_argument("--seed", type=int, default=None, help="of the random moments; printed, to be given again")
    parser.add_argument("--step", type=int, default=1, help="kill at every nth append alone (default: 1)")
    chosen = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    kinds: dict[str, Callable[[Path, Counter[str]], list[Trial]]] = {
        "at appends": lambda folder, counts: at_appends(folder, counts, chosen.step),
        "again and again": again_and_again,
        f"at random (seed {seed})": lambda folder, counts: at_random(folder, chosen.times, random.Random(seed), counts),
    }
    failed = 0
    for kind, perform in kinds.items():
        counts: Counter[str] = Counter()
        with tempfile.TemporaryDirectory(prefix="kernai-kills-", dir=MEMORY) as folder:
            for trial in perform(Path(folder), counts):
                trial.check()
                for fault in trial.faults:
                    failed += 1
                    print(f"{kind}, {trial.folder.name}, {trial.segments} processes: {fault}")
        print(f"{kind}: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    print(f"faults: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
