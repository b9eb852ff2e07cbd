"""Changed recordings and changed agents: the difference is found and reported, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from itertools import cycle
from typing import Any

import pytest

import kernai
from kernai import Agent, Context, KernaiError, MemoryStore, ReplayDivergenceError, RunConflictError, Skill, events
from kernai.durable.history import History
from kernai.durable.recorded_run import RecordedRun
from kernai.durable.store import Entry
from kernai.testing import store_rules
from kernai.testing.run_store_rules import started
from tests.durable.durable_cases import EACH_WAY, WAYS, Performed, Stored, Way, agent, command, cut, provider

#: events with outcomes, which the replay uses instead of comparing them
OUTCOMES = {
    "llm_response", "skill_result", "skill_error", "protocol_result", "protocol_error", "builtin_result", "progress",
    "context_saved",
}
#: fields that describe the agent and its model, which may change
OF_THE_AGENT = {"model", "agent", "metadata", "format", "rules"}


def changed(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every way to change one thing in a JSON value: what is changed (without a list's index), and the new value."""
    if isinstance(value, dict):
        for key in value:
            yield f"{path}.{key} gone", {name: one for name, one in value.items() if name != key}
            for what, other in changed(value[key], f"{path}.{key}"):
                yield what, {**value, key: other}
        yield f"{path} more", {**value, "more": 1}
    elif isinstance(value, list):
        for at, one in enumerate(value):
            yield f"{path}[] gone", value[:at] + value[at + 1:]
            for what, other in changed(one, f"{path}[]"):
                yield what, [*value[:at], other, *value[at + 1:]]
        yield f"{path} one more", [*value, {"role": "user", "content": "more"}]
    elif isinstance(value, str):
        yield f"{path} a text", value + "x"
    elif isinstance(value, bool) or value is None:
        yield f"{path} a truth", not value
    else:
        yield f"{path} a number", value + 1


def tampered(entries: list[Entry]) -> Iterator[tuple[str, list[Entry]]]:
    """Recordings in which one compared thing differs, and what it is: each kind of difference once."""
    done: set[tuple[str, bool, str]] = set()
    for seq, entry in enumerate(entries):
        kind, data = entry["event"], entry["data"]
        if kind in OUTCOMES:
            continue
        others = [
            *((what, {**entry, field: other}) for field in ("step", "depth", "task_id") for what, other in changed(entry[field], field)),
            *((f"data{what}", {**entry, "data": other}) for what, other in changed(data) if not _is_not_compared(kind, data, other)),
        ]
        for what, other in others:
            if what.startswith("data.definition") and (what.endswith(" more") or (".options." in what and "gone" in what)):
                continue  # what a newer kernai records of an agent, or an older one did not: there is nothing to compare it with
            same = kind, bool(entry["scope"]), what
            if same not in done:
                done.add(same)
                yield f"{seq} {kind} {what}", [*entries[:seq], other, *entries[seq + 1:]]
        if seq < len(entries) - 1:  # without its last entry, it is the recording of an interrupted run
            yield f"{seq} {kind} is gone", entries[:seq] + entries[seq + 1:]
        yield f"{seq} {kind} twice", [*entries[:seq + 1], *entries[seq:]]


def _is_not_compared(kind: str, data: Any, other: Any) -> bool:
    if kind == "messages_sent":
        return _without_words(data) == _without_words(other)
    if not isinstance(data, dict):
        return False
    differing = {key for key in data.keys() | other.keys() if data.get(key, data) != other.get(key, data)}
    ignored = {"duration_ms"} | (OF_THE_AGENT if kind == "run_start" else set())
    if kind == "run_start" and data["input"] == "do everything":
        ignored |= {"run_id", "input", "history"}  # the replay takes them from the recording
    return differing <= ignored


def _without_words(messages: list[Any]) -> list[Any]:
    """The messages without the system message, and with a mark in place of each of the runtime's messages."""
    return [
        "runtime" if one.get("role") == "user" and "content" in one and not str(one["content"]).startswith("do every") else one
        for one in messages if one.get("role") != "system"
    ]


@pytest.mark.slow
def test_a_change_in_any_compared_event_of_a_recording_is_detected(whole: MemoryStore) -> None:
    entries = json.loads(json.dumps(whole.load("r")))
    media = whole.load_media("r")
    missed, odd = [], []
    for what, recording in tampered(entries):
        context = Context()
        for one in media:
            context.media_store.put(one)
        try:
            if kernai.replay(agent(Performed()), recording=recording, context=context).changes:
                continue
        except KernaiError:
            continue
        except Exception as error:
            odd.append(f"{what}: {type(error).__name__}: {error}")
        else:
            missed.append(what)
    assert (missed, odd) == ([], [])


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "a skill is gone": ({"without": "look"}, "skill_execute"),
    "another skill is gone": ({"without": "picture"}, "skill_execute"),
    "no skills at all": ({"skills": None}, "skill_execute"),
    "a protocol is gone": ({"protocols": []}, "protocol_execute"),
    "calls one by one": ({"parallel_skills": False}, "skill_execute"),
    "plans are notes": ({"workflows": False}, "workflow_start"),
}


