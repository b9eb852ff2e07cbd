"""Durable runs: streams, Ctrl-C, the number of appends, and that no credential is stored."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import UserDict
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import pytest
from annotated_types import Predicate

import kernai
from kernai import Agent, Context, Event, MemoryStore, MockProvider, Recorder, Result, Skill, SkillContext, Stop, Task
from kernai.errors import INTERRUPTED
from kernai.middleware import Hooks, retry
from tests.durable.durable_cases import AT_ONCE, EACH_WAY, Appends, Performed, Stored, Way, agent, command, provider
from tests.ways import LIVE_ONLY

LOOK, MANY = command("look", '{"at": "x"}'), command("many", "2")
LIVE, SYNC = LIVE_ONLY, Way(is_async=False, listens=False)
#: seconds after which a test that hangs fails; nothing takes that long otherwise
PATIENCE = 20


# ----------------------------------------------------------------------------------------------------------- streams


def streamed(is_async: bool, *given: Any, **options: Any) -> tuple[list[Event], Result]:
    if not is_async:
        with kernai.stream(*given, **options) as sync:
            return list(sync), sync.result

    async def go() -> tuple[list[Event], Result]:
        async with kernai.astream(*given, **options) as stream:
            return [event async for event in stream], stream.result

    return asyncio.run(go())


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stream_resumes_with_the_options_of_a_resume(is_async: bool) -> None:
    scripts = {"go": [command("pay"), "<final>paid</final>", "<final>welcome</final>"]}
    it = Agent(instructions="x", skills=[Skill("pay", execute=lambda: "paid", inputs={}, approval=True)])
    options: dict[str, Any] = {"store": MemoryStore(), "provider": provider(scripts), "run_id": "r"}
    assert not streamed(is_async, it, "go", **options)[1].ok
    waits = streamed(is_async, it, None, **options)[1]
    assert [call.call_id for call in waits.pending] == ["0.0"]
    assert streamed(is_async, it, None, resume=True, approvals={"0.0": True}, **options)[1].text == "paid"
    _, result = streamed(is_async, it, "thank you", resume=True, **options)
    assert (result.text, len(result.messages)) == ("welcome", 6)
    with pytest.raises(kernai.RunConflictError):
        streamed(is_async, it, "again", **options)
    with pytest.raises(TypeError, match="approvals, in_flight and agents are for a run that is resumed: pass resume=True"):
        streamed(is_async, it, "again", approvals={"0.0": True}, **options)
    for run_id, error in ((None, r"pass store=\.\.\. and run_id="), (5, "run_id must be .*, got 5")):
        with pytest.raises((TypeError, ValueError), match=error):
            (kernai.astream if is_async else kernai.stream)(it, resume=True, **{**options, "run_id": run_id})
    with pytest.raises(TypeError, match="unknown option 'accept'; it is for a run that is resumed"):
        streamed(is_async, it, "again", resume=True, accept=[], **options)
    for name, hint in (("resume", ""), ("approvals", "; it is for a run that is resumed")):
        with pytest.raises(TypeError, match=f"unknown option '{name}'{hint}"):
            kernai.execute(it, "again", **{**options, name: True})


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stream_with_a_store_yields_the_recorded_events_and_live_chunks(is_async: bool) -> None:
    store = MemoryStore()
    events, result = streamed(is_async, agent(Performed()), "do everything", provider=provider(), store=store, run_id="r")
    assert result.ok
    assert [one.type for one in events if one.type not in LIVE] == [one["event"] for one in store.load("r")]
    assert any(one.type in LIVE for one in events)
    events, resumed = streamed(is_async, agent(Performed()), None, store=store, run_id="r")
    assert ([one.type for one in events], resumed) == (["result"], result)


class Slow(MemoryStore):
    """One append signals that it has begun and waits to be released; then it stores the entries, or fails.

    It is number `at`, or the one that brings the root's first event of that type.
    """

    def __init__(self, at: int | str, failure: BaseException | None = None) -> None:
        super().__init__()
        self.at, self.failure, self.count = at, failure, 0
        self.entered, self.leave = threading.Event(), threading.Event()
        self.types: list[str] = []

    def append(self, run_id: str, first_seq: int, entries: Sequence[dict[str, Any]], media: Any, **terms: Any) -> Any:
        self.count += 1
        brings = [entry["event"] for entry in entries if not entry["scope"]]
        if not self.entered.is_set() and (self.at == self.count or self.at in brings):
            self.entered.set()
            assert self.leave.wait(PATIENCE)
            if self.failure is not None:
                raise self.failure
        lease = super().append(run_id, first_seq, entries, media, **terms)
        self.types += [entry["event"] for entry in entries]
        return lease


async def appending(store: Slow) -> asyncio.Future[Result]:
    """A run whose store has begun the append that it waits in."""
    going = asyncio.ensure_future(
        kernai.aexecute(agent(Performed()), "do everything", provider=provider(), store=store, run_id="r")
    )
    assert await asyncio.to_thread(store.entered.wait, PATIENCE)
    return going


async def turns() -> None:
    """As many turns of the event loop as all that is ready may need."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("at", [1, 2, 3, "workflow_complete", "result"])
