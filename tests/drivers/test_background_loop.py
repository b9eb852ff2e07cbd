"""`BackgroundLoop`: an event loop in a thread of its own, and nothing of it afterwards."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from typing import Any

import pytest

from kernai.drivers.background_loop import BackgroundLoop
from tests.ways import PATIENCE

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    made = BackgroundLoop("kernai-test")
    yield made
    made.close()


async def value(of: Any) -> Any:
    await asyncio.sleep(0)
    return of


def in_time(loop: BackgroundLoop, awaitable: Awaitable[Any]) -> Any:
    """Its result; fails instead of hanging."""
    ended: list[Any] = []

    def wait() -> None:
        try:
            ended.append(loop.run(awaitable))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(PATIENCE / 4)
    assert ended, "it hangs"
    return ended[0]


def test_any_awaitable_will_do(loop: BackgroundLoop) -> None:
    class Later:
        def __await__(self) -> Any:
            return value("later").__await__()

    class Broken:
        def __await__(self) -> int:
            return 5

    assert loop.run(Later()) == "later"
    with pytest.raises(TypeError):
        loop.run(Broken())  # type: ignore[arg-type]  # the nonsense under test


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_what_would_end_an_event_loop_from_within_a_task_of_a_skill_does_not_hang_the_skill(
    error: BaseException,
) -> None:
    loop = BackgroundLoop("kernai-test")

    async def leave() -> None:
        raise error

    async def gather() -> None:
        await asyncio.gather(leave(), asyncio.sleep(0))

    assert in_time(loop, gather()) is error
    assert in_time(loop, value(5)) == 5
    loop.close()


def test_a_close_that_ctrl_c_interrupts_is_done_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = BackgroundLoop("kernai-test")
    assert in_time(loop, value(5)) == 5

    def interrupted(work: Coroutine[Any, Any, Any], _: asyncio.AbstractEventLoop) -> None:
        work.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        loop.close()
    loop.close()
    assert "kernai-test" not in [one.name for one in threading.enumerate()]


def test_closing_cancels_what_was_left_and_ends_thread_and_loop() -> None:
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


def test_what_comes_after_the_end_is_refused_and_not_forgotten() -> None:
    loop = BackgroundLoop("kernai-test")
    loop.run(value(1))
    loop.close()
    for awaitable in (value(2), value(3)):
        with pytest.raises(Exception, match="ended"):
            loop.run(awaitable)
    gc.collect()  # a coroutine that nobody closed would warn here


def test_closing_frees_whoever_waits() -> None:
    loop, begun = BackgroundLoop("kernai-test"), threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    ended: list[str] = []

    def run() -> None:
        try:
            loop.run(wait())
        except BaseException as error:
            ended.append(type(error).__name__)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(PATIENCE)
    loop.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert ended == ["CancelledError"]