@pytest.mark.parametrize("changes, kind", CHANGES.values(), ids=CHANGES)
@EACH_WAY
def test_resuming_with_a_diverging_agent_names_the_first_different_event_and_changes_nothing(
    whole: MemoryStore, changes: dict[str, Any], kind: str, way: Way
) -> None:
    store, performed = cut(whole, len(whole.load("r")) - 2), Performed()
    entries, it = store.load("r"), agent(performed)
    if "without" in changes:
        changes = {"skills": [one for one in it.skills or () if getattr(one, "name", "") != changes["without"]]}
    with pytest.raises(ReplayDivergenceError) as caught:
        way.resume(it.replace(**changes), "r", store=store, provider=provider())
    error = caught.value
    assert (entries[error.seq]["event"], error.event) == (kind, kind), str(error)
    assert f"event {error.seq} ({error.event}" in str(error)
    assert error.expected
    assert error.got
    assert store.load("r") == entries
    assert not performed.calls


@EACH_WAY
def test_events_that_are_not_compared_may_change_and_the_run_continues(whole: MemoryStore, way: Way) -> None:
    store = cut(whole, len(whole.load("r")) - 5)
    it = agent(Performed(), instructions="You do it otherwise.", name="newer", model=kernai.Model("newer", ("text", "vision")))
    assert way.resume(it, "r", store=store, provider=provider(), in_flight="skip").ok
    entries = whole.load("r")
    entries[-1]["data"]["usage"]["cost"] *= 1 + 1e-15  # the last digit, as if the costs were added up in another order
    assert kernai.replay(agent(Performed()), recording=entries).result


def test_a_run_of_a_newer_format_is_refused_with_what_to_do(whole: MemoryStore) -> None:
    entries = whole.load("r")
    entries[0]["data"]["format"] = events.RECORDING_FORMAT + 1
    run = Stored(WAYS[0], agent(Performed()), provider())
    run.store.append("r", 0, entries[:20], [])
    for act in run.resume, run.replay, lambda: kernai.fork(run.store, "r", at_step=0, run_id="s"):
        with pytest.raises(KernaiError, match=r"format 3, and this kernai reads up to 2: update kernai"):
            act()
    assert (len(run.load()), run.store.load("s")) == (20, [])


def damaged(entries: Sequence[Entry]) -> Iterator[list[Any]]:
    """A recording with one thing wrong in it, each in turn."""
    junk: tuple[Any, ...] = (5, [{}])
    for at, entry in enumerate(entries):
        before, after = list(entries[:at]), list(entries[at + 1:])
        others: list[list[Any]] = [[], [entry, entry], [5], [{}]]
        yield from ([*before, *one, *after] for one in others)
        for name in entry:
            yield [*before, {key: one for key, one in entry.items() if key != name}, *after]
            yield from ([*before, {**entry, name: one}, *after] for one in junk)
        data = entry["data"]
        for name in data if isinstance(data, dict) else ():
            yield [*before, {**entry, "data": {key: one for key, one in data.items() if key != name}}, *after]
            yield from ([*before, {**entry, "data": {**data, name: one}}, *after] for one in junk)


def test_a_recording_with_anything_wrong_in_it_is_a_clear_error_or_continues_as_before() -> None:
    skill, script = Skill("look", execute=lambda: "seen", inputs={}), {"go": [command("look"), "<final>done</final>"]}
    it, store = Agent(instructions="x", skills=[skill]), MemoryStore()
    options: dict[str, Any] = {"provider": provider(script)}
    whole = kernai.execute(it, "go", store=store, run_id="r", **options)

    class Given(MemoryStore):
        entries: list[Any]

        def load(self, run_id: str, from_seq: int = 0) -> list[Entry]:
            return deepcopy(self.entries)

        def append(self, *given: Any, **terms: Any) -> Any:
            raise RunConflictError("nothing is to be appended to what is damaged")

    refused, given = 0, Given()
    for given.entries, resumes in zip(damaged(store.load("r")), cycle((True, False)), strict=False):
        try:
            replayed = None if resumes else kernai.replay(it, "r", store=given).result
            result = kernai.resume(it, "r", store=given, **options) if resumes else replayed
        except KernaiError:
            refused += 1
        else:
            assert result is None or isinstance(result.text, str | None), whole
    assert refused > 100