@pytest.mark.parametrize("times", [1, 2])
async def test_a_run_cancelled_during_an_append_ends_after_the_append(at: int | str, times: int) -> None:
    store = Slow(at)
    going = await appending(store)
    for _ in range(times):
        going.cancel()
        await turns()
    assert not going.done()
    store.leave.set()
    with pytest.raises(asyncio.CancelledError):
        await going
    kept = [entry["event"] for entry in store.load("r")]
    assert kept == store.types
    assert kept[-1] == "result"
    # a call may have been in progress during the append
    result = await kernai.aresume(agent(Performed()), "r", store=store, provider=provider(), in_flight="retry")
    assert result.ok


async def test_an_append_that_fails_while_its_run_is_cancelled_is_reported() -> None:
    store = Slow(2, OSError("the disk is full"))
    going = await appending(store)
    going.cancel()
    await asyncio.sleep(0)
    store.leave.set()
    with pytest.raises(OSError, match="the disk is full"):
        await going


def test_an_event_loop_that_ends_waits_for_the_last_append_of_a_run_that_nobody_awaits() -> None:
    store = Slow("result")

    async def main() -> None:
        going = await appending(store)
        asyncio.get_running_loop().call_later(0.1, store.leave.set)
        del going

    asyncio.run(main())  # which cancels every task there is
    assert [entry["event"] for entry in store.load("r")][-1] == "result"


def test_a_system_exit_in_a_store_ends_its_run_but_not_the_event_loop() -> None:
    store = Slow(2, SystemExit(7))
    store.leave.set()

    async def main() -> str:
        with pytest.raises(SystemExit):
            await kernai.aexecute(agent(Performed()), "do everything", provider=provider(), store=store, run_id="r")
        await asyncio.sleep(0)
        return "continues"

    assert asyncio.run(main()) == "continues"


@pytest.mark.parametrize("error", [StopIteration, GeneratorExit])
@EACH_WAY
def test_a_stop_iteration_from_a_store_is_a_failure_and_not_the_end_of_the_stream(way: Way, error: type[BaseException]) -> None:
    it = Agent(instructions="x", provider=MockProvider("<final>done</final>"))
    with pytest.raises(RuntimeError, match=f"{error.__name__}: the disk is full"):
        way.execute(it, "go", store=Appends(0, error), run_id="r")
    with pytest.raises(RuntimeError, match=error.__name__):
        list(kernai.stream(it, "go", store=Appends(0, error), run_id="r"))


@pytest.mark.parametrize("parallel", [False, True])
async def test_a_call_is_not_made_if_the_run_is_cancelled_while_the_call_is_being_recorded(parallel: bool) -> None:
    paid: list[int] = []

    def pay(amount: int) -> None:
        paid.append(amount)

    clerk = Agent(
        instructions="", parallel_skills=parallel, skills=[Skill("pay", execute=pay)],
        provider=provider({"Pay.": [command("pay", "1") + command("pay", "2"), "<final>Done.</final>"]}),
    )
    store = Slow("skill_execute")
    going = asyncio.ensure_future(kernai.aexecute(clerk, "Pay.", store=store, run_id="r"))
    assert await asyncio.to_thread(store.entered.wait, PATIENCE)
    going.cancel()
    await asyncio.sleep(0)
    store.leave.set()
    with pytest.raises(asyncio.CancelledError):
        await going
    errors = [entry["data"] for entry in store.load("r") if entry["event"] == "skill_error"]
    assert [data.get("not_run") for data in errors] == [True, True] if parallel else [True]
    assert paid == []
    result = await kernai.aresume(clerk, "r", store=store)
    assert (result.text, sorted(paid)) == ("Done.", [1, 2])


