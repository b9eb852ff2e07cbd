"""The asyncio functions: what runs on the event loop and what in threads, and what waits for what."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

import kernai
from kernai import Agent, Event, LlmResponse, MemoryStore, Message, MockProvider, Recorder, SkillContext, arun, skill
from kernai.drivers.background_loop import BackgroundLoop
from kernai.testing.contracts import at_once
from tests.scripted import AsyncScripted, OnChunk
from tests.ways import PATIENCE
from tests.written import command, final, plan

# ------------------------------------------------------------------------------------------- where things run


@pytest.mark.parametrize("protocols", [False, True], ids=["skills", "protocols"])
async def test_async_functions_run_on_the_loop_and_sync_ones_in_threads(protocols: bool) -> None:
    seen: list[tuple[int, object]] = []

    def plain(*_: Any) -> str:
        seen.append((threading.get_ident(), None))
        return "plain"

    async def native(*_: Any) -> str:
        seen.append((threading.get_ident(), asyncio.get_running_loop()))
        return "native"

    both = (("now", plain), ("later", native))
    agent = Agent(
        instructions="x", skills=[kernai.Skill(name, execute=one, inputs={}) for name, one in both if not protocols],
        protocols=[kernai.Protocol(name, one) for name, one in both if protocols],
    )
    text = "".join(str(kernai.Block(name)) if protocols else command(name) for name, _ in both)
    recorder = Recorder()
    assert await arun(agent, "go", provider=MockProvider(text, "done"), recorder=recorder) == "done"
    [(thread, _), on_the_loop] = seen
    assert thread != threading.get_ident()
    assert on_the_loop == (threading.get_ident(), asyncio.get_running_loop())
    results = [event.data["result"] for event in recorder.entries if event.type in ("skill_result", "protocol_result")]
    assert results == ["plain", "native"]


@pytest.mark.parametrize("kind", ["call", "acall that falls back on the default", "acall"])
async def test_a_provider_without_acall_is_called_in_a_thread_and_one_with_it_on_the_loop(kind: str) -> None:
    threads: list[int] = []

    class Plain(MockProvider):
        def call(self, *given: Any) -> LlmResponse:
            threads.append(threading.get_ident())
            return super().call(*given)

    class FallingBack(Plain):
        async def acall(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
            response = await super().acall(messages, model, generation, on_chunk)
            return LlmResponse(response.content, metadata={"counted": True})

    async def answer(_: Sequence[Message], on_chunk: OnChunk) -> str:
        threads.append(threading.get_ident())
        await on_chunk("some ")
        on_chunk("prose")  # awaiting is allowed, but not required
        return "some prose"

    recorder, heard = Recorder(), list[Event]()
    provider = {"call": Plain("some prose"), "acall": AsyncScripted(answer)}.get(kind, FallingBack("some prose"))
    assert await arun(Agent(instructions="x", provider=provider), "go", on_event=heard.append, recorder=recorder) == "some prose"
    assert "".join(event.data for event in heard if event.type == "text_chunk") == "some prose"
    assert ("counted" in recorder.for_event("llm_response")[0].data["metadata"]) == ("falls back" in kind)
    assert (threads == [threading.get_ident()]) == (kind == "acall")


async def test_a_store_is_not_called_on_the_event_loop() -> None:
    called: list[tuple[str, int]] = []

    def noted(name: str) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            called.append((name, threading.get_ident()))
            return getattr(MemoryStore, name)(*given, **options)

        return call

    used = ("append", "load", "load_media", "info")
    agent = Agent(instructions="x", provider=MockProvider("<final>Hi.</final>"))
    store = type("Noting", (MemoryStore,), {name: noted(name) for name in used})()
    await kernai.aexecute(agent, "go", store=store, run_id="r")
    assert (await kernai.aresume(agent, "r", store=store, input="again")).text == "Hi."
    async with await asyncio.to_thread(kernai.astream, agent, "more", store=store, run_id="r", resume=True) as events:
        assert [event.type async for event in events][-1] == "result"
    assert {name for name, _ in called} == {*used}
    assert threading.get_ident() not in [thread for _, thread in called]


async def test_the_loop_stays_free_for_a_sync_skill_that_blocks_behind_brief_ones() -> None:
    free: list[str] = []

    @skill(register=False)
    def brief() -> None:
        pass

    @skill(register=False)
    def block() -> str:
        return str(asyncio.run_coroutine_threadsafe(others_turn(), loop).result(PATIENCE))

    async def others_turn() -> int:
        free.append("the loop has turned to other work")
        return len(free)

    loop = asyncio.get_running_loop()
    provider = MockProvider(command("brief") * 3 + command("block"), command("brief") + command("block"), final("done"))
    recorder = Recorder()
    assert await arun(Agent(instructions="x", skills=[brief, block], provider=provider), "go", recorder=recorder) == "done"
    results = [event.data["result"] for event in recorder.for_event("skill_result")]
    assert results[3] == "1"
    assert results[-1] == "2"


# ------------------------------------------------------------------------------------------- callbacks


@pytest.mark.parametrize("in_tasks", [False, True], ids=["of one call", "of two tasks"])
async def test_progress_is_emitted_while_an_earlier_one_is_still_being_handled(in_tasks: bool) -> None:
    b_talks, listening, emitted, second_heard = (asyncio.Event() for _ in range(4))

    @skill(register=False)
    async def talk(who: str, ctx: SkillContext[Any]) -> str:
        if who == "a":
            await b_talks.wait()  # a slow listener blocks calls that have not begun, so both must have begun
        if who != "b":
            ctx.emit("a")
        if who != "a":
            b_talks.set()
            await listening.wait()
            ctx.emit("b")
            emitted.set()
        await second_heard.wait()
        return "said"

    async def listen(event: Event) -> None:
        if event.type == "progress" and event.data["data"] == "a":
            listening.set()
            await emitted.wait()
        elif event.type == "progress":
            second_heard.set()

    def answer(messages: Sequence[Message], _: kernai.Model) -> str:
        asked = messages[-1].text
        if asked == "go":
            return plan("a", "b") if in_tasks else command("talk", "a and b")
        return command("talk", asked[-1]) if asked.startswith("do") else final("done")

    agent = Agent(instructions="x", skills=[talk], provider=MockProvider(chunk_size=64).on_call(answer))
    async with asyncio.timeout(PATIENCE):
        assert await arun(agent, "go", on_event=listen) == "done"


async def test_progress_that_is_only_recorded_is_recorded_at_once_without_a_task() -> None:
    @skill(register=False)
    async def talk(ctx: SkillContext[Any]) -> str:
        before = asyncio.all_tasks()
        ctx.emit("a")
        return f"{len(recorder.for_event('progress'))} recorded, {len(asyncio.all_tasks() - before)} tasks begun"

    recorder, provider = Recorder(), MockProvider(command("talk"), final("done"))
    await arun(Agent(instructions="x", skills=[talk]), "go", provider=provider, recorder=recorder)
    assert recorder.for_event("skill_result")[0].data["result"] == "1 recorded, 0 tasks begun"


# ------------------------------------------------------------------------------------------- many, and nothing left


def test_a_run_does_not_keep_the_tasks_of_calls_and_sub_runs_that_have_ended() -> None:
    kept: list[int] = []

    def count(event: Event) -> None:
        if event.type == "messages_sent" and event.depth == 0:  # looking through all objects is slow
            kept.append(sum(isinstance(one, asyncio.Task) for one in gc.get_objects()))

    helper = Agent(instructions="x", provider=MockProvider(final("done"))).as_skill("helper", "helps")
    provider = MockProvider(*[command("helper", '{"input": "x"}') * 2] * 9, final("done"))
    asyncio.run(arun(Agent(instructions="x", skills=[helper], parallel_skills=True, provider=provider), "go", on_event=count))
    assert kept[-1] < kept[0] + 9


def test_one_agent_serves_several_event_loops_at_once() -> None:
    together = threading.Barrier(4)

    @skill(register=False)
    async def native() -> str:
        together.wait(PATIENCE)
        return "native"

    provider = MockProvider().on_call(lambda messages, _: final("done") if len(messages) > 2 else command("native"))
    agent = Agent(instructions="x", skills=[native], provider=provider)
    answers: list[str] = []
    assert at_once(lambda _: answers.append(asyncio.run(arun(agent, "go"))), 4) == []
    assert answers == ["done"] * 4


# --------------------------------------------------------------------------------- the event loop of a synchronous run


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    made = BackgroundLoop("kernai-test")
    yield made
    made.close()


async def value(of: Any) -> Any:
    await asyncio.sleep(0)
    return of


def begun(loop: BackgroundLoop, awaitable: Awaitable[Any]) -> Callable[[], Any]:
    """Run it in another thread. The returned function waits for the result or error, and fails instead of hanging."""
    ended: list[Any] = []

    def wait() -> None:
        try:
            ended.append(loop.run(awaitable))
        except BaseException as error:
            ended.append(error)

    def result() -> Any:
        thread.join(PATIENCE)
        assert ended, "it hangs"
        return ended[0]

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return result


def test_a_skill_may_return_any_awaitable(loop: BackgroundLoop) -> None:
    class Later:
        def __await__(self) -> Any:
            return value("later").__await__()

    assert loop.run(Later()) == "later"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_an_exit_or_interrupt_in_a_task_of_a_skill_does_not_hang_the_skill(error: BaseException) -> None:
    loop = BackgroundLoop("kernai-test")

    async def leave() -> None:
        raise error

    async def gather() -> None:
        await asyncio.gather(leave(), asyncio.sleep(0))

    assert begun(loop, gather())() is error
    assert begun(loop, value(5))() == 5
    loop.close()


def test_a_close_interrupted_by_ctrl_c_is_completed_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = BackgroundLoop("kernai-test")
    assert begun(loop, value(5))() == 5

    def interrupted(work: Coroutine[Any, Any, Any], _: asyncio.AbstractEventLoop) -> None:
        work.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        loop.close()
    loop.close()
    assert loop._serving is not None
    loop._serving[2].join(PATIENCE)
    assert not loop._serving[2].is_alive()


def test_closing_cancels_remaining_tasks_and_ends_thread_and_loop() -> None:
    loop, cleaned = BackgroundLoop("kernai-test"), list[str]()

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            cleaned.append("generator")

    async def begin() -> asyncio.AbstractEventLoop:
        async def linger() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.append("task")

        task = asyncio.ensure_future(linger())
        await asyncio.sleep(0)
        assert not task.done()
        left = numbers()
        keep.append(left)
        await anext(left)
        await asyncio.to_thread(cleaned.append, "thread")
        return asyncio.get_running_loop()

    keep: list[Any] = []
    served = loop.run(begin())
    loop.close()
    assert served.is_closed()
    assert sorted(cleaned) == ["generator", "task", "thread"]


def test_work_submitted_after_the_end_is_refused_and_closed() -> None:
    loop = BackgroundLoop("kernai-test")
    loop.run(value(1))
    loop.close()
    with pytest.raises(Exception, match="ended"):
        loop.run(value(2))
    gc.collect()  # a coroutine that nobody closed would warn here


def test_a_waiting_thread_continues_when_the_loop_is_closed() -> None:
    loop, waits = BackgroundLoop("kernai-test"), threading.Event()

    async def wait() -> None:
        waits.set()
        await asyncio.Event().wait()

    waiting = begun(loop, wait())
    assert waits.wait(PATIENCE)
    loop.close()
    assert repr(waiting()) == "CancelledError()"
    loop.close()
