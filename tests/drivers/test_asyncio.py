"""The asyncio twins: what runs on the event loop, what in threads, and who waits for whom."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import kernai
from kernai import (
    Agent,
    Block,
    Event,
    LlmResponse,
    Message,
    MockProvider,
    Model,
    Provider,
    Recorder,
    SkillContext,
    aexecute,
    arun,
    astream,
    run,
    skill,
)
from kernai.testing.contracts import at_once
from tests.written import command, final, plan

#: seconds after which something that hangs fails its test; nothing takes that long when all is well
PATIENCE = 20
NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME", default="nobody")
OnChunk = Callable[[str], Any]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("kernai"):
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"{thread.name} outlived its run"


class Native(Provider):
    """Answers on the event loop as an async function says."""

    def __init__(self, answer: Callable[[Sequence[Message], OnChunk], Any]) -> None:
        self.answer = answer

    def call(self, *_: Any) -> LlmResponse:
        raise AssertionError("acall is there")

    async def acall(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        return LlmResponse(await self.answer(messages, on_chunk))


def first_then_done(text: str) -> Callable[[Sequence[Message], Model], str]:
    return lambda messages, _: final("done") if len(messages) > 2 else text


# ------------------------------------------------------------------------------------------- where things run


async def test_async_skills_run_on_the_loop_and_sync_ones_in_threads() -> None:
    seen: dict[str, int] = {}

    @skill(register=False)
    def plain() -> None:
        seen["plain"] = threading.get_ident()

    @skill(register=False)
    async def native() -> None:
        seen["native"] = threading.get_ident()
        seen["loop"] = id(asyncio.get_running_loop())

    agent = Agent(
        instructions="x", skills=[plain, native], provider=MockProvider(command("plain") + command("native"), "done")
    )
    assert await arun(agent, "go") == "done"
    assert seen["native"] == threading.get_ident()
    assert seen["loop"] == id(asyncio.get_running_loop())
    assert seen["plain"] != threading.get_ident()


async def test_a_provider_without_acall_is_called_in_a_thread_and_one_with_it_on_the_loop() -> None:
    seen: list[int] = []

    def answer(_: Sequence[Message], __: Model) -> str:
        seen.append(threading.get_ident())
        return "done"

    async def answer_natively(_: Sequence[Message], on_chunk: OnChunk) -> str:
        seen.append(threading.get_ident())
        await on_chunk("do")
        on_chunk("ne")  # awaiting is allowed, not asked for
        return "done"

    assert await arun(Agent(instructions="x", provider=MockProvider().on_call(answer)), "go") == "done"
    assert await arun(Agent(instructions="x", provider=Native(answer_natively)), "go") == "done"
    assert seen[0] != threading.get_ident()
    assert seen[1] == threading.get_ident()


async def test_an_acall_that_falls_back_on_the_default_streams_from_a_thread() -> None:
    class Counting(MockProvider):
        async def acall(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
            response = await super().acall(messages, model, generation, on_chunk)
            return LlmResponse(response.content, metadata={"counted": True})

    recorder, pieces = Recorder(), list[str]()

    def listen(event: Event) -> None:
        if event.type == "text_chunk":
            pieces.append(event.data)

    agent = Agent(instructions="x", provider=Counting("some prose"))
    assert await arun(agent, "go", on_event=listen, recorder=recorder) == "some prose"
    assert "".join(pieces) == "some prose"
    assert recorder.for_event("llm_response")[0].data["metadata"] == {"counted": True}


async def test_parallel_async_skills_meet_on_the_loop() -> None:
    together = asyncio.Barrier(5)

    @skill(register=False)
    async def meet() -> str:
        async with asyncio.timeout(PATIENCE):
            await together.wait()
        return "met"

    agent = Agent(
        instructions="x", skills=[meet], provider=MockProvider(command("meet") * 5, "done"), parallel_skills=True
    )
    recorder = Recorder()
    assert await arun(agent, "go", recorder=recorder) == "done"
    assert [event.data["result"] for event in recorder.for_event("skill_result")] == ["met"] * 5


async def test_the_loop_stays_free_while_a_sync_provider_and_a_sync_skill_block() -> None:
    inside, leave = threading.Semaphore(0), threading.Semaphore(0)

    @skill(register=False)
    def block() -> str:
        inside.release()
        assert leave.acquire(timeout=PATIENCE)
        return "blocked"

    def answer(messages: Sequence[Message], _: Model) -> str:
        inside.release()
        assert leave.acquire(timeout=PATIENCE)
        return final("done") if len(messages) > 2 else command("block")

    running = asyncio.ensure_future(
        arun(Agent(instructions="x", skills=[block], provider=MockProvider().on_call(answer)), "go")
    )
    for _ in range(3):  # the loop is free to wait for each of them
        assert await asyncio.to_thread(inside.acquire, timeout=PATIENCE)
        leave.release()
    assert await running == "done"


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


async def test_a_sync_run_within_an_async_skill_works_on_a_running_loop() -> None:
    @skill(register=False)
    async def native() -> str:
        return "native"

    inner = Agent(instructions="y", skills=[native], provider=MockProvider(command("native"), final("inner")))

    @skill(register=False)
    async def nested() -> str:
        return run(inner, "go")

    @skill(register=False)
    async def nested_too() -> str:
        return await arun(inner.replace(provider=MockProvider(command("native"), final("inner too"))), "go")

    recorder = Recorder()
    agent = Agent(
        instructions="x",
        skills=[nested, nested_too],
        provider=MockProvider(command("nested") + command("nested_too"), "done"),
    )
    assert await arun(agent, "go", recorder=recorder) == "done"
    assert [event.data["result"] for event in recorder.for_event("skill_result")] == ["inner", "inner too"]


async def test_an_async_protocol_handler_runs_on_the_loop_and_a_sync_one_in_a_thread() -> None:
    seen: dict[str, int] = {}

    async def native(block: Block, ctx: SkillContext[Any]) -> str:
        seen["native"] = threading.get_ident()
        return f"native {block.content}"

    def plain(block: Block, ctx: SkillContext[Any]) -> str:
        seen["plain"] = threading.get_ident()
        return f"plain {block.content}"

    both = [kernai.Protocol("later", native), kernai.Protocol("now", plain)]
    text = str(Block("later", None, "one")) + str(Block("now", None, "two"))
    recorder = Recorder()
    agent = Agent(instructions="x", protocols=both, provider=MockProvider(text, "done"))
    assert await arun(agent, "go", recorder=recorder) == "done"
    assert seen["native"] == threading.get_ident()
    assert seen["plain"] != threading.get_ident()
    assert [event.data["result"] for event in recorder.for_event("protocol_result")] == ["native one", "plain two"]
    sync = Recorder()
    assert await asyncio.to_thread(run, agent.replace(provider=MockProvider(text, "done")), "go", recorder=sync)
    assert [event.data["result"] for event in sync.for_event("protocol_result")] == ["native one", "plain two"]


# ------------------------------------------------------------------------------------------- callbacks


async def test_callbacks_are_called_on_the_loop_and_async_ones_are_awaited() -> None:
    seen: list[str] = []
    threads: set[int] = set()

    async def listen(event: Event) -> None:
        threads.add(threading.get_ident())
        seen.append(f"begin {event.type}")
        await asyncio.sleep(0)
        seen.append(f"end {event.type}")

    async def hook(**given: Any) -> None:
        threads.add(threading.get_ident())
        seen.append(f"begin hook {given['task_id']}")
        await asyncio.sleep(0)
        seen.append(f"end hook {given['task_id']}")

    def answer(messages: Sequence[Message], _: Model) -> str:
        return plan(*"abcdefgh") if messages[-1].text == "go" else final("done")

    agent = Agent(instructions="x", provider=MockProvider(chunk_size=8).on_call(answer))
    assert await arun(agent, "go", on_event=listen, on_task_complete=hook) == "done"
    assert threads == {threading.get_ident()}
    begun = [one.removeprefix("begin ") for one in seen[::2]]
    ended = [one.removeprefix("end ") for one in seen[1::2]]
    assert begun == ended  # each one ended before the next began
    assert sorted(one for one in begun if one.startswith("hook")) == [f"hook {one}" for one in "abcdefgh"]


async def test_async_callbacks_are_called_one_at_a_time_whatever_runs_at_once() -> None:
    overlapped, inside, heard = 0, False, list[str]()

    async def listen(event: Event) -> None:
        nonlocal overlapped, inside
        overlapped += inside
        inside = True
        await asyncio.sleep(0)
        inside = False
        heard.append(event.type)

    @skill(register=False)
    def chatty(ctx: SkillContext[Any]) -> str:
        for at in range(10):
            ctx.emit(at)
        return "said"

    @skill(register=False)
    async def chatty_native(ctx: SkillContext[Any]) -> str:
        for at in range(10):
            ctx.emit(at)
            await asyncio.sleep(0)
        return "said"

    def answer(messages: Sequence[Message], _: Model) -> str:
        asked = messages[-1].text
        if asked == "go":
            return plan(*"abcdefgh")
        return command("chatty") + command("chatty_native") if asked.startswith("do") else final("done")

    agent = Agent(
        instructions="x",
        skills=[chatty, chatty_native],
        provider=MockProvider(chunk_size=16).on_call(answer),
        parallel_skills=True,
    )
    recorder = Recorder()
    assert await arun(agent, "go", on_event=listen, recorder=recorder) == "done"
    assert overlapped == 0
    assert heard.count("progress") == 8 * 2 * 10
    assert [one for one in heard if one not in ("text_chunk", "block_start", "block_content", "block_end")] == [
        event.type for event in recorder.entries
    ]


async def test_progress_is_emitted_while_an_earlier_one_is_still_being_handled() -> None:
    listening, both_emitted, second_heard = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @skill(register=False)
    async def talk(ctx: SkillContext[Any]) -> str:
        ctx.emit("one")
        await listening.wait()
        ctx.emit("two")
        both_emitted.set()
        await second_heard.wait()
        return "said"

    async def listen(event: Event) -> None:
        if event.type != "progress":
            return
        if event.data["data"] == "one":
            listening.set()
            await both_emitted.wait()
        else:
            second_heard.set()

    agent = Agent(instructions="x", skills=[talk], provider=MockProvider(command("talk"), "done"))
    async with asyncio.timeout(PATIENCE / 4):
        assert await arun(agent, "go", on_event=listen) == "done"


async def test_the_progress_of_one_task_does_not_wait_for_that_of_another_to_end() -> None:
    b_talks, listening, emitted, second_heard = (asyncio.Event() for _ in range(4))

    @skill(register=False)
    async def talk(who: str, ctx: SkillContext[Any]) -> str:
        if who == "a":
            await b_talks.wait()  # a listener that is slow holds back what needs its turn, so both must have begun
            ctx.emit(who)
        else:
            b_talks.set()
            await listening.wait()
            ctx.emit(who)
            emitted.set()
        await second_heard.wait()
        return "said"

    async def listen(event: Event) -> None:
        if event.type != "progress":
            return
        if event.data["data"] == "a":
            listening.set()
            await emitted.wait()
        else:
            second_heard.set()

    def answer(messages: Sequence[Message], _: Model) -> str:
        asked = messages[-1].text
        if asked == "go":
            return plan("a", "b")
        return command("talk", asked[-1]) if asked.startswith("do") else final("done")

    agent = Agent(instructions="x", skills=[talk], provider=MockProvider(chunk_size=64).on_call(answer))
    async with asyncio.timeout(PATIENCE / 4):
        assert await arun(agent, "go", on_event=listen) == "done"


async def test_streamed_pieces_arrive_while_the_model_still_speaks() -> None:
    heard = asyncio.Event()

    async def answer(_: Sequence[Message], on_chunk: OnChunk) -> str:
        on_chunk("first ")
        async with asyncio.timeout(PATIENCE / 4):
            await heard.wait()
        return "first second"

    def listen(event: Event) -> None:
        if event.type == "text_chunk":
            heard.set()

    assert await arun(Agent(instructions="x", provider=Native(answer)), "go", on_event=listen)


async def _raise_later(_: Event) -> None:
    await asyncio.sleep(0)
    raise ValueError("oops")


async def test_an_async_callback_that_raises_is_logged_and_the_run_continues(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    agent = Agent(instructions="x", provider=MockProvider(final("done")))
    with caplog.at_level(logging.ERROR, "kernai"):
        assert await arun(agent, "go", on_event=_raise_later, recorder=recorder) == "done"
    assert recorder.entries[-1].type == "result"
    assert "event=callback.failed" in caplog.text


# ------------------------------------------------------------------------------------------- failures


# ------------------------------------------------------------------------------------------- many, and nothing left


async def test_two_hundred_runs_at_once_keep_apart() -> None:
    together = asyncio.Barrier(200)

    async def answer(messages: Sequence[Message], on_chunk: OnChunk) -> str:
        if len(messages) == 2:
            async with asyncio.timeout(PATIENCE):
                await together.wait()
            return command("echo", messages[1].text)
        return final(messages[1].text)

    @skill(register=False)
    async def echo(text: str) -> str:
        return text

    agent = Agent(instructions="x", skills=[echo], provider=Native(answer))
    recorders = [Recorder() for _ in range(200)]
    answers = await asyncio.gather(
        *(arun(agent, f"input {at}", recorder=recorder) for at, recorder in enumerate(recorders))
    )
    assert answers == [f"input {at}" for at in range(200)]
    for at, recorder in enumerate(recorders):
        assert [event.data["result"] for event in recorder.for_event("skill_result")] == [f"input {at}"]
        assert len({event.run_id for event in recorder.entries}) == 1


def test_one_agent_serves_several_event_loops_at_once() -> None:
    together = threading.Barrier(4)

    @skill(register=False)
    async def native() -> str:
        together.wait(PATIENCE)
        return "native"

    agent = Agent(
        instructions="x", skills=[native], provider=MockProvider().on_call(first_then_done(command("native")))
    )
    answers: list[str] = []
    assert at_once(lambda _: answers.append(asyncio.run(arun(agent, "go"))), 4) == []
    assert answers == ["done"] * 4


def open_files() -> int:
    folder = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")
    return len(os.listdir(folder)) if folder.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("fail", [False, True])
def test_forty_async_runs_leave_no_task_no_thread_and_no_socket(fail: bool) -> None:
    @skill(register=False)
    def plain() -> str:
        if fail:
            raise OSError("no such thing")
        return "plain"

    @skill(register=False)
    async def native() -> str:
        return "native"

    def answer(messages: Sequence[Message], _: Model) -> str:
        asked = messages[-1].text
        if asked == "go":
            return plan("a", "b")
        if asked.startswith("do"):
            return command("plain") + command("native")
        if fail and 'name="tasks"' in asked:
            raise OSError("connection lost")
        return final("done")

    provider = MockProvider(chunk_size=64).on_call(answer)
    agent = Agent(instructions="x", skills=[plain, native], provider=provider, parallel_skills=True)

    async def main() -> set[asyncio.Task[Any]]:
        for _ in range(20):
            await aexecute(agent, "go")
            async with astream(agent, "go") as events:
                assert (await anext(events)).type == "run_start"
        return asyncio.all_tasks() - {asyncio.current_task()}

    files = open_files()
    assert asyncio.run(main()) == set()
    for thread in threading.enumerate():
        if thread.name.startswith("kernai"):
            thread.join(PATIENCE)
            assert not thread.is_alive()
    gc.collect()
    assert open_files() <= files
