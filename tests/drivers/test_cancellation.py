"""Cancelling a run: where it is noticed, what is recorded, and what is not taken for a cancellation."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from kernai import (
    Agent,
    Event,
    KernaiError,
    LimitReachedError,
    Limits,
    LlmResponse,
    MemoryStore,
    Message,
    MockProvider,
    Provider,
    ProviderError,
    Recorder,
    Result,
    RunCancelledError,
    Skill,
    SkillContext,
    Stop,
    aexecute,
    arun,
    astream,
    execute,
    resume,
    run,
    skill,
)
from kernai.drivers.driver import POLL
from tests import ways
from tests.scripted import AsyncScripted, OnChunk, Script, Scripted
from tests.ways import PATIENCE, SYNC_WAYS, as_async, by_aexecute, by_execute, by_stream, join_threads
from tests.written import command, final, plan

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


Way = Callable[..., tuple[Result, Scripted]]


def scripted(way: ways.Way, kind: type[Scripted]) -> Way:
    """Runs an agent whose provider follows a script; gives the provider with the result."""

    def run(script: Script, /, *, agent: dict[str, Any] | None = None, **options: Any) -> tuple[Result, Scripted]:
        provider = kind(script)
        return way(Agent(instructions="x", provider=provider, **agent or {}), **options), provider

    return run


IN_THREADS = [scripted(way, Scripted) for way in (by_execute, by_stream, by_aexecute)]
NATIVE = scripted(by_aexecute, AsyncScripted)
WAYS = pytest.mark.parametrize("way", [*IN_THREADS, NATIVE], ids=["execute", "stream", "aexecute", "native"])


def results(recorder: Recorder) -> dict[str, str]:
    """Scope → stop reason, in the order in which the runs ended; the root's must be the last event of all."""
    assert (recorder.entries[-1].type, recorder.entries[-1].scope) == ("result", "")
    return {event.scope: event.data["stop_reason"] for event in recorder.for_event("result")}


def never(_: Sequence[Message], __: OnChunk) -> str:
    raise AssertionError("the model was called")


# ------------------------------------------------------------------------------------------- where it is noticed


@WAYS
@pytest.mark.parametrize("at", ["", "messages_sent"])
def test_a_run_cancelled_before_its_first_call_calls_nothing(way: Way, at: str) -> None:
    recorder = Recorder()
    cancel = SimpleNamespace(is_set=lambda: at in {"", *(event.type for event in recorder.entries)})
    result, provider = way(never, cancel=cancel, recorder=recorder)
    assert provider.calls == 0
    assert [event.type for event in recorder.entries] == ["run_start", *["messages_sent", "model_failed"] * bool(at), "result"]
    assert isinstance(result.error, RunCancelledError)
    assert result.error.result is result
    assert [message.text for message in result.messages] == ["go"]


@WAYS
@pytest.mark.parametrize("react", ["passes it on", "swallows it", "wraps it", "returns", "raises"])
def test_a_cancelled_run_is_cancelled_whatever_its_provider_does(way: Way, react: str) -> None:
    cancel, recorder, closed = threading.Event(), Recorder(), list[str]()

    def script(_: Sequence[Message], on_chunk: OnChunk) -> str:
        on_chunk("one")
        cancel.set()
        try:
            if react == "raises":
                raise ProviderError("overloaded")
            if react != "returns":
                on_chunk("two")
                raise AssertionError("the run continued")
        except KernaiError as error:
            if react == "wraps it":
                raise ProviderError("the stream broke off", retryable=True) from error
            if react != "swallows it":
                raise
        finally:
            closed.append("closed")
        return final("an answer")

    result, provider = way(script, cancel=cancel, recorder=recorder)
    assert (provider.calls, closed) == (1, ["closed"])
    assert result.stop_reason == "cancelled"
    assert isinstance(result.error, RunCancelledError)
    assert results(recorder) == {"": "cancelled"}
    assert recorder.for_event("llm_response") == []
    if react == "passes it on":  # not a failure of the provider
        (broken_off,) = recorder.for_event("model_failed")
        assert (broken_off.data["error"], broken_off.data["exception"]) == ("the run was cancelled", None)


