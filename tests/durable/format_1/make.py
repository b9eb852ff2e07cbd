"""Makes recordings.jsonl.gz: runs recorded in format 1, and what resuming each of them from every cut gave.

    python3 tests/durable/format_1/make.py --again    # make them again, and say which differ from the stored ones

It was run with the last version that wrote format 1. The file is data now: a later version must read it as it is, so
with one that writes another format this refuses to run. Each line of the file is a recording: its `world` (see world.py),
`media` and `entries`, what its `replay` gave, and for each cut an index into `facts`, what resuming that cut gave;
null where this version broke down (a KeyError), which no later one need do.
Calls that run at once end in any order, so those recordings differ each time they are made; the others are the same,
but for those in which a timeout fell.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

Entry = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import kernai  # noqa: E402 - from the source tree beside this file
from kernai import KernaiError, Limits, MemoryStore, Result  # noqa: E402
from tests.durable.format_1.world import (  # noqa: E402
    RUN,
    Facts,
    Segment,
    Trouble,
    World,
    media_to_json,
    replayed,
    resumed,
    store_of,
)

FILE = Path(__file__).with_name("recordings.jsonl.gz")
COUNT = 200
RARE = 500  # what is wanted and has not come in so many attempts does not come
LONGEST = 70  # entries; a longer recording costs more cuts than it is worth
PLAIN = ("look", "look", "look2", "many", "facts", "picture", "nothing", "fail")
ODD = ("pay", "waits", "stop", "quit", "fail", "unknown")
TROUBLE = ("keyboard", "cancel", "cancel", "cancel", "exit", "exit", "stop", "stop timeout", "stop max_calls", "provider", "provider again")


class Failing(MemoryStore):
    """Appends so many times more."""

    left = 1_000_000

    def append(self, *given: Any, **terms: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise OSError("no space left on device")
        return super().append(*given, **terms)


# ----------------------------------------------------------------------------------------------------------- worlds


def command(name: str, content: str) -> str:
    return f'<block type="command" name="{name}">{content}</block>'


def line(draw: random.Random, odd: float, inner: str | None, tasks: bool | None) -> Any:
    """One response: a few calls, a plan, or something that is neither. `tasks` says whether those of a plan run at once."""
    chance = draw.random()
    if tasks is not None and chance < 0.5:
        return plan_block(draw, tasks)
    if chance > 0.94:
        return draw.choice([
            "only prose", '<block type="command" name="look">{"x": ', command("look", '{"z": 1}'), "<json>{}</json>",
            ["<final>cut o", "length"], command("/skills", ""), [command("look", '{"x": "8"}') + "and so", "length"],
        ])
    calls = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        chance = draw.random()
        if inner is not None and chance < 0.3:
            start = {"clerk": 4, "junior": 7}[inner]
            calls.append(command(inner, f"s{draw.randint(start, start + 2)}"))
        elif chance > 0.85:
            kind = draw.choice(["ticket", "letter", "broken"])
            calls.append(f'<block type="{kind}">{draw.randint(1, 9)}</block>')
        else:
            name = draw.choice(ODD) if draw.random() < odd else draw.choice(PLAIN)
            calls.append(command(name, json.dumps({"x": str(draw.randint(1, 9))})))
    return draw.choice(["", "", "first "]) + "".join(calls)


def plan(draw: random.Random, parallel: bool) -> dict[str, Any]:
    tasks: list[dict[str, Any]] = [
        {"id": "a", "input": f"s{draw.randint(0, 3)}", "parallel": parallel},
        {"id": "b/b", "input": f"s{draw.randint(0, 3)}", "parallel": parallel},
    ]
    if draw.random() < 0.5:
        tasks.append({"id": "c", "input": f"s{draw.randint(0, 3)}", "depends_on": ["a"], "parallel": False})
    return {"goal": "g", "strategy": "mixed", "tasks": tasks[:draw.choice([2, 3, 3])]}


def plan_block(draw: random.Random, parallel: bool) -> str:
    return f'<block type="plan">{json.dumps(plan(draw, parallel))}</block>'


def made_world(draw: random.Random, number: int) -> World:
    odd = draw.choice([0.1, 0.25, 0.4])
    output = draw.choice([None, None, None, None, "int", "record"])
    last = {None: "<final>did-end-all</final>", "int": "<final>7</final>", "record": '<final>{"n": 3}</final>'}[output]
    at_once, tasks_at_once = draw.random() < 0.35, draw.random() < 0.4
    given_plan = plan(draw, tasks_at_once) if number % 8 == 5 else None
    has_tasks = number % 2 == 1 or given_plan is not None
    concurrent = at_once or (has_tasks and tasks_at_once)
    tasks = tasks_at_once if has_tasks else None
    scripts: dict[str, list[Any]] = {}
    for name in [f"s{at}" for at in range(10)]:
        inner = "clerk" if name < "s4" else "junior" if name < "s7" else None
        lines = [line(draw, odd, inner, tasks=None) for _ in range(draw.choice([0, 1, 1, 2]))]
        scripts[name] = [*lines, last]
    scripts["go"] = [line(draw, odd, "clerk", tasks=tasks if at == 0 else None) for at in range(draw.choice([1, 2, 3]))]
    if output is not None and draw.random() < 0.5:
        scripts["go"].append("<final>of another type</final>")
    scripts["go"].append(last)
    if draw.random() < 0.5:
        scripts["go"] += [line(draw, odd, "clerk", tasks=tasks), last]
    if draw.random() < 0.15:
        scripts["go"] = [command("look", '{"x": "1"}')] * 4 + [last]
    if given_plan is None and draw.random() < 0.2:
        scripts["go"].insert(0, last)  # of a history, see World["history"]
        history = True
    else:
        history = False
    middleware = [name for name in ("retry", "pausing", "canned", "stopping") if draw.random() < (0.1, 0.3)[name == "retry"]]
    return {
        "scripts": scripts, "last": last, "at_once": at_once, "concurrent": concurrent, "output": output, "plan": given_plan, "history": history,
        "task_agents": ["a"] if given_plan and draw.random() < 0.5 else [],
        "media": draw.random() < 0.15, "state": not concurrent and draw.random() < 0.35, "middleware": middleware,
        "approve": draw.choice([None, None, None, "agents", "some"]), "max_steps": draw.choice([3, 6, 6, 8]),
        "on_prose": draw.choice(["accept", "correct"]), "on_truncated": draw.choice(["accept", "continue", "fail"]),
        "list_skills": draw.random() < 0.5,
        "async": [name for name in (*PLAIN[1:], *ODD) if draw.random() < 0.4],
        "idempotent": draw.choice([[], [], ["look", "many"]]),
        "limits": {} if concurrent or draw.random() < 0.8 else draw.choice([{"max_calls": 9}, {"max_tokens": 70}]),
    }


# ------------------------------------------------------------------------------------------------------- recordings


def trouble(draw: random.Random, store: Failing, *, calm: bool) -> Trouble:
    store.left = 1_000_000
    if calm:
        return Trouble()
    kind = draw.choice(["effect", "effect", "effect", "events", "store", "limits", "steps", "none"])
    made = Trouble(
        slow=draw.choice([(), range(1, 4), range(2, 9, 2), range(3, 9, 3)]),
        max_steps=draw.randint(1, 3) if kind == "steps" else None,
    )
    if kind == "effect":
        made.at = {draw.randint(1, 9): draw.choice(TROUBLE) for _ in range(draw.choice([1, 2, 3]))}
    elif kind == "events":
        made.events = draw.randint(1, 30)
    elif kind == "store":
        store.left = draw.randint(1, 12)
    elif kind == "limits":
        made.limits = draw.choice([
            Limits(max_depth=8, max_calls=draw.randint(1, 10)), Limits(max_depth=8, max_tokens=draw.randint(10, 90)),
            Limits(max_depth=8, repeated_calls=2), Limits(max_depth=8, max_cost=draw.choice([0.00001, 0.00006])),
            Limits(max_depth=1), Limits(max_depth=8, timeout=0),
            Limits(max_depth=8, timeout=0.03),
        ])
    return made


def decided(draw: random.Random, result: Result[Any] | None) -> dict[str, Any]:
    """Decisions on some of what waits; or else, now and then, another input."""
    pending = () if result is None else result.pending
    if not pending:
        return {"input": "more"} if result is not None and draw.random() < 0.6 else {}
    approvals: dict[str, Any] = {}
    for call in pending:
        if draw.random() < 0.75:
            changed = {"input": "s8"} if call.skill in ("clerk", "junior") else {"x": "21"}
            by_skill = isinstance(call.params, Mapping)
            approvals[call.call_id] = draw.choice([True, True, True, False, "no", {"params": changed} if by_skill else True])
    return {"approvals": approvals}


def recorded(world: World, draw: random.Random) -> Failing:
    """A run of several segments, all but some of the last ones in trouble."""
    store = Failing()
    result: Result[Any] | None = None
    segments = draw.choice([1, 2, 2, 2, 3, 3, 4, 5])
    calm_end = draw.random() < 0.4
    for at in range(segments):
        segment = Segment(world, trouble(draw, store, calm=calm_end and at == segments - 1))
        is_async = draw.random() < 0.5
        with suppress(KernaiError, OSError, ValueError, KeyboardInterrupt, SystemExit):
            before, result = result, None
            if not store.load(RUN):
                result = segment.execute(store, is_async=is_async)
            else:
                said_in = draw.choice(["skip", "skip", "retry", "fail"])
                result = segment.make_trouble(store, is_async=is_async, in_flight=said_in, **decided(draw, before))
        if len(store.load(RUN)) > LONGEST * 3 // 4:
            break
    store.left = 1_000_000
    return store


def scrubbed(entries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Entries without what the clock said."""
    for at, entry in enumerate(entries):
        data = entry["data"]
        if isinstance(data, dict):
            data = {key: 1 if key in ("duration_ms", "latency_ms") else value for key, value in data.items()}
        yield {**entry, "timestamp": f"2026-11-23T10:00:{at // 1000:02}.{at % 1000:03}Z", "data": data}