@pytest.mark.parametrize("scope, found", [("0.a", ["0.a/1.0"]), ("0.b", []), ("1.0", ["1.0/0.0"])])
def test_approvals_below_a_scope_are_those_of_its_own_calls_since_the_run_was_resumed(scope: str, found: list[str]) -> None:
    earlier, later = (
        [store_rules.entry("approval_given", {"call_id": call, "decision": True, "by": None}) for call in calls]
        for calls in (["0.a/0.0", "0.b/0.0"], ["0.a/1.0", "1.0/0.0", "1.1"])
    )
    resumed = store_rules.entry("run_resumed", {"from_seq": 3, "dropped": [], "format": 2})
    data = {"call_id": scope, "skill": "clerk", "error": "", "exception": None, "not_run": True}
    entries = [started(), *earlier, resumed, *later, {**store_rules.entry("skill_error", data), "stop": "cancelled"}]
    assert History.truncated(RecordedRun("r", entries)).never_ran == {scope, *found}


def changed_at(at: int, **changes: Any) -> Callable[[list[Entry]], list[Any]]:
    """A function that changes the entry at that index, or adds one with these changes after the last one."""
    return lambda entries: [*entries[:at], {**entries[min(at, len(entries) - 1)], **changes}, *entries[at + 1:]]


def started_with(**changes: Any) -> Callable[[list[Entry]], list[Any]]:
    return lambda entries: changed_at(0, data={**entries[0]["data"], **changes})(entries)


NO_RESUME: list[Any] = [None, {}, {"dropped": 1.5}, {"dropped": [[]]}, {"dropped": ["a", 1]}, {"dropped": [999]}, {"dropped": [-1]}, {"dropped": [True]},
    {"dropped": [], "rules": {"": {"repair": "x"}}}]
NO_DATA: list[Any] = [None, [], "x", 5]
NO_CALL = {"call_id": "0", "skill": "x", "params": {}, "reason": "", "metadata": {}}
NO_RULES: list[Any] = [{"on_prose": 5}, {"output_retries": "x"}, {"repair": "x"}, 5]
DAMAGE: list[tuple[Callable[[list[Entry]], list[Any]], str]] = [
    (lambda entries: entries[1:], "run 'r' does not begin with its run_start"),
    (changed_at(0, event="result"), "recording of run 'r' is damaged"),
    (changed_at(0, data={}), "recording of run 'r' is damaged"),
    (started_with(format="x"), "run 'r' was recorded in format 'x'"),
    (changed_at(6, scope="9.9"), r"step 0 of 9\.9\)\n  recorded: final\n  now:      the run never gets to this event"),
    (changed_at(1, data={"texts": [1], "by": "instructions"}), r"\(trust_added\) cannot be read"),
    (changed_at(6, event="approval_requested", data={**NO_CALL, "untrusted": ["x"]}), r"\(approval_requested\) cannot be read"),
    *[(changed_at(3, data=odd), r"\(llm_response\) cannot be read: its data is a \w+, not an object") for odd in NO_DATA],
    *[(changed_at(6, event="context_saved", shared=odd), r"cannot be read: its 'shared' is not a list") for odd in ("x", [1])],
    *[(changed_at(6, event="run_resumed", data=odd), r"its event 6 \(run_resumed\) cannot be read") for odd in NO_RESUME],
    *[(started_with(rules=odd), r"its event 0 \(run_start\) cannot be read") for odd in NO_RULES],
]


@pytest.mark.parametrize("damage, fault", DAMAGE)
def test_a_damaged_recording_is_a_clear_error(damage: Callable[[list[Entry]], list[Any]], fault: str) -> None:
    def pay(to: kernai.Trusted[str]) -> str:
        return to

    store, damaged, model = MemoryStore(), MemoryStore(), provider({"go": ["<final>done</final>"]})
    it = Agent(instructions="x", provider=model, skills=[Skill("pay", execute=pay)])
    kernai.execute(it, "go", store=store, run_id="r")
    entries = store.load("r")[:-1]
    assert [entries[3]["event"], len(entries)] == ["llm_response", 6]
    damaged.append("r", 0, damage(entries), [])
    with nullcontext() if "trust_added" in fault else pytest.raises(KernaiError, match=fault):  # a replay judges no values
        kernai.replay(it, "r", store=damaged)
    for way in WAYS[::2]:
        with pytest.raises(KernaiError, match=fault):
            way.resume(it, "r", store=damaged)