@pytest.mark.parametrize("at", ["llm_response", "final", "result"])
@pytest.mark.parametrize("is_async", [False, True])
def test_events_are_in_the_store_even_when_the_run_ends_in_their_observer(is_async: bool, at: str) -> None:
    def interrupted(event: Event) -> None:
        if event.type == at:
            raise KeyboardInterrupt

    async def cancelled(event: Event) -> None:
        if event.type == at:
            tasks[0].cancel()
            await asyncio.sleep(PATIENCE)

    async def cancelled_run() -> None:
        tasks.append(asyncio.ensure_future(kernai.aexecute(polite, "Hi", on_event=cancelled, **options)))
        await tasks[0]

    tasks: list[Any] = []
    store, model, recorder = Appends(), MockProvider("<final>Hello!</final>"), Recorder()
    polite = Agent(instructions="", provider=model)
    options: dict[str, Any] = {"store": store, "run_id": "r", "recorder": recorder}
    with pytest.raises(asyncio.CancelledError if is_async else KeyboardInterrupt):
        asyncio.run(cancelled_run()) if is_async else kernai.execute(polite, "Hi", on_event=interrupted, **options)
    assert [kind for batch in store.batches for kind in batch] == [event.type for event in recorder.entries]
    assert kernai.resume(polite, "r", store=store).text == "Hello!"
    assert len(model.calls) == 1


@pytest.mark.parametrize("other", ["closes", "takes", "drops"])
async def test_closing_a_stream_waits_for_its_last_append_even_if_others_leave_it_too(other: str) -> None:
    store = Slow("result")
    events = kernai.astream(agent(Performed()), "do everything", provider=provider(), store=store, run_id="r")
    await anext(events)
    closing = [asyncio.ensure_future(events.aclose())]
    assert await asyncio.to_thread(store.entered.wait, PATIENCE)
    if other == "closes":
        closing.append(asyncio.ensure_future(events.aclose()))
    elif other == "drops":
        events.__del__()
    else:
        taking = asyncio.ensure_future(anext(events))
        await turns()
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
    await turns()
    assert not any(one.done() for one in closing)
    store.leave.set()
    await asyncio.gather(*closing)
    assert [entry["event"] for entry in store.load("r")][-1] == "result"


@pytest.mark.filterwarnings("error")
def test_a_stream_whose_event_loop_ends_before_it_has_begun_leaves_nothing() -> None:
    store = MemoryStore()

    async def main() -> None:
        events = kernai.astream(agent(Performed()), "do everything", provider=provider(), store=store, run_id="r")
        taking = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        assert not taking.done()

    asyncio.run(main())
    gc.collect()
    assert store.load("r") == []


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stream_without_an_input_needs_a_run_to_continue(is_async: bool) -> None:
    for options in ({}, {"store": MemoryStore()}, {"run_id": "r"}):
        with pytest.raises(TypeError, match="input"):
            streamed(is_async, agent(Performed()), None, **options)
    with pytest.raises(kernai.KernaiError, match="the store has no run 'r'"):
        streamed(is_async, agent(Performed()), None, store=MemoryStore(), run_id="r")


# ------------------------------------------------------------------------------------------------------------ Ctrl-C


@EACH_WAY
def test_an_interrupt_before_the_first_event_leaves_no_record(way: Way) -> None:
    class Interrupted(UserDict[str, Any]):
        def __iter__(self) -> Any:
            raise KeyboardInterrupt

    run = Stored(way, Agent(instructions="x"), {"go": ["done"]})
    with pytest.raises(KeyboardInterrupt):
        run.execute(metadata=Interrupted(user=7), recorder=(recorder := Recorder()))
    assert (run.load(), list(recorder.entries)) == ([], [])
    assert run.execute().text == "done"