@WAYS
@pytest.mark.parametrize("native", [False, True], ids=["sync skill", "async skill"])
@pytest.mark.parametrize("calls", [1, 3])
def test_a_skill_that_hangs_sees_the_cancellation_in_its_context(
    way: Way, native: bool, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("threads", "background_loop", "run_stream"):  # on a busy machine, no skill must count as hanging
        monkeypatch.setattr(f"kernai.drivers.{module}.GRACE", PATIENCE)
    # nor an async one, which is cancelled if it has not ended when the driver polls
    for module in ("background_loop", "asyncio_driver"):
        monkeypatch.setattr(f"kernai.drivers.{module}.POLL", PATIENCE)
    cancel, recorder = threading.Event(), Recorder()
    inside = threading.Barrier(calls + 1)

    @skill(register=False)
    def hang(ctx: SkillContext[Any]) -> str:
        inside.wait(PATIENCE)
        while not ctx.cancelled:
            cancel.wait(PATIENCE)
        return "left"

    @skill(register=False, name="hang")
    async def hang_later(ctx: SkillContext[Any]) -> str:
        await asyncio.to_thread(inside.wait, PATIENCE)
        while not ctx.cancelled:
            await asyncio.sleep(0)
        return "left"

    def canceller() -> None:
        inside.wait(PATIENCE)
        cancel.set()

    other = threading.Thread(target=canceller)
    other.start()
    result, _ = way(
        lambda *_: command("hang") * calls,
        agent={"skills": [hang_later if native else hang], "parallel_skills": True},
        cancel=cancel,
        recorder=recorder,
    )
    other.join(PATIENCE)
    assert result.stop_reason == "cancelled"
    assert [event.data["result"] for event in recorder.for_event("skill_result")] == ["left"] * calls
    assert results(recorder) == {"": "cancelled"}


@WAYS
def test_clearing_the_cancel_event_does_not_resume_the_run(way: Way) -> None:
    class OnceOnly:
        asked = 0

        def is_set(self) -> bool:
            self.asked += 1
            return self.asked == 3

    def script(_: Sequence[Message], on_chunk: OnChunk) -> str:
        for _number in range(5):
            on_chunk("a piece")
        return final("done")

    result, _ = way(script, cancel=OnceOnly())
    assert result.stop_reason == "cancelled"


@WAYS
@pytest.mark.parametrize("max_steps", [1, 10])
@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "beside another"])
def test_a_call_that_ends_because_the_run_must_stop_counts_as_interrupted(way: Way, parallel: bool, max_steps: int) -> None:
    recorder, cancel = Recorder(), threading.Event()

    @skill(register=False)
    def buy(ctx: SkillContext[Any]) -> str:
        cancel.set()
        assert ctx.cancelled
        raise RunCancelledError("whether it was bought is unknown")

    @skill(register=False)
    def look() -> str:
        return "fine"

    calls = command("buy") + (command("look") if parallel else "")
    options = {"skills": [buy, look], "parallel_skills": parallel, "max_steps": max_steps}
    result, _ = way(lambda *_: calls, agent=options, recorder=recorder, cancel=cancel)
    assert result.stop_reason == "cancelled"
    [failed] = [event for event in recorder.for_event("skill_error") if event.data["skill"] == "buy"]
    assert failed.data["interrupted"] is True


# ------------------------------------------------------------------------------------------- what is not a cancellation


@WAYS
@pytest.mark.parametrize("error", [
    RunCancelledError("mine"), LimitReachedError("mine", "timeout"), OSError("mine"), StopIteration("mine"),
    StopAsyncIteration("mine"), asyncio.CancelledError("mine"),
], ids=lambda error: type(error).__name__)  # fmt: skip
def test_an_exception_of_a_provider_is_a_providers_failure(way: Way, error: BaseException) -> None:
    recorder = Recorder()

    def script(*_: object) -> str:
        raise error

    result, _ = way(script, recorder=recorder, cancel=threading.Event())
    assert result.stop_reason == "error"
    assert isinstance(result.error, ProviderError)
    assert results(recorder) == {"": "error"}