def below(reason: str) -> Callable[[Sequence[Entry]], bool]:
    """Whether a sub-run ended for this reason, and the run was resumed afterwards."""
    def has(entries: Sequence[Entry]) -> bool:
        ends = [at for at, one in enumerate(entries)
                if one["event"] == "result" and one["scope"] and one["data"]["stop_reason"] == reason]
        return bool(ends) and "run_resumed" in [one["event"] for one in entries[ends[0]:]]
    return has


def event_with(event: str, key: str) -> Callable[[Sequence[Entry]], bool]:
    """Whether such an event has this in its data."""
    return lambda entries: any(one["event"].endswith(event) and one["data"].get(key) for one in entries)


def undone(event: str) -> Callable[[Sequence[Entry]], bool]:
    """Whether a resume left out such an event."""
    return lambda entries: any(
        entries[seq]["event"] == event for one in entries if one["event"] == "run_resumed" for seq in one["data"]["dropped"])


def exits_in_a_task(entries: Sequence[Entry]) -> bool:
    return any(one["event"] == "skill_error" and one["task_id"] and one["data"]["exception"] == "SystemExit" for one in entries)


def goes_on_above(entries: Sequence[Entry]) -> bool:
    """Whether the user said more after a sub-run had ended together with the root."""
    ends = [at for at, one in enumerate(entries)
            if one["event"] == "result" and one["scope"] and one["data"]["stop_reason"] in ("cancelled", "max_calls", "max_tokens")]
    return bool(ends) and "input_added" in [one["event"] for one in entries[ends[0]:]]