def test_an_event_is_stored_once_if_ctrl_c_interrupts_its_recording() -> None:
    contexts: list[SkillContext[Context]] = []

    def look(ctx: SkillContext[Context]) -> str:
        contexts.append(ctx)
        return "seen"

    class Interrupted(Recorder):
        struck = False

        def record(self, event: Event) -> None:
            if event.type == "skill_result" and not self.struck:
                self.struck = True
                contexts[0].emit("meanwhile")
                raise KeyboardInterrupt
            super().record(event)

    run = Stored(SYNC, Agent(instructions="x", skills=[Skill("look", execute=look)]), {"go": [command("look")]})
    with pytest.raises(KeyboardInterrupt):
        run.execute(recorder=Interrupted())
    assert (len(run.data("skill_result")), len(run.data("progress"))) == (1, 1)
    assert run.replay() is None
    assert (run.resume().ok, len(contexts)) == (True, 1)


@pytest.mark.parametrize("error", [Stop("guardrail", "no"), SystemExit(3)], ids=["Stop", "SystemExit"])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_raised_before_the_first_task_ends_the_run_as_what_it_is(
    is_async: bool, stored: bool, error: BaseException
) -> None:
    class Quota(Hooks):
        def on_run_start(self, run: object) -> None:
            raise error

    one = Agent(instructions="x", provider=provider({}), middleware=[Quota()])
    options: dict[str, Any] = {"store": MemoryStore(), "run_id": "r"} if stored else {}
    tasks, recorder = [Task("a", "one"), Task("b", "two")], Recorder()
    options["recorder"] = recorder
    with pytest.raises(SystemExit) if isinstance(error, SystemExit) else nullcontext():
        result = asyncio.run(kernai.aexecute_plan(one, tasks, **options)) if is_async else kernai.execute_plan(one, tasks, **options)
        assert result.stop_reason == "guardrail"
        assert [one.type for one in recorder.entries][-2:] == ["workflow_error", "result"]


def test_ctrl_c_during_a_replay_or_a_resume_is_not_a_difference() -> None:
    def check(_: int) -> bool:
        for press in presses:
            raise press
        return True

    presses: list[KeyboardInterrupt] = []
    run = Stored(SYNC, Agent(instructions="x", output=Annotated[int, Predicate(check)]), {"go": ["<final>1</final>"]})
    run.execute()
    presses.append(KeyboardInterrupt())
    for again in (run.replay, lambda: run.resume(input="more")):
        with pytest.raises(KeyboardInterrupt):
            again()


def test_a_replay_is_not_content_with_a_run_that_says_it_was_interrupted() -> None:
    run = Stored(SYNC, Agent(instructions="x"), {"go": [command("nothing"), "<final>d</final>"]})
    run.execute()
    *entries, end = run.load()
    for changes in ({"error": INTERRUPTED}, {"error": INTERRUPTED, "stop_reason": "cancelled", "text": None}):
        with pytest.raises(kernai.ReplayDivergenceError):
            kernai.replay(run.agent, recording=[*entries, {**end, "data": end["data"] | changes}])
    with pytest.raises(kernai.ReplayDivergenceError, match="recorded: result\n  now:      the run ends\n"):
        kernai.replay(run.agent, recording=[*entries, end, end])


# ----------------------------------------------------------------------------------------------------------- appends


#: what the model says, and how often something is appended: before each model call, before each call that is made alone,
#: before a parallel batch, after a join has waited, at the end
APPENDS: dict[str, tuple[dict[str, list[str]], bool, int]] = {
    "an answer": ({"go": ["<final>x</final>"]}, False, 2),
    "one call": ({"go": [LOOK]}, False, 4),
    "two calls, in order": ({"go": [LOOK + MANY]}, False, 5),
    "two steps with a call each": ({"go": [LOOK, MANY]}, False, 6),
    "a batch of three": ({"go": [LOOK + MANY + MANY]}, True, 6),
    "built-in commands": ({"go": [command("/skills") + command("/tasks")]}, False, 3),
    "calls that cannot be made": ({"go": [command("many", "x") + command("none")]}, False, 3),
    "an agent": ({"go": [command("ask_clerk", "job")], "job": ["<final>x</final>"]}, False, 4),
    "an agent that makes a call": ({"go": [command("ask_clerk", "job")], "job": [MANY]}, False, 6),
}


