"""A run as an iterator: who waits for whom, and what leaving it early does. Sync and async, also over real sockets."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from kernai import (
    Agent,
    AsyncRunStream,
    Block,
    Event,
    KernaiError,
    Limits,
    LlmResponse,
    Message,
    MockProvider,
    Protocol,
    Provider,
    Recorder,
    RunCancelledError,
    RunStream,
    Skill,
    SkillContext,
    astream,
    execute,
    skill,
    stream,
)
from kernai.drivers import run_stream
from kernai.drivers.run_stream import Channel
from kernai.runs import run_request
from tests.ways import PATIENCE, as_async
from tests.written import command, final, plan

STREAMED = ("text_chunk", "block_start", "block_content", "block_end")


@pytest.fixture(autouse=True)
def _pieces_end(no_thread_is_left: None) -> Iterator[None]:
    Pieces.over.clear()
    yield
    Pieces.over.set()


class Pieces(Provider):
    """Streams one piece after the other, counts them, and knows when its 'connection' was closed.

    With `endless`, only abandoning the run ends it.
    """

    over = threading.Event()  # set when the test ends: nothing of a failed one keeps running

    def __init__(self, pieces: int = 1000, *, endless: bool = False) -> None:
        self.pieces = pieces
        self.endless = endless
        self.handed = 0
        self.opened = 0
        self.closed = threading.Semaphore(0)
        self._lock = threading.Lock()

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        with self._lock:
            self.opened += 1
        content = ""
        try:
            while (self.endless and not self.over.is_set()) or len(content) < self.pieces:
                with self._lock:
                    self.handed += 1
                content += "."
                on_chunk(".")
        finally:
            self.closed.release()
        return LlmResponse(content)


class AsyncPieces(Pieces):
    """Like `Pieces`, on the event loop; `waits` says whether it awaits what `on_chunk` returns."""

    async def acall(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        self.opened += 1
        content = ""
        try:
            while (self.endless and not self.over.is_set()) or len(content) < self.pieces:
                self.handed += 1
                content += "."
                await on_chunk(".")
        finally:
            self.closed.release()
        return LlmResponse(content)


class Tasks(Pieces):
    """Answers `go` with a plan, streams its pieces for each task, and then is done."""

    def __init__(self, ids: str = "abcdefgh", pieces: int = 1000, *, endless: bool = True) -> None:
        super().__init__(pieces, endless=endless)
        self.ids = ids

    def call(self, messages: Sequence[Message], *rest: Any) -> LlmResponse:
        if messages[-1].text.startswith("do"):
            return super().call(messages, *rest)
        return LlmResponse(plan(*self.ids) if messages[-1].text == "go" else final("done"))


class AsyncTasks(Tasks, AsyncPieces):
    """Like `Tasks`, on the event loop."""

    async def acall(self, messages: Sequence[Message], *rest: Any) -> LlmResponse:
        if messages[-1].text.startswith("do"):
            return await super().acall(messages, *rest)
        return Tasks.call(self, messages, *rest)


def agent_of(provider: Provider, **options: Any) -> Agent:
    return Agent(instructions="x", provider=provider, **options)


def last_result(recorder: Recorder) -> dict[str, Any]:
    last = recorder.entries[-1]
    assert (last.type, last.scope) == ("result", "")
    data: dict[str, Any] = last.data
    return data


class Either:
    """A sync or an async stream behind one async interface. `waits`: how many pieces may be ahead of the consumer."""

    def __init__(self, kind: Callable[..., Any], agent: Agent, **options: Any) -> None:
        self.events = kind(agent, "go", **options)
        self.is_sync = isinstance(self.events, RunStream)
        self.waits = 2 if self.is_sync else 3

    async def next(self) -> Event | None:
        """The next event, None at the end."""
        if self.is_sync:
            return next(self.events, None)
        event: Event | None = await anext(self.events, None)
        await asyncio.sleep(0)
        return event

    async def rest(self) -> list[Event]:
        seen: list[Event] = []
        while (event := await self.next()) is not None:
            seen.append(event)
        return seen

    async def close(self) -> None:
        if self.is_sync:
            self.events.close()
        else:
            await self.events.aclose()


EITHER = pytest.mark.parametrize("kind", [stream, astream])

# ------------------------------------------------------------------------------------------- reading to the end


@EITHER
async def test_the_last_event_is_the_roots_result_and_it_stays_the_last(kind: Any) -> None:
    it = Either(kind, agent_of(MockProvider(final("done"))))
    seen = await it.rest()
    assert (seen[-1].type, seen[-1].data["text"], it.events.result.text) == ("result", "done", "done")
    for _ in range(2):
        await it.close()
        assert it.events.result.text == "done"
        assert await it.next() is None


@EITHER
async def test_a_stream_gives_the_same_events_as_a_callback(kind: Any) -> None:
    @skill(register=False)
    def talk(ctx: SkillContext[Any]) -> str:
        ctx.emit({"at": 1})
        return "said"

    def agent() -> Agent:
        return agent_of(MockProvider("Hm. " + command("talk"), final("done")), skills=[talk])

    heard: list[Event] = []
    execute(agent(), "go", on_event=heard.append, run_id="r")
    seen = await Either(kind, agent(), run_id="r").rest()
    assert [event.type for event in seen] == [event.type for event in heard]
    untimed = ("skill_result", "llm_response")
    assert [event.data for event in seen if event.type not in untimed] == [
        event.data for event in heard if event.type not in untimed
    ]


def test_the_callback_has_each_event_before_the_consumer_and_so_has_the_recorder() -> None:
    heard: list[Event] = []
    recorder = Recorder()
    events = stream(agent_of(MockProvider(final("done"))), "go", on_event=heard.append, recorder=recorder)
    for event in events:
        assert event in heard
        assert event.type in STREAMED or event in recorder.entries
        if event.type in ("run_start", "messages_sent", *STREAMED[:-1]):  # the run may end as its last piece is taken
            with pytest.raises(KernaiError, match="not ended"):
                _ = events.result
    assert events.result.text == "done"


def _fails() -> str:
    raise OSError("no instructions today")


@EITHER
async def test_a_failure_of_the_hosts_own_code_shows_its_result_and_is_then_raised(kind: Any) -> None:
    it = Either(kind, agent_of(MockProvider(final("done"))).replace(instructions=_fails))
    seen = [await it.next(), await it.next()]
    with pytest.raises(OSError, match="no instructions today"):
        await it.next()
    assert [event and event.type for event in seen] == ["run_start", "result"]
    assert (it.events.result.stop_reason, repr(it.events.result.error)) == ("error", "KernaiError('OSError: no instructions today')")


# ------------------------------------------------------------------------------------------- who waits for whom


@pytest.mark.parametrize("kind, provider, at_once, pieces", [
    (stream, Pieces(500), 1, 500), (astream, Pieces(500), 1, 500), (astream, AsyncPieces(500), 1, 500),
    (stream, Tasks(pieces=100, endless=False), 8, 800), (astream, AsyncTasks(pieces=100, endless=False), 8, 800),
])
async def test_a_slow_consumer_slows_the_run_and_all_its_tasks_down(kind: Any, provider: Pieces, at_once: int, pieces: int) -> None:
    taken, it = 0, Either(kind, agent_of(provider))
    while (event := await it.next()) is not None:
        taken += event.type == "text_chunk"
        assert provider.handed <= taken + it.waits * at_once
    assert taken == pieces
    assert it.events.result.ok


@pytest.mark.parametrize("native", [True, False], ids=["async", "parallel"])
def test_a_slow_consumer_holds_back_skills_that_report_progress(native: bool) -> None:
    given = 0

    def talk(ctx: SkillContext[Any]) -> str:
        nonlocal given
        for at in range(300):
            given += 1
            ctx.emit(at)
        return "said"

    made, quiet = Skill("talk", execute=as_async(talk) if native else talk), Skill("quiet", execute=lambda: "quiet")
    provider = MockProvider(command("talk") + command("quiet"), final("done"), chunk_size=64)
    taken = 0
    for event in stream(agent_of(provider, skills=[made, quiet], parallel_skills=not native), "go"):
        taken += event.type == "progress"
        assert given <= taken + 2
    assert taken == given == 300


# ------------------------------------------------------------------------------------------- leaving early


@EITHER
async def test_a_stream_that_was_never_read_runs_nothing_and_has_a_result_when_closed(kind: Any) -> None:
    provider, recorder = AsyncPieces(), Recorder()
    it = Either(kind, agent_of(provider), recorder=recorder)
    assert recorder.entries == []
    with pytest.raises(KernaiError, match="not ended"):
        _ = it.events.result
    for _ in range(2):
        await it.close()
        assert it.events.result.stop_reason == "cancelled"
    assert provider.opened == 0
    assert [event.type for event in recorder.entries] == ["run_start", "result"]
    assert await it.rest() == []
    dropped = Either(kind, agent_of(provider))
    del dropped
    gc.collect()
    assert provider.opened == 0


@EITHER
async def test_the_timeout_counts_from_the_first_event_that_is_asked_for(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(run_request._CLOCK, "monotonic", lambda: now[0])
    it = Either(kind, agent_of(MockProvider(final("done"))), limits=Limits(timeout=5))
    now[0] = 60.0
    await it.rest()
    assert it.events.result.text == "done"


def test_an_answer_that_came_before_the_consumer_left_is_kept() -> None:
    with stream(agent_of(MockProvider(final("done"))), "go") as events:
        next(event for event in events if event.type == "final")
    assert events.result.text == "done"


@pytest.mark.parametrize("how", ["leave", "close", ZeroDivisionError, KeyboardInterrupt])
def test_leaving_a_stream_closes_the_connection_before_it_returns(how: Any) -> None:
    provider, recorder = Pieces(endless=True), Recorder()
    events = stream(agent_of(provider), "go", recorder=recorder)
    with suppress(ZeroDivisionError, KeyboardInterrupt), events:
        for _ in range(6):
            next(events)
        if how == "close":
            events.close()
        elif how != "leave":
            raise how
    assert provider.closed.acquire(blocking=False)
    assert events.result.stop_reason == "cancelled"
    assert last_result(recorder)["stop_reason"] == "cancelled"
    assert list(events) == []
    with pytest.raises(RunCancelledError) as caught:
        events.result.unwrap()
    assert caught.value.result is events.result


@pytest.mark.parametrize("kind, of", [(stream, Tasks), (astream, AsyncTasks)])
async def test_leaving_a_stream_ends_all_its_tasks(kind: Any, of: type[Tasks]) -> None:
    provider, recorder, before = of(), Recorder(), asyncio.all_tasks()
    it = Either(kind, agent_of(provider), recorder=recorder)
    while provider.opened < 8:  # each event that is taken lets the run continue by one
        await it.next()
    await it.close()
    assert all(provider.closed.acquire(blocking=False) for _ in range(8))
    assert [event.data["stop_reason"] for event in recorder.for_event("result")] == ["cancelled"] * 9
    assert len(recorder.for_event("task_error")) == 8
    assert last_result(recorder)["stop_reason"] == "cancelled"
    assert asyncio.all_tasks() == before


def test_an_abandoned_stream_in_a_cycle_frees_its_providers_threads_too() -> None:
    provider = Tasks("abcd")
    holder: dict[str, Any] = {}
    holder["self"] = holder
    holder["events"] = stream(agent_of(provider), "go")
    while provider.opened < 4:
        next(holder["events"])
    del holder
    gc.collect()
    for _ in range(4):
        assert provider.closed.acquire(timeout=PATIENCE)


def test_close_may_be_called_from_another_thread_while_the_consumer_waits() -> None:
    waiting, go_on = threading.Event(), threading.Event()

    def answer(*_: object) -> str:
        waiting.set()
        go_on.wait(PATIENCE)
        return "done"

    events = stream(agent_of(MockProvider().on_call(answer)), "go")
    consumer = threading.Thread(target=list, args=(events,))
    consumer.start()
    assert waiting.wait(PATIENCE)
    stopper = threading.Thread(target=events.close)
    stopper.start()
    while not events._driving._driver.root.cancellation.is_set():
        stopper.join(0.001)
    go_on.set()
    for thread in (stopper, consumer):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert events.result.stop_reason == "cancelled"


@EITHER
async def test_a_callback_may_close_the_stream_it_hears(kind: Any) -> None:
    provider, recorder = AsyncPieces(endless=True), Recorder()

    def listen(event: Event) -> Any:
        return (it.events.close if kind is stream else it.events.aclose)() if event.type == "text_chunk" else None

    it = Either(kind, agent_of(provider), on_event=listen, recorder=recorder)
    await it.rest()
    assert provider.closed.acquire(blocking=False)
    assert last_result(recorder)["stop_reason"] == "cancelled"


def test_a_callback_cannot_read_the_stream_it_hears() -> None:
    def listen(event: Event) -> None:
        with pytest.raises(KernaiError, match="a run cannot wait for its own events"):
            next(events)
        heard.append(event.type)

    heard: list[str] = []
    events = stream(agent_of(MockProvider(final("done"))), "go", on_event=listen)
    assert [event.type for event in events] == heard


async def test_an_async_stream_inside_the_run_of_another_one_may_close_that_one() -> None:
    def calling(call: Any) -> AsyncRunStream[Any]:
        one = Skill("call", execute=call, inputs={})
        return astream(agent_of(MockProvider(command("call"), final("done")), skills=[one]), "go")

    async def nested() -> str:
        async with calling(lambda: outer.aclose()) as inner:
            return str([event.type async for event in inner])

    outer = calling(nested)
    assert [event.type async for event in outer][-1] == "skill_execute"  # the consumer of a closed stream gets no more
    assert outer.result.stop_reason == "cancelled"


# ------------------------------------------------------------------------------------------- leaving an async stream

ASYNC_PROVIDERS = pytest.mark.parametrize("kind", [Pieces, AsyncPieces], ids=["in a thread", "native"])


@ASYNC_PROVIDERS
@pytest.mark.parametrize("how", ["leave", "aclose", "raise", "cancel"])
async def test_leaving_an_async_stream_closes_the_connection(kind: type[Pieces], how: str) -> None:
    provider, recorder = kind(endless=True), Recorder()
    events = astream(agent_of(provider), "go", recorder=recorder)

    async def consume() -> None:
        async with events:
            async for event in events:
                if event.type != "text_chunk":
                    continue
                if how == "aclose":
                    await events.aclose()
                if how == "raise":
                    raise ZeroDivisionError
                if how == "cancel":
                    task.cancel()
                    await asyncio.sleep(0)
                break

    task = asyncio.ensure_future(consume())
    ended = await asyncio.gather(task, return_exceptions=True)
    expected = {"raise": ZeroDivisionError, "cancel": asyncio.CancelledError}.get(how, type(None))
    assert isinstance(ended[0], expected)
    assert await asyncio.to_thread(provider.closed.acquire, timeout=PATIENCE)
    assert events.result.stop_reason == "cancelled"
    assert last_result(recorder)["stop_reason"] == "cancelled"
    assert [event async for event in events] == []
    await events.aclose()


async def test_an_async_stream_that_failed_and_is_closed_early_logs_no_warning() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    agent = agent_of(MockProvider(final("done"))).replace(instructions=_fails)
    async with astream(agent, "go") as events:
        assert (await anext(events)).type == "run_start"
        assert (await anext(events)).type == "result"
        await asyncio.sleep(0)
    del events
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


@pytest.mark.parametrize("cancel_at", ["before", "text_chunk", "result"])
async def test_a_stream_has_its_result_even_if_its_consumer_is_cancelled_at_each_await(cancel_at: str) -> None:
    """As some frameworks do it when a client disconnects."""
    opened: list[Any] = []
    there, recorder = asyncio.Event(), Recorder()

    async def consume() -> None:
        async with astream(agent_of(MockProvider("Hm. " * 20)), "go", recorder=recorder) as events:
            opened.append(events)
            if cancel_at != "before":
                async for event in events:
                    if event.type == cancel_at:
                        break
            there.set()
            await asyncio.Event().wait()

    consumer = asyncio.ensure_future(consume())
    await there.wait()
    while not consumer.done():
        consumer.cancel()
        await asyncio.sleep(0)
    assert consumer.cancelled()
    assert opened[0].result.stop_reason == ("final" if cancel_at == "result" else "cancelled")
    assert recorder.entries[-1].type == "result"
    assert asyncio.all_tasks() == {asyncio.current_task()}


@EITHER
async def test_several_consumers_of_a_stream_all_reach_its_end(kind: Any) -> None:
    events = kind(agent_of(MockProvider("Hm. " * 20)), "go")

    async def consume() -> list[Event]:
        return await asyncio.to_thread(list, events) if kind is stream else [event async for event in events]

    async with asyncio.timeout(PATIENCE):
        parts = await asyncio.gather(consume(), consume(), consume())
    seen = [event.type for part in parts for event in part]
    assert (seen.count("result"), seen.count("text_chunk")) == (1, len("Hm. " * 20))
    assert events.result.text == "Hm. " * 20


@pytest.mark.parametrize("protocol", [False, True], ids=["skill", "protocol"])
@pytest.mark.parametrize("native", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("parallel", [False, True], ids=["one by one", "at once"])
@EITHER
def test_progress_is_seen_while_the_call_is_under_way(kind: Any, parallel: bool, native: bool, protocol: bool) -> None:
    seen = threading.Event()

    def report(ctx: SkillContext[Any]) -> str:
        ctx.emit("under way")
        assert native or seen.wait(PATIENCE)
        return "reported"

    async def report_later(ctx: SkillContext[Any]) -> str:
        report(ctx)
        while not seen.is_set():
            await asyncio.sleep(0.001)
        return "reported"

    async def handle_later(_: Block, ctx: SkillContext[Any]) -> str:
        return await report_later(ctx)

    def listen(event: Event) -> None:
        if event.type == "progress":
            seen.set()

    async def consume() -> None:
        async for event in astream(agent, "go"):
            listen(event)

    turn = '<block type="reports">x</block>' if protocol else command("report")
    agent = agent_of(
        MockProvider(turn * (1 + parallel), final("done")), parallel_skills=parallel,
        skills=[Skill("report", execute=report_later if native else report)],
        protocols=[Protocol("reports", handle_later if native else lambda _, ctx: report(ctx))],
    )
    if kind is astream:
        asyncio.run(consume())
    else:
        list(map(listen, stream(agent, "go")))
    assert seen.is_set()


# --------------------------------------------------------------------------------------------------------- the channel


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


class _LeaveAt:
    """Leaves the channel at the n-th line of its own code, in the same thread: as the garbage collector does when it
    finds a stream that was dropped while this very thread works for it.
    """

    def __init__(self, channel: Channel, line: int) -> None:
        self.channel = channel
        self.left = line

    def __call__(self, frame: FrameType, what: str, _: object) -> Any:
        if frame.f_code.co_filename != run_stream.__file__:
            return None
        if what == "line":
            self.left -= 1
            if self.left == 0:
                self.channel.leave()
        return self


def test_a_channel_may_be_closed_during_any_of_its_own_calls_in_the_same_thread() -> None:
    lines, ended, taken = list[int](), list[bool](), list[Event | None]()

    def work(channel: Channel, line: int) -> None:
        channel.consumer = threading.get_ident()  # so that `put` does not wait: nobody takes the events
        leaving = _LeaveAt(channel, line)
        sys.settrace(leaving)
        try:
            channel.put(Event("progress", 1))
            channel.wait_until_taken()
            channel.end()
        finally:
            sys.settrace(None)
        taken.append(channel.get(0))
        ended.append(channel.ended)
        lines.append(leaving.left)

    line = 0
    while not lines or lines[-1] <= 0:
        line += 1
        channel = Channel()
        thread = threading.Thread(target=work, args=(channel, line), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"it hangs when left at line {line} of its work"
    assert line > 8
    assert all(ended)
    # the event is there if the channel was not left, or was left just as the event was put in
    assert len(taken) - taken.count(None) == 2


def test_the_end_of_a_run_wakes_its_consumer() -> None:
    began, channel = time.monotonic(), Channel()
    threading.Timer(0.02, channel.end).start()
    assert (channel.get(PATIENCE), time.monotonic() - began < PATIENCE / 2) == (None, True)


IN_A_FORK = """
import os, kernai
events = kernai.stream(kernai.Agent(instructions="x", provider=kernai.MockProvider("Hello.")), "go")
next(events)
if not (child := os.fork()):
    try:
        next(events)
    except kernai.KernaiError:
        events.close()
        os._exit(0)
print(os.waitpid(child, 0)[1], [event.type for event in events][-1], events.result.text)
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_stream_belongs_to_the_process_that_began_it() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_FORK], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout == "0 result Hello.\n"