#: what is rare; every second recording has one of these
WANTED: list[Callable[[Sequence[Entry]], bool]] = [
    below("cancelled"), below("timeout"), below("max_calls"), below("max_tokens"), below("max_cost"), below("max_steps"),
    below("guardrail"), below("error"), event_with("task_error", "not_run"), event_with("skill_error", "not_run"), event_with("_error", "interrupted"),
    undone("task_start"), undone("task_error"), undone("model_failed"), exits_in_a_task, goes_on_above,
]


def case(number: int) -> dict[str, Any]:
    """The recording of this number: the first that is neither too short nor too long, and has what is wanted."""
    wanted = WANTED[number // 2 % len(WANTED)] if number % 2 else None
    for attempt in range(1000):
        wanted = wanted if attempt < RARE else None
        draw = random.Random(1000 * number + attempt)
        world = made_world(draw, number)
        try:
            store = recorded(world, draw)
        except KeyError:  # a fault of this version: a call waits in a task that is left out, and was decided on
            continue
        entries = store.load(RUN)
        # a result that is "final" and has no text is a fault of this version, which no later one need read the same way
        damaged = any(one["event"] == "result" and one["data"]["error"] is not None and one["data"]["stop_reason"] == "final"
                      for one in entries)
        if 15 <= len(entries) <= LONGEST and not damaged and (wanted is None or wanted(entries)):
            break
    else:
        raise AssertionError(f"no recording for {number}")
    media = [media_to_json(one) for one in store.load_media(RUN)]
    return {"number": number, "world": world, "media": media, "entries": list(scrubbed(entries))}


# ----------------------------------------------------------------------------------------------------- expectations


def noticed(made: Mapping[str, Any], length: int, *, is_async: bool) -> list[Facts]:
    return json.loads(json.dumps(resumed(made["world"], store_of(made, length), is_async=is_async)))  # type: ignore[no-any-return]


def is_fault(facts: Facts) -> bool:
    """Whether this version itself broke down: no later one need do the same."""
    return facts.get("raised", "SystemExit") != "SystemExit" and not hasattr(kernai, facts["raised"])


def with_expectations(made: dict[str, Any]) -> dict[str, Any]:
    """A recording with what each of its cuts gives, which must be the same each time, also under asyncio."""
    number = made["number"]
    known: dict[str, int] = {}
    cuts: list[int | None] = []
    for length in range(1, len(made["entries"]) + 1):
        looks = {json.dumps(noticed(made, length, is_async=is_async)) for is_async in LOOKS[made["world"]["concurrent"]]}
        assert len(looks) == 1, f"recording {number}, cut at {length}, gives now this and now that"
        look = looks.pop()
        cuts.append(None if any(map(is_fault, json.loads(look))) else known.setdefault(look, len(known)))
    whole = json.loads(json.dumps(replayed(made["world"], store_of(made))))
    return {**made, "replay": whole, "cuts": cuts, "facts": [json.loads(one) for one in known]}


def made_and_resumed(number: int) -> dict[str, Any]:
    return with_expectations(case(number))


#: by whether calls run at once, how often each cut is resumed, and by which of the twins
LOOKS = {False: (False, True), True: (False, True, False, True)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the recordings of format 1, once.")
    parser.add_argument("--again", action="store_true", help="compare with the stored ones, and write nothing")
    parser.add_argument("--count", type=int, default=COUNT)
    chosen = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    with ProcessPoolExecutor(2) as pool:
        made = list(pool.map(made_and_resumed, range(chosen.count)))
    formats = {one["entries"][0]["data"]["format"] for one in made}
    if formats != {1}:
        print(f"this version writes format {formats}: the recordings of format 1 stay as they are", file=sys.stderr)
        return 1
    lines = [json.dumps(one, separators=(",", ":")) for one in made]
    if chosen.again:
        stored = gzip.decompress(FILE.read_bytes()).decode("ascii").split("\n")
        different = [at for at, one in enumerate(lines) if one != stored[at]]
        at_once = [at for at in different if made[at]["world"]["concurrent"]]
        print(f"{len(different)} recordings differ, {len(at_once)} of them because calls run at once")
        return 0 if different == at_once else 1
    FILE.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode("ascii"), 9, mtime=0))
    counts: Counter[str] = Counter()
    for one in made:
        for cut in one["cuts"]:
            counts["cuts"] += 1
            for facts in () if cut is None else one["facts"][cut]:
                counts[facts.get("raised") or facts.get("stop") or "replayed"] += 1
        counts["entries"] += len(one["entries"])
        for entry in one["entries"]:
            counts["event " + entry["event"]] += 1
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    print(f"{FILE.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