@pytest.mark.slow
@pytest.mark.parametrize("scripts, at_once, count", APPENDS.values(), ids=APPENDS)
@pytest.mark.parametrize("asks", [False, True], ids=["", "approved"])
@EACH_WAY
def test_the_number_of_appends_is_minimal(scripts: Any, at_once: bool, count: int, asks: bool, way: Way) -> None:
    store = Appends()
    it = agent(Performed(), parallel_skills=at_once, approve=(lambda call: True) if asks else None)
    assert Stored(way, it, scripts, store).execute().ok
    assert len(store.batches) == count, store.batches
    assert all(set(batch) - {"progress", "run_resumed", "model_restarted"} for batch in store.batches)


@EACH_WAY
def test_a_resume_is_recorded_before_its_first_model_call(way: Way) -> None:
    run, crashed = Stored(way, agent(Performed()), {"go": ["<final>x</final>"]}), Appends()
    run.execute()
    crashed.append("r", 0, run.load()[:2], [])
    crashed.batches.clear()
    assert run.resume(store=crashed).ok
    assert [batch[:2] for batch in crashed.batches] == [["run_resumed", "model_restarted"], ["llm_response", "blocks_parsed"]]


@EACH_WAY
@AT_ONCE
def test_every_call_is_recorded_before_it_is_made(way: Way, at_once: bool) -> None:
    store = MemoryStore()
    made, recorded = list[str](), list[bool]()

    def look(ctx: SkillContext[Context]) -> None:
        made.append(ctx.call_id)
        recorded.append(any(one["event"] == "skill_execute" and one["data"]["call_id"] == ctx.call_id for one in store.load("r")))

    skills, look_, clerk = [Skill("look", execute=look)], command("look"), command("clerk", "job")
    helper = Agent(instructions="x", skills=skills).as_skill("clerk", "Looks.")
    it = Agent(instructions="x", skills=[*skills, helper], parallel_skills=at_once)
    said = [look_ + clerk, clerk + look_, command("/skills") + look_ + clerk + look_, clerk + command("/skills") + look_ + clerk]
    assert way.execute(it, "go", provider=provider({"go": said, "job": [look_ * 2]}), store=store, run_id="r").ok
    assert (len(made), all(recorded)) == (15, True)


# ------------------------------------------------------------------------------------------------------- credentials


SECRET = 'k-"geheim"/ä&123'


@AT_ONCE
@EACH_WAY
def test_no_credential_is_in_a_store_an_event_or_a_result(at_once: bool, way: Way, tmp_path: Path) -> None:
    kernai.configure(credential_resolver=kernai.MappingResolver({"KERNAI_SKILL_LEAK_KEY": SECRET}))

    def leak(how: str, ctx: SkillContext[Context]) -> Any:
        key = ctx.credential("key")
        ctx.emit({"progress": key})
        if how == "raise":
            raise LookupError(f"not {key}")
        if how == "pause" and ctx.approval is None:
            raise kernai.Pause(f"with {key}", {"key": [key], key or "": {1}})
        if how == "stop":
            raise Stop("guardrail", f"no, {key}")
        if how == "media":
            return kernai.Media.from_url(f"https://example.org/?key={key}", kind="image", mime_type="image/png")
        return {"key": key, key: [key]}

    skill = Skill("leak", execute=leak, credentials={"key": kernai.Credential()}, idempotent=True)
    it = Agent(instructions="x", skills=[skill], parallel_skills=at_once)
    scripts = {"go": ["".join(command("leak", how) for how in ("return", "raise", "media", "pause", "stop"))]}
    store, events = kernai.SqliteStore(tmp_path / "runs.db"), list[Event]()
    options: dict[str, Any] = {"provider": provider(scripts), "store": store, "on_event": events.append}
    first = way.execute(it, "go", run_id="r", **options)
    (call,) = first.pending
    assert call.reason == "with [credential key]"
    last = way.resume(it, "r", approvals={call.call_id: True}, **options)
    assert last.stop_reason == "guardrail"
    for middleware in ([], [retry()]):
        with pytest.raises(kernai.StoreNeededError, match=r"paused \(with \[credential key\]\)"):
            way.execute(it.replace(middleware=middleware), "go", **{**options, "store": None})
    store.close()
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert (b"geheim" in kept, b"[credential key]" in kept) == (False, True)
    assert "geheim" not in f"{first} {last} {last.error} {[one.to_dict() for one in events]}"