@WAYS
def test_the_end_of_a_run_inside_a_skill_is_only_that_skills_error(way: Way) -> None:
    recorder, cancel = Recorder(), threading.Event()
    cancel.set()
    endless = Agent(instructions="y", max_steps=2, provider=MockProvider(command("nothing")))
    ways_to_end: dict[str, dict[str, Any]] = {"endless": {}, "limited": {"limits": Limits(max_calls=1)}, "stopped": {"cancel": cancel}}
    skills = [Skill(name, execute=partial(run, endless, "go", **one), inputs={}) for name, one in ways_to_end.items()]
    result, _ = way(
        lambda messages, _: final("done") if len(messages) > 2 else "".join(command(one.name) for one in skills),
        agent={"skills": skills}, recorder=recorder,
    )
    assert result.text == "done"
    errors = [event.data["error"] for event in recorder.for_event("skill_error")]
    assert [word in error for word, error in zip(("2 steps", "max_calls=1", "cancelled"), errors, strict=True)] == [True] * 3


class Awaited:
    async def is_set(self) -> bool:
        return False


@pytest.mark.parametrize("wrong", [True, "now", 1, lambda: True, threading.Lock(), threading.Event, Awaited()])
def test_a_cancel_without_is_set_is_the_callers_mistake(wrong: object) -> None:
    with pytest.raises(TypeError, match="cancel must have is_set"):
        execute(Agent(instructions="x", provider=MockProvider("x")), "go", cancel=wrong)


@ways.WAYS
@pytest.mark.parametrize("asked", [0, 1, 3, 5])
def test_a_cancel_that_cannot_be_asked_ends_the_run_with_its_error_and_a_result(way: ways.Way, asked: int) -> None:
    class Lost:
        left = asked

        def is_set(self) -> bool:
            self.left -= 1
            if self.left < 0:
                raise OSError("no connection")
            return False

    recorder = Recorder()
    result = way(Agent(instructions="x", provider=MockProvider("hello")), cancel=Lost(), recorder=recorder)
    assert (result.stop_reason, str(result.error)) == ("error", "cancel.is_set() raised OSError: no connection")
    assert results(recorder) == {"": "error"}


# ------------------------------------------------------------------------------------------- interrupts


@SYNC_WAYS
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("native", [False, True], ids=["sync skill", "async skill"])
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_skill_is_recorded_and_raised_by_the_run(
    way: ways.Way, parallel: bool, native: bool, interrupt: type[BaseException]
) -> None:
    def stop() -> str:
        raise interrupt

    recorder, one = Recorder(), Skill("stop", execute=as_async(stop) if native else stop)
    agent = Agent(instructions="x", skills=[one], provider=MockProvider(command("stop")), parallel_skills=parallel)
    with pytest.raises(interrupt):
        way(agent, recorder=recorder)
    assert ("interrupted" in recorder.for_event("skill_error")[0].data) == (interrupt is KeyboardInterrupt)
    assert results(recorder) == {"": "cancelled"}


@ways.WAYS
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, pytest.fail.Exception])
@pytest.mark.parametrize("timeout", [None, PATIENCE])
def test_an_interrupt_in_a_call_beside_others_cancels_them_once_and_reaches_the_caller(
    way: ways.Way, interrupt: type[BaseException], timeout: float | None
) -> None:
    recorder, begun, ends = Recorder(), asyncio.Event(), SimpleQueue[str]()

    async def stop() -> None:
        await begun.wait()
        raise interrupt

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            await asyncio.sleep(2 * POLL)  # by then, those who wait have looked again
            ends.put("cleaned up")

    skills = [Skill("stop", execute=stop, inputs={}), Skill("wait", execute=wait, inputs={})]
    provider = MockProvider(command("stop") + command("wait"))
    agent = Agent(instructions="x", skills=skills, provider=provider, parallel_skills=True)
    with pytest.raises(interrupt):
        way(agent, recorder=recorder, limits=Limits(timeout=timeout))
    assert results(recorder) == {"": "cancelled"}
    assert len(recorder.for_event("skill_error")) == 2
    assert ends.get(timeout=PATIENCE) == "cleaned up"


@ways.WAYS
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("where", ["provider", "instructions", "output_check", "approve"])
def test_an_interrupt_in_a_sub_agents_own_code_ends_both_runs_and_a_resume_calls_it_again(
    way: ways.Way, where: str, parallel: bool
) -> None:
    recorder, store, reasons = Recorder(), MemoryStore(), ["not as expected"]
    kind = asyncio.CancelledError if where == "instructions" else pytest.fail.Exception

    def stop(*_: object) -> Any:
        if reasons:
            raise kind(reasons.pop())
        return {"instructions": "helper", "provider": final("1"), "output_check": None, "approve": True}[where]

    given: dict[str, Any] = {"instructions": "helper", "provider": MockProvider(command("look"), final("1")), "output": int}
    given[where] = MockProvider().on_call(stop) if where == "provider" else stop
    helper = Agent(skills=[Skill("look", execute=lambda: "seen", idempotent=True)], **given).as_skill("helper", "helps")
    script = MockProvider(command("helper", "help") * (2 if parallel else 1), final("done"))
    agent = Agent(instructions="x", skills=[helper], provider=script, parallel_skills=parallel)
    with pytest.raises(kind, match=r"not as expected|something that was cancelled"):
        way(agent, recorder=recorder, store=store, run_id="r")
    assert results(recorder)[""] == "cancelled"
    resumed = resume(agent, "r", store=store)
    assert (resumed.text, "error" in resumed.messages[2].text) == ("done", False)


@WAYS
@pytest.mark.parametrize("native", ["", "async", "in tasks that begin at once"])
def test_the_exit_of_a_call_beside_others_is_the_error_of_that_call(way: Way, native: str) -> None:
    recorder = Recorder()

    def begin_tasks_at_once(_: Event) -> None:  # since Python 3.12; without an event loop it raises, which is logged
        asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory", None))

    def leave() -> str:
        sys.exit("no such option")  # as argparse does

    one = Skill("leave", execute=as_async(leave) if native else leave)
    other = Skill("fine", execute=lambda: "fine")
    result, _ = way(
        lambda messages, _: final("done") if len(messages) > 2 else command("leave") + command("fine"),
        agent={"skills": [one, other], "parallel_skills": True},
        recorder=recorder, on_event=begin_tasks_at_once if native[:2] == "in" else None,
    )
    assert result.text == "done"
    [failed] = recorder.for_event("skill_error")
    assert (failed.data["error"], failed.data["exception"]) == ("no such option", "SystemExit")
    assert "interrupted" not in failed.data
    assert [event.data["result"] for event in recorder.for_event("skill_result")] == ["fine"]


@pytest.mark.parametrize("native", [False, True])
async def test_an_exit_in_an_async_stream_reaches_its_consumer_and_not_the_event_loop(native: bool) -> None:
    def leave() -> str:
        sys.exit(2)

    one = Skill("leave", execute=as_async(leave) if native else leave)
    async with astream(Agent(instructions="x", skills=[one], provider=MockProvider(command("leave"))), "go") as events:
        with pytest.raises(SystemExit):
            async for _ in events:
                pass
    assert events.result.stop_reason == "cancelled"


# ------------------------------------------------------------------------------------------- cancelling asyncio tasks


class _Waiting(Provider):
    """Answers `go` with a plan of eight tasks; every other call waits until it is cancelled, or released."""

    def __init__(self, tasks: str = "abcdefgh") -> None:
        self.tasks = tasks
        self.under_way = threading.Semaphore(0)
        self.release = threading.Event()

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        if messages[-1].text == "go":
            return LlmResponse(plan(*self.tasks))
        on_chunk("begun")
        self.under_way.release()
        self.release.wait(PATIENCE)
        on_chunk("released")
        return LlmResponse("begunreleased")


class _NativeWaiting(_Waiting):
    async def acall(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        if messages[-1].text == "go":
            return LlmResponse(plan(*self.tasks))
        await on_chunk("begun")
        self.under_way.release()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


async def _all_under_way(provider: _Waiting) -> None:
    def wait() -> None:
        for _ in provider.tasks:
            assert provider.under_way.acquire(timeout=PATIENCE)

    await asyncio.to_thread(wait)


EIGHT = {"": "cancelled", **{f"0.{one}": "cancelled" for one in "abcdefgh"}}


@pytest.mark.parametrize("kind, again", [(_Waiting, ""), (_NativeWaiting, ""), (_NativeWaiting, "a"), (_NativeWaiting, "abcdefgh")])
async def test_cancelling_a_run_with_eight_running_tasks_waits_for_them_and_records_how_each_ended(
    kind: type[_Waiting], again: str
) -> None:
    provider, recorder, hooked, before = kind(), Recorder(), list[str](), asyncio.all_tasks()

    async def listen(event: Event) -> None:
        if event.type == "result" and event.task_id is not None and event.task_id in again:
            running.cancel()
        await asyncio.sleep(0)

    running = asyncio.ensure_future(arun(
        Agent(instructions="x", provider=provider), "go", recorder=recorder, on_event=listen,
        on_task_complete=lambda **given: hooked.append(given["task_id"]),
    ))
    await _all_under_way(provider)
    running.cancel()
    try:
        with pytest.raises(asyncio.CancelledError):
            await running
    finally:
        provider.release.set()
    assert asyncio.all_tasks() == before
    assert results(recorder) == EIGHT
    assert sorted(hooked) == list("abcdefgh")
    assert len(recorder.for_event("task_error")) == 8
    assert len(recorder.for_event("workflow_error")) == 1


async def test_a_run_that_is_cancelled_three_times_cancels_tasks_that_end_late_again_and_still_waits_for_them() -> None:
    release, cancelled_again, recorder, before = asyncio.Event(), list[str](), Recorder(), asyncio.all_tasks()

    class Late(_NativeWaiting):
        async def acall(self, *given: Any) -> LlmResponse:
            try:
                return await super().acall(*given)
            finally:
                while not release.is_set():
                    try:
                        await release.wait()
                    except asyncio.CancelledError:
                        cancelled_again.append("cancelled")

    provider = Late()
    release.set()  # the plan comes at once
    running = asyncio.ensure_future(arun(Agent(instructions="x", provider=provider), "go", recorder=recorder))
    await _all_under_way(provider)
    release.clear()
    for _ in range(3):
        running.cancel()
        for _turn in range(5):
            await asyncio.sleep(0)
    assert not running.done()
    assert len(cancelled_again) >= 8
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == before
    assert {event.scope: event.data["stop_reason"] for event in recorder.for_event("result")} == EIGHT


async def test_a_finished_run_keeps_no_reference_to_its_cancel_event() -> None:
    cancel = threading.Event()
    forgotten = weakref.ref(cancel)
    provider = AsyncScripted(lambda *_: final("done"))
    assert await arun(Agent(instructions="x", provider=provider), "go", cancel=cancel) == "done"
    del cancel
    gc.collect()
    assert forgotten() is None


@pytest.mark.parametrize("at", [
    "run_start", "messages_sent", "text_chunk", "llm_response", "skill_execute", "progress", "skill_result", "final",
    "result",
])
async def test_cancelling_while_a_callback_is_awaited_loses_no_event(at: str) -> None:
    @skill(register=False)
    def work(ctx: SkillContext[Any]) -> str:
        ctx.emit("working")
        return "worked"

    recorder, inside = Recorder(), asyncio.Event()

    async def listen(event: Event) -> None:
        if event.type == at and not inside.is_set():
            inside.set()
            await asyncio.Event().wait()

    provider = MockProvider("Hm. " + command("work"), final("done"), chunk_size=8)
    agent = Agent(instructions="x", skills=[work], provider=provider)
    running = asyncio.ensure_future(arun(agent, "go", recorder=recorder, on_event=listen))
    await inside.wait()
    running.cancel()
    await asyncio.wait([running], timeout=PATIENCE)
    assert running.cancelled()
    assert [event.type for event in recorder.entries].count("result") == 1
    assert recorder.entries[-1].type == "result"


def hold_delivery(loop: asyncio.AbstractEventLoop, held: list[Callable[[], object]], begun: threading.Semaphore) -> None:
    """Keeps the first call that this thread passes to the loop, instead of making it."""
    plain, thread = loop.call_soon_threadsafe, threading.get_ident()

    def call_soon(callback: Any, *args: Any, **named: Any) -> Any:
        if threading.get_ident() != thread or held:
            return plain(callback, *args, **named)
        held.append(lambda: callback(*args))
        return begun.release()

    loop.call_soon_threadsafe = call_soon  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("count, ends", [(1, ""), (3, ""), (1, "loop"), (1, "delivery")])
def test_a_skill_that_outlives_its_cancelled_run_records_nothing_after_the_result_and_ends(count: int, ends: str) -> None:
    recorder, inside, leave, left = Recorder(), threading.Semaphore(0), threading.Event(), threading.Semaphore(0)
    heard: list[str] = []
    complaints: list[Any] = []
    held: list[Callable[[], object]] = []

    @skill(register=False)
    def late(ctx: SkillContext[Any]) -> str:
        if ends == "delivery":  # held until the end of the run, and the event loop ends as soon as it has begun
            hold_delivery(loop, held, inside)
        else:
            inside.release()
            leave.wait(PATIENCE)
        try:
            ctx.emit("too late")
        finally:
            left.release()
        return "late"

    def let_go() -> None:
        leave.set()
        for _ in range(count):
            assert left.acquire(timeout=PATIENCE)

    async def main() -> None:
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        provider = AsyncScripted(lambda *_: command("late") * count)
        agent = Agent(instructions="x", skills=[late], provider=provider, parallel_skills=True)
        running = asyncio.ensure_future(arun(agent, "go", recorder=recorder, on_event=lambda event: heard.append(event.type)))
        for _ in range(count):
            await asyncio.to_thread(inside.acquire)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        if not ends:
            await asyncio.to_thread(let_go)
            await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    if ends == "delivery":
        let_go()
        held.pop()()
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    if ends == "loop":
        let_go()
    gc.collect()
    assert complaints == []
    assert results(recorder) == {"": "cancelled"}
    assert heard[-1] == "result"


async def test_progress_reported_while_a_run_is_cancelled_never_follows_its_result() -> None:
    @skill(register=False)
    def report(ctx: SkillContext[Any]) -> None:
        begun.release()
        while not ctx.cancelled:
            ctx.emit("busy")
        ctx.emit("late")
        ended.release()

    recorders, begun, ended = [Recorder() for _ in range(30)], threading.Semaphore(0), threading.Semaphore(0)
    for recorder in recorders:
        provider = MockProvider(command("report"))
        running = asyncio.ensure_future(arun(Agent(instructions="x", skills=[report], provider=provider), "go", recorder=recorder))
        await asyncio.to_thread(begun.acquire)
        running.cancel()
        await asyncio.wait([running])
        await asyncio.to_thread(ended.acquire)
    assert [results(recorder) for recorder in recorders] == [{"": "cancelled"}] * len(recorders)


@pytest.mark.parametrize("of", ["skill", "timeout"])
async def test_a_run_started_while_a_cancelled_task_cleans_up_works(of: str) -> None:
    @skill(register=False)
    async def look(at: str) -> str:
        """Looks."""
        if of == "timeout":
            await asyncio.sleep(PATIENCE)
        raise ValueError("there is nothing")

    model = MockProvider(command("look", '{"at": "x"}'), final("It is not there."))
    looking = Agent(instructions="x", provider=model, skills=[look])
    limits = Limits(timeout=0.1 if of == "timeout" else None)
    said: list[Result] = []

    async def works() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            said.append(await aexecute(looking, "go", limits=limits))

    working = asyncio.ensure_future(works())
    await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert said[0].stop_reason == ("timeout" if of == "timeout" else "final")


def test_an_async_skill_of_a_cancelled_run_may_take_its_time_to_clean_up() -> None:
    cancel, cleaned_up, release, loops = threading.Event(), threading.Event(), asyncio.Event(), list[Any]()

    async def wait() -> None:
        loops.append(asyncio.get_running_loop())
        cancel.set()
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()
            cleaned_up.set()

    agent = Agent(instructions="x", provider=MockProvider(command("wait")), skills=[Skill("wait", execute=wait)])
    assert execute(agent, "go", cancel=cancel).stop_reason == "cancelled"
    loops[0].call_soon_threadsafe(release.set)
    assert cleaned_up.wait(PATIENCE)


@pytest.mark.parametrize("error", [RuntimeError("the connection is lost"), RunCancelledError("over"), Stop("guardrail")])
async def test_a_skill_that_raises_another_error_does_not_hide_the_cancellation(error: BaseException) -> None:
    timeout = asyncio.timeout(PATIENCE)

    @skill(register=False)
    async def look(at: str) -> str:
        """Looks."""
        timeout.reschedule(0)
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            raise error from None
        return at

    model = MockProvider(command("look", '{"at": "x"}'), final("It is there."))
    looking = Agent(instructions="x", provider=model, skills=[look])
    events: list[Event] = []
    with pytest.raises(TimeoutError):
        async with timeout:
            await aexecute(looking, "go", on_event=events.append)
    assert events[-1].type == "result"
    assert len(model.calls) == 1


@pytest.mark.parametrize("way", IN_THREADS)
def test_a_call_that_waited_for_a_worker_when_the_run_was_stopped_is_not_made(way: Way) -> None:
    begun: list[int] = []
    leave, stop = threading.Event(), threading.Event()

    @skill(register=False)
    def pay(amount: int) -> str:
        """Pays."""
        begun.append(amount)
        if len(begun) == 32:
            stop.set()
        leave.wait(PATIENCE)
        return "paid"

    recorder = Recorder()
    calls = "\n".join(command("pay", f'{{"amount": {amount}}}') for amount in range(40))
    result, _ = way(
        lambda *_: calls,
        agent={"skills": [pay], "parallel_skills": True}, cancel=stop, recorder=recorder, limits=Limits(timeout=PATIENCE),
    )
    leave.set()
    errors = [event.data for event in recorder.entries if event.type == "skill_error"]
    join_threads("kernai-worker")
    assert result.stop_reason == "cancelled"
    assert len(begun) == 32
    # a call counts as interrupted, too, if it just gets a worker as the others are abandoned
    assert 1 <= sum(data.get("not_run", False) for data in errors) == 40 - sum(data.get("interrupted", False) for data in errors) <= 8


@pytest.mark.parametrize("how", ["timeout", "aclose"])
async def test_a_callback_that_hangs_at_each_event_does_not_keep_a_cancelled_run_from_ending(how: str) -> None:
    heard: list[str] = []

    async def hangs(event: Event) -> None:
        heard.append(event.type)
        await asyncio.Event().wait()

    agent = Agent(instructions="x", provider=MockProvider(final("done")))
    async with asyncio.timeout(PATIENCE):
        if how == "timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await aexecute(agent, "go", on_event=hangs)
        else:
            events = astream(agent, "go", on_event=hangs)
            taking = asyncio.ensure_future(anext(events, None))
            while not heard:
                await asyncio.sleep(0)
            await events.aclose()
            await taking
    assert heard[-1] == "result"


async def gone(*_: object) -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def test_a_callback_that_awaits_something_cancelled_is_a_callback_that_raises() -> None:
    assert await arun(Agent(instructions="x", provider=MockProvider(final("done"))), "go", on_event=gone) == "done"


@pytest.mark.parametrize("way", IN_THREADS)
def test_a_skill_that_awaits_something_cancelled_has_failed(way: Way) -> None:
    recorder = Recorder()
    result, _ = way(
        lambda messages, _: final("done") if len(messages) > 2 else command("gone"),
        agent={"skills": [Skill("gone", execute=lambda: gone())]}, recorder=recorder,
    )
    assert result.text == "done"
    assert recorder.for_event("skill_error")[0].data["error"].endswith("it awaited something that was cancelled")
